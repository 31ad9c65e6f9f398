// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plandiff says what differs between two states of a node: the Service ports that
// it must forward, the changes that a backend would make, and the texts of rules.
// Snapshots, plans and texts go in. A Difference comes out, which prints for people and
// as JSON.
package plandiff

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/aymanbagabas/go-udiff"

	"kubeproxy/common/document"
	"kubeproxy/common/printable"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// Difference is between two states. New versions may add JSON fields, but no more.
type Difference struct {
	Node string `json:"node"`
	Mode string `json:"mode"`
	// From and To name the two states.
	From string `json:"from"`
	To   string `json:"to"`
	Same bool   `json:"same"`
	// Settings are lines about what does not belong to a Service port.
	Settings []string `json:"settings"`
	// Ports are the Service ports that differ, unless one state is what the node has installed.
	Ports []PortChange `json:"ports"`
	// Affected are the names of Service ports in Ports and Plan, and whose objects differ.
	Affected []string `json:"affected"`
	// Plan are the changes that the node would make from what is installed, one a line.
	Plan  []string                        `json:"plan"`
	plans [len(service.Families)][]string // by family
	// Text is a unified diff of both states, empty if what is installed cannot be read back.
	Text string `json:"diff"`
	// Limits are what the mode does otherwise than the Services of the new state ask, one a line.
	Limits []string `json:"limits"`
	Notes  []string `json:"notes"`
}

// New returns a Difference without any.
func New() *Difference {
	return &Difference{Same: true, Settings: []string{}, Ports: []PortChange{}, Affected: []string{}, Plan: []string{}, Limits: []string{}, Notes: []string{}}
}

// The exit codes of a comparison, which are those of kubectl diff.
const (
	ExitDiffers = 1
	ExitFailed  = 2
)

// ExitCode returns 0 if nothing differs.
func (d *Difference) ExitCode() int {
	if d.Same {
		return 0
	}
	return ExitDiffers
}

// affects adds names of Service ports, without the zero value, to those affected.
func (d *Difference) affects(all ...service.PortName) {
	for _, n := range all {
		if n != (service.PortName{}) {
			d.Affected = append(d.Affected, n.String())
		}
	}
	slices.Sort(d.Affected)
	d.Affected = slices.Compact(d.Affected)
}

// mostNames bounds the names in one sentence.
const mostNames = 5

// affectedText continues a sentence with the Service ports that are affected.
func (d *Difference) affectedText() string {
	names := d.Affected
	switch n := len(names); {
	case n == 0:
		return ""
	case n == 1:
		return ", for Service port " + names[0]
	case n > mostNames+1:
		return fmt.Sprintf(", for Service ports %s and %d others", strings.Join(names[:mostNames], ", "), n-mostNames)
	default:
		return fmt.Sprintf(", for Service ports %s and %s", strings.Join(names[:n-1], ", "), names[n-1])
	}
}

// Change is what happens to a Service port.
type Change string

// The changes.
const (
	Added   Change = "added"
	Changed Change = "changed"
	Removed Change = "removed"
)

// PortChange is a Service port that differs, in one IP family.
type PortChange struct {
	Service  string `json:"service"` // NAMESPACE/NAME:PORT
	Protocol string `json:"protocol"`
	Family   string `json:"family"`
	Change   Change `json:"change"`
	// Details are lines that begin with +, - or ~.
	Details []string `json:"details"`
}

// Snapshots adds what differs between two snapshots.
func (d *Difference) Snapshots(from, to *service.Snapshot) {
	d.Settings = append(d.Settings, nodeChanges(from.Node, to.Node)...)
	for _, f := range service.Families {
		for c := range service.Diff(from, to, f) {
			if x := portChange(c, f); x.Change != Changed || len(x.Details) > 0 {
				d.Ports = append(d.Ports, x)
				d.Affected = append(d.Affected, x.Service)
			}
		}
	}
	d.affects()
	slices.SortStableFunc(d.Ports, func(a, b PortChange) int { return strings.Compare(a.Service, b.Service) })
	d.Same = d.Same && len(d.Settings)+len(d.Ports) == 0
}

func portChange(c service.Change, f service.Family) PortChange {
	x := PortChange{Service: c.Name().String(), Protocol: c.Name().Protocol.String(), Family: f.String(), Change: Changed}
	from, to := c.Old, c.New
	switch {
	case from == nil:
		x.Change, from = Added, &service.Port{}
	case to == nil:
		x.Change, to = Removed, &service.Port{}
	}
	x.Details = slices.Concat(
		listChanges("", frontendTexts(from), frontendTexts(to)),
		listChanges("endpoint ", endpointTexts(from.Cluster), endpointTexts(to.Cluster)),
		listChanges("endpoint for policy Local ", endpointTexts(from.Local), endpointTexts(to.Local)))
	if x.Change == Removed {
		return x
	}
	x.Details = append(x.Details, valueChanges(
		value{"internal traffic policy", from.Internal.String(), to.Internal.String()},
		value{"external traffic policy", from.External.String(), to.External.String()},
		value{"session affinity", affinityText(from.Affinity), affinityText(to.Affinity)},
		value{"health check node port", portText(from.HealthCheck), portText(to.HealthCheck)},
	)...)
	return x
}

// value is a setting of a port.
type value struct{ name, from, to string }

// valueChanges lists values that differ.
func valueChanges(all ...value) []string {
	var lines []string
	for _, v := range all {
		if v.from != v.to {
			lines = append(lines, fmt.Sprintf("~ %s: %s -> %s", v.name, v.from, v.to))
		}
	}
	return lines
}

func affinityText(d time.Duration) string {
	if d == 0 {
		return "none"
	}
	return "for " + d.String()
}

func portText(port uint16) string {
	if port == 0 {
		return "none"
	}
	return fmt.Sprint(port)
}

// frontendTexts names the frontends of p with the sources that they admit.
func frontendTexts(p *service.Port) []string {
	var all []string
	for _, f := range p.Frontends {
		at := fmt.Sprint(f.Port)
		if f.Addr.IsValid() {
			at = netip.AddrPortFrom(f.Addr, f.Port).String()
		}
		text := fmt.Sprintf("%s %s", f.Kind, at)
		if f.Sources != nil {
			text += " for clients in " + prefixTexts(f.Sources)
		}
		all = append(all, text)
	}
	return all
}

func endpointTexts(list []service.Endpoint) []string {
	var all []string
	for _, e := range list {
		text := e.Addr.String()
		if e.Local {
			text += " on this node"
		}
		all = append(all, text)
	}
	return all
}

func prefixTexts(list []netip.Prefix) string {
	if len(list) == 0 {
		return "no range"
	}
	return printable.Join(list, ", ")
}

// listChanges lists what is only in one of two lists: first what is removed, then what is added.
func listChanges(what string, from, to []string) []string {
	var lines []string
	in := func(list []string) map[string]bool {
		set := make(map[string]bool, len(list))
		for _, s := range list {
			set[s] = true
		}
		return set
	}
	had, has := in(from), in(to)
	for _, s := range from {
		if !has[s] {
			lines = append(lines, "- "+what+s)
		}
	}
	for _, s := range to {
		if !had[s] {
			lines = append(lines, "+ "+what+s)
		}
	}
	return lines
}

func nodeChanges(from, to *service.Node) []string {
	return slices.Concat(
		listChanges("address of the node ", addrTexts(from.Addrs), addrTexts(to.Addrs)),
		listChanges("endpoint in a range of ClusterIPs ", addrTexts(from.EndpointsInServiceCIDRs), addrTexts(to.EndpointsInServiceCIDRs)),
		valueChanges(
			value{name: "addresses that answer NodePorts", from: prefixTexts(from.NodePorts), to: prefixTexts(to.NodePorts)},
			value{name: "ranges of ClusterIPs", from: prefixTexts(from.ServiceCIDRs), to: prefixTexts(to.ServiceCIDRs)},
			value{name: "pods are told from other clients by", from: podsText(from.Pods), to: podsText(to.Pods)},
			value{name: "masquerade all traffic to ClusterIPs", from: fmt.Sprint(from.MasqueradeAll), to: fmt.Sprint(to.MasqueradeAll)},
		))
}

func addrTexts(addrs []netip.Addr) []string {
	var all []string
	for _, a := range addrs {
		all = append(all, a.String())
	}
	return all
}

func podsText(p service.LocalPods) string {
	switch {
	case p.Interface != "":
		return "interface " + p.Interface
	case p.InterfacePrefix != "":
		return "interfaces " + p.InterfacePrefix + "*"
	case len(p.Prefixes) == 0:
		return "nothing"
	}
	return prefixTexts(p.Prefixes)
}

// contextLines is how many equal lines stand around a difference, as with diff -u.
const contextLines = 3

// AddObjects adds the unified diff of what two states have installed.
func (d *Difference) AddObjects(from, to reconcile.Objects) error {
	before, after := from.String(), to.String()
	if before == after {
		return nil
	}
	u, err := udiff.ToUnifiedDiff(d.From, d.To, before, udiff.Lines(before, after), contextLines)
	if err != nil {
		return err
	}
	d.affects(numberHunks(u.Hunks, portsByLine(from), portsByLine(to))...)
	d.Text += u.String()
	return nil
}

// portsByLine returns the Service port of each line of objects.
func portsByLine(objects reconcile.Objects) []service.PortName {
	var ports []service.PortName
	for _, o := range objects {
		for range strings.Count(o.Text, "\n") {
			ports = append(ports, o.Port)
		}
	}
	return ports
}

// numberHunks sets where hunks begin in the new text, and returns the Service ports of lines that
// differ. The library leaves out equal lines within a hunk, so later ones would begin too early.
func numberHunks(hunks []*udiff.Hunk, from, to []service.PortName) []service.PortName {
	var changed []service.PortName
	added := 0
	for _, h := range hunks {
		h.ToLine = h.FromLine + added
		at := h.FromLine - 1 // in from; added is how far the line in to is behind it
		for _, l := range h.Lines {
			switch l.Kind {
			case udiff.Insert:
				changed = append(changed, to[at+added])
				added++
			case udiff.Delete:
				changed = append(changed, from[at])
				at++
				added--
			default:
				at++
			}
		}
	}
	return changed
}

// AddSettings adds lines about what does not belong to a Service port.
func (d *Difference) AddSettings(lines []string) {
	d.Settings = append(d.Settings, lines...)
	d.Same = d.Same && len(lines) == 0
}

// AddPlan adds the changes of a plan for one family.
func (d *Difference) AddPlan(f service.Family, changes []reconcile.Change) {
	var ports []service.PortName
	for _, c := range changes {
		line := c.String()
		d.Plan, d.plans[f] = append(d.Plan, line), append(d.plans[f], line)
		ports = append(ports, c.Port)
	}
	d.affects(ports...)
	d.Same = d.Same && len(changes) == 0
}

// View is how a Difference is printed.
type View struct {
	All    bool // every line, instead of the first ones
	Colour bool // for a terminal
	Width  int  // how many columns a line may have, 0 for document.Width
}

// mostLines is how many lines of each part are printed unless all are asked for.
const mostLines = 200

// Print writes what would be added, changed and removed.
func (v View) Print(to io.Writer, d *Difference) error {
	w := &bytes.Buffer{}
	v.sentence(w, "", fmt.Sprintf("node %s, mode %s: from %s to %s", d.Node, d.Mode, d.From, d.To))
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
		v.sentence(w, "", d.summary())
	}
	for _, n := range d.Notes {
		v.sentence(w, "note: ", n)
	}
	_, err := v.writer(to).Write(w.Bytes())
	return err
}

func (v View) width() int { return cmp.Or(v.Width, document.Width) }

// sentence prints text that may be long.
func (v View) sentence(w io.Writer, head, text string) {
	margin := "\n" + strings.Repeat(" ", len(head))
	fmt.Fprintf(w, "%s%s\n", head, strings.Join(document.Wrap(text, v.width()-len(head)), margin))
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
	for i, line := range document.Wrap(printable.Text(bare), v.width()-len(margin)-2) {
		if i > 0 {
			line = "  " + line
		}
		fmt.Fprintf(w, "%s%s\n", margin, v.painted(line, colour))
	}
}

// paint colours a line by its first sign.
func (v View) paint(line string) string { return v.painted(printable.Lines(line), colourOf(line)) }

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
