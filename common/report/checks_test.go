// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"kubeproxy/common/condition"
	"kubeproxy/common/health"
	"kubeproxy/common/lease"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// refuseListen keeps tests from listening.
func refuseListen(context.Context, string, string) (net.Listener, error) {
	return nil, errors.New("refused")
}

func checkedPort(f service.Family, name string, port uint16, ready int) *service.Port {
	return &service.Port{
		Name:   service.PortName{Namespace: "shop", Name: name, Protocol: service.TCP},
		Family: f, External: service.PolicyLocal, HealthCheck: port, LocalReady: ready,
	}
}

// TestChecksUpdate adds, changes and removes a Service of two families.
func TestChecksUpdate(t *testing.T) {
	node := &service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32"), netip.MustParsePrefix("2001:db8::/64")}}
	c := newChecks(newCheckServers(Options{Listen: refuseListen}, health.New(health.Options{}), newEvents(Options{}, nil)), func(string, string) bool { return false }, nil)
	steps := []struct {
		situation string
		ports     []*service.Port
		want      map[uint16]health.Check
	}{
		{"nothing to check", []*service.Port{checkedPort(service.IPv4, "plain", 0, 0)}, map[uint16]health.Check{}},
		{"one family so far", []*service.Port{checkedPort(service.IPv4, "web", 31000, 1)}, map[uint16]health.Check{
			31000: {Namespace: "shop", Name: "web", LocalEndpoints: [2]int{1}, Families: []service.Family{service.IPv4}},
		}},
		{"both, with a count of their own", []*service.Port{checkedPort(service.IPv4, "web", 31000, 1), checkedPort(service.IPv6, "web", 31000, 2)}, map[uint16]health.Check{
			31000: {Namespace: "shop", Name: "web", LocalEndpoints: [2]int{1, 2}, Families: []service.Family{service.IPv4, service.IPv6}},
		}},
		{"the last one here leaves", []*service.Port{checkedPort(service.IPv4, "web", 31000, 0)}, map[uint16]health.Check{
			31000: {Namespace: "shop", Name: "web", Families: []service.Family{service.IPv4}},
		}},
		{"deleted", nil, map[uint16]health.Check{}},
	}
	for i, s := range steps {
		snapshot := service.New(uint64(i), node, s.ports)
		c.update(service.IPv4, snapshot)
		c.update(service.IPv6, snapshot)
		kit.Same(t, fmt.Sprintf("%s (-want +got)", s.situation), s.want, c.desired.Checks)
	}
	want := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.IPv6Unspecified()}
	kit.Same(t, "addresses (-want +got)", want, c.desired.Addrs, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
}

// TestChecksThatCannotListen checks the condition for health checks that cannot listen.
// It lasts as long as a Service needs the health check.
func TestChecksThatCannotListen(t *testing.T) {
	r := newTestReports(Options{Listen: refuseListen, Unavailable: map[service.Family]string{service.IPv6: "the kernel has no IPv6"}})
	follow := func(ports ...*service.Port) string {
		r.checks.update(service.IPv4, service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports))
		return r.Health.Report().Conditions["health-checks"]
	}
	const want = "the health check of service shop/web is not answered: "
	got := follow(checkedPort(service.IPv4, "web", 31000, 1))
	kit.Check(t, strings.HasPrefix(got, want), "condition %q, want %s... of IPv4 alone", got, want)
	if got := r.Services.Unanswered(); len(got) != 1 || got[0].Service.Name != "web" || got[0].Message != "refused" {
		t.Errorf("%+v is not answered, want what is refused to web", got)
	}
	if got := follow(); got != "" {
		t.Errorf("condition %q after the Service left", got)
	}
	kit.Equal(t, r.Health.Report().Conditions["family-IPv6"], "the kernel has no IPv6", "condition")
}

// watched returns OtherProxies that write Events to h, and the conditions that they show.
func watched(h *Events) (o *OtherProxies, conditions func() map[string]string) {
	o = &OtherProxies{events: h, log: klog.Background(), health: health.New(health.Options{}), processes: func() string { return "" }}
	return o, func() map[string]string { return o.health.Report().Conditions }
}

// Another service proxy is a condition at once, and an Event when it stays longer than
// in a rolling update.
func TestEventsOfAnotherProxy(t *testing.T) {
	got := recordedEvents(t, func(h *Events) {
		o, conditions := watched(h)
		other := lease.State{Standby: true, Holder: lease.Identity{PID: 7, Command: "kube-proxy"}}
		o.LeaseChanged(other)
		text := conditions()[string(condition.OtherProxy)]
		kit.Check(t, strings.Contains(text, "process 7 (kube-proxy)"), "condition %q", text)
		time.Sleep(otherProxyEventDelay / 2)
		o.LeaseChanged(lease.State{})
		all := conditions()
		kit.Check(t, len(all) == 0, "conditions %q when it is gone", all)
		time.Sleep(time.Hour)
		o.LeaseChanged(other)
		time.Sleep(time.Hour)
		o.LeaseChanged(lease.State{})
		time.Sleep(time.Hour)
		o.ReportForeignRules(service.IPv4, "a place: rules")
		if text := conditions()[string(condition.OtherRules+"IPv4")]; !strings.Contains(text, "adds rules again after their removal: a place: rules; stop it") {
			t.Errorf("condition %q", text)
		}
		time.Sleep(time.Hour)
		o.ReportForeignRules(service.IPv4, "")
		if all := conditions(); len(all) > 0 {
			t.Errorf("conditions %q when nobody makes rules", all)
		}
		time.Sleep(time.Hour)
	})
	wantEvents(t, got,
		"Warning OtherServiceProxy node-a node-a: another service proxy programs this node, as it started later: process 7 (kube-proxy)",
		"Normal OtherServiceProxyGone node-a node-a: No other service proxy runs on this node",
		"Warning OtherServiceProxy node-a node-a: another service proxy adds rules again after their removal",
		"Normal OtherServiceProxyGone node-a node-a: No other service proxy runs on this node")
}

// A standby says when the rules of the holder are not in force, with names only where they
// may be read.
func TestHolderCondition(t *testing.T) {
	o, conditions := watched(nil)
	s := lease.State{Standby: true, Holder: lease.Identity{PID: 7}, HolderFault: "IPv4: a change waits"}
	o.LeaseChanged(s)
	text := conditions()[string(condition.Holder)]
	kit.Check(t, strings.Contains(text, "are not in force: process 7: IPv4: a change waits"), "condition %q", text)
	w := httptest.NewRecorder()
	o.health.Handler(health.Observer{}).ServeHTTP(w, httptest.NewRequest("GET", "/healthz", nil))
	if text := w.Body.String(); !strings.Contains(text, `"holder":`) || strings.Contains(text, "process 7") {
		t.Errorf("/healthz answers %s", text)
	}
	s.HolderFault = ""
	o.LeaseChanged(s)
	all := conditions()
	kit.Check(t, all[string(condition.Holder)] == "" && all[string(condition.OtherProxy)] != "", "conditions %q", all)
	o.Stop()
}

// Rules that somebody alters again and again are an Event that names who does.
func TestEventsOfDisputes(t *testing.T) {
	got := recordedEvents(t, func(h *Events) {
		o, conditions := watched(h)
		r := reconcile.Result{Outcome: reconcile.Outcome{Drift: []string{"missing: a rule"}, Suspect: "process 9 (nft)"}}
		for r.DriftRounds = 1; !r.Contested(); r.DriftRounds++ {
			o.Report(Round{Result: r})
		}
		all := conditions()
		kit.Check(t, len(all) == 0, "conditions %q for single repairs", all)
		o.Report(Round{Result: r})
		text := conditions()[string(condition.Drift+"IPv4")]
		kit.Check(t, strings.Contains(text, "process 9 (nft)") && strings.Contains(text, "the latest: missing: a rule"), "condition %q", text)
		time.Sleep(5 * time.Minute)
		o.Report(Round{})
		if all := conditions(); len(all) > 0 {
			t.Errorf("conditions %q when it is over", all)
		}
		time.Sleep(5 * time.Minute)
	})
	wantEvents(t, got,
		"Warning RulesAlteredByOthers node-a node-a: The rules of this proxy are altered again and again by process 9 (nft)",
		"Normal RulesNotAlteredAnyMore node-a node-a: The rules of this proxy are not altered any more")
}

// wantEvents wants each of got to begin as one of want does, in this order.
func wantEvents(t *testing.T, got []string, want ...string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		kit.Need(t, i < len(got) && i < len(want) && strings.HasPrefix(got[i], want[i]),
			"Events\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestForeignRulesAreLoggedOnce logs when rules of others come and go, and not while they stay.
func TestForeignRulesAreLoggedOnce(t *testing.T) {
	log, text := kit.NewLog(0)
	o := &OtherProxies{events: newEvents(Options{}, nil), log: log, health: health.New(health.Options{}), processes: func() string { return "" }}
	for _, what := range []string{"", "a place: rules", "a place: rules", "two places: rules", "", ""} {
		o.ReportForeignRules(service.IPv4, what)
	}
	got := kit.LogLines(text)
	kit.Check(t, len(got) == 2 && strings.Contains(got[0], "a place: rules") && strings.Contains(got[1], "No other program adds its rules any more"),
		"logged:\n%s", strings.Join(got, "\n"))
}
