package main

import (
	"context"
	"errors"
	"strings"
	"testing"
)

func TestCompare(t *testing.T) {
	var order strings.Builder
	rates := map[string][]float64{"a": {99, 1, 5, 3}, "b": {99, 2, 2, 8}}
	of := func(name string) side {
		return side{name: name, run: func(context.Context) (float64, error) {
			order.WriteString(name)
			rate := rates[name][0]
			rates[name] = rates[name][1:]
			return rate, nil
		}}
	}
	r, err := compare(t.Context(), 3, "x", "MiB/s", "0.9", of("a"), of("b"))
	if err != nil || r.ratio() != 1.5 {
		t.Errorf("ratio %v, %v, want the medians 3 / 2", r.ratio(), err)
	}
	if order.String() != "baabbaab" {
		t.Errorf("order %s", order.String())
	}
	order.Reset()
	rates = map[string][]float64{"a": {9, 1, 2}, "b": {9, 3, 4}, "c": {9, 5, 8}}
	rows, err := compareAll(t.Context(), 2, "x", "MiB/s", of("a"), of("b"), of("c"))
	if err != nil || len(rows) != 2 || rows[0].ratio() != 1./5 || rows[1].ratio() != 3./5 || rows[1].left != "b" || rows[1].right != "c" {
		t.Errorf("rows %+v, %v", rows, err)
	}
	if order.String() != "cba"+"abc"+"acb" {
		t.Errorf("order %s", order.String())
	}
	var out strings.Builder
	if err := table(&out, []row{r}); err != nil || !strings.Contains(out.String(), "| x: a / b | 1.50 | 0.9 | 3.0 MiB/s | 2.0 MiB/s | 1.0, 5.0, 3.0 | 2.0, 2.0, 8.0 |") {
		t.Errorf("table: %v\n%s", err, out.String())
	}
	out.Reset()
	one := row{what: "y", unit: "s", goal: "at most 5 s", lefts: []float64{3, 0.05, 7}}
	if err := table(&out, []row{one}); err != nil || !strings.Contains(out.String(), "| y | 3.0 s | at most 5 s | | | 3.0, 0.050, 7.0 | |\n") {
		t.Errorf("table: %v\n%s", err, out.String())
	}
	failing := side{run: func(context.Context) (float64, error) { return 0, errors.New("broken") }}
	if _, err := compare(t.Context(), 1, "x", "", "", failing, failing); err == nil {
		t.Error("a side that fails was measured")
	}
}
