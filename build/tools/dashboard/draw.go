// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"image/color"
	"image/png"
	"math"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
)

// The size of a picture, and of a unit of Grafana's grid, which has 24 columns.
const (
	columns     = 24
	columnWidth = vg.Length(25)
	rowHeight   = vg.Length(19)
	gap         = vg.Length(5)
	resolution  = 120 // dots per inch
)

var (
	background = color.RGBA{0xf4, 0xf5, 0xf5, 0xff}
	paper      = color.RGBA{0xff, 0xff, 0xff, 0xff}
	ink        = color.RGBA{0x2c, 0x32, 0x35, 0xff}
	faint      = color.RGBA{0xd8, 0xdb, 0xde, 0xff}
	// colors distinguish lines, also for most of those who see few colors:
	// https://personal.sron.nl/~pault/
	colors = []color.Color{
		color.RGBA{0x44, 0x77, 0xaa, 0xff}, color.RGBA{0xee, 0x66, 0x77, 0xff}, color.RGBA{0x22, 0x88, 0x33, 0xff},
		color.RGBA{0xcc, 0xbb, 0x44, 0xff}, color.RGBA{0x66, 0xcc, 0xee, 0xff}, color.RGBA{0xaa, 0x33, 0x77, 0xff},
		color.RGBA{0x88, 0x88, 0x88, 0xff}, color.RGBA{0xee, 0x77, 0x33, 0xff}, color.RGBA{0x11, 0x11, 0x11, 0xff},
	}
)

// board is the whole picture while it is drawn.
type board struct {
	canvas      draw.Canvas
	height      vg.Length
	first, last float64 // times
	nodes       []string
}

// begin returns an empty picture for panels.
func begin(panels []panel) (*board, *vgimg.Canvas) {
	rows := 0
	for _, p := range panels {
		rows = max(rows, p.GridPos.Y+p.GridPos.H)
	}
	height := vg.Length(rows)*rowHeight + gap
	image := vgimg.NewWith(vgimg.UseWH(columns*columnWidth+gap, height), vgimg.UseDPI(resolution), vgimg.UseBackgroundColor(background))
	return &board{canvas: draw.New(image), height: height, first: math.Inf(1), last: math.Inf(-1)}, image
}

// picture returns a PNG.
func picture(panels []panel) ([]byte, error) {
	b, image := begin(panels)
	all := make([][]curve, len(panels))
	for i := range panels {
		curves, err := panels[i].curves()
		if err != nil {
			return nil, err
		}
		for _, c := range curves {
			b.nodes = append(b.nodes, c.node)
			b.first, b.last = min(b.first, c.points[0].at), max(b.last, c.points[len(c.points)-1].at)
		}
		all[i] = curves
	}
	slices.Sort(b.nodes)
	b.nodes = slices.Compact(b.nodes)
	for i := range panels {
		at := b.place(&panels[i])
		switch panels[i].Type {
		case "table":
			drawTable(at, &panels[i])
			continue
		case "stat":
			drawStat(at, &panels[i], all[i])
			continue
		}
		if err := b.drawCurves(at, &panels[i], all[i]); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	err := png.Encode(&out, reduced(image.Image()))
	return out.Bytes(), err
}

// place returns the canvas of a panel, with its paper drawn.
func (b *board) place(p *panel) draw.Canvas {
	g := p.GridPos
	left, top := vg.Length(g.X)*columnWidth+gap, b.height-vg.Length(g.Y)*rowHeight-gap
	c := draw.Canvas{Canvas: b.canvas.Canvas, Rectangle: vg.Rectangle{
		Min: vg.Point{X: left, Y: top - vg.Length(g.H)*rowHeight + gap},
		Max: vg.Point{X: left + vg.Length(g.W)*columnWidth - gap, Y: top},
	}}
	corners := []vg.Point{c.Min, {X: c.Max.X, Y: c.Min.Y}, c.Max, {X: c.Min.X, Y: c.Max.Y}}
	c.FillPolygon(paper, corners)
	return draw.Crop(c, gap, -gap, gap, -gap)
}

// style is that of texts.
func style(size vg.Length) text.Style {
	s := plot.New().Title.TextStyle
	s.Font.Variant, s.Font.Size, s.Color, s.XAlign, s.YAlign = "Sans", size, ink, text.XLeft, text.YBottom
	return s
}

// drawCurves draws a panel with an axis of time.
func (b *board) drawCurves(at draw.Canvas, p *panel, curves []curve) error {
	pl := plot.New()
	pl.Title.Text, pl.Title.TextStyle, pl.BackgroundColor = p.Title, style(9), paper
	pl.Title.TextStyle.XAlign, pl.Title.TextStyle.YAlign, pl.Title.Padding = text.XCenter, text.YTop, 2
	for _, axis := range []*plot.Axis{&pl.X, &pl.Y} {
		axis.Tick.Label.Font.Variant, axis.Tick.Label.Font.Size, axis.Tick.Label.Color, axis.Color, axis.Tick.Color = "Sans", 6, ink, faint, faint
	}
	pl.X.Min, pl.X.Max, pl.Y.Min = 0, b.last-b.first, 0
	pl.X.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick { return named(low, high, "s") })
	pl.Y.Tick.Marker = plot.TickerFunc(func(low, high float64) []plot.Tick { return named(low, high, p.FieldConfig.Defaults.Unit) })
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = faint, faint
	pl.Add(grid)
	var keys []key
	for i, c := range curves {
		look := draw.LineStyle{Color: colors[i%len(colors)], Width: 1}
		switch {
		case c.node == "" && i >= len(colors):
			look.Dashes = []vg.Length{3, 2}
		case c.node != "":
			look.Color = colors[slices.Index(b.nodes, c.node)%len(colors)]
			look.Dashes = [][]vg.Length{nil, {3, 2}, {1, 2}}[c.target%3]
		}
		for _, part := range c.parts() {
			var points plotter.XYs
			for _, x := range part {
				points = append(points, plotter.XY{X: x.at - b.first, Y: x.value})
			}
			line, err := plotter.NewLine(points)
			if err != nil {
				return fmt.Errorf("panel %q: %w", p.Title, err)
			}
			line.LineStyle = look
			pl.Add(line)
		}
		keys = append(keys, key{c.name, look})
	}
	if pl.Y.Max <= 0 {
		pl.Y.Max = 1
	}
	pl.Y.Max *= 1.05
	pl.Draw(draw.Crop(at, 0, 0, drawKeys(at, keys), 0))
	return nil
}

// named are the marks of an axis, with a unit.
func named(low, high float64, unit string) []plot.Tick {
	marks := plot.DefaultTicks{}.Ticks(low, high)
	for i := range marks {
		if !marks[i].IsMinor() {
			marks[i].Label = inUnit(marks[i].Value, unit)
		}
	}
	return marks
}

// key is a line of a legend.
type key struct {
	name string
	look draw.LineStyle
}

// drawKeys draws a legend below a panel, and returns its height.
func drawKeys(at draw.Canvas, keys []key) vg.Length {
	const size, sample, line = vg.Length(6.5), vg.Length(8), vg.Length(8.5)
	s := style(size)
	type place struct {
		x vg.Length
		y int
	}
	var places []place
	x, rows := vg.Length(0), 0
	for _, k := range keys {
		width := sample + 3 + s.Width(k.name) + 9
		if x > 0 && x+width > at.Max.X-at.Min.X {
			x, rows = 0, rows+1
		}
		places = append(places, place{x, rows})
		x += width
	}
	for i, k := range keys {
		left := at.Min.X + places[i].x
		bottom := at.Min.Y + line*vg.Length(rows-places[i].y)
		look := k.look
		look.Width = 2
		at.StrokeLine2(look, left, bottom+size/2, left+sample, bottom+size/2)
		at.FillText(s, vg.Point{X: left + sample + 3, Y: bottom}, k.name)
	}
	return line*vg.Length(rows+1) + 2
}

// drawStat draws the highest value that a number had, on its color.
func drawStat(at draw.Canvas, p *panel, curves []curve) {
	highest := 0.0
	for _, c := range curves {
		for _, x := range c.points {
			highest = max(highest, x.value)
		}
	}
	named := map[string]color.Color{"green": color.RGBA{0x37, 0x87, 0x2d, 0xff}, "yellow": color.RGBA{0xb5, 0x7b, 0x0a, 0xff}, "red": color.RGBA{0xc4, 0x16, 0x2a, 0xff}}
	var fill color.Color = ink
	for _, s := range p.FieldConfig.Defaults.Thresholds.Steps {
		if s.Value == nil || highest >= *s.Value {
			fill = named[s.Color]
		}
	}
	at = draw.Crop(at, -gap/2, gap/2, -gap/2, gap/2)
	at.FillPolygon(fill, []vg.Point{at.Min, {X: at.Max.X, Y: at.Min.Y}, at.Max, {X: at.Min.X, Y: at.Max.Y}})
	middle := (at.Min.X + at.Max.X) / 2
	for _, t := range []struct {
		size, y vg.Length
		text    string
	}{{8, at.Max.Y - 12, p.Title}, {22, at.Min.Y + 18, inUnit(highest, p.FieldConfig.Defaults.Unit)}, {6, at.Min.Y + 5, "at most"}} {
		s := style(t.size)
		s.XAlign, s.Color = text.XCenter, paper
		at.FillText(s, vg.Point{X: middle, Y: t.y}, t.text)
	}
}

// drawTable draws the labels of series as a table.
func drawTable(at draw.Canvas, p *panel) {
	title := style(9)
	title.XAlign, title.YAlign = text.XCenter, text.YTop
	at.FillText(title, vg.Point{X: (at.Min.X + at.Max.X) / 2, Y: at.Max.Y}, p.Title)
	rows := []string{}
	for _, t := range p.Targets {
		for _, s := range t.Series {
			rows = append(rows, s.Metric["instance"]+"\x00"+s.Metric["condition"])
		}
	}
	slices.Sort(rows)
	rows = append([]string{"instance\x00condition"}, slices.Compact(rows)...)
	const line = vg.Length(10)
	cell := style(7)
	cell.YAlign = text.YTop
	for i, row := range rows {
		y := at.Max.Y - 16 - line*vg.Length(i)
		left, right, _ := strings.Cut(row, "\x00")
		at.FillText(cell, vg.Point{X: at.Min.X + 4, Y: y}, left)
		at.FillText(cell, vg.Point{X: at.Min.X + 90, Y: y}, right)
		at.StrokeLine2(draw.LineStyle{Color: faint, Width: 0.5}, at.Min.X, y-line+1.5, at.Max.X, y-line+1.5)
	}
}
