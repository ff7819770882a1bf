package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// side is one of the two things that a row compares. Its function does the work once and returns how fast it was.
type side struct {
	name string
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

// compare runs both sides alternately, and who goes first alternates, too: whatever drifts on the machine meets both alike. One
// round before the first one is not counted.
func compare(ctx context.Context, rounds int, what, unit, goal string, left, right side) (row, error) {
	r := row{what: what, unit: unit, goal: goal, left: left.name, right: right.name}
	err := alternate(rounds, func(counted bool) error {
		v, err := left.run(ctx)
		if counted {
			r.lefts = append(r.lefts, v)
		}
		return err
	}, func(counted bool) error {
		v, err := right.run(ctx)
		if counted {
			r.rights = append(r.rights, v)
		}
		return err
	})
	if err != nil {
		return r, fmt.Errorf("%s: %w", what, err)
	}
	return r, nil
}

// alternate is the order of compare.
func alternate(rounds int, left, right func(counted bool) error) error {
	for round := -1; round < rounds; round++ {
		first, second := right, left
		if round%2 == 0 {
			first, second = left, right
		}
		if err := first(round >= 0); err != nil {
			return err
		}
		if err := second(round >= 0); err != nil {
			return err
		}
	}
	return nil
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
