// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"kubeproxy/common/document"
	"kubeproxy/common/printable"
)

// Report is what -o json prints. New versions may add fields, but must not rename or remove any.
type Report struct {
	Node   string   `json:"node"`
	System string   `json:"system"`
	Modes  []string `json:"modes"` // that were looked at
	// Proxy is the service proxy that runs on the node, empty for none.
	Proxy string `json:"proxy,omitempty"`
	// OK is whether every check could look and found nothing.
	OK       bool          `json:"ok"`
	Findings []Finding     `json:"findings"`
	Checks   []CheckResult `json:"checks"`
}

// The exit codes of kube-proxy doctor.
const (
	ExitFindings = 1
	ExitFailed   = 2 // a check could not look
)

// ExitCode returns 0 if all checks could look and found nothing.
func (r *Report) ExitCode() int {
	switch {
	case r.count(Failed) > 0:
		return ExitFailed
	case len(r.Findings) > 0:
		return ExitFindings
	}
	return 0
}

func (r *Report) count(s State) int {
	n := 0
	for _, c := range r.Checks {
		if c.State == s {
			n++
		}
	}
	return n
}

// JSON writes r as JSON.
func (r *Report) JSON(w io.Writer) error {
	r.OK = r.ExitCode() == 0
	return document.WriteReadable(w, r)
}

// View is how a report is printed.
type View struct {
	Colour bool // for a terminal
}

// Text writes r for a person. Commands stay whole, to be copied; other lines have at most
// document.Width.
func (v View) Text(w io.Writer, r *Report) error {
	p := &printer{view: v}
	p.head(r)
	p.checks(r.Checks)
	for i := range r.Findings {
		p.finding(i+1, &r.Findings[i])
	}
	p.verdict(r)
	_, err := w.Write(p.text.Bytes())
	return err
}

type printer struct {
	view View
	text bytes.Buffer
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(&p.text, format+"\n", args...) }

func (p *printer) paint(c document.Colour, text string) string {
	if !p.view.Colour {
		return text
	}
	return c.Paint(text)
}

// field prints a word and, beside it, a text in lines of its own column.
func (p *printer) field(indent int, name, text string) {
	const column = 9
	margin := strings.Repeat(" ", indent)
	for _, line := range document.Wrap(oneLine(text), document.Width-indent-column) {
		p.line("%s%-*s%s", margin, column, name, line)
		name = ""
	}
}

func (p *printer) head(r *Report) {
	modes := "mode " + strings.Join(r.Modes, ", ")
	if len(r.Modes) > 1 {
		modes = "modes " + strings.Join(r.Modes, ", ")
	}
	p.field(0, "node", fmt.Sprintf("%s, %s, %s", r.Node, r.System, modes))
	proxy := r.Proxy
	if proxy == "" {
		proxy = "none answers here; these are the findings for a start"
	}
	p.field(0, "proxy", proxy)
	p.line("")
}

var stateColours = map[State]document.Colour{OK: document.Green, Found: document.Red, Failed: document.Yellow}

// checks prints a line for each check.
func (p *printer) checks(all []CheckResult) {
	names := 0
	for _, c := range all {
		names = max(names, utf8.RuneCountInString(c.Name))
	}
	const indent, states = 2, len(Skipped) + 2
	for _, c := range all {
		state := p.paint(stateColours[c.State], fmt.Sprintf("%-*s", states, c.State))
		margin := strings.Repeat(" ", indent+states+names+2)
		lines := document.Wrap(oneLine(c.Note), document.Width-len(margin))
		p.line("%s", strings.TrimRight(fmt.Sprintf("%*s%s%-*s  %s", indent, "", state, names, c.Name, lines[0]), " "))
		for _, line := range lines[1:] {
			p.line("%s%s", margin, line)
		}
	}
	p.line("")
}

func (p *printer) finding(n int, f *Finding) {
	mark := p.paint(document.Yellow, "RISK")
	if f.severity() == Blocks {
		mark = p.paint(document.Red, "BLOCKS")
	}
	of := ""
	if f.Mode != "" {
		of = ", mode " + f.Mode
	}
	p.line("%d. %s  %s%s", n, mark, p.paint(document.Bold, string(f.Topic)), of)
	const indent = 3
	p.field(indent, "what", f.What)
	p.field(indent, "why", f.Topic.Why())
	if f.Fix != "" {
		p.line("%*s%-9s%s", indent, "", "fix", oneLine(f.Fix)) // not wrapped, to be copied
	}
	if f.Advice != "" {
		p.field(indent, "advice", f.Advice)
	}
	p.field(indent, "more", f.Topic.Link())
	p.line("")
}

// verdict prints the result.
func (p *printer) verdict(r *Report) {
	checked := len(r.Checks) - r.count(Skipped)
	text := p.paint(document.Green, "nothing found")
	switch n := len(r.Findings); {
	case n == 1:
		text = p.paint(document.Red, "1 finding")
	case n > 1:
		text = p.paint(document.Red, fmt.Sprintf("%d findings", n))
	}
	if n := r.count(Failed); n > 0 {
		text += ", " + p.paint(document.Yellow, fmt.Sprintf("%d of %d checks could not look", n, checked))
	}
	p.line("%s", text)
}

// oneLine converts foreign text to one line without control characters.
func oneLine(s string) string { return printable.Text(strings.Join(strings.Fields(s), " ")) }
