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
	"kubeproxy/platform/linux/iptables/walk"
)

// observed is the part of the output of iptables-save that concerns us.
type observed struct {
	role   Role
	chains map[id][]string // chains of a service proxy
	// references are the rules of other chains that jump to one of those.
	references []jump
	// rules counts the rules of each built-in chain. insertAfter is the number of rules
	// up to the last jump to a chain of another mode.
	rules, insertAfter map[id]int
	// passingRule is, by built-in chain, the first rule that lets all packets pass, so
	// that later rules do not see them. shadowedBy is that rule for the references
	// behind one, by index.
	passingRule map[id]string
	shadowedBy  map[int]string
	dormant     []string // tables, see Driver
	// interrupted means that a chain occurs twice. iptables-nft-save starts again and
	// prints it twice if the ruleset changes meanwhile.
	interrupted bool
}

// parse parses the output of iptables-save.
func parse(text string, of Role) *observed {
	h := &observed{role: of, chains: map[id][]string{}, rules: map[id]int{}, insertAfter: map[id]int{}, passingRule: map[id]string{}, shadowedBy: map[int]string{}}
	table := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "*"):
			table = line[1:]
		case !slices.Contains(allTables, table):
		case strings.HasPrefix(line, ":"):
			name, _, _ := strings.Cut(line[1:], " ")
			if i := (id{table, name}); of.owns(i) {
				_, twice := h.chains[i]
				h.interrupted = h.interrupted || twice
				h.chains[i] = nil
			}
		case strings.HasPrefix(line, "-A "):
			name, rule, _ := strings.Cut(line[3:], " ")
			h.rule(id{table, name}, rule)
		}
	}
	return h
}

func (h *observed) rule(in id, rule string) {
	if h.role.owns(in) {
		h.chains[in] = append(h.chains[in], strings.Clone(rule))
		return
	}
	h.rules[in]++
	w := walk.Split(rule)
	to := id{in.table, targetOf(w)}
	if h.role.comesAfter(to) {
		h.insertAfter[in] = h.rules[in]
		delete(h.passingRule, in)
		maps.DeleteFunc(h.shadowedBy, func(i int, _ string) bool { return h.references[i].from == in })
	}
	if h.role.owns(to) {
		if by, found := h.passingRule[in]; found {
			h.shadowedBy[len(h.references)] = by
		}
		h.references = append(h.references, jump{in, strings.Clone(rule)})
	}
	if _, found := h.passingRule[in]; !found && in.isSystem() && passesAll(w) {
		h.passingRule[in] = strings.Clone(rule)
	}
}

// targetOf returns the target of a rule.
func targetOf(words []string) string {
	if to := walk.Argument(words, "-j"); to != "" {
		return to
	}
	return walk.Argument(words, "-g")
}

func (h *observed) sums() map[id]sum {
	sums := make(map[id]sum, len(h.chains))
	for i, rules := range h.chains {
		sums[i] = chain{i, rules}.sum()
	}
	return sums
}

// isSystem reports whether a chain is a built-in one.
func (i id) isSystem() bool {
	return slices.Contains([]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}, i.name)
}

// bare returns j without a comment.
func (j jump) bare() jump {
	w := walk.Split(j.rule)
	if i := slices.Index(w, "--comment"); i > 1 && i+1 < len(w) {
		w = slices.Delete(w, i-2, i+2)
	}
	return jump{j.from, strings.Join(w, " ")}
}

// missingJumps returns those of jumps that are not in the tables. Comments are ignored.
func (h *observed) missingJumps(jumps []jump) []jump {
	there := map[jump]bool{}
	for _, l := range h.references {
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

// extraJumps returns the rules of built-in chains that jump to chains which stay but are
// not among jumps: duplicates, and jumps to an entry chain as some service proxy makes
// them. A rule with another match is left alone, because an operator added it on
// purpose.
func (h *observed) extraJumps(stay map[id]bool, jumps []jump) []jump {
	var more []jump
	seen := map[jump]bool{}
	for _, l := range h.references {
		b := l.bare()
		target := targetOf(walk.Split(b.rule))
		match, _ := strings.CutSuffix(b.rule, "-j "+target)
		plain := (slices.Contains(entryChains, target) || h.role == IPVSCompanion) && slices.Contains([]string{"", newOnly, localOnly}, match)
		plain = plain || target == relayChain // where the relay of an earlier process was
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

// extraneous returns the change that removes the chains that are not in stay, and the
// rules of the built-in chains that jump there.
func (h *observed) extraneous(stay map[id]bool) *change {
	c := &change{}
	used := map[id]bool{}
	for _, l := range h.references {
		to := id{l.from.table, targetOf(walk.Split(l.rule))}
		switch {
		case stay[to]:
		case l.from.isSystem():
			c.deleteJumps = append(c.deleteJumps, l)
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

// inUse returns an error that names every chain that rules of others refer to.
func (h *observed) inUse() error {
	var errs []error
	for _, l := range h.references {
		if !l.from.isSystem() {
			errs = append(errs, fmt.Errorf("chain %s of table %s is in use: chain %s has the rule %q, which another program made", targetOf(walk.Split(l.rule)), l.from.table, l.from.name, l.rule))
		}
	}
	return errors.Join(errs...)
}

// entries returns the entries of the trees, sorted.
func (h *observed) entries() []entry {
	found := map[key]*entry{}
	for _, i := range slices.SortedFunc(maps.Keys(h.chains), id.compare) {
		if !i.isTree() {
			continue
		}
		for _, r := range h.chains[i] {
			w := walk.Split(r)
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

// keyOf parses the key from the words of a rule.
func keyOf(table string, w []string) (key, bool) {
	k := key{table: table}
	if d := walk.Argument(w, "-d"); d != "" {
		p, err := netip.ParsePrefix(d)
		if err != nil || !p.IsSingleIP() || slices.Contains(w, "!") {
			return k, false
		}
		k.addr = p.Addr()
	}
	for _, p := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		if walk.Argument(w, "-p") == p.String() {
			k.proto = p
		}
	}
	if port := walk.Argument(w, "--dport"); port != "" {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil {
			return k, false
		}
		k.port = uint16(n)
	}
	return k, (k.port == 0) == (k.proto == 0) && (k.addr.IsValid() || k.port != 0)
}
