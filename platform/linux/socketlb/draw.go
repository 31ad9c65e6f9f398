// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/service"
	"kubeproxy/common/silence"
	"kubeproxy/platform/linux/conntrack"
)

// A socket keeps its endpoint of connect(2), also if nobody answers there. But when it has repeated
// its first packet in vain, a rule for this connection alone names another endpoint, and its entry
// of connection tracking is deleted. The next packet that TCP repeats meets the rule, and the
// socket does not know of it.

// Watcher is what a Backend does about sockets whose endpoint does not answer.
type Watcher struct {
	// Observe gets each connection without an answer.
	Observe func(silence.Evidence)
	// Silent returns the endpoints that do not answer anybody.
	Silent func() map[service.Address]silence.Record
	// Late reports whether answers of an endpoint may be late.
	Late func(service.Address) bool
	// Flows is connection tracking.
	Flows Flows
	// Draws reports whether they get another endpoint. Drawn gets the one that one of them had.
	Draws func() bool
	Drawn func(service.Address)
	// Table leads connections elsewhere.
	Table Table
	Log   klog.Logger

	mu      sync.Mutex
	known   *service.Snapshot
	ports   map[netip.AddrPort]*service.Port // of known, by frontend
	told    map[attempt]bool
	accused map[netip.AddrPort]time.Time // endpoints that did not answer, and when
}

// Flows is the part of connection tracking that a Watcher needs.
type Flows interface {
	// Find returns the entry of a connection, by its first packet.
	Find(ctx context.Context, p service.Protocol, from, to netip.AddrPort) (f conntrack.Flow, found bool, err error)
	Delete(context.Context, []conntrack.Flow) (int, error)
}

// Table has rules for single connections.
type Table interface {
	// Lead leads the connection between two addresses to an endpoint, if its first packet
	// comes again soon.
	Lead(from, to, endpoint netip.AddrPort) error
	// Remove removes all rules.
	Remove(context.Context) error
}

// repeat is a connection of a taken socket whose first packet was sent again settle ago.
type repeat struct{ from, to, frontend netip.AddrPort }

// attempt is a connection to an endpoint.
type attempt struct{ from, endpoint netip.AddrPort }

const (
	// settle is how long the answer to a repeated packet may take. TCP sends the next one
	// after a second or more. A packet may be lost without a fault of the endpoint.
	settle = 300 * time.Millisecond
	stale  = time.Second
	// dialled is how long it takes then until dials tell whether its answers are late.
	dialled = 400 * time.Millisecond
	// perSecond bounds the work for sockets that repeat packets.
	perSecond = 500
	// idleTime is how long the Table stays unused. All its rules have expired then.
	idleTime = 30 * time.Second
	// fresh is how long it counts that an endpoint did not answer a connection.
	fresh = 10 * time.Second
	// most bounds what a Watcher remembers.
	most = 4096
)

// watchRepeats gives sockets other endpoints until ctx ends.
func (b *Backend) watchRepeats(ctx context.Context, _ func()) error {
	w := b.watcher
	if w == nil || b.off {
		<-ctx.Done()
		return nil
	}
	idle := func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.forget()
		if err := w.Table.Remove(context.WithoutCancel(ctx)); err != nil {
			w.Log.V(1).Info("Rules of single connections are not removed", "family", b.family.String(), "reason", err.Error())
		}
	}
	idle() // an earlier process may have left some
	defer idle()
	err := b.driver.Repeats(ctx, func(r repeat) { w.repeated(ctx, b.latest.Load(), b.family, r) }, idle)
	if err != nil {
		w.Log.Info("Warning: accelerated sockets keep an endpoint that does not answer, since the kernel does not show them", "family", b.family.String(), "reason", err.Error())
	}
	<-ctx.Done()
	return nil
}

func (w *Watcher) forget() {
	w.known, w.ports, w.told, w.accused = nil, nil, map[attempt]bool{}, map[netip.AddrPort]time.Time{}
}

// repeated gives a connection another endpoint if it got no answer.
func (w *Watcher) repeated(ctx context.Context, s *service.Snapshot, f service.Family, r repeat) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s == nil { // another process programs
		return
	}
	p := w.portOf(s, f, r.frontend)
	if p == nil {
		return
	}
	flow, waits := w.waiting(ctx, r)
	if !waits {
		return
	}
	tried := attempt{r.from, flow.ReplySrc}
	endpoint := service.AddressOf(service.TCP, tried.endpoint)
	if len(w.told) >= most {
		w.forget()
	}
	w.accused[tried.endpoint] = time.Now()
	again := w.told[tried]
	if !again {
		w.told[tried] = true
		w.Observe(silence.Evidence{Endpoint: endpoint, Port: p.Name, Client: r.from.Addr(), At: time.Now(), Kind: silence.Unanswered})
	}
	time.AfterFunc(dialled, func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if again || !w.Late(endpoint) { // else it has until the next repetition
			w.lead(ctx, p, r, tried)
		}
	})
}

// waiting returns the entry of a connection that is translated on this node and got no answer.
func (w *Watcher) waiting(ctx context.Context, r repeat) (conntrack.Flow, bool) {
	flow, found, err := w.Flows.Find(ctx, service.TCP, r.from, r.to)
	return flow, err == nil && found && flow.Opening()
}

// lead leads a connection that still waits for what it tried to another endpoint.
func (w *Watcher) lead(ctx context.Context, p *service.Port, r repeat, tried attempt) {
	to, ok := w.choose(p.Endpoints(service.ClusterIP), tried)
	flow, waits := w.waiting(ctx, r)
	if !ok || ctx.Err() != nil || !waits || flow.ReplySrc != tried.endpoint || !w.Draws() {
		return
	}
	n, err := 0, w.Table.Lead(r.from, r.to, to)
	if err == nil {
		n, err = w.Flows.Delete(ctx, []conntrack.Flow{flow})
	}
	if n > 0 {
		w.Drawn(service.AddressOf(service.TCP, tried.endpoint))
	}
	if err != nil {
		w.Log.V(1).Info("A connection keeps an endpoint that does not answer", "endpoint", tried.endpoint.String(), "reason", err.Error())
	}
}

// portOf returns the port of a frontend whose sockets are taken.
func (w *Watcher) portOf(s *service.Snapshot, f service.Family, frontend netip.AddrPort) *service.Port {
	if s != w.known {
		w.known, w.ports = s, map[netip.AddrPort]*service.Port{}
		for x := range allFrontends(s, f) {
			w.ports[x.addr] = x.port
		}
	}
	return w.ports[frontend]
}

// choose returns another endpoint: one that answers as far as known. A client that is an
// endpoint itself cannot be led to itself, as the rules would have to masquerade it.
func (w *Watcher) choose(all []service.Endpoint, tried attempt) (netip.AddrPort, bool) {
	silent := w.Silent()
	var ranks [3][]netip.AddrPort
	for _, e := range all {
		_, isSilent := silent[service.AddressOf(service.TCP, e.Addr)]
		switch {
		case e.Addr == tried.endpoint || e.Addr.Addr() == tried.from.Addr():
		case isSilent:
			ranks[2] = append(ranks[2], e.Addr)
		case time.Since(w.accused[e.Addr]) < fresh:
			ranks[1] = append(ranks[1], e.Addr)
		default:
			ranks[0] = append(ranks[0], e.Addr)
		}
	}
	for _, r := range ranks {
		if len(r) > 0 {
			return r[rand.N(len(r))], true
		}
	}
	return netip.AddrPort{}, false
}
