package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// side is one of the two things that a row compares. Its function does the work once and returns how fast it was.
type side struct {
	name string
	run  func(ctx context.Context) (float64, error)
}

// row is one line of the table: what, in which unit, and the rates of the rounds.
type row struct {
	what, unit  string
	goal        string // the ratio to reach, as text; "" = reported only
	left, right string // the ratio is left / right
	lefts       []float64
	rights      []float64
}

// compare runs both sides alternately, and who goes first alternates, too: whatever drifts on the machine meets both alike. One
// round before the first one is not counted.
func compare(ctx context.Context, rounds int, what, unit, goal string, left, right side) (row, error) {
	r := row{what: what, unit: unit, goal: goal, left: left.name, right: right.name}
	for round := -1; round < rounds; round++ {
		var l, rt float64
		var err error
		if round%2 == 0 {
			if l, err = left.run(ctx); err == nil {
				rt, err = right.run(ctx)
			}
		} else {
			if rt, err = right.run(ctx); err == nil {
				l, err = left.run(ctx)
			}
		}
		if err != nil {
			return r, fmt.Errorf("%s: %w", what, err)
		}
		if round >= 0 {
			r.lefts, r.rights = append(r.lefts, l), append(r.rights, rt)
		}
	}
	return r, nil
}

// median is the middle one, of an even number the lower one.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}

func (r row) ratio() float64 { return median(r.lefts) / median(r.rights) }

// table writes the rows as markdown: the ratios of the medians, and every number that they come from.
func table(w io.Writer, rows []row) error {
	var out strings.Builder
	out.WriteString("| what | ratio | must reach | left, median | right, median | left, all rounds | right, all rounds |\n")
	out.WriteString("|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		goal := r.goal
		if goal == "" {
			goal = "reported"
		}
		fmt.Fprintf(&out, "| %s: %s / %s | %.2f | %s | %s | %s | %s | %s |\n", r.what, r.left, r.right, r.ratio(), goal,
			number(median(r.lefts))+" "+r.unit, number(median(r.rights))+" "+r.unit, numbers(r.lefts), numbers(r.rights))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func number(v float64) string {
	if v >= 100 {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.1f", v)
}

func numbers(values []float64) string {
	var words []string
	for _, v := range values {
		words = append(words, number(v))
	}
	return strings.Join(words, ", ")
}
