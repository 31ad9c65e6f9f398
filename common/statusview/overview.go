// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
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
func (su Summary) text(listed int) string {
	text := fmt.Sprintf("%d Services", su.Services)
	if su.Services == 1 {
		text = "1 Service"
	}
	parts := []string{text + ": "}
	for _, x := range []struct {
		n    int
		what string
	}{{su.NotProgrammed, "not programmed"}, {su.Problems, "with something skipped"}, {su.Unserved, "with a port that serves no client"}, {su.Unanswered, "with a health check that is not answered"}} {
		if x.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	if len(parts) == 1 {
		parts = append(parts, "all programmed")
	}
	text = parts[0] + strings.Join(parts[1:], ", ")
	if su.Services == 0 {
		text = "No Services"
	}
	if listed < su.Services {
		text += fmt.Sprintf("; %d listed", listed)
	}
	return text
}

// change is what differs between two answers, for one subject.
type change struct{ about, what string }

// changes lists what is different in b from a: the proxy, its rounds, then Services in the
// order of names. gone is what happened to a Service that is not in b.
func changes(a, b *Answer, gone string) []change {
	var all []change
	add := func(about, format string, args ...any) {
		all = append(all, change{sanitize(about), sanitize(fmt.Sprintf(format, args...))})
	}
	if !a.Started.Equal(b.Started) {
		add("proxy", "another process runs, since %s ago", shortDuration(b.Health.CurrentTime.Sub(b.Started)))
	}
	if a.Mode != b.Mode {
		add("proxy", "mode %s, was %s", b.Mode, a.Mode)
	}
	if was, is := healthCell(&a.Health).Text, healthCell(&b.Health).Text; was != is {
		add("proxy", "%s, was %s", is, was)
	}
	conditionChanges(&a.Health, &b.Health, add)
	roundChanges(&a.Health, &b.Health, add)
	before := map[string]*servicestate.Service{}
	for i := range a.Services {
		before[a.Services[i].Namespace+"/"+a.Services[i].Name] = &a.Services[i]
	}
	for i := range b.Services {
		s := &b.Services[i]
		name := s.Namespace + "/" + s.Name
		serviceChanges(before[name], s, func(format string, args ...any) { add(name, format, args...) })
		delete(before, name)
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		add(name, "%s", gone)
	}
	return all
}

func conditionChanges(a, b *health.Report, add func(string, string, ...any)) {
	for _, name := range slices.Sorted(maps.Keys(b.Conditions)) {
		if text := b.Conditions[name]; a.Conditions[name] != text {
			add("condition "+name, "%s", text)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(a.Conditions)) {
		if _, still := b.Conditions[name]; !still {
			add("condition "+name, "over")
		}
	}
}

// roundChanges describes rounds that put another generation in force or failed.
func roundChanges(a, b *health.Report, add func(string, string, ...any)) {
	for _, f := range service.Families {
		was, is := a.Status[f.String()], b.Status[f.String()]
		if was.Generation != is.Generation {
			add(f.String(), "generation %d is in force", is.Generation)
		}
		if found := is.DriftFound - was.DriftFound; found > 0 {
			add(f.String(), "%d changes by others were found, %d repaired", found, is.DriftRepaired-was.DriftRepaired)
		}
		switch {
		case is.LastError != was.LastError && is.LastError != "":
			add(f.String(), "%s", is.LastError)
		case was.Failing && !is.Failing, is.LastError != was.LastError:
			add(f.String(), "rounds succeed again")
		}
	}
}

// serviceChanges compares a Service with its former state, which is nil for a new one.
func serviceChanges(was, is *servicestate.Service, add func(string, ...any)) {
	if was == nil {
		add("new, %s, %s endpoints", is.State, cmp.Or(rangeText(is, func(p servicestate.Port) int { return p.Endpoints }), "no"))
		return
	}
	if was.State != is.State {
		add("%s, was %s", is.State, was.State)
	}
	if old, now := problemText(was), problemText(is); old != now {
		add("%s", cmp.Or(now, "nothing is wrong any more"))
	}
	before := map[string]*servicestate.Port{}
	for i := range was.Ports {
		before[portKey(&was.Ports[i])] = &was.Ports[i]
	}
	for i := range is.Ports {
		p := &is.Ports[i]
		old := before[portKey(p)]
		delete(before, portKey(p))
		if old == nil {
			add("port %s is new", portKey(p))
			continue
		}
		portChanges(old, p, add)
	}
	for _, key := range slices.Sorted(maps.Keys(before)) {
		add("port %s is gone", key)
	}
}

func portKey(p *servicestate.Port) string {
	return cmp.Or(p.Port, "-") + "/" + p.Protocol + " " + p.Family
}

// portChanges compares endpoints. Only answers about one Service list them; for others it
// compares their numbers.
func portChanges(was, is *servicestate.Port, add func(string, ...any)) {
	if was.EndpointList == nil && is.EndpointList == nil {
		if was.Endpoints != is.Endpoints || was.LocalEndpoints != is.LocalEndpoints {
			add("port %s: %d endpoints, %d of them here; were %d and %d", portKey(is), is.Endpoints, is.LocalEndpoints, was.Endpoints, was.LocalEndpoints)
		}
		return
	}
	before := map[string]track.Candidate{}
	for _, e := range was.EndpointList {
		before[e.Address] = e
	}
	for _, e := range is.EndpointList {
		old, known := before[e.Address]
		delete(before, e.Address)
		switch text := endpointText(e); {
		case !known:
			add("port %s: endpoint %s is new: %s", portKey(is), e.Address, text)
		case endpointText(old) != text:
			add("port %s: endpoint %s: %s; was %s", portKey(is), e.Address, text, endpointText(old))
		}
	}
	for _, address := range slices.Sorted(maps.Keys(before)) {
		add("port %s: endpoint %s is gone", portKey(is), address)
	}
}

// endpointText says how an endpoint is used.
func endpointText(e track.Candidate) string {
	text := e.State + ", not used"
	if e.Cluster.Used || e.ForLocal != nil && e.ForLocal.Used {
		text = e.State + ", used"
	}
	if e.Node != "" {
		text += " on " + e.Node
	}
	if e.Cluster.Why != "" && !e.Cluster.Used {
		text += " (" + e.Cluster.Why + ")"
	}
	return text
}
