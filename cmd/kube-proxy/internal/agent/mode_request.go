// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/nodemode"
	"kubeproxy/common/source"
	"kubeproxy/config"
)

// modeRequest holds the requests for a mode that a process started with.
type modeRequest struct {
	configured v1alpha1.ProxyMode
	annotated  v1alpha1.ProxyMode // by the Node
}

var (
	_ nodemode.Reader = (*apiSource)(nil)
	_ nodemode.Reader = (*source.Manifests)(nil)
)

// newModeRequest reads the Node if no mode is configured. The proxy starts even if the
// Node cannot be read.
func newModeRequest(ctx context.Context, c *config.Config, o *Options, from source.Source) modeRequest {
	w := modeRequest{configured: c.Mode}
	if reader, is := from.(nodemode.Reader); is && c.Mode == "" && c.OS == config.Linux {
		w.annotated = nodemode.Read(ctx, reader, config.ModesOf(o.Flags.Modes, c.OS))
	}
	return w
}
