// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package main

import (
	"context"
	"errors"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/common/lease"
	"kubeproxy/common/metrics"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
)

// hostOS is the system that configurations are checked for on systems that cannot run the
// proxy.
const hostOS = config.Linux

const cleanupPrivileges = ""

// errUnsupportedOS is why only render and config work on this system.
var errUnsupportedOS = errors.New("the proxy runs on Linux and Windows only; render and config work here too")

func newBackends(context.Context, *config.Config, *agent.Options, v1alpha1.ProxyMode) (*agent.Selected, error) {
	return nil, errUnsupportedOS
}

func cleanupTargets(*config.Config) ([]takeover.Target, error) { return nil, errUnsupportedOS }

func prepare(context.Context, *config.Config) error { return errUnsupportedOS }

func keepNodePrepared(context.Context, agent.Preparation) {}

func trackedConnections() *metrics.Tracked { return nil }

func leaseTransport(string) (lease.Transport, lease.Identity) { return nil, lease.Identity{} }

func otherProxies() string { return "" }
