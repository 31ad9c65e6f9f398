// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"kubeproxy/common/columns"
	"kubeproxy/common/printable"
)

// mostEndpoints is how many endpoints are printed unless all are asked for.
const mostEndpoints = 20

// View is how an Explanation is printed.
type View struct {
	All bool // endpoints, instead of the first ones
}

// Print writes x for people. Text from outside is made printable.
func (v View) Print(to io.Writer, x *Explanation) error {
	w := &bytes.Buffer{}
	head := fmt.Sprintf("%s -> %s/%s, seen from node %s", x.Source, x.Destination, x.Protocol, printable.Text(x.Node))
	fmt.Fprintf(w, "%s\n%s\n\n", wrap(head, 0), wrap(x.headline(), 0))
	widest := 0
	for _, s := range x.Steps {
		widest = max(widest, len(s.Rule))
	}
	for _, s := range x.Steps {
		fmt.Fprintf(w, "  %-*s  %s\n", widest, s.Rule, wrap(printable.Text(s.Text), widest+4))
	}
	v.endpoints(w, x)
	x.installed(w)
	for _, p := range x.Problems {
		fmt.Fprintf(w, "\nproblem: %s\n", wrap(printable.Text(p), 9))
	}
	for _, n := range x.Notes {
		fmt.Fprintf(w, "\nnote: %s\n", wrap(printable.Text(n), 6))
	}
	_, err := printable.Writer(to).Write(w.Bytes())
	return err
}

// wrap breaks text into lines that fit beside an indent of the second and later lines.
func wrap(text string, indent int) string {
	return strings.Join(columns.Wrap(text, columns.Width-indent), "\n"+strings.Repeat(" ", indent))
}

// headline is a sentence about what happens to the connection.
func (x *Explanation) headline() string {
	chosen := 0
	for _, e := range x.Endpoints {
		if e.Chosen {
			chosen++
		}
	}
	switch {
	case x.Action == "forward" && chosen == 1:
		return "Forwarded to the only endpoint for it."
	case x.Action == "forward":
		return fmt.Sprintf("Forwarded to one of %d endpoints, each as likely as the others.", chosen)
	case x.Action == "reject":
		return "Refused at once: " + x.Why + "."
	case x.Action == "drop":
		return "Dropped without an answer: " + x.Why + "."
	}
	return "Left alone: " + x.Why + "."
}

func (v View) endpoints(w *bytes.Buffer, x *Explanation) {
	if len(x.Endpoints) == 0 {
		return
	}
	list := sorted(x.Endpoints)
	rest := 0
	if !v.All && len(list) > mostEndpoints {
		rest = len(list) - mostEndpoints
		list = list[:mostEndpoints]
	}
	fmt.Fprintln(w)
	t := columns.Table{Indent: "  ", Head: "ENDPOINT|NODE|ZONE|STATE|GETS IT|CLIENT|WHY"}
	for _, e := range list {
		gets := "no"
		if e.Chosen {
			gets = "yes"
		}
		row := []columns.Cell{}
		for _, text := range []string{e.Address, orDash(e.Node), orDash(e.Zone), e.State, gets, orDash(e.Client), e.Why} {
			row = append(row, columns.Plain(printable.Text(text)))
		}
		t.Rows = append(t.Rows, row)
	}
	t.Write(w)
	if rest > 0 {
		fmt.Fprintf(w, "  and %d more; --all prints them, -o json too\n", rest)
	}
}

// sorted returns the chosen endpoints first.
func sorted(all []Endpoint) []Endpoint {
	var list, others []Endpoint
	for _, e := range all {
		if e.Chosen {
			list = append(list, e)
		} else {
			others = append(others, e)
		}
	}
	return append(list, others...)
}

func orDash(s string) string {
	if strings.TrimSpace(s) == "" {
		return "-"
	}
	return printable.Text(s)
}

// mostObject is the longest name of an object that has its text beside it.
const mostObject = 30

// installed prints what the node really does.
func (x *Explanation) installed(w *bytes.Buffer) {
	if x.Installed == nil {
		return
	}
	fmt.Fprintf(w, "\nOn the node:\n")
	widest := 0
	for _, h := range x.Installed.Hops {
		if n := len([]rune(h.Object)); n <= mostObject {
			widest = max(widest, n)
		}
	}
	for _, h := range x.Installed.Hops {
		object := printable.Text(h.Object)
		if len([]rune(object)) > mostObject { // a line of its own
			fmt.Fprintf(w, "  %s\n", wrap(object, 2))
			object = ""
		}
		fmt.Fprintf(w, "  %-*s  %s\n", widest, object, wrap(printable.Text(h.Does), widest+4))
	}
	x.Installed.around(w)
	x.Installed.printOthers(w)
	x.conclusion(w)
}

// conclusion prints whether the node does what it should.
func (x *Explanation) conclusion(w *bytes.Buffer) {
	doubts := x.Installed.doubtful()
	switch {
	case x.Verdict == Unknown:
		return
	case x.Verdict == Agree && len(doubts) == 0:
		fmt.Fprintf(w, "\nThe node does what it should.\n")
		return
	case x.Verdict == Agree:
		fmt.Fprintf(w, "\nThe node does what it should, as far as the rules of others can be followed:\n")
		printDoubts(w, doubts)
		return
	}
	fmt.Fprintf(w, "\nThe node does not do what it should:\n")
	for _, d := range x.Differences {
		fmt.Fprintf(w, "  %s\n", wrap(printable.Text(d), 2))
	}
	// Commands are not wrapped, to be copied.
	for _, f := range x.Installed.Flows {
		if f.Stale && f.Remedy != "" {
			fmt.Fprintf(w, "  fix  %s\n", f.Remedy)
		}
	}
	for i := range x.Installed.Others {
		if o := &x.Installed.Others[i]; o.breaks(x.Action) {
			fmt.Fprintf(w, "  look  %s\n", printable.Text(o.Look))
		}
	}
}

// mostAround is how many routes and connections are printed.
const mostAround = 4

// around prints the routes to the targets, and existing connections.
func (p *Path) around(w *bytes.Buffer) {
	var lines []string
	for _, t := range p.Targets {
		if t.Route != "" {
			lines = append(lines, fmt.Sprintf("route to %s: %s", t.Address, printable.Text(t.Route)))
		}
	}
	printSome(w, lines)
	lines = nil
	for _, f := range p.Flows {
		state := "not answered yet"
		if f.Answered {
			state = "answered"
		}
		lines = append(lines, fmt.Sprintf("connection of %s: tracked to %s, %s", f.Client, f.Target, state))
	}
	printSome(w, lines)
}

// printSome prints the first of lines after an empty line.
func printSome(w *bytes.Buffer, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(w)
	for _, line := range lines[:min(mostAround, len(lines))] {
		fmt.Fprintf(w, "  %s\n", wrap(line, 4))
	}
	if n := len(lines) - mostAround; n > 0 {
		fmt.Fprintf(w, "  and %d more; -o json has all\n", n)
	}
}
