// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubeproxy/common/document"
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
	p.silent(d.Silent)
	p.ended(d.Ended)
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
	if onlyBlocked(r) && len(r.Blocked) > 0 {
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

// onlyBlocked reports that all families are programmed.
func onlyBlocked(r *health.Report) bool {
	for _, s := range r.Status {
		if !s.Healthy && !s.Blocked {
			return false
		}
	}
	return true
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
	p.table("", "FAMILY|HEALTH|IN FORCE|LAST GOOD|PENDING|FAILED|DRIFT|REPAIRED|WHY NOT", rows)
}

func number(n int) cell { return plain(fmt.Sprint(n)) }

func (p *printer) sources(r *health.Report) {
	var rows [][]cell
	last := ""
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
		text := sourceError(s)
		if cause := strings.ReplaceAll(text, s.Name, ""); cause == last && cause != "" {
			text = "as above"
		} else {
			last = cause
		}
		rows = append(rows, []cell{plain(sanitize(s.Name)), state, plain(contact), plain(sanitize(text))})
	}
	p.section("", "SOURCE|STATE|LAST HEARD OF|LAST ERROR", rows)
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
	p.section("", "CONDITION|WHAT IS WRONG", rows)
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
	silentChanges(a, b, add)
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
		add("new, %s, %s endpoints", is.State, cmp.Or(rangeText(is, portEndpoints), "no"))
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

// portChanges compares endpoints, or in answers without a list of them their numbers.
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
	if e.Failed != nil {
		text += ", " + e.Failed.Error
	}
	if e.Cluster.Why != "" && !e.Cluster.Used {
		text += " (" + e.Cluster.Why + ")"
	}
	return text
}

// list prints a line for each Service. Where there is not enough room for one, there is one
// address of each Service instead of two, then less is said of each.
func (p *printer) list(all []servicestate.Service) {
	const since, kind = 8, 2
	most := 2
	if p.width == document.Unlimited {
		most = math.MaxInt
	}
	t := p.listTable(all, most)
	if !t.Fits() {
		t = p.listTable(all, 1)
	}
	for _, column := range []int{since, kind} {
		if t.Fits() {
			break
		}
		for _, row := range t.Rows {
			row[column] = cell{}
		}
	}
	t.Write(&p.text)
}

// listTable returns the list with so many ports and addresses of each Service at most.
func (p *printer) listTable(all []servicestate.Service, most int) *document.Table {
	rows := make([][]cell, 0, len(all))
	for i := range all {
		s := &all[i]
		generation, since := sinceWhen(s)
		row := []cell{
			plain(sanitize(s.Namespace + "/" + s.Name)), plain(truncateList(portsOf(s), most)), plain(kindOf(s)), plain(truncateList(addressesOf(s), most)),
			{}, stateOf(s), plain(rangeText(s, portEndpoints)),
			{}, plain(p.since(since)), {}, plain(sanitize(problemText(s))),
		}
		if p.wide {
			row[4] = plain(strings.Join(familyNames(s), ","))
			row[7] = plain(rangeText(s, func(x servicestate.Port) int { return x.LocalEndpoints }))
			if generation > 0 {
				row[9] = plain(strconv.FormatUint(generation, 10))
			}
		}
		rows = append(rows, row)
	}
	return p.newTable("", "SERVICE|PORTS|TYPE|ADDRESSES|FAMILIES|STATE|ENDPOINTS|LOCAL|SINCE|GENERATION|WHY NOT", rows)
}

func truncateList(words []string, most int) string {
	if n := len(words); n > most {
		return strings.Join(words[:most], ",") + fmt.Sprintf(",+%d", n-most)
	}
	return strings.Join(words, ",")
}

// stateOf returns the state in a table, where "programmed" alone may mislead.
func stateOf(s *servicestate.Service) cell {
	switch {
	case s.State == servicestate.Failed || s.State == servicestate.Skipped:
		return painted(sanitize(string(s.State)), red)
	case s.State != servicestate.Programmed:
		return painted(sanitize(string(s.State)), yellow)
	case len(s.Problems) > 0:
		return painted("in part", yellow)
	case unserved(s), healthCheckUnanswered(s):
		return painted("programmed", yellow)
	}
	return painted("programmed", green)
}

// portsOf returns ports such as "80/TCP", each once.
func portsOf(s *servicestate.Service) []string {
	var all []string
	for _, p := range s.Ports {
		for _, f := range p.Frontends {
			if f.Kind != "NodePort" {
				all = append(all, fmt.Sprintf("%d/%s", f.Port, sanitize(strings.ToUpper(p.Protocol))))
				break
			}
		}
	}
	return unique(all)
}

// addressesOf returns each address that clients dial, and the node ports.
func addressesOf(s *servicestate.Service) []string {
	var all, ports []string
	for _, p := range s.Ports {
		for _, f := range p.Frontends {
			if f.Kind == "NodePort" {
				ports = append(ports, fmt.Sprintf("node:%d", f.Port))
			} else {
				all = append(all, sanitize(f.Address))
			}
		}
	}
	return unique(append(all, ports...))
}

func familyNames(s *servicestate.Service) []string {
	var all []string
	for _, p := range s.Ports {
		all = append(all, sanitize(p.Family))
	}
	return unique(all)
}

// kindOf returns the type of a Service as far as its frontends show it.
func kindOf(s *servicestate.Service) string {
	kind := ""
	for _, p := range s.Ports {
		for _, f := range p.Frontends {
			switch {
			case f.Kind == "LoadBalancerIP":
				kind = "LoadBalancer"
			case f.Kind == "NodePort" && kind != "LoadBalancer":
				kind = "NodePort"
			case kind == "":
				kind = "ClusterIP"
			}
		}
	}
	return kind
}

// unique drops repetitions and keeps the order.
func unique(words []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(words, func(w string) bool {
		again := seen[w]
		seen[w] = true
		return again
	})
}

// rangeText returns a number that all ports share, or the range of their numbers.
func rangeText(s *servicestate.Service, of func(servicestate.Port) int) string {
	if len(s.Ports) == 0 {
		return ""
	}
	lowest, highest := of(s.Ports[0]), of(s.Ports[0])
	for _, p := range s.Ports {
		lowest, highest = min(lowest, of(p)), max(highest, of(p))
	}
	if lowest == highest {
		return strconv.Itoa(highest)
	}
	return fmt.Sprintf("%d-%d", lowest, highest)
}

func portEndpoints(p servicestate.Port) int { return p.Endpoints }

// sinceWhen returns since when a Service is failing or, with the generation, in force.
func sinceWhen(s *servicestate.Service) (generation uint64, since *time.Time) {
	var failing *time.Time
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.FailingSince != nil && (failing == nil || p.FailingSince.Before(*failing)) {
			failing = p.FailingSince
		}
		if p.Since != nil && (since == nil || p.Since.After(*since)) {
			generation, since = p.Generation, p.Since
		}
	}
	if failing == nil && s.State == servicestate.Skipped && len(s.Problems) > 0 {
		failing = &s.Problems[0].Since
	}
	return generation, cmp.Or(failing, since)
}

// problemText lists the faults, the worst first.
func problemText(s *servicestate.Service) string {
	var all []string
	for _, p := range s.Ports {
		if p.Error != "" {
			all = append(all, p.Error)
		}
	}
	for _, p := range s.Problems {
		all = append(all, p.Field+": "+p.Message)
	}
	if healthCheckUnanswered(s) {
		all = append(all, "load balancers get no answer: "+s.HealthCheck.Error)
	}
	for _, p := range s.Ports {
		for _, f := range p.Frontends {
			if f.Reason != "" && f.Reason != servicestate.LeftAlone {
				all = append(all, reasonText(f))
			}
		}
	}
	return strings.Join(unique(all), "; ")
}

// reasonText describes what a reason means to clients.
func reasonText(f servicestate.Frontend) string {
	switch f.Reason {
	case "":
		return ""
	case servicestate.NoAddress:
		return "at no address: " + f.Why
	case servicestate.NotReached:
		return f.Why
	case servicestate.NoEndpoints:
		return "no endpoints"
	case servicestate.LeftAlone:
		return "left to the load balancer: ipMode Proxy"
	case servicestate.PolicyLeftNone:
		return "no endpoints on this node, policy " + f.Policy
	case servicestate.NoSources:
		return "no client is allowed by the source ranges"
	case servicestate.UnsupportedByMode:
		return "not served: this mode cannot"
	}
	return string(f.Reason)
}

// services prints each Service in full.
func (p *printer) services(d *Answer) {
	if !d.Health.Healthy || slices.ContainsFunc(d.Services, func(s servicestate.Service) bool { return blocked(&s, d.Health.BlockedFamilies) }) {
		p.sentence(fmt.Sprintf("See kube-proxy status: the proxy on node %s is", sanitize(d.Node)), healthCell(&d.Health))
		p.line("")
	}
	for i := range d.Services {
		if i > 0 {
			p.line("")
		}
		p.service(&d.Services[i])
	}
	p.silent(d.Silent)
	p.ended(d.Ended)
	if len(d.Services) == 0 {
		p.sentence(d.Summary.text(0), cell{})
	}
}

func (p *printer) service(s *servicestate.Service) {
	p.sentence(sanitize(s.Namespace+"/"+s.Name)+":", stateOf(s))
	var ports, frontends [][]cell
	for _, x := range s.Ports {
		since, generation := x.FailingSince, ""
		if since == nil {
			since = x.Since
		}
		if x.Generation > 0 {
			generation = strconv.FormatUint(x.Generation, 10)
		}
		ports = append(ports, []cell{
			plain(cmp.Or(sanitize(x.Port), "-")), plain(sanitize(strings.ToUpper(x.Protocol))), plain(sanitize(x.Family)),
			stateOf(&servicestate.Service{State: x.State}), number(x.Endpoints), number(x.LocalEndpoints),
			plain(p.since(since)), plain(generation), plain(sanitize(cmp.Or(x.Error, x.Missed))),
		})
		for _, f := range x.Frontends {
			frontends = append(frontends, frontendRow(&x, f))
		}
	}
	p.section("  ", "PORT|PROTOCOL|FAMILY|STATE|ENDPOINTS|LOCAL|SINCE|GENERATION|WHY NOT", ports)
	p.section("  ", "ADDRESS|PORT|TYPE|POLICY|ENDPOINTS|CLIENTS", frontends)
	p.endpoints(s)
	if h := s.HealthCheck; h != nil {
		answer := painted("an answer", green)
		if healthCheckUnanswered(s) {
			answer = painted("no answer: "+sanitize(h.Error), yellow)
		}
		p.section("  ", "HEALTH CHECK|READY HERE|LOAD BALANCERS GET", [][]cell{{plain(fmt.Sprintf("node:%d", h.Port)), number(h.LocalEndpoints), answer}})
	}
	var problems [][]cell
	for _, x := range s.Problems {
		problems = append(problems, []cell{plain(sanitize(x.Field)), plain(p.since(&x.Since)), plain(sanitize(x.Message))})
	}
	p.section("  ", "SKIPPED|SINCE|WHY", problems)
	p.notes(s)
}

// endpoints prints how each endpoint is used, port by port.
func (p *printer) endpoints(s *servicestate.Service) {
	var rows [][]cell
	for _, x := range s.Ports {
		for _, e := range x.EndpointList {
			rows = append(rows, p.endpointRow(&x, e))
		}
	}
	p.section("  ", "PORT|ENDPOINT|NODE|ZONE|STATE|USED|LOCAL|WHY", rows)
}

func (p *printer) endpointRow(x *servicestate.Port, e track.Candidate) []cell {
	node := sanitize(e.Node)
	if e.Local {
		node = strings.TrimSpace(node + " (here)")
	}
	local, why := cell{}, e.Cluster.Why
	if e.ForLocal != nil {
		local = used(*e.ForLocal)
		if e.ForLocal.Used != e.Cluster.Used {
			why = e.ForLocal.Why
		}
	}
	return []cell{
		plain(cmp.Or(sanitize(x.Port), "-")), plain(sanitize(e.Address)), plain(node), plain(sanitize(e.Zone)), plain(sanitize(e.State)),
		p.usedNow(e), local, plain(sanitize(why)),
	}
}

// usedNow is used, with the failure of the latest connection to the endpoint.
func (p *printer) usedNow(e track.Candidate) cell {
	c := used(e.Cluster)
	if e.Failed != nil {
		c = painted(fmt.Sprintf("%s, %s %s ago", c.Text, sanitize(e.Failed.Error), p.ago(e.Failed.At)), yellow)
	}
	return c
}

// used says whether an endpoint gets new connections.
func used(u track.Use) cell {
	if u.Used {
		return painted("yes", green)
	}
	return painted("no", yellow)
}

// notes prints where the state differs from the spec, with ports and families.
func (p *printer) notes(s *servicestate.Service) {
	var rows [][]cell
	for _, x := range s.Ports {
		for _, n := range x.Notes {
			rows = append(rows, []cell{plain(cmp.Or(sanitize(x.Port), "-")), plain(sanitize(x.Family)), plain(sanitize(n))})
		}
	}
	p.section("  ", "PORT|FAMILY|NOTE", rows)
}

func frontendRow(p *servicestate.Port, f servicestate.Frontend) []cell {
	address := net.JoinHostPort(sanitize(f.Address), strconv.Itoa(int(f.Port)))
	if f.Address == "" {
		address = fmt.Sprintf("node:%d", f.Port)
	}
	clients, count := painted("served", green), number(f.Endpoints)
	switch {
	case f.Reason == servicestate.LeftAlone:
		clients, count = plain(reasonText(f)), cell{}
	case p.Since == nil:
		clients = painted("not in force", red)
	case f.Reason != "":
		clients = painted(sanitize(reasonText(f)), yellow)
	}
	return []cell{
		plain(address), plain(cmp.Or(sanitize(p.Port), "-")), plain(sanitize(f.Kind)), plain(sanitize(f.Policy)), count, clients,
	}
}

// cell is a word in a table.
type cell = document.Cell

const green, yellow, red = document.Green, document.Yellow, document.Red

func plain(text string) cell { return document.Plain(text) }

func painted(text string, c document.Colour) cell { return cell{Text: text, Colour: c} }

// printer collects what is printed.
type printer struct {
	text         bytes.Buffer
	colour, wide bool
	width        int
	now          time.Time
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(&p.text, format+"\n", args...) }

// sentence prints text that may be long, and after it a cell in its colour.
func (p *printer) sentence(text string, end cell) {
	p.line("%s", strings.Join(document.Hang(text+" "+p.paint(end), p.width), "\n"))
}

func (p *printer) paint(c cell) string {
	if p.colour {
		return c.Painted()
	}
	return c.Text
}

// table prints rows. A long text in the last column is wrapped unless the format is wide.
func (p *printer) table(indent, head string, rows [][]cell) {
	p.newTable(indent, head, rows).Write(&p.text)
}

// section prints a table after an empty line, nothing without rows.
func (p *printer) section(indent, head string, rows [][]cell) {
	if len(rows) > 0 {
		p.line("")
		p.table(indent, head, rows)
	}
}

func (p *printer) newTable(indent, head string, rows [][]cell) *document.Table {
	return &document.Table{Indent: indent, Head: head, Rows: rows, Colours: p.colour, Width: p.width}
}

// ago returns how long t is past.
func (p *printer) ago(t time.Time) string {
	if t.IsZero() || t.Unix() <= 0 {
		return "never"
	}
	return shortDuration(p.now.Sub(t))
}

// since is ago for a time that may be nil.
func (p *printer) since(t *time.Time) string {
	if t == nil {
		return ""
	}
	return p.ago(*t)
}

// shortDuration formats a duration with at most two units.
func shortDuration(d time.Duration) string {
	d = max(d, 0)
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return twoUnits(d, time.Minute, "m", time.Second, "s")
	case d < day:
		return twoUnits(d, time.Hour, "h", time.Minute, "m")
	}
	return twoUnits(d, day, "d", time.Hour, "h")
}

func twoUnits(d, big time.Duration, bigName string, small time.Duration, smallName string) string {
	text := fmt.Sprintf("%d%s", d/big, bigName)
	if rest := d % big / small; rest > 0 && d/big < 10 {
		text += fmt.Sprintf("%d%s", rest, smallName)
	}
	return text
}
