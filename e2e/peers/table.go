//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	beginMark = "<!-- bench-peers: begin -->"
	endMark   = "<!-- bench-peers: end -->"
)

// A spread is the median of some numbers, and the least and the most of them.
type spread struct{ median, least, most float64 }

func spreadOf(of []sample, value func(i int) float64) spread {
	var all []float64
	for i := range of {
		all = append(all, value(i))
	}
	slices.Sort(all)
	middle := len(all) / 2
	median := all[middle]
	if len(all)%2 == 0 {
		median = (all[middle-1] + all[middle]) / 2
	}
	return spread{median, all[0], all[len(all)-1]}
}

// write formats a spread; scale divides.
func (s spread) write(format string, scale float64) string {
	return fmt.Sprintf(format+" ("+format+"–"+format+")", s.median/scale, s.least/scale, s.most/scale)
}

// table writes the results as Markdown.
func table(p *plan, head string, results []result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", head)
	for _, r := range results {
		w := workloads[order(r.Workload)]
		fmt.Fprintf(&b, "\n**%s**\n\n", w.title)
		if why := r.Why["all"]; why != "" {
			fmt.Fprintf(&b, "Not measured: %s.\n", why)
			continue
		}
		b.WriteString("| server | queries/s, in thousands | CPU ns/query | CPU ÷ gdnsd | CPU ÷ limit | p99 at half load, µs |\n|---|---|---|---|---|---|\n")
		for _, s := range servers {
			got := r.Samples[s.name]
			if len(got) == 0 {
				if why := r.Why[s.name]; why != "" {
					fmt.Fprintf(&b, "| %s | not measured: %s | | | | |\n", s.name, strings.ReplaceAll(why, "\n", " "))
				}
				continue
			}
			against := func(name string) string {
				other := r.Samples[name]
				if len(other) != len(got) {
					return ""
				}
				return spreadOf(got, func(i int) float64 { return got[i].CPU / other[i].CPU }).write("%.2f", 1)
			}
			p99 := ""
			if got[0].P99 > 0 {
				p99 = spreadOf(got, func(i int) float64 { return float64(got[i].P99) }).write("%.0f", float64(time.Microsecond))
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", s.name,
				spreadOf(got, func(i int) float64 { return got[i].Rate }).write("%.0f", 1000),
				spreadOf(got, func(i int) float64 { return got[i].CPU }).write("%.0f", 1),
				against("gdnsd"), against(servers[0].name), p99)
		}
		if r.Pace > 0 {
			fmt.Fprintf(&b, "\nHalf load: %.0f thousand queries a second, or half of its own rate for who does less.\n", r.Pace/1000)
		}
		if got := r.Samples["gslbd"]; len(got) > 0 && got[0].Allocs >= 0 {
			fmt.Fprintf(&b, "\ngslbd allocated %s heap objects a query, with those of reading its counters twice.\n",
				spreadOf(got, func(i int) float64 { return got[i].Allocs }).write("%.4f", 1))
		}
	}
	return b.String()
}

// replace puts the table between the marks in a file.
func replace(path, text string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	begin, end := bytes.Index(b, []byte(beginMark)), bytes.Index(b, []byte(endMark))
	if begin < 0 || end < begin {
		return errors.New(path + " has no lines " + beginMark + " and " + endMark + " for the table to stand between")
	}
	out := slices.Concat(b[:begin+len(beginMark)], []byte("\n"+text), b[end:])
	return os.WriteFile(path, out, 0o644)
}
