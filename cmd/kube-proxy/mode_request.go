// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/source"
	"kubeproxy/config"
)

// modeRequest holds the requests for a mode that a process started with.
type modeRequest struct {
	configured v1alpha1.ProxyMode
	annotated  v1alpha1.ProxyMode // by the Node
}

// modeAnnotation is the annotation by which a Node selected its mode before configuration
// files existed.
const modeAnnotation = "net.experimental.kubernetes.io/proxy-mode"

// nodeReadTimeout bounds how long the start waits for the Node. Without an API server
// there is no Service to forward, but health and metrics must be served.
const nodeReadTimeout = 2 * time.Second

// nodeReader is a source that can read the Node before it runs.
type nodeReader interface {
	ReadNode(ctx context.Context) (*corev1.Node, error)
}

// newModeRequest reads the Node if no mode is configured. The proxy starts even if the
// Node cannot be read.
func newModeRequest(ctx context.Context, c *config.Config, from source.Source) modeRequest {
	w := modeRequest{configured: c.Mode}
	reader, is := from.(nodeReader)
	if !is || c.Mode != "" || c.OS != config.Linux {
		return w
	}
	log := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, nodeReadTimeout)
	defer cancel()
	node, err := reader.ReadNode(ctx)
	if err != nil {
		log.Info("No mode is configured, and whether the Node asks for one cannot be read now; going on as if it did not", "annotation", modeAnnotation, "err", err.Error())
		return w
	}
	if node == nil {
		return w
	}
	if w.annotated = annotatedMode(log, c.OS, node); w.annotated != "" {
		log.Info("The Node asks for a mode, and none is configured", "annotation", modeAnnotation, "mode", w.annotated)
	}
	return w
}

// annotatedMode returns the mode in the annotation of a Node, empty if there is no such
// mode, which it logs.
func annotatedMode(log klog.Logger, os config.OS, n *corev1.Node) v1alpha1.ProxyMode {
	mode := v1alpha1.ProxyMode(strings.TrimSpace(n.Annotations[modeAnnotation]))
	if mode != "" && !slices.Contains(config.Modes(os), mode) {
		log.Info("Warning: the Node asks for a mode that does not exist, which is ignored", "annotation", modeAnnotation, "mode", mode, "want", config.Modes(os))
		return ""
	}
	return mode
}
