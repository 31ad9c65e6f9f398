// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package plandiff

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"kubeproxy/common/columns"
	"kubeproxy/common/printable"
)

// View is how a Difference is printed.
type View struct {
	All    bool // every line, instead of the first ones
	Colour bool // for a terminal
}

// mostLines is how many lines of each part are printed unless all are asked for.
const mostLines = 200

// Print writes what would be added, changed and removed.
func (v View) Print(to io.Writer, d *Difference) error {
	w := &bytes.Buffer{}
	fmt.Fprintf(w, "node %s, mode %s: from %s to %s\n", d.Node, d.Mode, d.From, d.To)
	v.list(w, "settings", d.Settings)
	var lines []string
	for _, p := range d.Ports {
		lines = append(lines, fmt.Sprintf("%s %s (%s, %s) is %s", signs[p.Change], p.Service, p.Protocol, p.Family, p.Change))
		for _, s := range p.Details {
			lines = append(lines, "    "+s)
		}
	}
	v.list(w, "Service ports", lines)
	v.list(w, "changes of the node", d.Plan)
	if d.Same {
		fmt.Fprintf(w, "\nNothing differs.\n")
	} else {
		fmt.Fprintf(w, "\n%s\n", d.summary())
	}
	for _, n := range d.Notes {
		fmt.Fprintf(w, "note: %s\n", n)
	}
	_, err := v.writer(to).Write(w.Bytes())
	return err
}

// PrintText writes the unified diff alone, so that patch and other tools can read it.
func (v View) PrintText(to io.Writer, d *Difference) error {
	w := &bytes.Buffer{}
	for line := range strings.Lines(d.Text) {
		w.WriteString(v.paint(strings.TrimSuffix(line, "\n")) + "\n")
	}
	_, err := v.writer(to).Write(w.Bytes())
	return err
}

// writer makes text from outside printable, except where colours need it as it is.
func (v View) writer(to io.Writer) io.Writer {
	if v.Colour {
		return to
	}
	return printable.Writer(to)
}

var signs = map[Change]string{Added: "+", Changed: "~", Removed: "-"}

func (v View) list(w io.Writer, head string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", head)
	shown := lines
	if !v.All && len(lines) > mostLines {
		shown = lines[:mostLines]
	}
	for _, s := range shown {
		fmt.Fprintf(w, "  %s\n", v.paint(s))
	}
	if n := len(lines) - len(shown); n > 0 {
		fmt.Fprintf(w, "  and %d more lines; --all prints them\n", n)
	}
}

// paint colours a line by its first sign.
func (v View) paint(line string) string {
	line = printable.Lines(line)
	if !v.Colour {
		return line
	}
	var c columns.Colour
	switch text := strings.TrimLeft(line, " "); {
	case strings.HasPrefix(text, "+"):
		c = columns.Green
	case strings.HasPrefix(text, "-"):
		c = columns.Red
	case strings.HasPrefix(text, "~"), strings.HasPrefix(text, "@@"):
		c = columns.Cyan
	}
	return c.Paint(line)
}

// summary counts what differs.
func (d *Difference) summary() string {
	if len(d.Plan) > 0 {
		return fmt.Sprintf("The node would make %s.", count(len(d.Plan)+len(d.Settings), "change"))
	}
	n := map[Change]int{}
	for _, p := range d.Ports {
		n[p.Change]++
	}
	return fmt.Sprintf("Service ports: %d added, %d changed, %d removed.", n[Added], n[Changed], n[Removed])
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
