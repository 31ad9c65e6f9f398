// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/http"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/common/traffic"
	"kubeproxy/common/trafficview"
)

// newCollector returns what counts the traffic of x, nil if nothing is counted.
func newCollector(x *Selected, tracker *track.Tracker) *traffic.Collector {
	readers := map[service.Family]traffic.Reader{}
	for _, b := range x.Backends {
		if b.Traffic != nil {
			readers[b.Family] = b.Traffic
		}
	}
	if len(readers) == 0 {
		return nil
	}
	return &traffic.Collector{Latest: tracker.Latest, Readers: readers}
}

// trafficHandler answers what Services carry.
func (p *proxy) trafficHandler() http.Handler {
	s := &trafficview.Server{Mode: string(p.selected.Name), Node: p.node, Collector: p.selected.traffic}
	switch {
	case s.Collector != nil:
	case p.selected.Config.CountTraffic:
		s.Lack = "mode " + s.Mode + " cannot count what Services carry"
	default:
		s.Lack = "the proxy does not count what Services carry: start it with --count-traffic, or with countTraffic: true in its configuration"
	}
	return s.Handler()
}

// trafficTimeout bounds how long a scrape waits for counters.
const trafficTimeout = 5 * time.Second

// named returns what metrics show of traffic, nil if nothing is counted.
func (x *Selected) named() *traffic.Named {
	if x.traffic == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), trafficTimeout)
	defer cancel()
	return x.traffic.Named(ctx)
}
