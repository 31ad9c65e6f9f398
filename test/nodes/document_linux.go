// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
)

// Change is what became of connections while something was changed.
type Change struct {
	Name, About string
	Version     string // of this proxy
	Kernel      string
	On          time.Time
	Took        time.Duration
	Flows       []Flow
}

// Lost returns how many connections were lost.
func (c *Change) Lost() int {
	n := 0
	for _, f := range c.Flows {
		n += f.Lost()
	}
	return n
}

// Flow is one of the loads meanwhile.
type Flow struct {
	Name string
	Counts
}

// Document is all that is known, and what docs/conformance.md is made of.
type Document struct {
	Changes []Change
}

// Update adds a change to the document in a file, in place of an older one of the same
// name, and writes it with its page.
func Update(file, page string, change *Change) error {
	d := Document{}
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", file, err)
	}
	d.Changes = append(slices.DeleteFunc(d.Changes, func(c Change) bool { return c.Name == change.Name }), *change)
	slices.SortFunc(d.Changes, func(a, b Change) int { return strings.Compare(a.Name, b.Name) })
	if text, err = json.MarshalIndent(d, "", "\t"); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(file, append(text, '\n'), 0o644), os.WriteFile(page, []byte(d.Page()), 0o644))
}

const pageHead = `# Changes in a cluster

What becomes of connections while something is changed in a cluster of three real nodes on one machine. Written by
` + "`make changes`" + `; nothing here was written by hand. Clients open connections at a steady rate and hold some open, from a
pod, from a node and from outside, over TCP and UDP. A connection is lost when it is refused, broken or not answered
within 3 seconds.

`

// Page returns the document as Markdown.
func (d *Document) Page() string {
	var out strings.Builder
	out.WriteString(pageHead)
	var rows [][]string
	for _, c := range d.Changes {
		sum := Counts{}
		for _, f := range c.Flows {
			sum.New += f.New
			sum.NewLost += f.NewLost
			sum.Held += f.Held
			sum.HeldLost += f.HeldLost
		}
		rows = append(rows, []string{
			c.About, fmt.Sprint(sum.New), fmt.Sprint(sum.NewLost), fmt.Sprint(sum.Held), fmt.Sprint(sum.HeldLost),
			c.Took.Round(time.Second).String(), c.Version, c.Kernel, c.On.Format(time.DateOnly),
		})
	}
	table(&out, []string{"change", "new connections", "lost", "requests on held ones", "broken", "took", "version", "kernel", "day"}, rows)
	out.WriteString("\nWhat was lost:\n\n")
	none := true
	for _, c := range d.Changes {
		for _, f := range c.Flows {
			if f.Lost() > 0 {
				none = false
				fmt.Fprintf(&out, "- %s, %s: %s\n", c.About, f.Name, kinds(f.Counts))
			}
		}
	}
	if none {
		out.WriteString("- nothing\n")
	}
	return out.String()
}

// kinds tells how connections were lost.
func kinds(c Counts) string {
	var all []string
	for k, n := range c.Kinds {
		all = append(all, fmt.Sprintf("%d %s", n, k))
	}
	slices.Sort(all)
	return strings.Join(all, ", ") + fmt.Sprintf(", within %s", c.Last.Sub(c.FirstLost).Round(10*time.Millisecond))
}

// table writes a table in Markdown whose columns stand below each other.
func table(out *strings.Builder, head []string, rows [][]string) {
	widths := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	line := func(cells []string) {
		for i, cell := range cells {
			fmt.Fprintf(out, "| %-*s ", widths[i], cell)
		}
		out.WriteString("|\n")
	}
	line(head)
	for _, w := range widths {
		out.WriteString("|" + strings.Repeat("-", w+2))
	}
	out.WriteString("|\n")
	for _, row := range rows {
		line(row)
	}
}
