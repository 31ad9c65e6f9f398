// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"kubeproxy/common/condition"
	"kubeproxy/common/events"
	"kubeproxy/common/health"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// fromRound returns the conditions that follow from the rounds of one backend alone.
func (r *Reports) fromRound(backend klog.Logger) []roundCondition {
	return []roundCondition{
		{condition.Lacking, func(x Round) string { return x.Degraded }, func(_ service.Family, text string) { backend.Info("Warning: " + text) }, ""},
		{condition.MissingFamily, unavailable, r.logUnavailable, ""},
		{condition.Pods, r.unknownPods, nil, ""},
		{condition.NodePortAddresses, func(x Round) string { return ClosedNodePorts(x.Snapshot, x.Family, r.addresses()) }, nil, ""},
	}
}

// roundCondition is a condition of a family, and its text after a round, empty without it.
type roundCondition struct {
	name condition.Name
	text func(Round) string
	warn func(f service.Family, text string) // of a new text; nil logs nothing
	last string
}

func (r *Reports) reportConditions(all []roundCondition, x Round) {
	for i := range all {
		c, text := &all[i], all[i].text(x)
		r.Health.SetCondition(c.name.Of(x.Family.String()), text)
		if c.warn != nil && text != "" && text != c.last {
			c.warn(x.Family, text)
		}
		c.last = text
	}
}

// unavailable is why a round does not program its family, as the node lacks it. It does
// not matter while the family has no Services.
func unavailable(x Round) string {
	if x.Snapshot.Len(x.Family) == 0 {
		return ""
	}
	return x.Unavailable
}

// reportUnavailable shows which families have no backend.
func (r *Reports) reportUnavailable(unavailable map[service.Family]string) {
	for f, reason := range unavailable {
		r.Health.SetCondition(condition.MissingFamily.Of(f.String()), reason)
		r.logUnavailable(f, reason)
	}
}

func (r *Reports) logUnavailable(f service.Family, reason string) {
	r.log.Info("Warning: Services are not programmed for a family", "family", f.String(), "err", reason)
}

// unknownPods says that pods of a family cannot be distinguished from other clients,
// because the Node lacks the podCIDRs that the configuration relies on.
func (r *Reports) unknownPods(x Round) string {
	node := x.Snapshot.Node
	if !r.podsFromNode.Load() || x.Snapshot.Len(x.Family) == 0 || node.Pods.Known(x.Family) {
		return ""
	}
	return "the Node " + r.node + " has no podCIDRs of " + x.Family.String() + ", so clients that are no pods are not masqueraded: detectLocalMode NodeCIDR wants one"
}

// eventExternalIPs is about a feature that Kubernetes is going to remove, alike on all nodes.
var eventExternalIPs = events.Topic{Reason: "ExternalIPsDeprecation", Scope: events.Cluster}

// See kubernetes/enhancements#5707.
const externalIPsText = "spec.externalIPs is deprecated in Kubernetes and kube-proxy will stop to serve it: use a Service of type LoadBalancer, an Ingress or a Gateway"

// deprecations warns once of each use of a deprecated feature.
type deprecations struct {
	log klog.Logger
	// externalIPsIgnored is true if externalIPs are switched off.
	externalIPsIgnored bool
	// name is the label's value of the Services to serve, see track.Options.
	name string

	mu   sync.Mutex
	uses map[types.NamespacedName]bool // Services with externalIPs
}

// update records s, and returns in a few words which deprecated fields it uses, if any.
func (d *deprecations) update(s *corev1.Service) string {
	n := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	served := track.Named(s, d.name) && s.Spec.ClusterIP != corev1.ClusterIPNone && s.Spec.Type != corev1.ServiceTypeExternalName
	uses := served && !d.externalIPsIgnored && len(s.Spec.ExternalIPs) > 0
	d.mu.Lock()
	defer d.mu.Unlock()
	switch before := d.uses[n]; {
	case !uses:
		delete(d.uses, n)
		return ""
	case !before:
		d.uses[n] = true
		d.log.Info("Warning: "+externalIPsText, "service", n.String(), "externalIPs", s.Spec.ExternalIPs)
	}
	return externalIPsText
}

func (d *deprecations) remove(n types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.uses, n)
}

// eventDeprecatedMode is about the mode of this node.
func eventDeprecatedMode(mode string) events.Topic {
	return events.Topic{Reason: strings.ToUpper(mode) + "Deprecation"}
}

// warnDeprecatedMode warns if the mode itself is deprecated, as text says.
func warnDeprecatedMode(mode, text string, to *Events, log klog.Logger) {
	if text == "" {
		return
	}
	log.Info("Warning: " + text)
	to.Failed(to.self(), eventDeprecatedMode(mode), text)
}

// maxDeprecationEvents leaves room for Events about failures.
const maxDeprecationEvents = 100

// reportDeprecation records which deprecated fields a Service uses, none if text is empty.
func (ev *Events) reportDeprecation(n types.NamespacedName, text string) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	switch {
	case text == "":
		delete(ev.deprecated, n)
	case len(ev.deprecated) >= maxDeprecationEvents && !ev.deprecated[n]:
		return
	default:
		ev.deprecated[n] = true
	}
	ev.report(n, eventExternalIPs, text, "")
}

// eventLimited is about what a mode cannot do for a Service, alike on all nodes in the mode.
var eventLimited = events.Topic{Reason: "ServiceLimited", Scope: events.Cluster}

// limits shows, by family and Service, what a mode cannot do.
type limits struct {
	mode   string
	health *health.Monitor
	events *Events
	log    klog.Logger

	mu  sync.Mutex
	all [2]map[types.NamespacedName][]string
}

// limitsOf collects the errors of a round that persist until the Service itself changes.
func limitsOf(r reconcile.Result) map[types.NamespacedName][]string {
	all := map[types.NamespacedName][]string{}
	add := func(n service.PortName, text string) {
		of := types.NamespacedName{Namespace: n.Namespace, Name: n.Name}
		all[of] = append(all[of], fmt.Sprintf("port %s/%s: %s", cmp.Or(n.Port, "-"), n.Protocol, strings.ReplaceAll(text, "\n", ", ")))
	}
	for _, e := range reconcile.PortErrors(r.Err) {
		if reconcile.Unsupported(e.Err) {
			add(e.Name, e.Err.Error())
		}
	}
	for name, notes := range r.Notes {
		for _, n := range notes {
			if !n.Transient {
				add(name, n.Text)
			}
		}
	}
	return all
}

// update records the limits of a round of f. It returns the text of each Service whose
// limits changed, empty if they are gone.
func (l *limits) update(f service.Family, r reconcile.Result) map[types.NamespacedName]string {
	now := limitsOf(r)
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.all[f]
	l.all[f] = now
	changed := map[types.NamespacedName]string{}
	for n := range now {
		slices.Sort(now[n])
		if !slices.Equal(now[n], before[n]) {
			changed[n] = l.text(n)
		}
	}
	for n := range before {
		if now[n] == nil {
			changed[n] = l.text(n)
		}
	}
	return changed
}

// text describes the limits of a Service, in the same words on every node.
func (l *limits) text(n types.NamespacedName) string {
	var all []string
	for _, of := range l.all {
		all = append(all, of[n]...)
	}
	slices.Sort(all)
	if all = slices.Compact(all); len(all) == 0 {
		return ""
	}
	return "Limits of mode " + l.mode + ": " + joinFirst(all)
}

// condition names some of the Services that are limited.
func (l *limits) condition() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	limited := map[string]bool{}
	for _, of := range l.all {
		for n := range of {
			limited[n.String()] = true
		}
	}
	if len(limited) == 0 {
		return ""
	}
	names := slices.Sorted(maps.Keys(limited))
	more := ""
	if n := len(names); n > maxNamed {
		names, more = names[:maxNamed], fmt.Sprintf(" and %d more", n-maxNamed)
	}
	return fmt.Sprintf("mode %s cannot do all that Services ask for, see kube-proxy status NAMESPACE/NAME: %s%s", l.mode, strings.Join(names, ", "), more)
}

// Report implements Reporter.
func (l *limits) Report(r Round) {
	changed := l.update(r.Family, r.Result)
	if len(changed) == 0 {
		return
	}
	if text := l.condition(); text == "" {
		l.health.SetCondition(condition.Unsupported, "")
	} else {
		l.health.SetDetailedCondition(condition.Unsupported, "mode "+l.mode+" cannot do all that Services ask for, see kube-proxy status", text)
	}
	l.logChanged(r, changed)
	l.events.reportLimits(changed)
}

// logChanged logs where a round differs from what Services ask for, but no errors of the round.
func (l *limits) logChanged(r Round, changed map[types.NamespacedName]string) {
	var first types.NamespacedName
	for n, text := range changed {
		if text != "" && (first.Name == "" || n.String() < first.String()) {
			first = n
		}
	}
	if first.Name != "" && len(reconcile.PortErrors(r.Result.Err)) == 0 {
		l.log.Info("Warning: "+l.condition(), "family", r.Family.String(), "service", first.String(), "lacks", changed[first])
	}
}

// reportLimits reports what Services cannot have.
func (ev *Events) reportLimits(changed map[types.NamespacedName]string) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	for n, text := range changed {
		if ev.limits[n] = text; text == "" {
			delete(ev.limits, n)
		}
		ev.report(n, eventLimited, text, "")
	}
}

// ClosedNodePorts reports that none of the node's addresses, if they are known, serves the
// NodePorts of f in s. It returns nothing if one does, or if f has no NodePorts.
func ClosedNodePorts(s *service.Snapshot, f service.Family, local []netip.Addr) string {
	why := s.Node.WhyNodePortsClosed(f, local)
	if why == "" {
		return ""
	}
	for p := range s.Ports(f) {
		if p.NodePort() != 0 {
			return fmt.Sprintf("no %s address answers NodePorts: %s; set hostnameOverride to the Node's name, or nodePortAddresses to CIDRs of this node or %q", f, why, "all")
		}
	}
	return ""
}

// Dataplane shows the conditions of a dataplane between rounds, as of one that hangs.
type Dataplane struct {
	Health *health.Monitor
	Log    klog.Logger

	mu     sync.Mutex
	active map[condition.Name]bool
}

// Condition returns the setter of a condition: a text without names of Services and clients,
// and one with them if there are any. Both are empty without a fault. It logs the start of a
// condition and each detail, not every new figure in a text.
func (d *Dataplane) Condition(name condition.Name) func(text, detail string) {
	return func(text, detail string) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.Health.SetDetailedCondition(name, text, cmp.Or(detail, text))
		if text != "" && (detail != "" || !d.active[name]) {
			d.Log.Info("Warning: " + cmp.Or(detail, text))
		}
		if d.active == nil {
			d.active = map[condition.Name]bool{}
		}
		d.active[name] = text != ""
	}
}
