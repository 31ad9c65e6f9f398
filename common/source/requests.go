// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// requests asks for one kind of objects. A request fails when it does: by
// default the client tries ten times before it says anything, two minutes if
// nobody answers, and then calls a watch that was never granted an empty one.
type requests struct {
	client  cache.Getter
	kind    string
	selects func(*metav1.ListOptions)
}

func (r requests) list(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	return r.request(o).Do(ctx).Get()
}

func (r requests) watch(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	o.Watch = true
	return r.request(o).Watch(ctx)
}

func (r requests) request(o metav1.ListOptions) *rest.Request {
	r.selects(&o)
	return r.client.Get().Resource(r.kind).VersionedParams(&o, metav1.ParameterCodec).MaxRetries(0)
}
