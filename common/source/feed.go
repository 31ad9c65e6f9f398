// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
)

// feed passes on one kind of objects. It is the store that a reflector
// fills, and holds names only, so that it can tell what a new list lacks.
type feed struct {
	kind    string
	like    runtime.Object
	from    *cache.ListWatch
	set     func(any)
	gone    func(types.NamespacedName)
	contact func(string)

	known  map[types.NamespacedName]bool
	listed chan struct{} // closed after the first list
	once   bool
}

var _ cache.ReflectorStore = (*feed)(nil)

// run lists and watches until ctx ends. Failures go to report, each of them
// before it is tried again, and not to the library's own log.
func (f *feed) run(ctx context.Context, report func(error)) {
	list, watches := f.from.ListWithContextFunc, f.from.WatchFuncWithContext
	tell := func(err error) {
		if err != nil && ctx.Err() == nil && report != nil && !ordinary(err) {
			report(fmt.Errorf("watch %s at the API server: %w", f.kind, err))
		}
	}
	f.from.ListWithContextFunc = func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		l, err := list(ctx, o)
		tell(err)
		return l, err
	}
	f.from.WatchFuncWithContext = func(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
		w, err := watches(ctx, o)
		tell(err)
		return w, err
	}
	quiet := klog.NewContext(ctx, logr.Discard())
	cache.NewReflectorWithOptions(f.from, f.like, f, cache.ReflectorOptions{Name: f.kind}).RunWithContext(quiet)
}

// ordinary reports that err is how a watch ends every few minutes.
func ordinary(err error) bool {
	return errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err)
}

// Add implements cache.ReflectorStore.
func (f *feed) Add(o any) error {
	n, err := nameOf(o)
	if err != nil {
		return err
	}
	f.alive()
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
	f.alive()
	delete(f.known, n)
	f.gone(n)
	return nil
}

// Replace implements cache.ReflectorStore: what is new goes before what is
// gone, so that endpoints which change slices are never missing.
func (f *feed) Replace(list []any, _ string) error {
	f.alive()
	now := make(map[types.NamespacedName]bool, len(list))
	for _, o := range list {
		n, err := nameOf(o)
		if err != nil {
			return err
		}
		now[n] = true
		f.set(o)
	}
	for n := range f.known {
		if !now[n] {
			f.gone(n)
		}
	}
	f.known = now
	if !f.once {
		f.once = true
		close(f.listed)
	}
	return nil
}

// Resync implements cache.ReflectorStore. There is nothing to repeat: whoever
// holds state compares it with the system by itself.
func (f *feed) Resync() error { return nil }

// Bookmark implements cache.ReflectorBookmarkStore: the watch is alive.
func (f *feed) Bookmark(string) { f.alive() }

func (f *feed) alive() {
	if f.contact != nil {
		f.contact(f.kind)
	}
}

func nameOf(o any) (types.NamespacedName, error) {
	m, err := meta.Accessor(o)
	if err != nil {
		return types.NamespacedName{}, fmt.Errorf("read the name of a %T: %w", o, err)
	}
	return types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}, nil
}
