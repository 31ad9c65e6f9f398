// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
)

// panel is a part of the dashboard, and what it shows.
type panel struct {
	Title, Type string
	GridPos     struct{ X, Y, W, H int }
	Targets     []struct {
		LegendFormat string
		Series       []series
	}
	FieldConfig struct {
		Defaults struct {
			Unit       string
			Thresholds struct {
				Steps []struct {
					Color string
					Value *float64 // nil for the first
				}
			}
		}
	}
}

type series struct {
	Metric map[string]string
	Values [][2]any // of a time and a value, as text
}

// curve is a line of a panel.
type curve struct {
	name   string
	node   string // that it is of, "" for all
	target int    // which query of the panel it answers
	points []point
}

type point struct{ at, value float64 }

var label = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)

// curves returns the lines of a panel, in the order of their names.
func (p *panel) curves() ([]curve, error) {
	var all []curve
	for i, t := range p.Targets {
		for _, s := range t.Series {
			c := curve{target: i, node: s.Metric["instance"]}
			c.name = label.ReplaceAllStringFunc(t.LegendFormat, func(m string) string { return s.Metric[label.FindStringSubmatch(m)[1]] })
			var err error
			if c.points, err = s.points(p.scale()); err != nil {
				return nil, fmt.Errorf("panel %q: %w", p.Title, err)
			}
			if len(c.points) > 0 {
				all = append(all, c)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b curve) int { return cmp.Compare(a.name, b.name) })
	return all, nil
}

// points returns the values that are numbers, times scale.
func (s series) points(scale float64) ([]point, error) {
	var all []point
	for _, v := range s.Values {
		at, isNumber := v[0].(float64)
		text, isText := v[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if !isNumber || !isText || err != nil {
			return nil, fmt.Errorf("value %v: want a time and a number as text", v)
		}
		if !math.IsNaN(value) && !math.IsInf(value, 0) {
			all = append(all, point{at, value * scale})
		}
	}
	return all, nil
}

// step is the longest time between two points of one line, in seconds. Over more, there
// was no data.
const step = 1.5

// parts divides a line where data are missing.
func (c curve) parts() [][]point {
	var all [][]point
	for i, p := range c.points {
		if i == 0 || p.at-c.points[i-1].at > step {
			all = append(all, nil)
		}
		all[len(all)-1] = append(all[len(all)-1], p)
	}
	return all
}

// scale is what values are multiplied by to be in the unit of inUnit.
func (p *panel) scale() float64 {
	switch p.FieldConfig.Defaults.Unit {
	case "percentunit":
		return 100
	case "bytes":
		return 1.0 / (1 << 20)
	}
	return 1
}

// inUnit is a value as Grafana shows it.
func inUnit(v float64, unit string) string {
	text := strconv.FormatFloat(v, 'g', 3, 64)
	switch {
	case unit == "s" && v != 0 && math.Abs(v) < 1:
		return strconv.FormatFloat(v*1000, 'g', 3, 64) + " ms"
	case unit == "s":
		return text + " s"
	case unit == "ops":
		return text + "/s"
	case unit == "percentunit":
		return text + " %"
	case unit == "bytes":
		return text + " MiB"
	}
	return text
}
