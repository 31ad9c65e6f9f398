// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// APIServer is a Source that lists and watches what a Kubernetes API server
// holds. It keeps no objects, only their names: what they mean is kept by the
// Sink. While the API server cannot be reached nothing is forgotten.
type APIServer struct {
	// Config tells how to reach the API server, with the rate limits and the
	// content type to use.
	Config   *rest.Config
	NodeName string // the Node to deliver
	// Report, if set, is told about each failure to list or watch, which is
	// then tried again.
	Report func(error)
	// Contact, if set, is told of each sign of life: the kind ("services",
	// "endpointslices", "nodes") that was listed or whose watch sent
	// something, at least a bookmark a minute. It must return at once.
	Contact func(kind string)
}

// nodeGrace bounds how long the first snapshot waits for the own Node, which
// a Service account may not be allowed to see.
const nodeGrace = 30 * time.Second

// Run lists and watches until ctx ends.
func (a *APIServer) Run(ctx context.Context, sink Sink) error {
	core, err := a.client(corev1.SchemeGroupVersion, "/api")
	if err != nil {
		return err
	}
	discovery, err := a.client(discoveryv1.SchemeGroupVersion, "/apis")
	if err != nil {
		return err
	}
	feeds := a.feeds(core, discovery, &serial{sink: sink})
	group, ctx := errgroup.WithContext(ctx)
	for _, f := range feeds {
		group.Go(func() error {
			f.run(ctx, a.Report)
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

// waitFor returns when every feed has delivered what there was, or only the
// Node is still missing after its grace.
func waitFor(ctx context.Context, feeds []*feed) {
	grace := time.NewTimer(nodeGrace)
	defer grace.Stop()
	for _, f := range feeds {
		expired := grace.C
		if f.kind != kindNodes {
			expired = nil
		}
		select {
		case <-f.listed:
		case <-expired:
		case <-ctx.Done():
		}
	}
}

// Kinds, as the API spells them in paths. Nodes come last.
const (
	kindServices = "services"
	kindSlices   = "endpointslices"
	kindNodes    = "nodes"
)

// client returns a client for one group, which decodes our kinds only.
func (a *APIServer) client(gv schema.GroupVersion, path string) (*rest.RESTClient, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("set up the API client: %w", err)
		}
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	c := rest.CopyConfig(a.Config)
	c.APIPath, c.GroupVersion = path, &gv
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("set up the API client: %w", err)
	}
	return client, nil
}

// Labels that keep an object from this proxy at the API server already.
const (
	delegated = "!service.kubernetes.io/service-proxy-name"
	headless  = "!" + corev1.IsHeadlessService
)

func (a *APIServer) feeds(core, discovery *rest.RESTClient, s *serial) []*feed {
	services := newFeed(kindServices, &corev1.Service{}, core, func(o *metav1.ListOptions) {
		o.LabelSelector = delegated
		o.FieldSelector = fields.OneTermNotEqualSelector("spec.clusterIP", corev1.ClusterIPNone).String()
	})
	services.set = func(o any) { s.do(func(to Sink) { to.SetService(o.(*corev1.Service)) }) }
	services.gone = func(n types.NamespacedName) { s.do(func(to Sink) { to.DeleteService(n) }) }

	slices := newFeed(kindSlices, &discoveryv1.EndpointSlice{}, discovery, func(o *metav1.ListOptions) {
		o.LabelSelector = headless
	})
	slices.set = func(o any) { s.do(func(to Sink) { to.SetSlice(o.(*discoveryv1.EndpointSlice)) }) }
	slices.gone = func(n types.NamespacedName) { s.do(func(to Sink) { to.DeleteSlice(n) }) }

	nodes := newFeed(kindNodes, &corev1.Node{}, core, func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", a.NodeName).String()
	})
	nodes.set = func(o any) { s.do(func(to Sink) { to.SetNode(o.(*corev1.Node)) }) }
	nodes.gone = func(types.NamespacedName) { s.do(func(to Sink) { to.DeleteNode() }) }

	feeds := []*feed{services, slices, nodes}
	for _, f := range feeds {
		f.contact = a.Contact
	}
	return feeds
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

// newFeed returns a feed of one kind, without what it is to do.
func newFeed(kind string, like runtime.Object, c cache.Getter, selects func(*metav1.ListOptions)) *feed {
	return &feed{
		kind: kind, like: like,
		from:   cache.NewFilteredListWatchFromClient(c, kind, metav1.NamespaceAll, selects),
		known:  map[types.NamespacedName]bool{},
		listed: make(chan struct{}),
	}
}
