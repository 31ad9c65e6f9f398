// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
)

// Lookup reads single objects of an API server, for commands that a user runs.
type Lookup struct{ Config *rest.Config }

// Slices returns the EndpointSlices of a namespace.
func (l Lookup) Slices(ctx context.Context, namespace string) ([]discoveryv1.EndpointSlice, error) {
	a := &APIServer{Config: l.Config}
	c, err := newClient(a.Config, discoveryv1.SchemeGroupVersion, "/apis", a.limits())
	if err != nil {
		return nil, err
	}
	var list discoveryv1.EndpointSliceList
	err = c.Get().Namespace(namespace).Resource(kindSlices).MaxRetries(0).Do(ctx).Into(&list)
	return list.Items, err
}

// Pod returns a pod. It needs the right to get pods, which service proxies do not have.
func (l Lookup) Pod(ctx context.Context, id types.NamespacedName) (*corev1.Pod, error) {
	a := &APIServer{Config: l.Config}
	c, err := newClient(a.Config, corev1.SchemeGroupVersion, "/api", a.limits())
	if err != nil {
		return nil, err
	}
	pod := &corev1.Pod{}
	err = c.Get().Namespace(id.Namespace).Resource("pods").Name(id.Name).MaxRetries(0).Do(ctx).Into(pod)
	return pod, err
}
