// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestAlerts begins with nodes without proxies, starts those, begins all faults at once
// and ends them.
func TestAlerts(t *testing.T) {
	rules := scaledRules(t)
	var names []string
	want, known := map[string]map[string]bool{}, map[string]bool{"ServiceProxyAbsent": true}
	for _, f := range faults {
		names = append(names, f.node)
		add(want, f.node, f.alerts...)
		for _, a := range f.alerts {
			known[a] = true
		}
	}
	for alert := range alertsOf(t, rules) {
		if !known[alert] {
			t.Errorf("no fault is known for alert %s", alert)
		}
	}
	s := newSite(t, names...)
	var hosts []*netlab.Host
	for _, n := range s.nodes {
		hosts = append(hosts, n.Host)
	}
	p := startPrometheus(t, s.Host(control), rules, hosts...)
	absent := map[string]map[string]bool{"": {"ServiceProxyAbsent": true}}
	p.awaitFiring(t, absent)

	s.churn(t)
	s.startAll(t)
	kit.Until(t, "a scrape of each proxy", func() bool { // only what was seen once can be missed
		return len(p.during(t, "kubeproxy_standby")) == len(s.nodes)
	})
	load := s.Host("customer").Load(t.Context(), netlab.LoadConfig{Query: netlab.Query{Proto: "tcp", To: webAddr}, Pause: 20 * time.Millisecond})
	t.Cleanup(func() { load.Stop() })
	s.withSignal.Store(true)
	ends := []func(){func() { s.withSignal.Store(false) }}
	for _, f := range faults {
		if f.begin != nil {
			ends = append(ends, f.begin(t, s, s.node(f.node)))
		}
	}
	p.awaitFiring(t, want)
	t.Run("metrics", func(t *testing.T) { testMetrics(t, p) })
	t.Run("dashboard", func(t *testing.T) { testDashboard(t, p) })
	for _, end := range ends {
		end()
	}
	p.awaitFiring(t, nil)
	writeData(t, p)
	add(want, "", "ServiceProxyAbsent")
	missing, extra := compare(want, p.fired(t))
	if len(missing)+len(extra) > 0 {
		t.Errorf("alerts that should have fired: %v; that should not: %v", missing, extra)
	}
}

// startAll starts the proxies, and waits for those that can be synced.
func (s *site) startAll(t *testing.T) {
	t.Helper()
	for _, f := range faults {
		n := s.node(f.node)
		if f.start != nil {
			f.start(t, s, n)
		} else {
			s.start(t, n, nil)
		}
	}
	for _, n := range s.nodes {
		if n.Name == "unsynced" {
			continue
		}
		kit.Until(t, "the proxy of "+n.Name, func() bool { return n.proxy.Status(t, program.HealthAddr, "/livez") == 200 })
		n.proxy.AwaitLog(t, `"Programmed"`)
	}
}
