// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Limits distributes the open files of the process. The Backends of both families share
// one.
//
// A Service may have as many files as are free, a client a third of that, and all
// Services of a namespace together twice as many. So one Service gets at most half of
// all files, one client a quarter and one namespace two thirds. The rest stays available
// for others. Switches share their buffers by the same rule (Choudhury and Hahne,
// "Dynamic queue length thresholds for shared-memory packet switches", IEEE/ACM
// Transactions on Networking 6(2), 1998).
type Limits struct {
	files       int // limit of the process
	max         int // limit of the relay
	quietPeriod time.Duration

	mu            sync.Mutex
	used          int
	listenerFiles int // the part of used that listeners have
	pipes         int // number of pipes that may still be created
	services      map[serviceName]int
	namespaces    map[string]int // by namespace, without listeners
	clients       map[netip.Prefix]int
	openConns     *sync.WaitGroup
	conns         int // of TCP

	pods     atomic.Pointer[[]netip.Prefix]
	refusals refusals
}

// serviceName identifies a Service with all of its ports.
type serviceName struct{ namespace, name string }

// claim is a number of files that a Service needs, for a client or for a listener.
type claim struct {
	files   int
	service serviceName
	client  netip.Prefix // invalid for a listener
}

// maxPipes limits the number of pipes. Connections without a pipe use buffers.
const maxPipes = 256

// quietPeriod is the time without refusals after which a shortage counts as over.
const quietPeriod = 10 * time.Second

// NewLimits returns Limits for a process that may have this number of open files. A part
// is reserved for programming the node and for the process's servers.
func NewLimits(files int) *Limits {
	pipes := min(maxPipes, files/32)
	return &Limits{
		files: files, max: files - min(1024, files/2) - 2*pipes, pipes: pipes, quietPeriod: quietPeriod,
		services: map[serviceName]int{}, namespaces: map[string]int{}, clients: map[netip.Prefix]int{}, openConns: &sync.WaitGroup{},
	}
}

// Observe calls report whenever the set of refusals changes, beginning now. text
// contains no names of Services and clients, and detail does. Both are empty when
// nothing is refused any more. report must not block.
func (l *Limits) Observe(report func(text, detail string)) { l.refusals.observe(report) }

// knowPods sets the ranges of pods.
func (l *Limits) knowPods(ranges []netip.Prefix) { l.pods.Store(&ranges) }

// clientOf returns the prefix that counts as one client. A host of IPv6 may use any
// address of its network (https://www.rfc-editor.org/rfc/rfc7934), so a /64 is one
// client. A pod has one assigned address, and all pods of a node may share a /64, so a
// pod is one client.
func (l *Limits) clientOf(addr netip.Addr) netip.Prefix {
	const network = 64
	addr = addr.Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() && !l.isPod(addr) {
		bits = network
	}
	p, _ := addr.Prefix(bits)
	return p
}

func (l *Limits) isPod(addr netip.Addr) bool {
	ranges := l.pods.Load()
	return ranges != nil && slices.ContainsFunc(*ranges, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// acquire takes the files of c. A refusal is reported.
func (l *Limits) acquire(c claim) bool {
	l.mu.Lock()
	why, ok := l.check(c)
	if ok {
		l.add(c, c.files)
	}
	l.mu.Unlock()
	if !ok {
		l.recordRefusal(why, c)
	}
	return ok
}

// check reports whether c may have its files, and the reason if not.
func (l *Limits) check(c claim) (Reason, bool) {
	free := l.max - l.used - c.files
	switch {
	case free < 0, !c.client.IsValid() && l.listenerFiles+c.files > l.max/4*3:
		return NoFiles, false
	case c.client.IsValid() && 3*(l.clients[c.client]+c.files) > free:
		return ClientShare, false
	case l.services[c.service]+c.files > free:
		return ServiceShare, false
	case c.client.IsValid() && l.namespaces[c.service.namespace]+c.files > 2*free:
		return NamespaceShare, false
	}
	return "", true
}

func (l *Limits) add(c claim, files int) {
	l.used += files
	addTo(l.services, c.service, files)
	if c.client.IsValid() {
		addTo(l.clients, c.client, files)
		addTo(l.namespaces, c.service.namespace, files)
	} else {
		l.listenerFiles += files
	}
}

// addTo adds n to m[k] and removes a zero.
func addTo[K comparable](m map[K]int, k K, n int) {
	if m[k] += n; m[k] == 0 {
		delete(m, k)
	}
}

// release gives back what acquire took.
func (l *Limits) release(c claim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(c, -c.files)
}

// acquirePipe takes one pipe, which all connections share.
func (l *Limits) acquirePipe() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.pipes == 0 {
		return false
	}
	l.pipes--
	return true
}

func (l *Limits) releasePipe() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pipes++
}

// acquireConn takes the files of one TCP connection. release returns them.
func (l *Limits) acquireConn(c claim) (release func(), ok bool) {
	if !l.acquire(c) {
		return nil, false
	}
	l.mu.Lock()
	l.conns++
	wave := l.openConns
	wave.Add(1)
	l.mu.Unlock()
	return func() {
		l.mu.Lock()
		l.conns--
		l.mu.Unlock()
		l.release(c)
		wave.Done()
	}, true
}

// hasSpare reports whether there are files for an optional use, and neither the client
// nor the Service has many.
func (l *Limits) hasSpare(c claim) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used < l.max/2 && l.services[c.service] <= l.max/4 && l.clients[c.client] <= max(1, l.max/32)
}

// recordRefusal records that c is refused.
func (l *Limits) recordRefusal(why Reason, c claim) {
	l.refusals.record(refusal{why, c.service, c.client, ""}, l)
}

// recordSystemError records an error of the system.
func (l *Limits) recordSystemError(err error) {
	l.refusals.record(refusal{reason: NoSystem, text: err.Error()}, l)
}

// Use is the number of open files of the relay, its limit, and the refusals.
type Use struct {
	Open, Limit int
	Refused     map[Reason]uint64
}

// Use returns the present use.
func (l *Limits) Use() Use {
	l.mu.Lock()
	defer l.mu.Unlock()
	return Use{Open: l.used, Limit: l.max, Refused: l.refusals.counts()}
}

// Connections returns the number of TCP connections.
func (l *Limits) Connections() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.conns
}

// Drain waits until the present TCP connections have ended, or ctx is done.
func (l *Limits) Drain(ctx context.Context) {
	l.mu.Lock()
	wave := l.openConns
	l.openConns = &sync.WaitGroup{}
	l.mu.Unlock()
	done := make(chan struct{})
	go func() {
		wave.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
	}
}
