package main

import (
	"fmt"
	"html"
	"math"
	"strings"
)

// A panel is one diagram: of lines over time, or of bars.
type panel struct {
	title, unit string
	mark        float64 // a level to draw; 0: none
	lines       []line
	bars        []bars
}

// bars are the values of one thing before and after.
type bars struct {
	name          string
	before, after float64
}

// A line is one series: x in seconds.
type line struct {
	name   string
	colour int
	dashed bool
	x, y   []float64
}

// The size of a panel in pixels: of all of it, and of its margins.
const (
	panelWidth, panelHeight  = 760, 240
	marginLeft, marginRight  = 56, 130
	marginTop, marginBottom  = 28, 30
	plotWidth, plotHeight    = panelWidth - marginLeft - marginRight, panelHeight - marginTop - marginBottom
	mostColours              = 8
	mostPoints               = 360 // of a line
	mostNames                = 12  // written in a panel
	titleHeight              = 26
	legendLine, legendIndent = 16, 12
)

// draw writes panels below each other as SVG. The colours are told apart by those who see fewer of them as well.
func draw(title string, panels []panel) string {
	colours := [mostColours]string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000"}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", panelWidth, titleHeight+panelHeight*len(panels))
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="#fff"/><text x="%d" y="18" font-size="14">%s</text>`+"\n", marginLeft, html.EscapeString(title))
	for i, p := range panels {
		fmt.Fprintf(&b, `<g transform="translate(%d,%d)">`+"\n", marginLeft, titleHeight+panelHeight*i+marginTop)
		last, top := 0.0, p.mark
		for _, l := range p.lines {
			for k := range l.x {
				last, top = max(last, l.x[k]), max(top, l.y[k])
			}
		}
		for _, pair := range p.bars {
			top = max(top, pair.before, pair.after)
		}
		last, top = max(last, 1), max(top*1.05, 1e-9)
		x := func(v float64) float64 { return v / last * plotWidth }
		y := func(v float64) float64 { return plotHeight * (1 - v/top) }
		fmt.Fprintf(&b, `<text y="-10" font-size="12">%s</text>`+"\n", html.EscapeString(p.title))
		step := round125(top / 5)
		for v := 0.0; v <= top; v += step {
			fmt.Fprintf(&b, `<path d="M0 %.1fh%d" stroke="#ddd"/><text x="-6" y="%.1f" text-anchor="end">%.4g %s</text>`+"\n", y(v), plotWidth, y(v)+4, v, html.EscapeString(p.unit))
		}
		for v, step := 0.0, minutes(last); v <= last && len(p.bars) == 0; v += step {
			fmt.Fprintf(&b, `<path d="M%.1f 0v%d" stroke="#eee"/><text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", x(v), plotHeight, x(v), plotHeight+16, clock(v))
		}
		if p.mark > 0 {
			fmt.Fprintf(&b, `<path d="M0 %.1fh%d" stroke="#c00" stroke-dasharray="2 3"/>`+"\n", y(p.mark), plotWidth)
		}
		for _, l := range p.lines {
			style := ""
			if l.dashed {
				style = ` stroke-dasharray="4 4" opacity="0.5"`
			}
			fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="1.5"%s points="`, colours[l.colour%mostColours], style)
			for k := 0; k < len(l.x); k += len(l.x)/mostPoints + 1 {
				fmt.Fprintf(&b, "%.0f,%.1f ", x(l.x[k]), y(l.y[k]))
			}
			b.WriteString("\"/>\n")
		}
		width := plotWidth / float64(max(len(p.bars), 1))
		for i, pair := range p.bars {
			colour := colours[i%mostColours]
			for k, v := range []float64{pair.before, pair.after} {
				fmt.Fprintf(&b, `<rect x="%.1f" y="%.1f" width="%.1f" height="%.1f" fill="%s" opacity="%g"/>`+"\n",
					(float64(i)+0.15+0.35*float64(k))*width, y(v), 0.35*width, y(0)-y(v), colour, [2]float64{0.4, 1}[k])
			}
			if len(p.bars) <= mostNames {
				fmt.Fprintf(&b, `<text x="%.1f" y="%d" text-anchor="middle">%s</text>`+"\n", (float64(i)+0.5)*width, plotHeight+16, html.EscapeString(pair.name))
			}
		}
		row := 0
		for _, l := range p.lines {
			if !l.dashed && row < mostNames {
				fmt.Fprintf(&b, `<path d="M%d %dh18" stroke="%s" stroke-width="3"/><text x="%d" y="%d">%s</text>`+"\n",
					plotWidth+legendIndent, row*legendLine+4, colours[l.colour%mostColours], plotWidth+legendIndent+24, row*legendLine+8, html.EscapeString(l.name))
				row++
			}
		}
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.String()
}

// round125 returns the next of 1, 2 and 5 with zeros.
func round125(v float64) float64 {
	unit := math.Pow(10, math.Floor(math.Log10(v)))
	for _, n := range []float64{1, 2, 5} {
		if n*unit >= v {
			return n * unit
		}
	}
	return 10 * unit
}

// minutes returns the seconds between two marks of a time axis.
func minutes(last float64) float64 {
	for _, step := range []float64{1, 5, 15, 60, 300, 600, 1800, 3600, 7200} {
		if last/step <= 12 {
			return step
		}
	}
	return 4 * 3600
}

// clock writes seconds as h:mm:ss, without hours where there are none.
func clock(v float64) string {
	s := int(v)
	if s >= 3600 {
		return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
	}
	return fmt.Sprintf("%d:%02d", s/60, s%60)
}
