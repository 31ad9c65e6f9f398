// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package source reads Services, EndpointSlices, ServiceCIDRs and the own Node from an
// API server or from files, and delivers them to a Sink. It applies no rules: the Sink
// decides what the objects mean.
package source

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Sink receives the objects of a cluster. A Source calls it from one goroutine at a time.
// The objects are shared and read-only. Its methods must return quickly.
type Sink interface {
	SetService(*corev1.Service)
	DeleteService(types.NamespacedName)

	SetSlice(*discoveryv1.EndpointSlice)
	DeleteSlice(types.NamespacedName)

	SetNode(*corev1.Node) // the own Node
	DeleteNode()

	SetServiceCIDR(*networkingv1.ServiceCIDR)
	DeleteServiceCIDR(name string)

	// Synced is called once, after everything that existed at the start and could be
	// read.
	Synced()
	// Unread is called whenever the number of existing objects changes that could never
	// be read. The number is 0 at first.
	Unread(n int)

	// Batch makes all changes by deliver take effect at once: no snapshot may contain some
	// of them without the others. It returns when deliver has returned.
	Batch(deliver func())
}

// Fault is a problem with one thing that a source reads. The source reports it again when
// it changes, and when it is over.
type Fault struct {
	// Object is a path, or the path of a file and an object in it. An object has only one
	// fault at a time: a later one replaces it.
	Object string
	Err    error // nil when the fault is over
}

// Source feeds a Sink until ctx ends, which is not an error, or until an
// error it cannot recover from.
type Source interface {
	Run(ctx context.Context, sink Sink) error
}
