// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
)

// APIServer is a Source that lists and watches what a Kubernetes API server
// holds. It keeps no objects, only their names: what they mean is kept by the
// Sink. While the API server cannot be reached nothing is forgotten.
type APIServer struct {
	// Config tells how to reach the API server, with the rate limits and the
	// content type to use.
	Config   *rest.Config
	NodeName string // the Node to deliver
	// ProxyName is the value of the label that the Services to deliver have,
	// empty for those without the label.
	ProxyName string
	// Report, if set, is told about each failure to list or watch, always a
	// *ReadError, which is then tried again. It may be called from several
	// goroutines, as the next two.
	Report func(error)
	// Contact, if set, is told of each sign of life: the kind ("services",
	// "endpointslices", "nodes", "servicecidrs") that was listed, whose watch
	// was granted, or whose watch sent something, which is a bookmark a minute
	// if nothing else. It must return at once.
	Contact func(kind string)
	// WatchTimedOut, if set, is told of each watch that said nothing for so long that
	// it is given up and asked for again.
	WatchTimedOut func(kind string)
	// WatchTimeout is how long an answer may take and a watch may say nothing; 0
	// means three minutes. API servers send a bookmark every minute.
	WatchTimeout time.Duration

	limit   sync.Once
	limiter flowcontrol.RateLimiter
}

const (
	// nodeGrace bounds how long the first snapshot waits for what it could do
	// without: the own Node, which a Service account may not be allowed to
	// see, and ServiceCIDRs.
	nodeGrace = 30 * time.Second
	// defaultWatchTimeout bounds how long a connection is trusted on which nothing
	// comes. The client notices a peer that is gone by itself, with pings, but
	// not one that keeps the connection up and does not answer.
	defaultWatchTimeout = 3 * time.Minute
	// maxAbsentPause is how long a kind is left alone at most that the API server does
	// not have, or does not let us see.
	maxAbsentPause = 10 * time.Minute
	// minAbsentPause is how long it is left alone at first.
	minAbsentPause = 5 * time.Second
)

// ReadError is a failure to list or watch one kind.
type ReadError struct {
	Kind string // as for APIServer.Contact
	// Optional tells that the API server does not have the kind or does not
	// let us see it, and that nobody waits for it.
	Optional bool
	Err      error
}

// Error implements error.
func (e *ReadError) Error() string { return "watch " + e.Kind + " at the API server: " + e.Err.Error() }

// Unwrap returns what the API client said.
func (e *ReadError) Unwrap() error { return e.Err }

// Run lists and watches until ctx ends.
func (a *APIServer) Run(ctx context.Context, sink Sink) error {
	limits := a.limits()
	core, err := a.client(corev1.SchemeGroupVersion, "/api", limits)
	if err != nil {
		return err
	}
	discovery, err := a.client(discoveryv1.SchemeGroupVersion, "/apis", limits)
	if err != nil {
		return err
	}
	networking, err := a.client(networkingv1.SchemeGroupVersion, "/apis", limits)
	if err != nil {
		return err
	}
	s := &serial{sink: sink}
	feeds := []*feed{a.services(core, s), a.slices(discovery, s), a.node(core, s), a.serviceCIDRs(networking, s)}
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range feeds {
		group.Go(func() error {
			a.run(ctx, f)
			return nil
		})
	}
	group.Go(func() error {
		waitFor(ctx, feeds)
		if ctx.Err() == nil {
			sink.Synced()
		}
		return nil
	})
	return group.Wait()
}

// waitFor returns when every feed has delivered what there was, or only those
// are missing after their grace that can be done without.
func waitFor(ctx context.Context, feeds []*feed) {
	grace := time.NewTimer(nodeGrace)
	defer grace.Stop()
	for _, f := range feeds {
		expired := grace.C
		if f.kind != kindNodes && f.kind != kindCIDRs {
			expired = nil
		}
		select {
		case <-f.listed:
		case <-expired:
			grace.Reset(0) // for the next one
		case <-ctx.Done():
		}
	}
}

// Kinds, as the API spells them in paths.
const (
	kindServices = "services"
	kindSlices   = "endpointslices"
	kindNodes    = "nodes"
	kindCIDRs    = "servicecidrs"
)

// limits returns what all clients share: the limits are for this process, not
// for each group. The library does not apply them to watches.
func (a *APIServer) limits() flowcontrol.RateLimiter {
	a.limit.Do(func() { a.limiter = a.newLimiter() })
	return a.limiter
}

func (a *APIServer) newLimiter() flowcontrol.RateLimiter {
	qps, burst := cmp.Or(a.Config.QPS, rest.DefaultQPS), cmp.Or(a.Config.Burst, rest.DefaultBurst)
	if qps < 0 {
		return flowcontrol.NewFakeAlwaysRateLimiter()
	}
	return flowcontrol.NewTokenBucketRateLimiter(qps, burst)
}

// client returns a client for one group, which decodes our kinds only.
func (a *APIServer) client(gv schema.GroupVersion, path string, limits flowcontrol.RateLimiter) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme, networkingv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("set up the API client: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := rest.CopyConfig(a.Config)
	c.RateLimiter = limits
	c.APIPath, c.GroupVersion = path, &gv
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("set up the API client: %w", err)
	}
	return client, nil
}

// Labels by which the API server chooses what it delivers.
const (
	proxyName = "service.kubernetes.io/service-proxy-name"
	headless  = "!" + corev1.IsHeadlessService
)

// ownServices selects the Services of this proxy.
func (a *APIServer) ownServices() string {
	if a.ProxyName == "" {
		return "!" + proxyName
	}
	return proxyName + "=" + a.ProxyName
}

func (a *APIServer) services(c cache.Getter, s *serial) *feed {
	f := a.feed(kindServices, &corev1.Service{}, c, func(o *metav1.ListOptions) {
		o.LabelSelector = a.ownServices()
		o.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()
	})
	f.set = func(o any) { s.do(func(to Sink) { to.SetService(o.(*corev1.Service)) }) }
	f.remove = func(n types.NamespacedName) { s.do(func(to Sink) { to.DeleteService(n) }) }
	return f
}

func (a *APIServer) slices(c cache.Getter, s *serial) *feed {
	f := a.feed(kindSlices, &discoveryv1.EndpointSlice{}, c, func(o *metav1.ListOptions) {
		o.LabelSelector = headless
	})
	f.set = func(o any) { s.do(func(to Sink) { to.SetSlice(o.(*discoveryv1.EndpointSlice)) }) }
	f.remove = func(n types.NamespacedName) { s.do(func(to Sink) { to.DeleteSlice(n) }) }
	return f
}

func (a *APIServer) node(c cache.Getter, s *serial) *feed {
	f := a.feed(kindNodes, &corev1.Node{}, c, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", a.NodeName).String()
	})
	f.set = func(o any) { s.do(func(to Sink) { to.SetNode(o.(*corev1.Node)) }) }
	f.remove = func(types.NamespacedName) { s.do(func(to Sink) { to.DeleteNode() }) }
	return f
}

func (a *APIServer) serviceCIDRs(c cache.Getter, s *serial) *feed {
	f := a.feed(kindCIDRs, &networkingv1.ServiceCIDR{}, c, func(*metav1.ListOptions) {})
	f.optional = true // API servers before 1.33 need not have them
	f.set = func(o any) { s.do(func(to Sink) { to.SetServiceCIDR(o.(*networkingv1.ServiceCIDR)) }) }
	f.remove = func(n types.NamespacedName) { s.do(func(to Sink) { to.DeleteServiceCIDR(n.Name) }) }
	return f
}

// serial keeps the feeds from calling the Sink at the same time.
type serial struct {
	mu   sync.Mutex
	sink Sink
}

func (s *serial) do(call func(Sink)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	call(s.sink)
}

// feed returns a feed of one kind, without what it is to do.
func (a *APIServer) feed(kind string, prototype runtime.Object, c cache.Getter, selects func(*metav1.ListOptions)) *feed {
	return &feed{
		kind: kind, prototype: prototype,
		from:    requests{client: c, kind: kind, selects: selects},
		contact: a.Contact,
		known:   map[types.NamespacedName]bool{},
		listed:  make(chan struct{}),
	}
}
