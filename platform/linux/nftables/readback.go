// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"kubeproxy/common/service"
)

// ReadBack returns the table that the kernel holds, and the one that it would hold for
// want, in the text and order of Render. Both are equal if nothing has to change for want.
//
// The kernel stores rules as expressions, not as text. So a rule is recognized by its
// fingerprint: it is printed if this node could have a rule with that fingerprint.
func (b *Backend) ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted string, err error) {
	t, err := b.driver.Read(ctx)
	if err != nil {
		return "", "", fmt.Errorf("read table %s: %w", b.name(), err)
	}
	b.liberal = b.options.DropInvalid && b.driver.Liberal()
	d := renderedAfter(t, b.family, want, b.effectiveOptions())
	var have, would strings.Builder
	if t != nil {
		r := &tablePrinter{rendered: d, table: t, rules: b.ruleTexts(t, want)}
		r.write(&have)
	}
	w := bufio.NewWriter(&would)
	d.writeText(w)
	if err := w.Flush(); err != nil {
		return "", "", err
	}
	return have.String(), would.String(), nil
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
	out      *bufio.Writer
}

func (r *tablePrinter) write(to *strings.Builder) {
	r.out = bufio.NewWriter(to)
	fmt.Fprintf(r.out, "table %s %s {\n", r.rendered.Family, r.rendered.Name)
	if r.table.dormant {
		r.out.WriteString("\tflags dormant\n")
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
			fmt.Fprintf(r.out, "\tset or map %s {\n\t\t# not one that is wanted, elements: %d\n\t}\n", name, len(r.table.sets[name].elements))
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
	r.out.WriteString("}\n")
	_ = r.out.Flush() // into memory
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
	writeSet(r.out, declaration, r.rendered.texts(elements))
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
	r.out.WriteString(text)
	if c.hook == nil && observed.hook != "" {
		fmt.Fprintf(r.out, "\t\t# at hook %s\n", observed.hook)
	}
	for _, f := range observed.fingerprints {
		if rule, known := r.rules[f]; known {
			fmt.Fprintf(r.out, "\t\t%s\n", rule)
		} else {
			r.out.WriteString("\t\t# a rule that others wrote, or kube-proxy with other settings\n")
		}
	}
	r.out.WriteString("\t}\n")
}
