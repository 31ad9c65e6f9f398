// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"maps"

	"github.com/prometheus/client_golang/prometheus"

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

// sink takes the metrics of one collection.
type sink struct {
	descs map[string]*prometheus.Desc
	to    chan<- prometheus.Metric
}

func (s sink) gauge(name string, value float64, labels ...string) {
	s.to <- prometheus.MustNewConstMetric(s.descs[name], prometheus.GaugeValue, value, printables(labels)...)
}

func (s sink) counter(name string, n uint64, labels ...string) {
	s.to <- prometheus.MustNewConstMetric(s.descs[name], prometheus.CounterValue, float64(n), printables(labels)...)
}

// Collect implements prometheus.Collector.
func (o *observer) Collect(to chan<- prometheus.Metric) {
	s := sink{o.descs, to}
	o.metrics.mu.Lock()
	all := maps.Clone(o.metrics.programmed)
	o.metrics.mu.Unlock()
	s.collectProgrammed(all)
	now := o.metrics.observation()
	for _, x := range now.Sources {
		s.gauge(sourceStaleness, x.Staleness.Seconds(), x.Name)
		s.gauge(sourceSynced, boolValue(x.Synced), x.Name)
		s.gauge(sourceFaults, float64(x.Faults), x.Name)
		s.counter(silentWatches, uint64(x.Silent), x.Name)
		s.counter(restoredSources, uint64(x.Restored), x.Name)
	}
	for state, n := range now.Services {
		s.gauge(services, float64(n), state)
	}
	for reason, n := range now.Unserved {
		s.gauge(unservedServices, float64(n), reason)
	}
	for reason, n := range now.Skipped {
		s.gauge(skippedObjects, float64(n), reason)
	}
	if t := now.Tracked; t != nil {
		s.gauge(trackedEntries, float64(t.Entries))
		s.gauge(trackedLimit, float64(t.Limit))
	}
	if p := now.Packets; p != nil {
		s.counter(droppedInvalid, p.Invalid)
		s.counter(acceptedLoopback, p.Loopback)
	}
	if r := now.Relay; r != nil {
		s.collectRelay(r)
	}
	if t := now.Traffic; t != nil {
		s.collectTraffic(t)
	}
	s.collectByFamily(now)
	s.gauge(standby, boolValue(now.Standby))
	for _, name := range now.Conditions {
		s.gauge(condition, 1, name)
	}
}

// collectProgrammed counts what is in force. The metric without the label of a backend has
// the numbers of the backend that misses most.
func (s sink) collectProgrammed(all map[Backend]programmed) {
	missingLocal := map[service.Family]count{}
	for b, p := range all {
		n := p.count(b.Family)
		s.gauge(programmedPorts, float64(n.ports), b.labels()...)
		s.gauge(programmedEndpoints, float64(n.endpoints), b.labels()...)
		if most := missingLocal[b.Family]; n.internal+n.external >= most.internal+most.external {
			missingLocal[b.Family] = n
		}
	}
	for f, n := range missingLocal {
		s.gauge(noLocal, float64(n.internal), "internal", f.String())
		s.gauge(noLocal, float64(n.external), "external", f.String())
	}
}

func (s sink) collectRelay(r *Relay) {
	s.gauge(relayFiles, float64(r.Open))
	s.gauge(relayFilesLimit, float64(r.Limit))
	for why, n := range r.Refused {
		s.counter(relayRefused, n, why)
	}
}

func (s sink) collectByFamily(now Observation) {
	for f, age := range now.OldestPending {
		s.gauge(oldestPending, age.Seconds(), f.String())
	}
	for f, n := range now.Accelerated {
		s.counter(accelerated, n, f.String())
	}
	for f, n := range now.Unrelayed {
		s.counter(localhostRejected, n, f.String(), "SCTP")
	}
	for f, l := range now.Localhost {
		s.gauge(localhostListeners, float64(l.Listeners), f.String())
		s.counter(localhostFailures, uint64(l.Failures), f.String())
	}
}

// collectTraffic sets the metrics of what Services carried.
func (s sink) collectTraffic(t *traffic.Named) {
	for _, x := range append(t.Services, traffic.Service{Counts: t.Rest}) {
		s.counter(serviceConnections, x.Connections, x.Namespace, x.Name)
		if t.Counted.Packets {
			s.counter(servicePackets, x.PacketsIn, x.Namespace, x.Name, "in")
			s.counter(servicePackets, x.PacketsOut, x.Namespace, x.Name, "out")
		}
		if t.Counted.Bytes {
			s.counter(serviceBytes, x.BytesIn, x.Namespace, x.Name, "in")
			s.counter(serviceBytes, x.BytesOut, x.Namespace, x.Name, "out")
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
