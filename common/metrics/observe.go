// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"

	"kubeproxy/common/printable"
	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

// observer computes values at each scrape, so that rounds do not count what may never be
// read.
type observer struct {
	metrics *Metrics
	descs   map[string]*prometheus.Desc
}

func newObserver(m *Metrics) *observer {
	o := &observer{m, map[string]*prometheus.Desc{}}
	for name, x := range observed {
		o.descs[name] = prometheus.NewDesc(namespace+"_"+name, x.help, x.labels, nil)
	}
	return o
}

// Describe implements prometheus.Collector.
func (o *observer) Describe(to chan<- *prometheus.Desc) {
	for _, d := range o.descs {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (o *observer) Collect(to chan<- prometheus.Metric) {
	set := func(name string, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(o.descs[name], prometheus.GaugeValue, value, printables(labels)...)
	}
	o.metrics.mu.Lock()
	all := maps.Clone(o.metrics.programmed)
	o.metrics.mu.Unlock()
	missingLocal := map[service.Family]count{} // has no backend label
	for b, p := range all {
		n := p.count(b.Family)
		set(programmedPorts, float64(n.ports), b.labels()...)
		set(programmedEndpoints, float64(n.endpoints), b.labels()...)
		if s := missingLocal[b.Family]; n.internal+n.external >= s.internal+s.external {
			missingLocal[b.Family] = n
		}
	}
	for f, n := range missingLocal {
		set(noLocal, float64(n.internal), "internal", f.String())
		set(noLocal, float64(n.external), "external", f.String())
	}
	now := o.metrics.observation()
	for f, age := range now.OldestPending {
		set(oldestPending, age.Seconds(), f.String())
	}
	for _, s := range now.Sources {
		set(sourceStaleness, s.Staleness.Seconds(), s.Name)
		set(sourceSynced, boolValue(s.Synced), s.Name)
		set(sourceFaults, float64(s.Faults), s.Name)
		to <- prometheus.MustNewConstMetric(o.descs[silentWatches], prometheus.CounterValue, float64(s.Silent), printable.Text(s.Name))
	}
	for state, n := range now.Services {
		set(services, float64(n), state)
	}
	for reason, n := range now.Unserved {
		set(unservedServices, float64(n), reason)
	}
	for reason, n := range now.Skipped {
		set(skippedObjects, float64(n), reason)
	}
	if t := now.Tracked; t != nil {
		set(trackedEntries, float64(t.Entries))
		set(trackedLimit, float64(t.Limit))
	}
	if p := now.Packets; p != nil {
		for name, n := range map[string]uint64{droppedInvalid: p.Invalid, acceptedLoopback: p.Loopback} {
			to <- prometheus.MustNewConstMetric(o.descs[name], prometheus.CounterValue, float64(n))
		}
	}
	if r := now.Relay; r != nil {
		o.collectRelay(to, r)
	}
	if t := now.Traffic; t != nil {
		o.collectTraffic(to, t)
	}
	o.collectByFamily(to, now)
	set(standby, boolValue(now.Standby))
	for _, name := range now.Conditions {
		set(condition, 1, name)
	}
}

func (o *observer) collectRelay(to chan<- prometheus.Metric, r *Relay) {
	to <- prometheus.MustNewConstMetric(o.descs[relayFiles], prometheus.GaugeValue, float64(r.Open))
	to <- prometheus.MustNewConstMetric(o.descs[relayFilesLimit], prometheus.GaugeValue, float64(r.Limit))
	for why, n := range r.Refused {
		to <- prometheus.MustNewConstMetric(o.descs[relayRefused], prometheus.CounterValue, float64(n), printable.Text(why))
	}
}

func (o *observer) collectByFamily(to chan<- prometheus.Metric, now Observation) {
	for f, n := range now.Accelerated {
		to <- prometheus.MustNewConstMetric(o.descs[accelerated], prometheus.CounterValue, float64(n), f.String())
	}
	for f, l := range now.Localhost {
		to <- prometheus.MustNewConstMetric(o.descs[localhostListeners], prometheus.GaugeValue, float64(l.Listeners), f.String())
		to <- prometheus.MustNewConstMetric(o.descs[localhostFailures], prometheus.CounterValue, float64(l.Failures), f.String())
	}
}

// collectTraffic sets the metrics of what Services carried.
func (o *observer) collectTraffic(to chan<- prometheus.Metric, t *traffic.Named) {
	set := func(name string, n uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(o.descs[name], prometheus.CounterValue, float64(n), printables(labels)...)
	}
	for _, s := range append(t.Services, traffic.Service{Counts: t.Rest}) {
		set(serviceConnections, s.Connections, s.Namespace, s.Name)
		if t.Counted.Packets {
			set(servicePackets, s.PacketsIn, s.Namespace, s.Name, "in")
			set(servicePackets, s.PacketsOut, s.Namespace, s.Name, "out")
		}
		if t.Counted.Bytes {
			set(serviceBytes, s.BytesIn, s.Namespace, s.Name, "in")
			set(serviceBytes, s.BytesOut, s.Namespace, s.Name, "out")
		}
	}
}

// count is the content of a snapshot for one family.
type count struct{ ports, endpoints, internal, external int }

func (p programmed) count(f service.Family) count {
	var n count
	for port := range p.snapshot.Ports(f) {
		if p.failed[port.Name] {
			continue
		}
		n.ports++
		n.endpoints += union(port.Cluster, port.Local)
		if !port.HasEndpoints() || len(port.Local) > 0 {
			continue
		}
		internal, external := lacksLocal(port)
		n.internal += internal
		n.external += external
	}
	return n
}

// lacksLocal returns, as 0 or 1, whether policy Local leaves the internal and the
// external frontends of a port without endpoints on this node.
func lacksLocal(p *service.Port) (internal, external int) {
	for _, f := range p.Frontends {
		switch {
		case p.Policy(f.Kind) != service.PolicyLocal:
		case f.Kind.External():
			external = 1
		default:
			internal = 1
		}
	}
	return internal, external
}

// union returns the number of endpoints in a or b, which are sorted.
func union(a, b []service.Endpoint) int {
	n := 0
	for len(a) > 0 && len(b) > 0 {
		switch c := a[0].Addr.Compare(b[0].Addr); {
		case c < 0:
			a = a[1:]
		case c > 0:
			b = b[1:]
		default:
			a, b = a[1:], b[1:]
		}
		n++
	}
	return n + len(a) + len(b)
}
