// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// ReadBack returns the table that the kernel holds, and the one that it would hold for
// want, in the text and order of Render. Both are equal if nothing has to change for want.
//
// The kernel stores rules as expressions, not as text. So a rule is recognized by its
// fingerprint: it is printed if this node could have a rule with that fingerprint.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	t, err := b.driver.Read(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read table %s: %w", b.name(), err)
	}
	b.liberal = b.options.DropInvalid && b.driver.Liberal()
	d := renderedAfter(t, b.family, want, b.effectiveOptions())
	if t != nil {
		r := &tablePrinter{rendered: d, table: t, rules: b.ruleTexts(t, want)}
		r.write()
		held = r.out
	}
	return held, d.objects(), nil
}

// ruleTexts returns the rules that t may have for want, by fingerprint.
func (b *Backend) ruleTexts(t *table, want *service.Snapshot) map[string]string {
	texts := map[string]string{}
	for _, c := range b.knownChains(t, want) {
		for _, r := range c.rules {
			texts[r.fingerprint(b.family)] = r.text(b.family)
		}
	}
	return texts
}

// tablePrinter prints the table of the kernel in the order of a renderedTable.
type tablePrinter struct {
	rendered *renderedTable
	table    *table
	rules    map[string]string // by fingerprint
	out      reconcile.Objects
}

func (r *tablePrinter) write() {
	r.out.Add("table %s %s {\n", r.rendered.Family, r.rendered.Name)
	if r.table.dormant {
		r.out.Add("\tflags dormant\n")
	}
	known := map[string]bool{}
	for _, s := range r.rendered.sets {
		known[s.name] = true
		if observed := r.table.sets[s.name]; observed != nil {
			r.set(s, observed)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.table.sets)) {
		if !known[name] {
			r.out.Add("\tset or map %s {\n\t\t# not one that is wanted, elements: %d\n\t}\n", name, len(r.table.sets[name].elements))
		}
	}
	clear(known)
	for _, c := range r.rendered.chains {
		known[c.name] = true
		if observed := r.table.chains[c.name]; observed != nil {
			r.chain(c.name, c.hook, observed)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(r.table.chains)) {
		if !known[name] {
			r.chain(name, nil, r.table.chains[name])
		}
	}
	r.out.Add("}\n")
}

func (r *tablePrinter) set(s *set, observed *observedSet) {
	declaration := s.text(r.rendered.family)
	if observed.spec != s.spec(r.rendered.family) {
		declaration += "\t\t# of another kind or size\n"
	}
	var elements []element
	for k := range observed.elements {
		if s.timeout != 0 {
			break // clients come and go
		}
		e, _ := observed.get(k)
		e.in = s
		elements = append(elements, e)
	}
	r.rendered.addSet(&r.out, declaration, elements, r.rendered.texts(elements))
}

// chain prints a chain. h is the hook that it should have.
func (r *tablePrinter) chain(name string, h *hook, observed *observedChain) {
	c := &chain{name: name}
	if observed.hook == h.spec() {
		c.hook = h
	}
	text := strings.TrimSuffix(c.text(r.rendered.family), "\t}\n")
	if observed.policyDrop {
		text = strings.Replace(text, "policy accept", "policy drop", 1)
	}
	r.out.Add("%s", text)
	if c.hook == nil && observed.hook != "" {
		r.out.Add("\t\t# at hook %s\n", observed.hook)
	}
	for _, f := range observed.fingerprints {
		if rule, known := r.rules[f]; known {
			r.out.Add("\t\t%s\n", rule)
		} else {
			r.out.Add("\t\t# a rule that others wrote, or kube-proxy with other settings\n")
		}
	}
	r.out.Add("\t}\n")
}
