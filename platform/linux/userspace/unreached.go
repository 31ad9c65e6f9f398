// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"net"
	"time"

	"kubeproxy/common/service"
)

// reportInterval is how often clients of one Service port are told of who were not
// served.
const reportInterval = 5 * time.Minute

// ObserveUnreached has report told of clients of a Service port that were not
// served because of its endpoints: how many there were since it was last told
// of that port, which is every few minutes at most, and what went wrong with
// the last attempt. It is called before the first round, and report must not
// block.
func (b *Backend) ObserveUnreached(report func(name service.PortName, clients int, err error)) {
	observeUnreached(b.relay, report)
}

// observeUnreached is ObserveUnreached for the listeners of r. report may be nil.
func observeUnreached(r *relay, report func(name service.PortName, clients int, err error)) {
	if report == nil {
		return
	}
	r.unreached = func(t *target, err error) {
		if name, n := t.countUnserved(time.Now()); n > 0 {
			report(name, n, err)
		}
	}
}

// countUnserved counts a client that was not served, and returns how many there were if
// it is time to tell.
func (t *target) countUnserved(now time.Time) (name service.PortName, clients int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unserved++
	if !t.reportedAt.IsZero() && now.Sub(t.reportedAt) < reportInterval {
		return t.name, 0
	}
	clients, t.unserved, t.reportedAt = t.unserved, 0, now
	return t.name, clients
}

// reportUnserved is for a client of t that err kept from being served.
func (r *relay) reportUnserved(t *target, err error) {
	if r.unreached != nil && err != nil && !errors.Is(err, net.ErrClosed) {
		r.unreached(t, err)
	}
}
