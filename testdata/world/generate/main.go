// Command generate makes the outlines of the dashboard's map from the land of Natural Earth, as the npm package world-atlas
// has it. Run it from the root of the repository:
//
//	npm pack world-atlas@2.0.2 && tar xf world-atlas-2.0.2.tgz
//	go run ./testdata/world/generate package/land-110m.json > admin/dashboard/world.js
//
// The map is equirectangular: x is the longitude and y the latitude downwards, in tenths of a degree from 180° west and
// 84° north; it ends at 58° south. The same input gives the same bytes.
package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
)

const (
	north, south = 84.0, -58.0
	// tolerance is how far a line may be from the outline, in tenths of a degree, and least the area of the smallest island.
	tolerance, least = 4, 60
)

// topology is what is read of a TopoJSON file: rings of arcs, whose points are differences on a grid.
type topology struct {
	Transform struct{ Scale, Translate [2]float64 }
	Arcs      [][][2]float64
	Objects   struct {
		Land struct {
			Geometries []struct{ Arcs [][][]int }
		}
	}
}

type point struct{ x, y float64 }

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("give the file land-110m.json of world-atlas")
	}
	data, err := os.ReadFile(os.Args[1])
	if err != nil {
		return err
	}
	var t topology
	if err := json.Unmarshal(data, &t); err != nil {
		return err
	}
	arcs := make([][]point, len(t.Arcs))
	for i, arc := range t.Arcs {
		var x, y float64
		for _, d := range arc {
			x, y = x+d[0], y+d[1]
			lon, lat := x*t.Transform.Scale[0]+t.Transform.Translate[0], y*t.Transform.Scale[1]+t.Transform.Translate[1]
			arcs[i] = append(arcs[i], point{(lon + 180) * 10, (north - lat) * 10})
		}
	}
	var path strings.Builder
	for _, g := range t.Objects.Land.Geometries {
		for _, polygon := range g.Arcs {
			for _, ring := range polygon {
				draw(&path, outline(arcs, ring))
			}
		}
	}
	fmt.Printf("// Written by testdata/world/generate from Natural Earth; see world.license. Do not edit.\nexport const land =\n  %q;\n", path.String())
	return nil
}

// outline joins the arcs of a ring; one that is below zero is the other way round.
func outline(arcs [][]point, ring []int) []point {
	var all []point
	for _, i := range ring {
		arc := arcs[max(i, ^i)]
		for j := range arc {
			p := arc[j]
			if i < 0 {
				p = arc[len(arc)-1-j]
			}
			if j > 0 || len(all) == 0 {
				all = append(all, p)
			}
		}
	}
	return all
}

// draw adds a ring to an SVG path: simplified, in whole tenths of a degree, each point relative to the last.
func draw(path *strings.Builder, ring []point) {
	area, lowest := 0.0, math.Inf(1)
	for i, p := range ring {
		q := ring[(i+1)%len(ring)]
		area += p.x*q.y - q.x*p.y
		lowest = min(lowest, p.y)
	}
	if math.Abs(area)/2 < least || lowest > (north-south)*10 {
		return
	}
	// Between two points that are far apart, for a ring ends where it begins.
	half := len(ring) / 2
	points := append(simplify(ring[:half+1]), simplify(ring[half:])[1:]...)
	// What crosses 180° goes on beyond the edge, and is drawn again from the other one.
	west, east := points[0].x, points[0].x
	for i := range points[1:] {
		for _, turn := range []float64{-3600, 3600} {
			if p := &points[i+1]; math.Abs(p.x+turn-points[i].x) < math.Abs(p.x-points[i].x) {
				p.x += turn
			}
		}
		west, east = min(west, points[i+1].x), max(east, points[i+1].x)
	}
	write(path, points, 0)
	if west < 0 {
		write(path, points, 3600)
	}
	if east > 3600 {
		write(path, points, -3600)
	}
}

func write(path *strings.Builder, points []point, shift int) {
	x, y := 0, 0
	for i, p := range points[:len(points)-1] {
		px, py := int(math.Round(p.x))+shift, int(math.Round(p.y))
		if i == 0 {
			fmt.Fprintf(path, "M%d %d", px, py)
		} else {
			fmt.Fprintf(path, "l%d %d", px-x, py-y)
		}
		x, y = px, py
	}
	path.WriteString("z")
}

// simplify leaves out points that are within tolerance of the line between those that are left (Douglas and Peucker).
func simplify(line []point) []point {
	if len(line) < 3 {
		return line
	}
	a, b := line[0], line[len(line)-1]
	length := math.Hypot(b.x-a.x, b.y-a.y)
	far, at := 0.0, 0
	for i, p := range line {
		d := math.Hypot(p.x-a.x, p.y-a.y)
		if length > 0 {
			d = math.Abs((b.x-a.x)*(a.y-p.y)-(a.x-p.x)*(b.y-a.y)) / length
		}
		if d > far {
			far, at = d, i
		}
	}
	if far <= tolerance {
		return []point{a, b}
	}
	return append(simplify(line[:at+1:at+1]), simplify(line[at:])[1:]...)
}
