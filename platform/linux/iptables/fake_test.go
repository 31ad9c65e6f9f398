// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// fake is a system that is as strict as a real one about chains that exist
// and chains in use, and takes each table in one step.
type fake struct {
	tables   map[string]fakeTable
	touched  bool
	localnet bool
	fixed    error // why localnet cannot become true
	restores int
	saves    int
	texts    []string
	disturb  int // listings that others disturb
	// refuse, if set, may refuse the text for a table before anything is done.
	refuse func(text string) error
}

// fakeTable has the rules of chains by name.
type fakeTable map[string][]string

func newFake() *fake {
	return &fake{tables: map[string]fakeTable{
		nat:    {"PREROUTING": nil, "INPUT": nil, "OUTPUT": nil, "POSTROUTING": nil},
		filter: {"INPUT": nil, "FORWARD": nil, "OUTPUT": nil},
	}}
}

func (k *fake) Restore(_ context.Context, text string) error {
	k.restores++
	k.texts = append(k.texts, text)
	for part := range strings.SplitSeq(strings.TrimSpace(text), "COMMIT") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		if k.refuse != nil {
			if err := k.refuse(part); err != nil {
				return err
			}
		}
		head, body, _ := strings.Cut(part, "\n")
		name := strings.TrimPrefix(head, "*")
		next := fakeTable{}
		for n, rules := range k.tables[name] {
			next[n] = slices.Clone(rules)
		}
		for line := range strings.Lines(body) {
			if err := next.do(strings.TrimSpace(line)); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
		}
		if err := next.check(); err != nil {
			return err
		}
		k.tables[name] = next
	}
	return nil
}

var errLine = errors.New("refused")

func (t fakeTable) do(line string) error {
	if name, found := strings.CutPrefix(line, ":"); found {
		name, _, _ = strings.Cut(name, " ")
		t[name] = nil
		return nil
	}
	w := strings.SplitN(line, " ", 3)
	name := w[1]
	rules, found := t[name]
	switch {
	case !found, len(name) > 28:
		return errLine
	case w[0] == "-A":
		t[name] = append(rules, w[2])
	case w[0] == "-I":
		t[name] = append([]string{strings.TrimPrefix(w[2], "1 ")}, rules...)
	case w[0] == "-D":
		i := slices.Index(rules, w[2])
		if i < 0 {
			return errLine
		}
		t[name] = slices.Delete(rules, i, i+1)
	case w[0] == "-X" && len(rules) == 0:
		delete(t, name)
	default:
		return errLine
	}
	return nil
}

// check makes sure that whatever is referred to exists.
func (t fakeTable) check() error {
	targets := []string{"ACCEPT", "DROP", "RETURN", "REJECT", "MARK", "DNAT", "MASQUERADE"}
	for name, rules := range t {
		for _, r := range rules {
			to := targetOf(words(r))
			if _, chain := t[to]; !chain && to != "" && !slices.Contains(targets, to) { // one without a target counts
				return fmt.Errorf("chain %s: %q: no chain %s: %w", name, r, to, errLine)
			}
		}
	}
	return nil
}

func (k *fake) Save(context.Context) (string, error) {
	k.saves++
	k.touched = false
	if k.disturb > 0 {
		k.disturb--
		return strings.ReplaceAll(k.text(), ":KUBE-SERVICES - [0:0]\n", ":KUBE-SERVICES - [0:0]\n:KUBE-SERVICES - [0:0]\n"), nil
	}
	return k.text(), nil
}

func (k *fake) text() string {
	var b strings.Builder
	for _, table := range tables {
		fmt.Fprintf(&b, "*%s\n", table)
		for _, n := range slices.Sorted(maps.Keys(k.tables[table])) {
			fmt.Fprintf(&b, ":%s - [0:0]\n", n)
		}
		for _, n := range slices.Sorted(maps.Keys(k.tables[table])) {
			for _, r := range k.tables[table][n] {
				fmt.Fprintf(&b, "-A %s %s\n", n, r)
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

func (k *fake) Touched(context.Context) (bool, error) { return k.touched, nil }

func (k *fake) Localnet() (bool, error) {
	if k.localnet {
		return true, nil
	}
	return false, k.fixed
}

func (k *fake) AllowLocalnet() error {
	k.localnet = k.localnet || k.fixed == nil
	return k.fixed
}

func (k *fake) ForbidLocalnet() error {
	k.localnet = false
	return nil
}

func (k *fake) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}
