// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package main

import (
	"context"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/common/lease"
	"kubeproxy/common/metrics"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// hostOS is the system that configurations are checked for on systems that cannot run the
// proxy.
const hostOS = config.Linux

const cleanupPrivileges = ""

func prepareSystem(context.Context, *config.Config) error { return mode.ErrNoSystem }

func keepNodePrepared(context.Context, agent.Preparation) {}

func trackedConnections() *metrics.Tracked { return nil }

func leaseTransport(string) (lease.Transport, lease.Identity) { return nil, lease.Identity{} }

func otherProxies() string { return "" }
