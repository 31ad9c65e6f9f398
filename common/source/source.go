// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package source reads Services, EndpointSlices, ServiceCIDRs and the own Node
// from where they are kept, and tells a Sink about them. It knows no rules: what the
// objects mean is the Sink's business.
package source

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Sink learns what a cluster holds. A Source calls it from one goroutine at a
// time; the objects are shared and read-only. Its methods return quickly.
type Sink interface {
	SetService(*corev1.Service)
	DeleteService(types.NamespacedName)

	SetSlice(*discoveryv1.EndpointSlice)
	DeleteSlice(types.NamespacedName)

	SetNode(*corev1.Node) // the node we run on
	DeleteNode()

	SetServiceCIDR(*networkingv1.ServiceCIDR)
	DeleteServiceCIDR(name string)

	// Synced is called once, after everything that existed at the start and
	// could be read.
	Synced()
	// Unread tells how many things exist that could not be read yet, not even
	// once, whenever that number changes. It is 0 at first.
	Unread(n int)

	// Batch has all that tell says count at once: nobody is to see some of it
	// without the rest. It returns when tell has.
	Batch(tell func())
}

// Fault is what is wrong with one thing that a source reads. The source reports
// it again when it changes, and when it is over.
type Fault struct {
	// Object is a path, or the path of a file and an object in it. Only one fault
	// of an object is in force: a later one replaces it.
	Object string
	Err    error // nil when the fault is over
}

// Source feeds a Sink until ctx ends, which is not an error, or until an
// error it cannot recover from.
type Source interface {
	Run(ctx context.Context, sink Sink) error
}
