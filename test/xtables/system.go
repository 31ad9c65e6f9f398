// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// System is iptables for one family. Like a real one, it refuses references to missing
// chains and sets, and the removal of those in use. It applies each table in one step,
// see iptables-restore(8).
type System struct {
	Tables map[string]Table
	// Sets are those that rules may refer to, nil for none.
	Sets          *Sets
	Dirty         bool     // another program changed something
	DormantTables []string // tables that no packet passes
	RouteLocalnet bool     // packets to loopback addresses may be routed
	LocalnetErr   error    // the error of changing that
	// RecentClients are the clients of each list of the match recent, and for how long they
	// have been there.
	RecentClients map[string]map[netip.Addr]time.Duration
	// TCPBeLiberal is nf_conntrack_tcp_be_liberal, see
	// https://docs.kernel.org/networking/nf_conntrack-sysctl.html
	TCPBeLiberal     bool
	Restores         int
	Saves            int
	Texts            []string
	done             []string // see Changes
	InterruptedSaves int      // listings that concurrent changes interrupt
	// Piece is what PieceRules returns.
	Piece int
	// Refuse, if set, may refuse the text for a table before anything is done.
	Refuse func(text string) error
}

// Table holds the rules of chains by name.
type Table map[string][]string

// New returns a system with empty tables.
func New(s *Sets) *System {
	k := &System{Sets: s, Tables: map[string]Table{
		"nat":    {"PREROUTING": nil, "INPUT": nil, "OUTPUT": nil, "POSTROUTING": nil},
		"filter": {"INPUT": nil, "FORWARD": nil, "OUTPUT": nil},
	}}
	if s != nil {
		s.users = append(s.users, k)
		k.Tables["mangle"] = Table{"PREROUTING": nil, "INPUT": nil, "FORWARD": nil, "OUTPUT": nil, "POSTROUTING": nil}
	}
	return k
}

// PieceRules returns how many rules of new chains one text should have.
func (k *System) PieceRules() int { return k.Piece }

// Restore applies text as iptables-restore --noflush does.
func (k *System) Restore(_ context.Context, text string) error {
	k.Restores++
	k.Texts = append(k.Texts, text)
	for part := range strings.SplitSeq(strings.TrimSpace(text), "COMMIT") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		if k.Refuse != nil {
			if err := k.Refuse(part); err != nil {
				return err
			}
		}
		if err := k.restore(part); err != nil {
			return err
		}
	}
	return nil
}

// restore applies the part for one table.
func (k *System) restore(part string) error {
	head, body, _ := strings.Cut(part, "\n")
	name := strings.TrimPrefix(head, "*")
	next := Table{}
	for n, rules := range k.Tables[name] {
		next[n] = slices.Clone(rules)
	}
	for line := range strings.Lines(body) {
		if err := next.do(strings.TrimSpace(line)); err != nil {
			return fmt.Errorf("%q: %w", line, err)
		}
	}
	if err := next.check(k.Sets); err != nil {
		return err
	}
	k.Tables[name] = next
	k.done = append(k.done, changes(name, body)...)
	return nil
}

// Changes returns what Restore changed since the call before, as a plan prints it.
func (k *System) Changes() []string {
	all := k.done
	k.done = nil
	return all
}

// changes returns what the text for a table does: it writes or deletes each chain that it
// declares, and adds and deletes rules of others.
func changes(table, text string) []string {
	rules, gone := map[string]int{}, map[string]bool{}
	var all []string
	for line := range strings.Lines(text) {
		if name, found := strings.CutPrefix(line, ":"); found {
			name, _, _ = strings.Cut(name, " ")
			rules[name] = 0
			continue
		}
		w := strings.SplitN(strings.TrimSpace(line), " ", 3)
		switch w[0] {
		case "-A":
			rules[w[1]]++
		case "-X":
			gone[w[1]] = true
		case "-I":
			_, rule, _ := strings.Cut(w[2], " ")
			all = append(all, fmt.Sprintf("+ %s rule in %s: %s", table, w[1], rule))
		case "-D":
			all = append(all, fmt.Sprintf("- %s rule in %s: %s", table, w[1], w[2]))
		}
	}
	for name, n := range rules {
		if gone[name] {
			all = append(all, fmt.Sprintf("- %s chain %s", table, name))
		} else {
			all = append(all, fmt.Sprintf("+ %s chain %s (rules: %d)", table, name, n))
		}
	}
	return all
}

var errRefused = errors.New("refused")

func (t Table) do(line string) error {
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
		return errRefused
	case w[0] == "-A":
		t[name] = append(rules, w[2])
	case w[0] == "-I":
		t[name] = append([]string{strings.TrimPrefix(w[2], "1 ")}, rules...)
	case w[0] == "-D":
		i := slices.Index(rules, w[2])
		if i < 0 {
			return errRefused
		}
		t[name] = slices.Delete(rules, i, i+1)
	case w[0] == "-X" && len(rules) == 0:
		delete(t, name)
	default:
		return errRefused
	}
	return nil
}

// check returns an error if a rule refers to something that does not exist.
func (t Table) check(sets *Sets) error {
	targets := []string{"ACCEPT", "DROP", "RETURN", "REJECT", "MARK", "DNAT", "MASQUERADE"}
	for name, rules := range t {
		for _, r := range rules {
			w := words(r)
			to := target(w)
			if _, chain := t[to]; !chain && to != "" && !slices.Contains(targets, to) { // a rule without a target only counts
				return fmt.Errorf("chain %s: %q: no chain %s: %w", name, r, to, errRefused)
			}
			if set := argument(w, "--match-set"); set != "" && (sets == nil || sets.ByName[set] == nil) {
				return fmt.Errorf("chain %s: %q: no ipset %s: %w", name, r, set, errRefused)
			}
		}
	}
	return nil
}

// refers returns whether a rule refers to a set.
func (k *System) refers(set string) bool {
	for _, t := range k.Tables {
		for _, rules := range t {
			if slices.ContainsFunc(rules, func(r string) bool { return argument(words(r), "--match-set") == set }) {
				return true
			}
		}
	}
	return false
}

// Save returns the output of iptables-save.
func (k *System) Save(context.Context) (string, error) {
	k.Saves++
	k.Dirty = false
	if k.InterruptedSaves > 0 {
		k.InterruptedSaves--
		return strings.ReplaceAll(k.Text(), ":KUBE-SERVICES - [0:0]\n", ":KUBE-SERVICES - [0:0]\n:KUBE-SERVICES - [0:0]\n"), nil
	}
	return k.Text(), nil
}

// Text returns the content of all tables.
func (k *System) Text() string {
	var b strings.Builder
	for _, table := range []string{"nat", "filter", "mangle"} {
		if k.Tables[table] == nil {
			continue
		}
		fmt.Fprintf(&b, "*%s\n", table)
		for _, n := range slices.Sorted(maps.Keys(k.Tables[table])) {
			fmt.Fprintf(&b, ":%s - [0:0]\n", n)
		}
		for _, n := range slices.Sorted(maps.Keys(k.Tables[table])) {
			for _, r := range k.Tables[table][n] {
				fmt.Fprintf(&b, "-A %s %s\n", n, r)
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// Touched returns whether another program changed something since Save.
func (k *System) Touched(context.Context) (bool, error) { return k.Dirty, nil }

// Recent returns the clients of a list.
func (k *System) Recent(list string) (map[netip.Addr]time.Duration, error) {
	return k.RecentClients[list], nil
}

// Liberal returns TCPBeLiberal.
func (k *System) Liberal() bool { return k.TCPBeLiberal }

// Dormant lists tables that no packet passes.
func (k *System) Dormant() ([]string, error) { return k.DormantTables, nil }

// SavedTables implements iptables.Driver.
func (k *System) SavedTables() []string { return nil }

// Activate lets packets pass a table again.
func (k *System) Activate(table string) error {
	k.DormantTables = slices.DeleteFunc(k.DormantTables, func(t string) bool { return t == table })
	return nil
}

// RouteLocalnetEnabled returns whether packets to loopback addresses may be routed.
func (k *System) RouteLocalnetEnabled() (bool, error) {
	if k.RouteLocalnet {
		return true, nil
	}
	return false, k.LocalnetErr
}

// EnableRouteLocalnet allows that, unless LocalnetErr is set.
func (k *System) EnableRouteLocalnet() error {
	k.RouteLocalnet = k.RouteLocalnet || k.LocalnetErr == nil
	return k.LocalnetErr
}

// DisableRouteLocalnet disallows it.
func (k *System) DisableRouteLocalnet() error {
	k.RouteLocalnet = false
	return nil
}

// Watch waits for ctx to end.
func (k *System) Watch(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// Suspect implements iptables.Driver. Nobody is known.
func (k *System) Suspect() string { return "" }

// Close implements iptables.Driver.
func (k *System) Close() {}
