// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
)

// overview prints the state of the proxy, and a line for each Service.
func (p *printer) overview(d *Answer) {
	p.sentence(fmt.Sprintf("kube-proxy %s on node %s, mode %s, up %s:", sanitize(d.Version), sanitize(d.Node), sanitize(d.Mode), p.ago(d.Started)), healthCell(&d.Health))
	p.line("Generation wanted: %d", d.Generation)
	if e := d.Health.NodeEligible; e != nil && !*e {
		p.sentence("Load balancers are told to leave this node: "+sanitize(d.Health.NodeReason), cell{})
	}
	p.accelerated(d.Accelerated)
	p.line("")
	p.families(&d.Health)
	p.sources(&d.Health)
	p.conditions(&d.Health)
	p.line("")
	p.sentence(d.Summary.text(len(d.Services)), cell{})
	if len(d.Services) > 0 {
		p.line("")
		p.list(d.Services)
	}
}

// accelerated says how many connections socket acceleration has taken.
func (p *printer) accelerated(taken map[string]uint64) {
	var parts []string
	for _, f := range slices.Sorted(maps.Keys(taken)) {
		parts = append(parts, fmt.Sprintf("%d of %s", taken[f], sanitize(f)))
	}
	if parts != nil {
		p.line("Connections made without translation: %s", strings.Join(parts, ", "))
	}
}

func healthCell(r *health.Report) cell {
	if r.Healthy && len(r.Blocked) > 0 {
		return painted("not healthy, as traffic is blocked by "+sanitize(strings.Join(r.Blocked, ", ")), red)
	}
	if r.Healthy && unsynced(r) {
		return painted("not synced, see below", red)
	}
	if r.Healthy && failing(r) {
		return painted("failing", yellow)
	}
	if r.Healthy {
		return painted("healthy", green)
	}
	return painted("not healthy", red)
}

func (p *printer) families(r *health.Report) {
	var rows [][]cell
	for _, f := range service.Families {
		s, ok := r.Status[f.String()]
		if !ok {
			continue
		}
		state, pending, reason := painted("healthy", green), "none", s.Reason
		if !s.Healthy {
			state = painted("not healthy", red)
		} else if s.Failing {
			state = painted("failing", yellow)
		}
		if s.OldestPending != nil {
			pending = p.ago(*s.OldestPending)
		}
		if s.LastError != "" {
			reason = strings.TrimPrefix(reason+"; "+s.LastError, "; ")
		}
		rows = append(rows, []cell{
			plain(f.String()), state, number(int(s.Generation)), plain(p.ago(s.LastUpdated)), plain(pending),
			number(s.FailedPorts), number(s.DriftFound), number(s.DriftRepaired), plain(sanitize(reason)),
		})
	}
	p.table("", "FAMILY|HEALTH|IN FORCE|LAST GOOD ROUND|OLDEST PENDING|FAILED PORTS|DRIFT FOUND|REPAIRED|WHY NOT", rows)
}

func number(n int) cell { return plain(fmt.Sprint(n)) }

func (p *printer) sources(r *health.Report) {
	var rows [][]cell
	for _, s := range r.Sources {
		state, contact := painted("synced", green), ""
		switch {
		case !s.Synced:
			state = painted("not synced", red)
		case s.Stale:
			state = painted("stale", yellow)
		}
		if s.LastContact != nil {
			contact = p.ago(*s.LastContact)
		}
		rows = append(rows, []cell{plain(sanitize(s.Name)), state, plain(contact), plain(sanitize(sourceError(s)))})
	}
	if rows != nil {
		p.line("")
		p.table("", "SOURCE|STATE|LAST HEARD OF|LAST ERROR", rows)
	}
}

// sourceError returns the latest error of a source, and the number of others.
func sourceError(s health.SourceReport) string {
	if s.Faults < 2 {
		return s.Error
	}
	return fmt.Sprintf("%s; and %d more", s.Error, s.Faults-1)
}

func (p *printer) conditions(r *health.Report) {
	var rows [][]cell
	for _, name := range slices.Sorted(maps.Keys(r.Conditions)) {
		colour := yellow
		if slices.Contains(r.Blocked, name) {
			colour = red
		}
		rows = append(rows, []cell{painted(sanitize(name), colour), plain(sanitize(r.Conditions[name]))})
	}
	if rows != nil {
		p.line("")
		p.table("", "CONDITION|WHAT IS WRONG", rows)
	}
}

// text summarizes the number of Services and of those with faults.
func (n Summary) text(listed int) string {
	text := fmt.Sprintf("%d Services", n.Services)
	if n.Services == 1 {
		text = "1 Service"
	}
	parts := []string{text + ": "}
	for _, x := range []struct {
		n    int
		what string
	}{{n.NotProgrammed, "not programmed"}, {n.Problems, "with something skipped"}, {n.Unserved, "with a port that serves no client"}, {n.Unanswered, "with a health check that is not answered"}} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	if len(parts) == 1 {
		parts = append(parts, "all programmed")
	}
	text = parts[0] + strings.Join(parts[1:], ", ")
	if n.Services == 0 {
		text = "No Services"
	}
	if listed < n.Services {
		text += fmt.Sprintf("; %d listed", listed)
	}
	return text
}
