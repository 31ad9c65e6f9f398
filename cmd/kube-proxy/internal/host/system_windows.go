// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"net/netip"
	"os"
	"strings"

	"kubeproxy/common/lease"
	"kubeproxy/common/metrics"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/windows/proc"
)

// OS is the system of this program.
const OS = config.Windows

// Privileges is the advice to a user who lacks the privileges for a cleanup.
const Privileges = "run this as an administrator"

// Prepare has nothing to do: the mode prepares HNS.
func Prepare(context.Context, *config.Config) error { return nil }

// KeepPrepared has nothing to do.
func KeepPrepared(context.Context, Preparation) {}

// Tracked returns nothing.
func Tracked() *metrics.Tracked { return nil }

// LeaseTransport returns how service proxies of a node find each other, and this one.
func LeaseTransport(string) (lease.Transport, lease.Identity) {
	return proc.Pipe{}, lease.Identity{OwnPID: os.Getpid(), Command: strings.Join(os.Args, " ")}
}

// Processes returns nothing.
func Processes() string { return "" }

// PendingSettings returns nothing, as there are no such settings.
func PendingSettings(*config.Config) []string { return nil }

// PendingScore returns nothing, as there is no such score.
func PendingScore(*config.Config) []string { return nil }

// listeningSockets returns nothing: HNS keeps load balancers and sockets apart.
func listeningSockets() ([]track.Socket, error) { return nil, nil }

// PortHolder names the process that listens on the TCP port at, empty if that is unknown.
func PortHolder(at netip.AddrPort) string { return proc.Holding(at) }
