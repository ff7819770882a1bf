package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// side is one of the things that a row compares. Its function does the work once and returns how fast it was.
type side struct {
	name string
	goal string // what its ratio has to reach where it is the left one of compareAll, as text; "" = reported only
	run  func(ctx context.Context) (float64, error)
}

// row is one line of the table: what, in which unit, and the numbers of the rounds. It is of two sides and its result is the
// ratio of their medians, or it is of one (no right name), whose median counts.
type row struct {
	what, unit  string
	goal        string // what the result has to reach, as text; "" = reported only
	left, right string // the ratio is left / right
	lefts       []float64
	rights      []float64
}

// compare makes a row of two sides, whose rounds alternate.
func compare(ctx context.Context, rounds int, what, unit, goal string, left, right side) (row, error) {
	left.goal = goal
	rows, err := compareAll(ctx, rounds, what, unit, left, right)
	if err != nil {
		return row{}, err
	}
	return rows[0], nil
}

// compareAll makes a row of each side but the last, against the last. All sides run in each round.
func compareAll(ctx context.Context, rounds int, what, unit string, sides ...side) ([]row, error) {
	values := make([][]float64, len(sides))
	var runs []func(counted bool) error
	for i, s := range sides {
		runs = append(runs, func(counted bool) error {
			v, err := s.run(ctx)
			if counted {
				values[i] = append(values[i], v)
			}
			return err
		})
	}
	if err := alternate(rounds, runs...); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return against(what, unit, sides, values), nil
}

// against makes the rows of compareAll from what the sides have measured.
func against(what, unit string, sides []side, values [][]float64) (rows []row) {
	last := len(sides) - 1
	for i, s := range sides[:last] {
		rows = append(rows, row{
			what: what, unit: unit, goal: s.goal, left: s.name, right: sides[last].name, lefts: values[i], rights: values[last],
		})
	}
	return rows
}

// alternate has each of the sides run once a round, and the rounds go through all orders: whatever drifts on the machine, or is left
// by the side before, meets all alike. One round before the first one is not counted.
func alternate(rounds int, runs ...func(counted bool) error) error {
	all := orders(len(runs))
	for round := -1; round < rounds; round++ {
		for _, i := range all[(round+len(all))%len(all)] {
			if err := runs[i](round >= 0); err != nil {
				return err
			}
		}
	}
	return nil
}

// orders are those that n things can have.
func orders(n int) [][]int {
	if n == 0 {
		return [][]int{nil}
	}
	var all [][]int
	for first := range n {
		for _, rest := range orders(n - 1) {
			order := []int{first}
			for _, i := range rest {
				if i >= first {
					i++
				}
				order = append(order, i)
			}
			all = append(all, order)
		}
	}
	return all
}

// until waits until something is done, and looks so often.
func until(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	for tick := time.Tick(every); ; {
		if is, err := done(); err != nil || is {
			return err
		}
		select {
		case <-tick:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// median is the middle one, of an even number the lower one.
func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[(len(sorted)-1)/2]
}

func (r row) ratio() float64 { return median(r.lefts) / median(r.rights) }

// table writes the rows as markdown: the ratios of the medians, or the medians, and every number that they come from.
func table(w io.Writer, rows []row) error {
	var out strings.Builder
	out.WriteString("| what | result | must reach | left, median | right, median | left, all rounds | right, all rounds |\n")
	out.WriteString("|---|---|---|---|---|---|---|\n")
	for _, r := range rows {
		goal := r.goal
		if goal == "" {
			goal = "reported"
		}
		left := number(median(r.lefts)) + " " + r.unit
		if r.right == "" {
			fmt.Fprintf(&out, "| %s | %s | %s | | | %s | |\n", r.what, left, goal, numbers(r.lefts))
			continue
		}
		fmt.Fprintf(&out, "| %s: %s / %s | %.2f | %s | %s | %s | %s | %s |\n", r.what, r.left, r.right, r.ratio(), goal,
			left, number(median(r.rights))+" "+r.unit, numbers(r.lefts), numbers(r.rights))
	}
	_, err := io.WriteString(w, out.String())
	return err
}

func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 1:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3f", v)
}

func numbers(values []float64) string {
	var words []string
	for _, v := range values {
		words = append(words, number(v))
	}
	return strings.Join(words, ", ")
}
