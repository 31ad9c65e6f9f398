// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"cmp"
	"fmt"
	"slices"

	"kubeproxy/common/health/servicestate"
)

// mostSilent is how many silent endpoints are printed.
const mostSilent = 20

// silent prints the endpoints that do not answer.
func (p *printer) silent(all []servicestate.SilentEndpoint) {
	shown := p.shown(len(all))
	var rows [][]cell
	for _, x := range all[:shown] {
		out := plain("no")
		if x.LeftOut {
			out = painted("yes", yellow)
		}
		rows = append(rows, []cell{
			plain(sanitize(x.Address)), plain(sanitize(x.Namespace + "/" + x.Name)), plain(cmp.Or(sanitize(x.Port), "-")), plain(p.ago(x.Since)), out, plain(sanitize(x.Why)),
		})
	}
	p.section("", "SILENT ENDPOINT|SERVICE|PORT|SINCE|LEFT OUT|WHY", rows)
	p.more(len(all) - shown)
}

// shown is how many of all silent endpoints, or the like, are printed.
func (p *printer) shown(all int) int {
	if p.wide {
		return all
	}
	return min(all, mostSilent)
}

func (p *printer) more(n int) {
	if n > 0 {
		p.line("and %d more; -o wide prints them, -o json too", n)
	}
}

// ended prints connections that ended, or are about to.
func (p *printer) ended(all []servicestate.EndedConnections) {
	shown := p.shown(len(all))
	var rows [][]cell
	for _, x := range all[:shown] {
		name := "-" // no Service has it any more
		if x.Name != "" {
			name = x.Namespace + "/" + x.Name
		}
		rows = append(rows, []cell{
			plain(sanitize(x.Address)), plain(sanitize(name)), plain(cmp.Or(sanitize(x.Port), "-")), plain(fmt.Sprint(x.Connections)), plain(p.ago(x.Since)), plain(p.ago(x.Last)), plain(sanitize(x.Why)),
		})
	}
	p.section("", "ENDED CONNECTIONS TO|SERVICE|PORT|COUNT|SINCE|LAST|WHY", rows)
	p.more(len(all) - shown)
}

// silentChanges describes endpoints that fell silent or are not any more.
func silentChanges(a, b *Answer, add func(string, string, ...any)) {
	key := func(x servicestate.SilentEndpoint) servicestate.SilentEndpoint {
		x.Why = ""
		return x
	}
	for _, x := range b.Silent {
		if !slices.ContainsFunc(a.Silent, func(y servicestate.SilentEndpoint) bool { return key(x) == key(y) }) {
			add(x.Namespace+"/"+x.Name, "endpoint %s does not answer, and %s: %s", x.Address, map[bool]string{true: "is left out", false: "stays in"}[x.LeftOut], x.Why)
		}
	}
	for _, x := range a.Silent {
		if !slices.ContainsFunc(b.Silent, func(y servicestate.SilentEndpoint) bool {
			return x.Address == y.Address && x.Namespace == y.Namespace && x.Name == y.Name
		}) {
			add(x.Namespace+"/"+x.Name, "endpoint %s answers again, or is gone", x.Address)
		}
	}
}
