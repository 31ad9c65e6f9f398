// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"strings"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/common/lease"
	"kubeproxy/common/metrics"
	"kubeproxy/config"
	"kubeproxy/platform/windows/pipe"
)

const hostOS = config.Windows

// cleanupPrivileges is the advice to a user who lacks the privileges for a cleanup.
const cleanupPrivileges = "run this as an administrator"

// prepareSystem has nothing to do: the mode prepares HNS.
func prepareSystem(context.Context, *config.Config) error { return nil }

func keepNodePrepared(context.Context, agent.Preparation) {}

func trackedConnections() *metrics.Tracked { return nil }

// leaseTransport returns how service proxies of a node find each other, and what this one
// says of itself.
func leaseTransport(string) (lease.Transport, lease.Identity) {
	return pipe.Pipe{}, lease.Identity{OwnPID: os.Getpid(), Command: strings.Join(os.Args, " ")}
}

func otherProxies() string { return "" }
