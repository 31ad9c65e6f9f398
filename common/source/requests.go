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

// requests lists and watches one kind of objects, without the client's own retries. By
// default the client retries ten times before it reports an error, which takes two
// minutes without an answer. Then it returns an empty watch instead of one that was never
// granted: kubernetes/kubernetes#102107. The pacer does what the retries would do for
// Retry-After.
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
