// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"io"

	"k8s.io/klog/v2"
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

// newModeRequest reads the Node if no mode is configured. The proxy starts even if the
// Node cannot be read.
func newModeRequest(ctx context.Context, c *config.Config, from source.Source) modeRequest {
	w := modeRequest{configured: c.Mode}
	if reader, is := from.(nodemode.Reader); is && c.Mode == "" && c.OS == config.Linux {
		w.annotated = nodemode.Read(ctx, reader, config.Modes(c.OS))
	}
	return w
}

// newAnnotationWatcher returns nil if the annotation does not count. request is what led
// to mode.
func newAnnotationWatcher(o *options, request modeRequest, mode string, log klog.Logger) *nodemode.Watcher {
	if request.configured != "" || hostOS != config.Linux {
		return nil
	}
	return nodemode.NewWatcher(nodemode.Options{
		Modes: config.Modes(hostOS), Mode: mode, Annotated: request.annotated, Log: log,
		Select: func(ctx context.Context, annotated v1alpha1.ProxyMode) (string, error) {
			c, err := config.Load(&o.config, hostOS) // the file may have changed
			if err != nil || c.Mode != "" {
				return "", err
			}
			return modeFor(ctx, c, o, annotated)
		},
	})
}

// modeFor returns the mode that would be selected.
func modeFor(ctx context.Context, c *config.Config, o *options, annotated v1alpha1.ProxyMode) (string, error) {
	var discard klog.Logger
	x, err := newBackends(klog.NewContext(ctx, discard), c, o, annotated)
	if err != nil {
		return "", err
	}
	for _, b := range x.backends {
		if closer, ok := b.Backend.(io.Closer); ok {
			_ = closer.Close() // it has programmed nothing
		}
	}
	return x.backends[0].mode, nil
}
