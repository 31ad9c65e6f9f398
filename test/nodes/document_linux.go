// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"kubeproxy/test/kit"
)

// Run is what a Selection gave with one proxy in one mode.
type Run struct {
	Proxy, Mode, Selection string
	SocketAcceleration     bool   `json:",omitempty"`
	Part                   Part   `json:",omitzero"`
	Version                string // of the proxy
	Kubernetes, Kernel     string
	On                     time.Time
	Results
}

// setting is what rows and specs call a mode.
func setting(mode string, socketAcceleration bool) string {
	if socketAcceleration {
		return mode + " with socket acceleration"
	}
	return mode
}

func (r Run) setting() string { return setting(r.Mode, r.SocketAcceleration) }

// key is what runs have in common of which the last one counts.
func (r Run) key() string { return r.Selection + " " + r.setting() + " " + r.Proxy }

// covers returns whether other is of the same key and in r, as all parts are in all of it.
func (r Run) covers(other Run) bool {
	return r.key() == other.key() && (r.Part == Part{} || r.Part == other.Part)
}

// Change is what became of connections while something was changed.
type Change struct {
	Name, Mode, About  string
	SocketAcceleration bool   `json:",omitempty"`
	Version            string // of this proxy
	Kernel             string
	On                 time.Time
	Took               time.Duration
	Flows              []Flow
}

func (c Change) setting() string { return setting(c.Mode, c.SocketAcceleration) }

// key is what changes have in common of which the last one counts.
func (c Change) key() string { return c.Name + " " + c.setting() }

// Flow is one of the loads meanwhile.
type Flow struct {
	Name string
	Node string `json:",omitempty"` // of the endpoints, for policy Local
	Counts
	// Unready is how long the API server named no endpoint that the client could go to, and
	// LostUnready how much of what was lost had begun then.
	Unready     time.Duration `json:",omitempty"`
	LostUnready int           `json:",omitempty"`
	// LostInCalm is how much of what was lost had begun when all was over.
	LostInCalm int `json:",omitempty"`
}

// Document is all that is known, and what docs/conformance.md is made of.
type Document struct {
	Runs    []Run
	Changes []Change
}

// Update adds a run or a change to the document in a file, in place of an older one of the
// same sort, and writes it with its page.
func Update(file, page string, run *Run, change *Change) error {
	d, err := ReadDocument(file)
	if err != nil {
		return err
	}
	if run != nil {
		d.addRun(*run)
	}
	if change != nil {
		d.addChange(*change)
	}
	return d.write(file, page)
}

// Merge adds what is newer in the document of another file to that of file.
func Merge(file, page, other string) error {
	d, err := ReadDocument(file)
	if err != nil {
		return err
	}
	more, err := ReadDocument(other)
	if err != nil {
		return err
	}
	for _, run := range more.Runs {
		if !slices.ContainsFunc(d.Runs, func(r Run) bool { return r.covers(run) && !r.On.Before(run.On) }) {
			d.addRun(run)
		}
	}
	for _, change := range more.Changes {
		if !slices.ContainsFunc(d.Changes, func(c Change) bool { return c.key() == change.key() && !c.On.Before(change.On) }) {
			d.addChange(change)
		}
	}
	return d.write(file, page)
}

func (d *Document) addRun(run Run) {
	d.Runs = append(slices.DeleteFunc(d.Runs, run.covers), run)
	if run.Part.Count > 0 {
		d.Runs = addUp(d.Runs, run)
	}
}

func (d *Document) addChange(change Change) {
	d.Changes = append(slices.DeleteFunc(d.Changes, func(c Change) bool { return c.key() == change.key() }), change)
}

func (d *Document) write(file, page string) error {
	d.order()
	text, err := json.MarshalIndent(d, "", "\t")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(file, append(text, '\n'), 0o644), os.WriteFile(page, []byte(d.Page()), 0o644))
}

// ReadDocument reads the document in a file, which is empty if there is none.
func ReadDocument(file string) (Document, error) {
	var d Document
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("read %s: %w", file, err)
	}
	return d, nil
}

func (d *Document) order() {
	slices.SortFunc(d.Runs, func(a, b Run) int {
		return cmp.Or(strings.Compare(a.key(), b.key()), cmp.Compare(a.Part.Number, b.Part.Number))
	})
	order := Names()
	slices.SortFunc(d.Changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Name), slices.Index(order, b.Name)), strings.Compare(a.setting(), b.setting()))
	})
}

const pageHead = `# Conformance

Results of Kubernetes' own tests for this proxy and for the kube-proxy of the same version, in a cluster of three real
nodes on one machine, and the connections that were lost while something was changed there. Written by
` + "`make conformance` and `make changes`" + `; nothing here was written by hand. A kernel of Debian's, such as
6.1.0-56-cloud-amd64, is that of a virtual machine, for mode ipvs; times are by its clock then.

## Kubernetes' own tests

`

// Page returns the document as Markdown.
func (d *Document) Page() string {
	var out strings.Builder
	out.WriteString(pageHead)
	rows := [][]string{{"specs", "mode", "proxy", "passed", "failed", "skipped", "took", "Kubernetes", "kernel", "day"}}
	for _, r := range d.Runs {
		rows = append(rows, []string{
			r.Selection + r.Part.suffix(), r.setting(), r.Proxy + " " + r.Version, fmt.Sprint(r.Passed), fmt.Sprint(len(r.Failed)), fmt.Sprint(len(r.Skipped)),
			r.Took.Round(time.Second).String(), r.Kubernetes, r.Kernel, r.On.Format(time.DateOnly),
		})
	}
	out.WriteString(kit.Table(rows) + "\nThe specs:\n\n")
	for _, s := range Selections {
		if slices.ContainsFunc(d.Runs, func(r Run) bool { return r.Selection == s.Name }) {
			fmt.Fprintf(&out, "- %s: %s\n", s.Name, s.About)
		}
	}
	d.writeSpecs(&out, "Failed", func(r Run) []Spec { return r.Failed })
	d.writeSpecs(&out, "Skipped", func(r Run) []Spec { return r.Skipped })
	d.writeChanges(&out)
	return out.String()
}

// writeSpecs lists specs, with the runs that have them.
func (d *Document) writeSpecs(out *strings.Builder, title string, of func(Run) []Spec) {
	in := map[Spec][]string{}
	var order []Spec
	for _, r := range d.Runs {
		for _, s := range of(r) {
			s.Message = shorten(s.Message)
			if reason := Unfit(r.Mode, s.Name); reason != "" && r.Proxy == "kubeproxy" {
				s.Message = "by the nature of the mode, " + reason
			}
			if in[s] == nil {
				order = append(order, s)
			}
			in[s] = append(in[s], r.Proxy+" in mode "+r.setting())
		}
	}
	if len(order) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s:\n\n", title)
	for _, s := range order {
		fmt.Fprintf(out, "- `%s` (%s): %s\n", s.Name, strings.Join(in[s], ", "), s.Message)
	}
}

// shorten cuts a message that is long, such as one with a whole answer of the API server.
func shorten(text string) string {
	const most = 200
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "..."
	}
	return text
}

func (d *Document) writeChanges(out *strings.Builder) {
	if len(d.Changes) == 0 {
		return
	}
	fmt.Fprintf(out, "\n## Changes under load\n\nClients open connections at a steady rate, or as many of those due as the machine manages, and hold some open,\n"+
		"from a pod, from a node and from outside, over TCP and UDP. A connection is lost when it is refused, broken or not\n"+
		"answered within 3 seconds, and slow when that took more than half a second. Where many are slow, the machine was\n"+
		"busy with other things, and some are lost for that reason. Virtual servers of mode ipvs stay as long as connections\n"+
		"need them: where they have to go, clients hold a connection for %.0f seconds, and open another.\n\n", drainingLife.Seconds())
	rows := [][]string{{"change", "mode", "new connections", "lost", "slow", "requests on held ones", "broken", "took", "version", "kernel", "day"}}
	for _, c := range d.Changes {
		sum, _ := c.sum()
		rows = append(rows, []string{
			c.About, c.setting(), sum.made(), fmt.Sprint(sum.NewLost), fmt.Sprint(sum.Slow), fmt.Sprint(sum.Held), fmt.Sprint(sum.HeldLost),
			c.Took.Round(time.Second).String(), c.Version, c.Kernel, c.On.Format(time.DateOnly),
		})
	}
	out.WriteString(kit.Table(rows) + "\nWhat was lost:\n\n")
	none := true
	for _, c := range d.Changes {
		if sum, losers := c.sum(); len(losers) > 0 {
			none = false
			clients := strings.Join(losers, "; ")
			if len(losers) == len(c.Flows) {
				clients = "all clients"
			}
			fmt.Fprintf(out, "- %s, mode %s: %s (%s)%s\n", c.About, c.setting(), kinds(sum), clients, c.unready())
		}
	}
	if none {
		out.WriteString("- nothing\n")
	}
	d.writeNotes(out)
}

// sum returns what became of all loads, and the names of those that lost something.
func (c *Change) sum() (sum Counts, losers []string) {
	sum.Kinds = map[string]int{}
	for _, f := range c.Flows {
		sum.New += f.New
		sum.Due += f.Due
		sum.NewLost += f.NewLost
		sum.Slow += f.Slow
		sum.Held += f.Held
		sum.HeldLost += f.HeldLost
		if f.Lost() == 0 {
			continue
		}
		losers = append(losers, f.Name)
		for k, n := range f.Kinds {
			sum.Kinds[k] += n
		}
		if sum.FirstLost.IsZero() || f.FirstLost.Before(sum.FirstLost) {
			sum.FirstLost = f.FirstLost
		}
		if f.Last.After(sum.Last) {
			sum.Last = f.Last
		}
	}
	return sum, losers
}

// writeNotes says why changes lose what they lose.
func (d *Document) writeNotes(out *strings.Builder) {
	out.WriteString("\nWhy:\n\n- over UDP, a client that takes a port again within 30 seconds is the same flow to the kernel, and goes to the same\n" +
		"  endpoint, also when that one has just ended\n")
	for _, s := range Sequences {
		for _, t := range s.Trials {
			if t.Note != "" && slices.ContainsFunc(d.Changes, t.concernedBy) {
				fmt.Fprintf(out, "- %s: %s\n", t.About, t.Note)
			}
		}
	}
}

// concernedBy returns whether the note of a trial says why a change lost something.
func (t Trial) concernedBy(c Change) bool {
	sum, _ := c.sum()
	return c.Name == t.Name && sum.Lost() > 0 && (t.Tolerated > Nothing || c.Mode == "userspace")
}

// made says how many connections there were, of how many due if that is known.
func (c Counts) made() string {
	if c.Due == 0 {
		return fmt.Sprint(c.New)
	}
	return fmt.Sprintf("%d of %d", c.New, c.Due)
}

// kinds says how connections were lost.
func kinds(c Counts) string {
	var all []string
	for k, n := range c.Kinds {
		all = append(all, fmt.Sprintf("%d %s", n, k))
	}
	slices.Sort(all)
	return strings.Join(all, ", ") + fmt.Sprintf(", within %s", c.Last.Sub(c.FirstLost).Round(10*time.Millisecond))
}
