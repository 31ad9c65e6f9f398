// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package trafficview

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"strings"
	"time"

	"kubeproxy/common/document"
	"kubeproxy/common/printable"
)

// View is how an Answer is printed as a table.
type View struct {
	Limit  int  // of Services, and of endpoints of each; 0 for all
	Colour bool // for a terminal
}

// Print writes a to w.
func (v View) Print(w io.Writer, a *Answer) error {
	var b bytes.Buffer
	v.head(&b, a)
	if len(a.Services) == 0 {
		b.WriteString("No Service has carried anything.\n")
		_, err := w.Write(b.Bytes())
		return err
	}
	t := v.table(a, "SERVICE")
	shown := limited(len(a.Services), v.Limit)
	for _, s := range a.Services[:shown] {
		t.Rows = append(t.Rows, append([]document.Cell{document.Plain(printable.Text(s.Namespace + "/" + s.Name))}, a.cells(s.Numbers)...))
	}
	if shown > 1 || shown < len(a.Services) {
		name := "all"
		if more := len(a.Services) - shown; more > 0 {
			name = fmt.Sprintf("all, with %d more", more)
		}
		t.Rows = append(t.Rows, append([]document.Cell{{Text: name, Colour: document.Bold}}, a.cells(a.Total)...))
	}
	t.Write(&b)
	for _, s := range a.Services[:shown] {
		v.endpoints(&b, a, s)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// head describes the numbers.
func (v View) head(b *bytes.Buffer, a *Answer) {
	what := "connections"
	if a.Counted.Packets {
		what += ", packets"
	}
	if a.Counted.Bytes {
		what += ", bytes"
	}
	if i := strings.LastIndex(what, ", "); i >= 0 {
		what = what[:i] + " and " + what[i+2:]
	}
	text := fmt.Sprintf("Node %s, mode %s: new %s since %s.", printable.Text(a.Node), printable.Text(a.Mode), what, a.Since.Format(time.DateTime+" MST"))
	if a.Seconds > 0 {
		text += fmt.Sprintf(" Rates cover %s seconds up to %s.", fraction(a.Seconds), a.Time.Format(time.TimeOnly))
	}
	for _, l := range document.Wrap(text, document.Width) {
		b.WriteString(l + "\n")
	}
	if a.Error != "" {
		for _, l := range document.Wrap("Not everything could be read: "+printable.Text(a.Error), document.Width) {
			if v.Colour {
				l = document.Cell{Text: l, Colour: document.Yellow}.Painted()
			}
			b.WriteString(l + "\n")
		}
	}
	b.WriteString("\n")
}

// table returns a table without rows whose first columns are what.
func (v View) table(a *Answer, what string) *document.Table {
	head := what
	if a.Seconds > 0 {
		head += "|CONN/S"
	}
	head += "|CONNECTIONS"
	if a.Counted.Bytes && a.Seconds > 0 {
		head += "|IN/S|OUT/S"
	}
	if a.Counted.Bytes {
		head += "|IN|OUT"
	}
	return &document.Table{Head: head, Colours: v.Colour}
}

// endpoints prints those of a Service.
func (v View) endpoints(b *bytes.Buffer, a *Answer, s Service) {
	if len(s.Endpoints) == 0 {
		return
	}
	shown := limited(len(s.Endpoints), v.Limit)
	head := "Endpoints of " + printable.Text(s.Namespace+"/"+s.Name)
	if shown < len(s.Endpoints) {
		head += fmt.Sprintf(", %d of %d", shown, len(s.Endpoints))
	}
	fmt.Fprintf(b, "\n%s\n\n", strings.Join(document.Wrap(head, document.Width), "\n"))
	t := v.table(a, "PORT|ENDPOINT")
	for _, e := range s.Endpoints[:shown] {
		t.Rows = append(t.Rows, append([]document.Cell{
			document.Plain(printable.Text(strings.TrimPrefix(e.Port+"/"+e.Protocol, "/"))), document.Plain(cmp.Or(printable.Text(e.Address), "those that are gone")),
		}, a.cells(e.Numbers)...))
	}
	t.Write(b)
}

func limited(n, limit int) int {
	if limit > 0 {
		return min(n, limit)
	}
	return n
}

// cells returns the numbers of a row, as table has columns for them.
func (a *Answer) cells(n Numbers) []document.Cell {
	var all []document.Cell
	add := func(text string) { all = append(all, document.Cell{Text: text, Right: true}) }
	r := n.PerSecond
	if r != nil {
		add(fraction(r.Connections))
	}
	add(fmt.Sprint(n.Connections))
	if a.Counted.Bytes && r != nil {
		add(size(r.BytesIn))
		add(size(r.BytesOut))
	}
	if a.Counted.Bytes {
		add(size(float64(n.BytesIn)))
		add(size(float64(n.BytesOut)))
	}
	return all
}

// fraction prints a number, small ones with one digit after the point.
func fraction(x float64) string {
	if x < 10 {
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// size prints a number of bytes.
func size(n float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB"}
	i := 0
	for ; n >= 1000 && i < len(units)-1; i++ {
		n /= 1000
	}
	if i == 0 || n >= 100 {
		return fmt.Sprintf("%.0f %s", n, units[i])
	}
	return fmt.Sprintf("%.1f %s", n, units[i])
}
