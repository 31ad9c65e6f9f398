// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"kubeproxy/common/columns"
	"kubeproxy/common/printable"
)

// Other is a base chain of others that the packet passes, of nftables or iptables.
type Other struct {
	Hook  string `json:"hook"`  // such as forward
	Table string `json:"table"` // with its family, such as inet filter
	Chain string `json:"chain"`
	Does  Deed   `json:"does"`
	// Rule is the rule that does it, or the policy of a chain, in words. Look is a command
	// that shows it. Both are empty if the packet passes.
	Rule string `json:"rule,omitempty"`
	Look string `json:"look,omitempty"`
	// To are the destinations of the packet there.
	To []string `json:"to,omitempty"`
	// Doubts are rules that may end the packet, which cannot be told here.
	Doubts []Doubt `json:"doubts,omitempty"`
}

// Doubt is a rule of others that may do something.
type Doubt struct {
	Rule string `json:"rule"`
	Does Deed   `json:"does"`
	Why  string `json:"why"` // that cannot be told
	Look string `json:"look"`
}

// Deed is what rules of others do with a packet.
type Deed string

// The deeds.
const (
	Passes      Deed = "pass"
	Drops       Deed = "drop"
	Refuses     Deed = "reject"
	Translates  Deed = "translate"  // to another destination
	Masquerades Deed = "masquerade" // replaces the address of the client
	Untracks    Deed = "untrack"    // exempts it from connection tracking
	Unmarks     Deed = "unmark"     // clears the mark by which kube-proxy masquerades
)

// verbs say what the rule does with packets to a destination.
var verbs = map[Deed]string{
	Drops: "drops packets to %s", Refuses: "refuses packets to %s",
	Translates:  "gives packets to %s another destination",
	Masquerades: "masquerades packets to %s",
	Untracks:    "exempts packets to %s from connection tracking, so that no Service gets them",
	Unmarks:     "clears the mark of packets to %s, so that their source is not masqueraded",
}

// mayVerbs say what a rule may do with it.
var mayVerbs = map[Deed]string{
	Drops: "may drop it", Refuses: "may refuse it", Translates: "may give it another destination",
	Masquerades: "may masquerade it", Untracks: "may exempt it from connection tracking",
}

// Alike reports whether o and x are the same but for the destinations of the packet.
func (o *Other) Alike(x *Other) bool {
	return o.Hook == x.Hook && o.Table == x.Table && o.Chain == x.Chain && o.Does == x.Does && o.Rule == x.Rule && slices.Equal(o.Doubts, x.Doubts)
}

// breaks reports whether what the base chain does is a difference from what should happen to
// a connection.
func (o *Other) breaks(action string) bool {
	switch o.Does {
	case Drops, Refuses:
		return action != "drop"
	case Translates, Untracks, Unmarks:
		return action != "pass"
	}
	return false
}

// text says what the base chain does.
func (o *Other) text() string {
	return fmt.Sprintf("%s %s, and is not kube-proxy's", o.Rule, fmt.Sprintf(verbs[o.Does], o.destinations()))
}

// destinations keeps the list of destinations to one line.
func (o *Other) destinations() string {
	const most = 3
	if n := len(o.To) - most; n > 0 {
		return strings.Join(o.To[:most], ", ") + fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(o.To, ", ")
}

// summary says in a few words what the base chain does.
func (o *Other) summary() string {
	switch {
	case o.Does != Passes:
		return fmt.Sprintf(verbs[o.Does], o.destinations())
	case len(o.Doubts) > 0:
		return mayVerbs[o.Doubts[0].Does] + ", which cannot be told"
	}
	return "lets it pass"
}

// others compares what others do with what should happen.
func (x *Explanation) others() {
	for i := range x.Installed.Others {
		o := &x.Installed.Others[i]
		switch {
		case o.breaks(x.Action):
			x.Differences = append(x.Differences, o.text())
		case o.Does != Passes:
			x.Notes = append(x.Notes, o.text())
		}
	}
}

// doubtful returns the rules that may end the packet.
func (p *Path) doubtful() []Doubt {
	var all []Doubt
	for i := range p.Others {
		for _, d := range p.Others[i].Doubts {
			if !slices.ContainsFunc(all, func(x Doubt) bool { return x.Rule == d.Rule }) {
				all = append(all, d)
			}
		}
	}
	return all
}

// printOthers prints what the base chains of others do.
func (p *Path) printOthers(w *bytes.Buffer) {
	if len(p.Others) == 0 {
		return
	}
	fmt.Fprintf(w, "\nRules of others on its way:\n")
	t := columns.Table{Indent: "  ", Head: "HOOK|TABLE|CHAIN|WHAT IT DOES"}
	for i := range p.Others {
		o := &p.Others[i]
		var row []columns.Cell
		does := o.summary()
		if o.Does == Passes && len(o.Doubts) == 0 && p.again(i) {
			does = "lets packets to " + o.destinations() + " pass"
		}
		for _, text := range []string{o.Hook, o.Table, o.Chain, does} {
			row = append(row, columns.Plain(printable.Text(text)))
		}
		t.Rows = append(t.Rows, row)
	}
	t.Write(w)
}

// again reports whether the packet passes the chain with other addresses, too.
func (p *Path) again(i int) bool {
	for j := range p.Others {
		a, b := &p.Others[i], &p.Others[j]
		if i != j && a.Hook == b.Hook && a.Table == b.Table && a.Chain == b.Chain {
			return true
		}
	}
	return false
}

// mostDoubts is how many rules are printed that cannot be told.
const mostDoubts = 4

// printDoubts prints the first of the rules that may end the packet, and the commands that
// show them.
func printDoubts(w *bytes.Buffer, all []Doubt) {
	first := all[:min(mostDoubts, len(all))]
	for _, d := range first {
		text := d.Rule + " " + mayVerbs[d.Does]
		if d.Why != "" {
			text += " (" + d.Why + ")"
		}
		fmt.Fprintf(w, "  %s\n", wrap(printable.Text(text), 4))
	}
	if n := len(all) - len(first); n > 0 {
		fmt.Fprintf(w, "  and %d more; -o json has all\n", n)
	}
	var looks []string
	for _, d := range first {
		if !slices.Contains(looks, d.Look) {
			looks = append(looks, d.Look)
			fmt.Fprintf(w, "  look  %s\n", printable.Text(d.Look)) // not wrapped, to be copied
		}
	}
}
