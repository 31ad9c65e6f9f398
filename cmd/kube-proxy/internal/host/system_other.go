// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux && !windows

package host

import (
	"context"

	"kubeproxy/common/lease"
	"kubeproxy/common/metrics"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// OS is the system that configurations are for where the proxy cannot run.
const OS = config.Linux

// Privileges is empty, as there is nothing to clean up.
const Privileges = ""

// Prepare is for Linux and Windows.
func Prepare(context.Context, *config.Config) error { return mode.ErrNoSystem }

// KeepPrepared has nothing to do.
func KeepPrepared(context.Context, Preparation) {}

// Tracked returns nothing.
func Tracked() *metrics.Tracked { return nil }

// LeaseTransport returns no transport.
func LeaseTransport(string) (lease.Transport, lease.Identity) { return nil, lease.Identity{} }

// Processes returns nothing.
func Processes() string { return "" }

// PendingSettings returns nothing, as there are no such settings.
func PendingSettings(*config.Config) []string { return nil }

// PendingScore returns nothing, as there is no such score.
func PendingScore(*config.Config) []string { return nil }
