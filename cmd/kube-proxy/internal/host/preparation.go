// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"kubeproxy/common/health"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// Preparation is what the preparation of a node needs of a running proxy.
type Preparation struct {
	Config   func() *config.Config // in force
	Requests <-chan struct{}       // receives a value when system settings in it have changed
	Mode     mode.Descriptor
	Tracker  *track.Tracker
	Health   *health.Monitor
}
