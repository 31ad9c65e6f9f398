// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package plandiff

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"kubeproxy/common/document"
	"kubeproxy/common/printable"
	"kubeproxy/common/service"
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
	sentence(w, "", fmt.Sprintf("node %s, mode %s: from %s to %s", d.Node, d.Mode, d.From, d.To))
	v.list(w, "settings", d.Settings)
	var lines []string
	for _, p := range d.Ports {
		lines = append(lines, fmt.Sprintf("%s %s (%s, %s) is %s", signs[p.Change], p.Service, p.Protocol, p.Family, p.Change))
		for _, s := range p.Details {
			lines = append(lines, "    "+s)
		}
	}
	v.list(w, "Service ports", lines)
	for _, f := range service.Families {
		v.list(w, "changes of the node, "+f.String(), d.plans[f])
	}
	v.list(w, "what mode "+d.Mode+" does otherwise than Services ask", d.Limits)
	if d.Same {
		fmt.Fprintf(w, "\nNothing differs.\n")
	} else {
		fmt.Fprintln(w)
		sentence(w, "", d.summary())
	}
	for _, n := range d.Notes {
		sentence(w, "note: ", n)
	}
	_, err := v.writer(to).Write(w.Bytes())
	return err
}

// sentence prints text that may be long.
func sentence(w io.Writer, head, text string) {
	margin := "\n" + strings.Repeat(" ", len(head))
	fmt.Fprintf(w, "%s%s\n", head, strings.Join(document.Wrap(text, document.Width-len(head)), margin))
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
		v.item(w, s)
	}
	if n := len(lines) - len(shown); n > 0 {
		fmt.Fprintf(w, "  and %d more lines; --all prints them\n", n)
	}
}

// item prints a line of a list, wrapped behind its sign.
func (v View) item(w io.Writer, text string) {
	bare := strings.TrimLeft(text, " ")
	margin := strings.Repeat(" ", 2+len(text)-len(bare))
	colour := colourOf(bare)
	for i, line := range document.Wrap(printable.Text(bare), document.Width-len(margin)-2) {
		if i > 0 {
			line = "  " + line
		}
		fmt.Fprintf(w, "%s%s\n", margin, v.painted(line, colour))
	}
}

// paint colours a line by its first sign.
func (v View) paint(line string) string {
	return v.painted(printable.Lines(line), colourOf(line))
}

func (v View) painted(line string, c document.Colour) string {
	if !v.Colour {
		return line
	}
	return c.Paint(line)
}

func colourOf(line string) document.Colour {
	switch {
	case strings.HasPrefix(line, "+"):
		return document.Green
	case strings.HasPrefix(line, "-"):
		return document.Red
	case strings.HasPrefix(line, "~"), strings.HasPrefix(line, "@@"):
		return document.Cyan
	}
	return ""
}

// summary counts what differs.
func (d *Difference) summary() string {
	if len(d.Plan) > 0 {
		return fmt.Sprintf("The node would make %s%s.", count(len(d.Plan)+len(d.Settings), "change"), d.affectedText())
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
