// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package source reads Services, EndpointSlices, ServiceCIDRs and the own Node from an
// API server or from files, and delivers them to a Sink. It applies no rules: the Sink
// decides what the objects mean.
package source

import (
	"context"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"kubeproxy/common/files"
)

// Sink receives the objects of a cluster. A Source calls it from one goroutine at a time.
// The objects are shared and read-only. Its methods must return quickly.
type Sink interface {
	// The calls about Services and EndpointSlices return whether the object differs from before
	// in anything that matters. If it does not, no round follows.
	SetService(*corev1.Service) bool
	DeleteService(types.NamespacedName) bool

	SetSlice(*discoveryv1.EndpointSlice) bool
	DeleteSlice(types.NamespacedName) bool

	SetNode(*corev1.Node) // the own Node
	DeleteNode()

	SetServiceCIDR(*networkingv1.ServiceCIDR)
	DeleteServiceCIDR(name string)

	// Synced is called once, after everything that existed at the start and could be read.
	Synced()
	// Unread is called when the number of objects that could never be read changes from 0.
	Unread(n int)

	// Batch makes all changes by deliver take effect at once: no snapshot may contain some
	// of them without the others. It returns when deliver has returned.
	Batch(deliver func())
}

// Fault is a problem with one thing, reported again when it changes, and when it is over.
type Fault struct {
	// Object is a path, or the path of a file and an object in it. An object has only one
	// fault at a time: a later one replaces it.
	Object string
	Err    error // nil when the fault is over
}

// Source feeds a Sink until ctx ends, which is no error, or until one without recovery.
type Source interface {
	Run(ctx context.Context, sink Sink) error
}

// feed delivers one kind of objects. It is the store that a reflector fills. It holds
// names only, to detect what a new list lacks.
type feed struct {
	kind      string
	prototype runtime.Object
	of        func(*clients) *rest.RESTClient // its client
	from      requests
	set       func(any)
	remove    func(types.NamespacedName)
	contact   func(string)
	pace      *pacer
	history   *history

	optional bool // the API server may lack the kind

	known    map[types.NamespacedName]bool
	complete bool          // known was complete at least once
	listed   chan struct{} // closed when nothing needs to wait for it any longer
	once     sync.Once     // to close it
}

var (
	_ cache.ReflectorStore         = (*feed)(nil)
	_ cache.TransformingStore      = (*feed)(nil)
	_ cache.ReflectorBookmarkStore = (*feed)(nil)
)

// Transformer implements cache.TransformingStore. The library collects all existing objects before
// it calls Replace. The transformer delivers each at once and leaves its name: with 10,000 Services
// of ten endpoints the resident set peaks at 81 MB instead of 195 MB (BenchmarkMemory in
// test/apisource).
func (f *feed) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		n, err := nameOf(o)
		if err != nil {
			return nil, err
		}
		f.known[n] = true // it may be deleted before Replace is called
		f.set(o)
		return n, nil
	}
}

// check returns an error if list is not one of the feed's kind. A proxy between this
// process and the API server may answer with another one, and the library accepts it. It
// would even accept an empty one, which would delete everything.
func (f *feed) check(list runtime.Object) error {
	items, err := meta.GetItemsPtr(list)
	if err != nil || reflect.TypeOf(items).Elem().Elem() != reflect.TypeOf(f.prototype).Elem() {
		return fmt.Errorf("the answer is a %T, not a list of %s: want the address of an API server", list, f.kind)
	}
	return nil
}

// Add implements cache.ReflectorStore.
func (f *feed) Add(o any) error {
	n, err := nameOf(o)
	if err != nil {
		return err
	}
	f.reportContact()
	f.known[n] = true
	f.set(o)
	return nil
}

// Update implements cache.ReflectorStore.
func (f *feed) Update(o any) error { return f.Add(o) }

// Delete implements cache.ReflectorStore.
func (f *feed) Delete(o any) error {
	n, err := nameOf(o)
	if err != nil {
		return err
	}
	f.reportContact()
	delete(f.known, n)
	f.remove(n)
	return nil
}

// Replace implements cache.ReflectorStore. It delivers new objects before it deletes old
// ones, so that endpoints which move between slices are never missing.
func (f *feed) Replace(list []any, _ string) error {
	now := make(map[types.NamespacedName]bool, len(list))
	for _, o := range list {
		if n, ok := o.(types.NamespacedName); ok { // delivered by the transformer
			now[n] = true
			continue
		}
		n, err := nameOf(o)
		if err != nil {
			return err
		}
		now[n] = true
		f.set(o)
	}
	for n := range f.known {
		if !now[n] {
			f.remove(n)
		}
	}
	f.known, f.complete = now, true
	f.reportContact()
	f.markListed()
	return nil
}

// Resync implements cache.ReflectorStore without effect: consumers do their own resyncs.
func (f *feed) Resync() error { return nil }

// Bookmark implements cache.ReflectorBookmarkStore. It shows that the watch is alive.
func (f *feed) Bookmark(string) error {
	f.reportContact()
	return nil
}

// markListed ends the wait for f.
func (f *feed) markListed() { f.once.Do(func() { close(f.listed) }) }

// reportContact reports a sign of life. Events before the first complete list are none.
func (f *feed) reportContact() {
	if f.complete {
		f.alive()
	}
}

// alive reports a sign of life. Any goroutine may call it.
func (f *feed) alive() {
	f.pace.read(f.kind)
	if f.contact != nil {
		f.contact(f.kind)
	}
}

// contactReporter returns a function that reports that f's watch was granted at its
// present state. Any goroutine may call the function.
func (f *feed) contactReporter() func() {
	if !f.complete {
		return func() {}
	}
	return f.alive
}

func nameOf(o any) (types.NamespacedName, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return types.NamespacedName{}, fmt.Errorf("read the name of a %T: %w", o, err)
	}
	return types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}, nil
}

// faults are the faults that were reported and still exist, in their order.
type faults struct {
	objects []string
	errs    map[string]error // by object
}

// report reports the difference between problems and old, and returns the new faults.
// Problems of one object make one fault. to may be nil.
func (f faults) report(problems []problem, to func(Fault)) faults {
	byObject := map[string][]error{}
	var now faults
	for _, p := range problems {
		if byObject[p.object] == nil {
			now.objects = append(now.objects, p.object)
		}
		byObject[p.object] = append(byObject[p.object], p.err)
	}
	now.errs = make(map[string]error, len(byObject))
	for object, errs := range byObject {
		now.errs[object] = joinLine(errs)
	}
	if to == nil {
		return now
	}
	for _, object := range f.objects {
		if now.errs[object] == nil {
			to(Fault{Object: object})
		}
	}
	for _, object := range now.objects {
		err, before := now.errs[object], f.errs[object]
		if before == nil || before.Error() != err.Error() {
			to(Fault{object, err})
		}
	}
	return now
}

// ReadNode requests the Node once, for settings that are needed before Run. It returns
// nil if there is none of that name. It needs no permissions beyond those of Run.
func (a *APIServer) ReadNode(ctx context.Context) (*corev1.Node, error) {
	c, err := a.newClients(a.Config)
	if err != nil {
		return nil, err
	}
	var found corev1.NodeList
	o := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", a.NodeName).String()}
	ctx = WithRetryAfter(ctx)
	err = c.core.Get().Resource(kindNodes).VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0).Do(ctx).Into(&found)
	a.pace.bar(kindNodes, RetryAfter(ctx, err))
	if err != nil {
		return nil, fmt.Errorf("read the Node %s at the API server: %w", a.NodeName, err)
	}
	if len(found.Items) == 0 {
		return nil, nil
	}
	return &found.Items[0], nil
}

// ReadNode reads the files once for the Node, for settings that are needed before Run. It
// returns nil if there is none of that name. Run reports problems with the files.
func (m *Manifests) ReadNode(context.Context) (own *corev1.Node, err error) {
	m.eachNode(func(n *corev1.Node) bool {
		if normalizeNode(n.Name) == normalizeNode(m.NodeName) {
			own = n
		}
		return own == nil
	})
	return own, nil
}

// eachNode reads the files once, and calls do with each Node until it returns false.
func (m *Manifests) eachNode(do func(*corev1.Node) bool) {
	mentions := regexp.MustCompile(`\bNode\b`) // few files do, and parsing the others takes time
	d := decoder{noted: map[string]bool{}}
	ends := func(o object) bool {
		n, is := o.value.(*corev1.Node)
		return is && !do(n)
	}
	for _, path := range m.Paths {
		var dir listing
		if m.Contents[path] != nil {
			dir.files = []string{path}
		} else {
			dir.list(path)
		}
		for _, name := range dir.files {
			content, err := m.Contents[name], error(nil)
			if content == nil {
				content, _, err = files.Read(name, maxFile)
			}
			content = files.Text(content)
			if err == nil && mentions.Match(content) && slices.ContainsFunc(d.decode(content).objects, ends) {
				return
			}
		}
	}
}

// Lookup reads single objects of an API server, for commands that a user runs.
type Lookup struct{ Config *rest.Config }

func (l Lookup) clients() (*clients, error) {
	return (&APIServer{Config: l.Config}).newClients(l.Config)
}

// Slices returns the EndpointSlices of a namespace.
func (l Lookup) Slices(ctx context.Context, namespace string) ([]discoveryv1.EndpointSlice, error) {
	c, err := l.clients()
	if err != nil {
		return nil, err
	}
	var list discoveryv1.EndpointSliceList
	err = c.discovery.Get().Namespace(namespace).Resource(kindSlices).MaxRetries(0).Do(ctx).Into(&list)
	return list.Items, err
}

// Pod returns a pod. It needs the right to get pods, which service proxies do not have.
func (l Lookup) Pod(ctx context.Context, id types.NamespacedName) (*corev1.Pod, error) {
	c, err := l.clients()
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	err = c.core.Get().Namespace(id.Namespace).Resource("pods").Name(id.Name).MaxRetries(0).Do(ctx).Into(pod)
	return pod, err
}
