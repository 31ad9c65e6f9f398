// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"net"
	"time"

	"kubeproxy/common/service"
)

// reportInterval is the minimum interval between two reports for one Service port.
const reportInterval = 5 * time.Minute

// ObserveUnreached sets the function that is called for clients of a Service port that
// could not be served because of its endpoints. clients is their number since the last
// report for that port, at most one per reportInterval. err is the error of the last
// attempt. Call it before the first sync. report must not block.
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

// countUnserved counts an unserved client. It returns the count if a report is due, 0
// otherwise.
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

// reportUnserved records that a client of t could not be served because of err.
func (r *relay) reportUnserved(t *target, err error) {
	if r.unreached != nil && err != nil && !errors.Is(err, net.ErrClosed) {
		r.unreached(t, err)
	}
}
