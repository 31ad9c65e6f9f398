// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/program"
)

// tableHooks are the hooks of the tables of iptables.
var tableHooks = map[string][]string{
	"raw":    {"prerouting", "output"},
	"mangle": {"prerouting", "input", "forward", "output", "postrouting"},
	"nat":    {"prerouting", "output", "postrouting"},
	"filter": {"input", "forward", "output"},
}

// xtables is the name of a command.
func (r *rulesRun) xtables(f service.Family, suffix string) string {
	return [2]string{"iptables-", "ip6tables-"}[f] + r.variant + suffix
}

// prepareIPTables makes each built-in chain lead to one for the rules of cases. The chain end
// is where the policy decides about them.
func (r *rulesRun) prepareIPTables(t *testing.T) {
	t.Helper()
	for _, f := range service.Families {
		var b strings.Builder
		for _, table := range []string{"raw", "mangle", "nat", "filter"} {
			fmt.Fprintf(&b, "*%s\n:end - [0:0]\n", table)
			for _, hook := range tableHooks[table] {
				fmt.Fprintf(&b, ":other-%s - [0:0]\n-A %s -j other-%s\n", hook, strings.ToUpper(hook), hook)
			}
			if table == "filter" {
				fmt.Fprintf(&b, "-A FORWARD -s %s -g end\n-A FORWARD -j ACCEPT\n", strings.Join(casePrefixes(f), ","))
			}
			fmt.Fprintf(&b, "COMMIT\n")
		}
		r.restore(t, f, b.String())
	}
}

func (r *rulesRun) restore(t *testing.T, f service.Family, text string) {
	t.Helper()
	cmd := exec.Command(r.xtables(f, "-restore"), "--noflush", "--wait=60")
	cmd.Stdin = strings.NewReader(text)
	if out, err := program.Run(t, r.Node, cmd); err != nil {
		t.Fatalf("%v: %v\n%s\n%s", cmd.Args, err, out, text)
	}
}

// loadIPTables loads the rules of cases into the tables of iptables.
func (r *rulesRun) loadIPTables(t *testing.T, m *ruleMaker, cases []*ruleCase) kernelRules {
	t.Helper()
	var b strings.Builder
	made := map[string][]string{} // ids by table and chain, in their order
	for _, table := range []string{"raw", "mangle", "nat", "filter"} {
		var names, rules []string
		for _, hook := range tableHooks[table] {
			names = append(names, ":other-"+hook+" - [0:0]\n")
		}
		if table == "filter" {
			names = append(names, ":FORWARD "+pick(m, "ACCEPT", "DROP")+" [0:0]\n")
		}
		for _, c := range cases {
			rules = append(rules, m.inTable(c, table)...)
		}
		text := strings.Join(rules, "")
		remove := ""
		for old := range r.old[m.family] {
			if chain, is := strings.CutPrefix(old, table+" "); is {
				names, remove = append(names, ":"+chain+" - [0:0]\n"), remove+"-X "+chain+"\n"
			}
		}
		for _, x := range regexp.MustCompile(`-A (c\S+) .*--comment (\S+)`).FindAllStringSubmatch(text, -1) {
			key := table + " " + x[1]
			if made[key] == nil {
				names = append(names, ":"+x[1]+" - [0:0]\n")
			}
			made[key] = append(made[key], x[2])
		}
		fmt.Fprintf(&b, "*%s\n%s%sCOMMIT\n", table, strings.Join(names, ""), text+remove)
	}
	r.restore(t, m.family, b.String())
	if r.old == nil {
		r.old = map[service.Family]map[string][]string{}
	}
	r.old[m.family] = made
	k := kernelRules{ids: map[string]string{}, counters: func() map[string]int {
		return counters(r.sh(t, r.xtables(m.family, "-save")+" -c\n"), `\[(\d+):\d+\] -A .*--comment "?(r[\d.]+)`)
	}}
	if r.variant == "nft" {
		r.findHandles(t, m, made, k.ids)
	}
	return k
}

// inTable makes the rules of a case at some hooks of a table.
func (m *ruleMaker) inTable(c *ruleCase, table string) (rules []string) {
	for _, hook := range tableHooks[table] {
		if !slices.Contains(c.hooks(), hook) || m.IntN(3) > 0 {
			continue
		}
		m.ruleCase, m.table, m.hook, m.text = c, table, hook, nil
		entry := m.chain(0)
		rules = append(append(rules, m.text...), fmt.Sprintf("-A other-%s -s %s -j %s\n", hook, c.probe.from.Addr(), entry))
	}
	return rules
}

// findHandles reads the handles of rules, by which explain names those of iptables-nft. Rules
// of a chain are listed in their order.
func (r *rulesRun) findHandles(t *testing.T, m *ruleMaker, made map[string][]string, ids map[string]string) {
	t.Helper()
	for _, table := range []string{"raw", "mangle", "nat", "filter"} {
		chain, n := "", 0
		for line := range strings.Lines(r.sh(t, "nft -a list table "+m.ip()+" "+table+" 2>/dev/null\n")) {
			rule, handle, is := strings.Cut(strings.TrimSpace(line), " # handle ")
			if name, isChain := strings.CutPrefix(rule, "chain "); isChain {
				chain, n = strings.TrimSuffix(name, " {"), 0
				continue
			}
			if own := made[table+" "+chain]; is && n < len(own) {
				ids[m.ip()+" "+table+" "+chain+" "+handle] = own[n]
				n++
			}
		}
	}
}
