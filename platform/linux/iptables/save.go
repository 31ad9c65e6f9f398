// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"kubeproxy/common/service"
)

// held is what iptables-save printed, as far as it concerns us.
type held struct {
	role   Role
	chains map[id][]string // of a service proxy
	// leads are the rules of other chains that lead to one of those.
	leads []jump
	// rules counts those of the system's chains, and behind is how many of them
	// stand before or lead to a chain of another mode.
	rules, behind map[id]int
	// passing has, of the system's chains, the rule that lets all packets pass
	// before they come to the rules behind it, and hidden those of leads that
	// stand behind one.
	passing map[id]string
	hidden  map[int]string
	dormant []string // tables, see Driver
	// disturbed says that a chain was printed twice. iptables-nft-save does so
	// where it had to begin again because somebody changed something.
	disturbed bool
}

// parse reads the output of iptables-save.
func parse(text string, of Role) *held {
	h := &held{role: of, chains: map[id][]string{}, rules: map[id]int{}, behind: map[id]int{}, passing: map[id]string{}, hidden: map[int]string{}}
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case !slices.Contains(everyTable, table):
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			if i := (id{table, name}); of.owns(i) {
				_, twice := h.chains[i]
				h.disturbed = h.disturbed || twice
				h.chains[i] = nil
			}
		case strings.HasPrefix(line, "-A "):
			name, rule, _ := strings.Cut(line[3:], " ")
			h.rule(id{table, name}, rule)
		}
	}
	return h
}

func (h *held) rule(in id, rule string) {
	if h.role.owns(in) {
		h.chains[in] = append(h.chains[in], strings.Clone(rule))
		return
	}
	h.rules[in]++
	w := words(rule)
	to := id{in.table, targetOf(w)}
	if h.role.follows(to) {
		h.behind[in] = h.rules[in]
		delete(h.passing, in)
		maps.DeleteFunc(h.hidden, func(i int, _ string) bool { return h.leads[i].from == in })
	}
	if h.role.owns(to) {
		if by, found := h.passing[in]; found {
			h.hidden[len(h.leads)] = by
		}
		h.leads = append(h.leads, jump{in, strings.Clone(rule)})
	}
	if _, found := h.passing[in]; !found && in.isSystem() && passesAll(w) {
		h.passing[in] = strings.Clone(rule)
	}
}

// targetOf returns where a rule leads.
func targetOf(words []string) string {
	if to := argument(words, "-j"); to != "" {
		return to
	}
	return argument(words, "-g")
}

func (h *held) sums() map[id]sum {
	sums := make(map[id]sum, len(h.chains))
	for i, rules := range h.chains {
		sums[i] = chain{i, rules}.sum()
	}
	return sums
}

// isSystem reports that a chain is one that packets enter by themselves.
func (i id) isSystem() bool {
	return slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, i.name)
}

// bare is j without a comment.
func (j jump) bare() jump {
	w := words(j.rule)
	if i := slices.Index(w, "--comment"); i > 1 && i+1 < len(w) {
		w = slices.Delete(w, i-2, i+2)
	}
	return jump{j.from, strings.Join(w, " ")}
}

// lacking returns those of jumps that are not there. A comment does not count.
func (h *held) lacking(jumps []jump) []jump {
	there := map[jump]bool{}
	for _, l := range h.leads {
		there[l.bare()] = true
	}
	var missing []jump
	for _, j := range jumps {
		if !there[j] {
			missing = append(missing, j)
		}
	}
	return missing
}

// surplus returns the rules of the system's chains that lead to chains which stay
// and are not among jumps: a second one of the same, and one to an entrance as some
// service proxy makes it. Who has added another match knows why.
func (h *held) surplus(stay map[id]bool, jumps []jump) []jump {
	var more []jump
	seen := map[jump]bool{}
	for _, l := range h.leads {
		b := l.bare()
		target := targetOf(words(b.rule))
		match, _ := strings.CutSuffix(b.rule, "-j "+target)
		plain := (slices.Contains(entrances, target) || h.role == BesideIPVS) && slices.Contains([]string{"", newOnly, localOnly}, match)
		switch {
		case !l.from.isSystem() || !stay[id{l.from.table, target}]:
		case slices.Contains(jumps, b) && !seen[b]:
			seen[b] = true
		case seen[b] || plain:
			more = append(more, l)
		}
	}
	return more
}

// strays returns what removes the chains that are not to stay, and the rules
// of the system's chains that lead there.
func (h *held) strays(stay map[id]bool) *change {
	c := &change{}
	used := map[id]bool{}
	for _, l := range h.leads {
		to := id{l.from.table, targetOf(words(l.rule))}
		switch {
		case stay[to]:
		case l.from.isSystem():
			c.unjumps = append(c.unjumps, l)
		default:
			used[to] = true
		}
	}
	for _, i := range slices.SortedFunc(maps.Keys(h.chains), id.compare) {
		switch {
		case stay[i]:
		case !used[i]:
			c.deletes = append(c.deletes, i)
		case len(h.chains[i]) > 0:
			c.writes = append(c.writes, chain{id: i})
		}
	}
	return c
}

// inUse returns an error that names every chain that others refer to.
func (h *held) inUse() error {
	var errs []error
	for _, l := range h.leads {
		if !l.from.isSystem() {
			errs = append(errs, fmt.Errorf("chain %s of table %s is in use: chain %s has the rule %q, which somebody else made", targetOf(words(l.rule)), l.from.table, l.from.name, l.rule))
		}
	}
	return errors.Join(errs...)
}

// entries returns what the trees hold, sorted.
func (h *held) entries() []entry {
	found := map[key]*entry{}
	for _, i := range slices.SortedFunc(maps.Keys(h.chains), id.compare) {
		if !i.isTree() {
			continue
		}
		for _, r := range h.chains[i] {
			w := words(r)
			k, ok := keyOf(i.table, w)
			if !ok || (id{i.table, targetOf(w)}).isTree() {
				continue
			}
			k.check = i.name == healthPortsChain || strings.HasPrefix(i.name, healthPrefix)
			if found[k] == nil {
				found[k] = &entry{key: k}
			}
			found[k].rules = append(found[k].rules, r)
		}
	}
	var all []entry
	for _, k := range slices.SortedFunc(maps.Keys(found), key.compare) {
		all = append(all, *found[k])
	}
	return all
}

// keyOf reads from the words of a rule what it is for.
func keyOf(table string, w []string) (key, bool) {
	k := key{table: table}
	if d := argument(w, "-d"); d != "" {
		p, err := netip.ParsePrefix(d)
		if err != nil || !p.IsSingleIP() || slices.Contains(w, "!") {
			return k, false
		}
		k.addr = p.Addr()
	}
	for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		if argument(w, "-p") == p.String() {
			k.proto = p
		}
	}
	if port := argument(w, "--dport"); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return k, false
		}
		k.port = uint16(n)
	}
	return k, (k.port == 0) == (k.proto == 0) && (k.addr.IsValid() || k.port != 0)
}
