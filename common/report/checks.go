// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"kubeproxy/common/condition"
	"kubeproxy/common/health"
	"kubeproxy/common/lease"
	"kubeproxy/common/printable"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// checks updates the health check servers of Services from the programmed snapshots.
type checks struct {
	servers     *checkServers
	failing     func(namespace, name string) bool
	unavailable map[service.Family]string // as in servicestate.Store

	mu         sync.Mutex
	programmed [2]*service.Snapshot
	counts     map[uint16]*checkCount // by healthCheckNodePort
	desired    health.DesiredChecks
}

// checkCount counts, for a Service and each family, its ports and local ready endpoints.
type checkCount struct {
	name         service.PortName
	ports, ready [2]int
}

func newChecks(s *checkServers, failing func(namespace, name string) bool, unavailable map[service.Family]string) *checks {
	return &checks{servers: s, failing: failing, unavailable: unavailable, counts: map[uint16]*checkCount{}}
}

// Report implements Reporter.
func (c *checks) Report(r Round) { c.update(r.Family, r.Snapshot) }

// update takes over the differences between s and the previous snapshot of f.
func (c *checks) update(f service.Family, s *service.Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for change := range service.Diff(c.programmed[f], s, f) {
		c.add(change.Old, -1)
		c.add(change.New, 1)
	}
	c.programmed[f] = s
	want := c.desiredChecks(s.Node)
	if sameDesired(want, c.desired) {
		return
	}
	c.desired = want
	c.servers.showProblems(c.servers.Sync(want))
}

func (c *checks) add(p *service.Port, n int) {
	if p == nil || p.HealthCheck == 0 {
		return
	}
	k := c.counts[p.HealthCheck]
	if k == nil {
		k = &checkCount{}
		c.counts[p.HealthCheck] = k
	}
	k.ports[p.Family] += n
	if n > 0 {
		k.name, k.ready[p.Family] = p.Name, p.LocalReady
	}
	if k.ports == [2]int{} {
		delete(c.counts, p.HealthCheck)
	}
}

func (c *checks) desiredChecks(node *service.Node) health.DesiredChecks {
	want := health.DesiredChecks{Addrs: c.addrs(node), Checks: map[uint16]health.Check{}, Within: node.NodePorts}
	for port, k := range c.counts {
		x := health.Check{
			Namespace: k.name.Namespace, Name: k.name.Name,
			Unprogrammed: c.failing(k.name.Namespace, k.name.Name),
		}
		for _, f := range service.Families {
			if k.ports[f] > 0 {
				x.Families = append(x.Families, f)
				x.LocalEndpoints[f] = k.ready[f]
			}
		}
		want.Checks[port] = x
	}
	return want
}

// addrs returns the listen addresses of health checks, which are those of NodePorts. A prefix of
// more than one address means the wildcard address: its addresses come and go.
func (c *checks) addrs(node *service.Node) []netip.Addr {
	all := [...]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	var addrs []netip.Addr
	for _, f := range service.Families {
		if c.unavailable[f] != "" {
			continue
		}
		prefixes := node.NodePortPrefixes(f)
		if slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return !p.IsSingleIP() }) {
			addrs = append(addrs, all[f])
			continue
		}
		for _, p := range prefixes {
			addrs = append(addrs, p.Addr())
		}
	}
	return addrs
}

func sameDesired(a, b health.DesiredChecks) bool {
	return slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Within, b.Within) && maps.EqualFunc(a.Checks, b.Checks, func(x, y health.Check) bool {
		return x.Namespace == y.Namespace && x.Name == y.Name && x.LocalEndpoints == y.LocalEndpoints &&
			x.Unprogrammed == y.Unprogrammed && slices.Equal(x.Families, y.Families)
	})
}

// checkServers answers the health checks of Services, and shows which it cannot answer.
type checkServers struct {
	*health.CheckServers
	health *health.Monitor
	events *Events
	log    klog.Logger
}

func newCheckServers(o Options, to *health.Monitor, events *Events) *checkServers {
	c := &checkServers{health: to, events: events, log: o.Log}
	c.CheckServers = &health.CheckServers{Serving: to.Serving, Listen: o.Listen, Connections: health.NewConnections(o.MaxConnections), Report: c.report}
	return c
}

// report reports a problem that appears or is over.
func (c *checkServers) report(p health.CheckProblem) {
	c.showProblems(c.Problems())
	c.events.reportHealthCheck(p)
	if p.Err != nil {
		c.log.Error(p.Err, "A health check of a Service is not served", "service", p.Namespace+"/"+p.Name, "address", p.Addr.String())
	}
}

func (c *checkServers) showProblems(all []health.CheckProblem) {
	c.health.SetBlockingCondition(condition.HealthChecks, checkProblemsSummary(all), checkProblemsDetail(all))
}

// unanswered lists the health checks that cannot be reached, by address.
func (c *checkServers) unanswered() []track.Problem {
	var all []track.Problem
	for _, p := range c.Problems() {
		all = append(all, track.Problem{Service: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}, Message: p.Err.Error()})
	}
	return all
}

// checkProblemsSummary is the condition's text for clients without authentication: no Service.
func checkProblemsSummary(problems []health.CheckProblem) string {
	if len(problems) == 0 {
		return ""
	}
	return fmt.Sprintf("health checks of Services are not answered at %d addresses", len(problems))
}

// checkProblemsDetail returns a message about problems, empty without any.
func checkProblemsDetail(problems []health.CheckProblem) string {
	if len(problems) == 0 {
		return ""
	}
	p := problems[0]
	if len(problems) == 1 {
		return fmt.Sprintf("the health check of service %s/%s is not answered: %v", p.Namespace, p.Name, p.Err)
	}
	return fmt.Sprintf("health checks of Services are not answered at %d addresses, the first for %s/%s: %v", len(problems), p.Namespace, p.Name, p.Err)
}

// otherProxyEventDelay is how long another service proxy may run before an Event reports
// it. A rolling update runs two for a while on purpose.
const otherProxyEventDelay = time.Minute

// OtherProxies shows other programs that change the rules of the node.
type OtherProxies struct {
	health    *health.Monitor
	events    *Events
	processes func() string // see Options.Processes
	log       klog.Logger

	mu       sync.Mutex
	text     string      // of the condition
	holder   string      // of the condition about the one that programs the node
	event    *time.Timer // pending Event
	drifting [2]bool
	rules    [2]string // of the conditions about rules
	stopped  bool
}

// LeaseChanged records which process programs the node.
func (o *OtherProxies) LeaseChanged(s lease.State) {
	text, holder := otherProxyText(s), ""
	if s.Standby {
		holder = s.Holder.String()
	}
	o.health.SetStandby(holder, s.HolderFault)
	o.health.SetDetailedCondition(condition.OtherProxy, hint(text, "another service proxy runs on this node"), text)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.holderChanged(s)
	if text == o.text {
		return
	}
	switch o.text = text; text {
	case "":
		o.log.Info("No other service proxy runs on this node any more; this process programs it")
	default:
		o.log.Info("Warning: " + text)
	}
	if o.event != nil {
		o.event.Stop()
	}
	if text == "" {
		o.events.reportOtherProxy("")
	} else if !o.stopped {
		o.event = time.AfterFunc(otherProxyEventDelay, func() { o.events.reportOtherProxy(text) })
	}
}

// holderChanged shows whether the rules of the proxy that programs the node are in force.
func (o *OtherProxies) holderChanged(s lease.State) {
	text := ""
	if s.HolderFault != "" {
		text = fmt.Sprintf("the rules of the service proxy that programs this node are not in force: %s: %s; see its log, or end it, and this process takes over", s.Holder, s.HolderFault)
	}
	o.health.SetDetailedCondition(condition.Holder, hint(text, "the rules of the service proxy that programs this node are not in force"), text)
	switch {
	case (text == "") == (o.holder == ""):
	case text != "":
		o.log.Info("Warning: " + text)
	case s.Standby:
		o.log.Info("The rules of the service proxy that programs this node are in force")
	}
	o.holder = text
}

// hint returns the text of a condition for clients without authentication.
func hint(text, public string) string {
	if text == "" {
		return ""
	}
	return public
}

// Stop cancels the pending Event.
func (o *OtherProxies) Stop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stopped = true
	if o.event != nil {
		o.event.Stop()
	}
}

// otherProxyText names the other service proxies on the node, empty for none.
func otherProxyText(s lease.State) string {
	switch {
	case s.Standby:
		return fmt.Sprintf("another service proxy programs this node, as it started later: %s; this process stands by and takes over when that one ends; stop one of the two, unless this is a rolling update", s.Holder)
	case s.Fault != "":
		return fmt.Sprintf("it is unknown which service proxy programs this node: %s; this process goes on", s.Fault)
	case len(s.Others) == 0:
		return ""
	}
	return fmt.Sprintf("another service proxy runs on this node and stands by, as this one started later: %s; stop one of the two, unless this is a rolling update", printable.Join(s.Others, "; "))
}

// Report implements Reporter: it shows the foreign changes that rounds found.
func (o *OtherProxies) Report(x Round) {
	f, r := x.Family, x.Result
	o.mu.Lock()
	defer o.mu.Unlock()
	name := condition.Drift.Of(f.String())
	switch {
	case r.DriftRounds == 0:
		if o.drifting[f] {
			o.log.Info("Our rules are not altered by others any more", "family", f.String())
		}
		o.drifting[f] = false
		o.health.SetCondition(name, "")
	case r.Contested() && (len(r.Drift) > 0 || !o.drifting[f]):
		o.drifting[f] = true
		o.health.SetDetailedCondition(name, "another program alters the rules of this proxy again and again", o.driftText(&r))
	default:
		return
	}
	o.events.reportDrift(o.drifting, r.Suspect)
}

// ReportForeignRules shows rules that another program adds again in the places of service
// proxies after their removal. An empty text means that there are none any more.
func (o *OtherProxies) ReportForeignRules(f service.Family, what string) {
	name := condition.OtherRules.Of(f.String())
	o.mu.Lock()
	defer o.mu.Unlock()
	text := ""
	if what != "" {
		source := "another service proxy"
		if others := o.processes(); others != "" {
			source = others
		}
		text = fmt.Sprintf("%s adds rules again after their removal: %s; stop it", source, what)
	}
	if (o.rules[f] == "") != (text == "") {
		o.log.Info(cmp.Or(text, "No other program adds its rules any more"), "family", f.String())
	}
	o.rules[f] = text
	o.health.SetDetailedCondition(name, hint(text, "another service proxy adds its rules again after their removal"), text)
	o.events.reportOtherProxy(cmp.Or(o.rules[0], o.rules[1], o.text))
}

// driftText describes repeated foreign changes to our rules, and the program behind them.
func (o *OtherProxies) driftText(r *reconcile.Result) string {
	source := "another program, which the system does not name,"
	if r.Suspect != "" {
		source = r.Suspect
	}
	if others := o.processes(); others != "" {
		source += " (service proxies of this node: " + others + ")"
	}
	what := ""
	if len(r.Drift) > 0 {
		what = "; the latest: " + r.Drift[0]
	}
	return fmt.Sprintf("%s alters the rules of this proxy again and again; they are repaired about once a second: stop it%s", source, what)
}

// reportOtherProxy reports that another service proxy runs, or none if text is empty.
func (ev *Events) reportOtherProxy(text string) {
	switch text {
	case "":
		ev.Recovered(ev.self(), eventOtherProxy, "No other service proxy runs on this node")
	default:
		ev.Failed(ev.self(), eventOtherProxy, text)
	}
}

// reportDrift reports whether the rules of a family are changed by others repeatedly.
func (ev *Events) reportDrift(now [2]bool, suspect string) {
	if now == [2]bool{} {
		ev.Recovered(ev.self(), eventDrift, "The rules of this proxy are not altered any more")
		return
	}
	if suspect == "" {
		suspect = "another program"
	}
	ev.Failed(ev.self(), eventDrift, "The rules of this proxy are altered again and again by "+suspect)
}
