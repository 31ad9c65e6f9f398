// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"sync"
	"time"

	"kubeproxy/common/service"
)

// backoff is the period in which something is not tried again. For an endpoint that HNS
// rejects, no working load balancer is deleted meanwhile.
type backoff struct {
	delay time.Duration
	until time.Time
}

// minBackoff and maxBackoff are the first and the longest period.
const minBackoff, maxBackoff = 2 * time.Second, 5 * time.Minute

// next returns r after one more failure at the time now.
func (b backoff) next(now time.Time, first time.Duration) backoff {
	switch {
	case b.delay == 0:
		b.delay = first
	case now.Before(b.until):
		return b
	default:
		b.delay = min(2*b.delay, maxBackoff)
	}
	b.until = now.Add(b.delay)
	return b
}

// minServiceBackoff is the first period in which the load balancers of a Service are not
// replaced, after HNS rejected one that it had before. Like other backoffs it doubles.
const minServiceBackoff = time.Minute

// serviceName identifies a Service.
type serviceName struct{ namespace, name string }

func serviceNameOf(n service.PortName) serviceName { return serviceName{n.Namespace, n.Name} }

// For each load balancer without direct server return, HNS allocates a block of ports
// from the node's dynamic port range. If none is left, HNS returns the same error as for
// a port that a program listens on (MicrosoftDocs/Virtualization-Documentation, "Load
// balancers are plumbed inconsistently across the cluster nodes").
const (
	// PortBlockSize is that of portReservationTest.ps1 of microsoft/SDN, which imitates HNS.
	PortBlockSize = 64
	// UsualDynamicPorts is the size of the range by default: 49152 to 65535.
	UsualDynamicPorts = 16384
)

// portPoolOf returns the source of ports for load balancers like that at k: family and protocol.
func portPoolOf(k service.Address) service.Address {
	return service.Address{Family: k.Family, Protocol: k.Protocol}
}

// PortBlocks counts load balancers of k's family and protocol that have a block of ports.
func (l *Listing) PortBlocks(k service.Address) int {
	n := 0
	for i := range l.LoadBalancers {
		if lb := &l.LoadBalancers[i]; !lb.DSR && portPoolOf(lb.Address) == portPoolOf(k) {
			n++
		}
	}
	return n
}

// refusal is a load balancer that HNS rejected.
type refusal struct {
	backoff
	want LoadBalancer
	text string // the error text
	// portTaken means that HNS called the port taken, though no load balancer had that key.
	portTaken bool
}

// backoffs holds what HNS rejected, and for how long it is not tried again.
type backoffs struct {
	now func() time.Time
	mu  sync.Mutex
	// periods are those of endpoints, by ID, of Services that lost a load balancer, and of
	// pools without ports.
	periods  map[any]backoff
	refusals map[service.Address]refusal
}

func newBackoffs() backoffs {
	return backoffs{now: time.Now, periods: map[any]backoff{}, refusals: map[service.Address]refusal{}}
}

// maxBackoffs bounds what is remembered, which is mostly of deleted pods and Services.
const maxBackoffs = 1024

// startBackoff records that HNS now rejects x. The period is first, or twice the last one.
func (b *backoffs) startBackoff(x any, first time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.periods) >= maxBackoffs {
		clear(b.periods)
	}
	b.periods[x] = b.periods[x].next(b.now(), first)
}

func (b *backoffs) inBackoff(x any) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now().Before(b.periods[x].until)
}

// recordRefusal records that HNS rejected lb, and whether because its port is taken. It
// returns whether the reason is new. A port that HNS reports as taken after it rejected lb
// for another reason may be that of a load balancer that the listing does not have.
func (b *backoffs) recordRefusal(lb *LoadBalancer, text string, taken bool) (first bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.refusals) >= maxBackoffs {
		clear(b.refusals)
	}
	r, known := b.refusals[lb.Address]
	first = !known || taken && !r.portTaken
	if first || !taken && !r.want.equal(lb) { // a taken port stays taken for any endpoints
		r.backoff = backoff{}
	}
	r.backoff, r.want, r.text, r.portTaken = r.next(b.now(), minBackoff), *lb, text, taken
	b.refusals[lb.Address] = r
	return first
}

// recentRefusal returns the error for lb if HNS rejected it too recently for another attempt.
func (b *backoffs) recentRefusal(lb *LoadBalancer) (text string, recently bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r, known := b.refusals[lb.Address]
	return r.text, known && (r.portTaken || r.want.equal(lb)) && b.now().Before(r.until)
}

// refusalText returns why HNS last refused a load balancer with key k, empty if it did not.
func (b *backoffs) refusalText(k service.Address) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.refusals[k].text
}

// clearPortTaken records that a load balancer with key k exists.
func (b *backoffs) clearPortTaken(k service.Address) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.refusals[k].portTaken {
		delete(b.refusals, k)
	}
}

// accepted records that HNS created lb for Service o.
func (b *backoffs) accepted(lb *LoadBalancer, o serviceName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.refusals, lb.Address)
	if len(b.periods) == 0 {
		return
	}
	delete(b.periods, o)
	if !lb.DSR {
		delete(b.periods, portPoolOf(lb.Address))
	}
	for _, id := range lb.Endpoints {
		delete(b.periods, id)
	}
}
