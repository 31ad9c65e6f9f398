// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"kubeproxy/common/events"
	"kubeproxy/common/health"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// eventLimited is about what a mode cannot do for a Service. All nodes in the mode report
// the same.
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
	if len(all) > maxNamed {
		all = append(all[:maxNamed:maxNamed], fmt.Sprintf("and %d more", len(all)-maxNamed))
	}
	return "Limits of mode " + l.mode + ": " + strings.Join(all, "; ")
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
		l.health.SetCondition("unsupported", "")
	} else {
		l.health.SetDetailedCondition("unsupported", "mode "+l.mode+" cannot do all that Services ask for, see kube-proxy status", text)
	}
	l.logChanged(r, changed)
	l.events.reportLimits(changed)
}

// logChanged logs where a round differs from what Services ask for. What it could not do
// at all is in the log as its error.
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
func (h *Events) reportLimits(changed map[types.NamespacedName]string) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for n, text := range changed {
		if h.limits[n] = text; text == "" {
			delete(h.limits, n)
		}
		h.report(n, eventLimited, text, "")
	}
}
