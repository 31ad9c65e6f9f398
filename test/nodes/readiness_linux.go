// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"slices"
	"time"

	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

// readiness is what the API server says about the endpoints of the clients' Services while
// something is changed. It separates what no proxy can route from what a proxy routes
// wrongly.
type readiness struct {
	ended chan struct{}
	now   map[string]discovery.EndpointSlice
	// outages are those of each reach, the last of which may go on.
	outages map[reach][]outage
}

// reach is where connections of a client can go.
type reach struct {
	service string
	family  discovery.AddressType
	node    string // for policy Local
}

// outage is a time in which the API server names no endpoint.
type outage struct{ from, to time.Time }

// reportLag is how much earlier or later than this program a proxy may hear of an endpoint,
// and write its rules.
const reportLag = time.Second

// watchReadiness follows the EndpointSlices of the Services until ctx ends.
func (c *Cluster) watchReadiness(ctx context.Context, all []*flow) (*readiness, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	r := &readiness{ended: make(chan struct{}), outages: map[reach][]outage{}}
	for _, f := range all {
		r.outages[f.reach] = nil
	}
	go func() {
		defer close(r.ended)
		for ; ctx.Err() == nil; pause(ctx, 200*time.Millisecond) {
			r.follow(ctx, client) // an API server that does not answer is tried again
		}
	}()
	return r, nil
}

// follow lists the EndpointSlices and watches them until the API server ends that.
func (r *readiness) follow(ctx context.Context, client kubernetes.Interface) {
	of := client.DiscoveryV1().EndpointSlices(loadNamespace)
	list, err := of.List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	r.now = map[string]discovery.EndpointSlice{}
	for _, s := range list.Items {
		r.now[s.Name] = s
	}
	r.note(time.Now())
	watch, err := of.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		s, ok := event.Object.(*discovery.EndpointSlice)
		if !ok {
			return // an error, such as a version that is too old
		}
		r.now[s.Name] = *s
		if event.Type == "DELETED" {
			delete(r.now, s.Name)
		}
		r.note(time.Now())
	}
}

// note begins and ends outages.
func (r *readiness) note(at time.Time) {
	for to, known := range r.outages {
		out := len(known) > 0 && known[len(known)-1].to.IsZero()
		switch there := r.reachable(to); {
		case !there && !out:
			r.outages[to] = append(known, outage{from: at})
		case there && out:
			known[len(known)-1].to = at
		}
	}
}

// reachable returns whether a proxy can route to an endpoint: one that is ready, or one that
// serves while it terminates. Without a word about it, it counts as ready, see the type
// EndpointConditions of discovery.k8s.io/v1.
func (r *readiness) reachable(to reach) bool {
	for _, s := range r.now {
		if s.Labels[discovery.LabelServiceName] != to.service || s.AddressType != to.family {
			continue
		}
		for _, e := range s.Endpoints {
			here := to.node == "" || e.NodeName != nil && *e.NodeName == to.node
			is := e.Conditions
			if here && (ptr.Deref(is.Ready, true) || ptr.Deref(is.Serving, false) && ptr.Deref(is.Terminating, false)) {
				return true
			}
		}
	}
	return false
}

// explain counts which losses of a client began in an outage, and how long those took. It
// waits until nothing is followed any more.
func (r *readiness) explain(f *Flow, to reach) {
	<-r.ended
	for i, o := range r.outages[to] {
		if o.to.IsZero() {
			o.to = time.Now()
			r.outages[to][i] = o
		}
		f.Unready += o.to.Sub(o.from)
	}
	for _, at := range f.LostAt {
		if slices.ContainsFunc(r.outages[to], func(o outage) bool {
			return at.After(o.from.Add(-reportLag)) && at.Before(o.to.Add(reportLag))
		}) {
			f.LostUnready++
		}
	}
	f.LostAt = nil // of no use any more, and long
}

// unready says on the page how much of what was lost no proxy can route.
func (c *Change) unready() string {
	lost, longest := 0, time.Duration(0)
	for _, f := range c.Flows {
		lost += f.LostUnready
		if f.LostUnready > 0 {
			longest = max(longest, f.Unready)
		}
	}
	if lost == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d while the API server named no endpoint that the client could go to, for up to %s)", lost, longest.Round(10*time.Millisecond))
}
