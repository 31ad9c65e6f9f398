// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scale writes many Services to a real API server, changes them at a rate, and
// records when each change came into force in a kernel, for tests of scale and for the
// bench. Nothing serves at the endpoints' addresses. Callers decide which speed is
// sufficient.
package scale

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"kubeproxy/test/nftmonitor"
)

// ProgrammingLatency notes when the rules of a host first had each endpoint.
type ProgrammingLatency struct {
	mu         sync.Mutex
	firstSeen  map[uint32]time.Time
	lastCommit time.Time
}

// Observe is for nftmonitor.Listen.
func (a *ProgrammingLatency) Observe(n nftmonitor.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.firstSeen == nil {
		a.firstSeen = map[uint32]time.Time{}
	}
	if n.Kind == nftmonitor.Commit {
		a.lastCommit = n.At
		return
	}
	if n.Kind == nftmonitor.DeletedElement {
		return // which names endpoints that leave
	}
	// Whatever the proxy makes of an endpoint, its address stands in it.
	for i := 0; i+4 <= len(n.Data); i++ {
		if n.Data[i] != firstAddress>>24 {
			continue
		}
		address := binary.BigEndian.Uint32(n.Data[i:])
		if address < firstAddress || address >= afterLast {
			continue
		}
		if _, ok := a.firstSeen[address]; !ok {
			a.firstSeen[address] = n.At
		}
	}
}

// LastCommit is when the rules last changed, zero for never.
func (a *ProgrammingLatency) LastCommit() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lastCommit
}

// Missing counts the writes whose Services have none of their endpoints since
// then in force.
func (a *ProgrammingLatency) Missing(writes []Write) int { return len(writes) - len(a.Delays(writes)) }

// Delays returns how long it took, latest write first, until each write was in
// force, or one that followed it for the same Service, for who comes late may
// skip what no longer counts. Writes that are not in force yet have no delay.
func (a *ProgrammingLatency) Delays(writes []Write) []time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []time.Duration
	inForce := map[string]time.Time{} // by Service: what came later was, then
	for i := len(writes) - 1; i >= 0; i-- {
		w := writes[i]
		at, ok := a.firstSeen[number(w.Endpoint)]
		if later, skipped := inForce[w.Service]; !ok && skipped {
			at, ok = later, true
		}
		if ok {
			inForce[w.Service] = at
			all = append(all, at.Sub(w.At))
		}
	}
	return all
}

func number(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// PercentilesOf sorts values into a Spread, which is zero for none.
func PercentilesOf(values []time.Duration) Percentiles {
	if len(values) == 0 {
		return Percentiles{}
	}
	slices.Sort(values)
	at := func(share float64) time.Duration { return values[int(share*float64(len(values)-1)+0.5)] }
	return Percentiles{at(0.5), at(0.9), at(0.99), values[len(values)-1]}
}

// Percentiles is how values lie.
type Percentiles struct{ P50, P90, P99, Max time.Duration }

// String returns them in a line.
func (s Percentiles) String() string {
	r := func(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
	return fmt.Sprintf("p50 %s, p90 %s, p99 %s, most %s", r(s.P50), r(s.P90), r(s.P99), r(s.Max))
}

// PerService is the number of endpoints of each Service, all in one
// EndpointSlice.
const PerService = 10

const (
	namespace = metav1.NamespaceDefault
	atOnce    = 16 // requests under way: more are not faster
)

// addresses of endpoints are handed out one after the other and never again,
// so that each identifies the write that brought it.
const (
	firstAddress = 10<<24 | 128<<16
	afterLast    = 10<<24 | 192<<16
)

// A Workload is some Services. Its methods may be called from several goroutines,
// but for those that create Services.
type Workload struct {
	client kubernetes.Interface
	prefix string

	mu       sync.Mutex
	next     uint32
	services []*serviceState
	writes   []Write
}

// serviceState is a Service and where its endpoints are.
type serviceState struct {
	name string

	mu        sync.Mutex // held while a request is under way
	endpoints []netip.Addr
}

// Write is one write to the API server, after which the Service has an
// endpoint that no Service had before.
type Write struct {
	At       time.Time // when the request began
	Service  string
	Endpoint netip.Addr
}

// New returns n Services whose names begin with prefix, none of
// which exist yet. Only one such set may be on an API server.
func New(client kubernetes.Interface, prefix string, n int) *Workload {
	c := &Workload{client: client, prefix: prefix, next: firstAddress}
	c.addServices(n)
	return c
}

// addServices adds n members and returns them.
func (c *Workload) addServices(n int) []*serviceState {
	first := len(c.services)
	for i := range n {
		m := &serviceState{name: fmt.Sprintf("%s-%d", c.prefix, first+i)}
		for range PerService {
			m.endpoints = append(m.endpoints, c.address())
		}
		c.services = append(c.services, m)
	}
	return c.services[first:]
}

// address returns one that no endpoint has, nor had for long.
func (c *Workload) address() netip.Addr {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == afterLast {
		c.next = firstAddress
	}
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], c.next)
	c.next++
	return netip.AddrFrom4(a)
}

// Len is the number of Services.
func (c *Workload) Len() int { return len(c.services) }

// Create makes all Services and their EndpointSlices, as fast as the API server
// can.
func (c *Workload) Create(ctx context.Context) error { return c.create(ctx, c.services) }

func (c *Workload) create(ctx context.Context, list []*serviceState) error {
	return each(ctx, list, func(ctx context.Context, m *serviceState) error {
		if _, err := c.client.CoreV1().Services(namespace).Create(ctx, m.service(), metav1.CreateOptions{}); err != nil {
			return err
		}
		began := time.Now()
		_, err := c.client.DiscoveryV1().EndpointSlices(namespace).Create(ctx, m.slice(), metav1.CreateOptions{})
		c.note(Write{began, m.name, m.endpoints[PerService-1]})
		return err
	})
}

// Grow makes n more Services at once, and creates them.
func (c *Workload) Grow(ctx context.Context, n int) error { return c.create(ctx, c.addServices(n)) }

// ReplaceAll replaces every endpoint of every Service.
func (c *Workload) ReplaceAll(ctx context.Context) error {
	return each(ctx, c.services, func(ctx context.Context, m *serviceState) error {
		m.mu.Lock()
		defer m.mu.Unlock()
		for j := range m.endpoints {
			m.endpoints[j] = c.address()
		}
		return c.update(ctx, m)
	})
}

// ReplaceOne replaces one endpoint of Service i.
func (c *Workload) ReplaceOne(ctx context.Context, i int) error {
	m := c.services[i%len(c.services)]
	m.mu.Lock()
	defer m.mu.Unlock()
	// The newest stands last, where update looks for it.
	m.endpoints = append(m.endpoints[1:], c.address())
	return c.update(ctx, m)
}

// ReplaceAtRate replaces one endpoint of one Service after the other, so many
// a second in all, and returns how many it was. It does not wait for a slow
// answer before the next request, unless too many are under way.
func (c *Workload) ReplaceAtRate(ctx context.Context, perSecond int, long time.Duration) (int, error) {
	var workers errgroup.Group
	workers.SetLimit(min(2*atOnce, len(c.services)))
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	n := 0
	for end := time.Now().Add(long); time.Now().Before(end); n++ {
		select {
		case <-ctx.Done():
			return n, ctx.Err()
		case <-tick.C:
		}
		i := n
		workers.Go(func() error { return c.ReplaceOne(ctx, i) })
	}
	return n, workers.Wait()
}

// Writes returns the writes so far and forgets them.
func (c *Workload) Writes() []Write {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := c.writes
	c.writes = nil
	return list
}

func (c *Workload) note(w Write) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes = append(c.writes, w)
}

func (c *Workload) update(ctx context.Context, m *serviceState) error {
	began := time.Now()
	_, err := c.client.DiscoveryV1().EndpointSlices(namespace).Update(ctx, m.slice(), metav1.UpdateOptions{})
	c.note(Write{began, m.name, m.endpoints[PerService-1]})
	if err != nil {
		return fmt.Errorf("change the endpoints of %s: %w", m.name, err)
	}
	return nil
}

func each(ctx context.Context, list []*serviceState, do func(context.Context, *serviceState) error) error {
	workers, ctx := errgroup.WithContext(ctx)
	workers.SetLimit(atOnce)
	for _, m := range list {
		workers.Go(func() error {
			if err := do(ctx, m); err != nil {
				return fmt.Errorf("service %s: %w", m.name, err)
			}
			return nil
		})
	}
	return workers.Wait()
}

func (m *serviceState) service() *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: m.name},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
	}
}

// slice has what controllers write besides what a proxy needs.
func (m *serviceState) slice() *discoveryv1.EndpointSlice {
	name, port, proto := "http", int32(8080), corev1.ProtocolTCP
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: m.name,
			Labels: map[string]string{
				discoveryv1.LabelServiceName: m.name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &proto}},
	}
	yes, no := true, false
	for _, a := range m.endpoints {
		n := a.As4()
		node, zone := fmt.Sprintf("node-%d", n[3]%50), fmt.Sprintf("zone-%d", n[3]%3)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{a.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes, Terminating: &no},
			NodeName:   &node, Zone: &zone,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-%d", m.name, binary.BigEndian.Uint32(n[:]))},
		})
	}
	return s
}
