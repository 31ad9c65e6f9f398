// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/printable"
)

// Obstacle is what keeps packets from getting there, or answers from coming back, although the
// rules let them pass.
type Obstacle struct {
	What string `json:"what"`
	// Fix is a command that removes it and harms nothing, Look one that shows it. Either may
	// be empty.
	Fix  string `json:"fix,omitempty"`
	Look string `json:"look,omitempty"`
}

// Block adds what the proxy itself knows to stop all traffic of the family. What it names is
// often an obstacle already.
func (w *Walk) Block(setting, text, fix string) {
	known := func(o Obstacle) bool { return strings.Contains(o.What, setting) }
	if !slices.ContainsFunc(w.Obstacles, known) {
		w.Obstacles = append(w.Obstacles, Obstacle{What: text, Fix: fix})
	}
}

// AddRoutes adds to Routes and Replies what is not there.
func (w *Walk) AddRoutes(routes, replies map[netip.Addr]string) {
	maps.Copy(routes, w.Routes)
	maps.Copy(replies, w.Replies)
	w.Routes, w.Replies = routes, replies
}

// routes prints how packets get to the targets, and how answers come back.
func (p *Path) routes(w *page) {
	var lines, back []string
	for _, t := range p.Targets {
		if t.Route != "" {
			lines = append(lines, fmt.Sprintf("route to %s: %s", t.Address, printable.Text(t.Route)))
		}
		if text := printable.Text(t.Reply); text != "" && !slices.Contains(back, text) {
			back = append(back, text)
		}
	}
	printSome(w, lines)
	for _, text := range back[:min(mostAround, len(back))] {
		fmt.Fprintf(w, "  %s\n", w.wrap(text, 4))
	}
}

// printCommands prints the commands of obstacles, as they are, to be copied.
func (p *Path) printCommands(w *page) {
	var printed []string
	once := func(label, command string) {
		if command != "" && !slices.Contains(printed, command) {
			printed = append(printed, command)
			fmt.Fprintf(w, "  %s  %s\n", label, printable.Text(command))
		}
	}
	for _, o := range p.Obstacles {
		once("fix", o.Fix)
		once("look", o.Look)
	}
}
