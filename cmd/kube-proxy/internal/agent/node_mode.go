// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// modeAnnotation is the annotation by which a Node selected its mode before configuration
// files existed.
const modeAnnotation = "net.experimental.kubernetes.io/proxy-mode"

// nodeModeTimeout bounds how long the start waits for the Node. Without an API server there
// is no Service to forward, but health and metrics must be served.
const nodeModeTimeout = 2 * time.Second

// nodeReader is a source that can read the Node before it runs.
type nodeReader interface {
	ReadNode(ctx context.Context) (*corev1.Node, error)
}

// nodeMode returns the mode that the Node asks for, empty if it asks for none of modes or
// cannot be read. It logs the outcome.
func nodeMode(ctx context.Context, from nodeReader, modes []v1alpha1.ProxyMode) v1alpha1.ProxyMode {
	log := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, nodeModeTimeout)
	defer cancel()
	node, err := from.ReadNode(ctx)
	if err != nil {
		log.Info("No mode is configured, and the annotation of the Node cannot be read now; going on without it", "annotation", modeAnnotation, "err", err.Error())
		return ""
	}
	if node == nil {
		return ""
	}
	mode := modeIn(log, modes, node)
	if mode != "" {
		log.Info("The Node asks for a mode, and none is configured", "annotation", modeAnnotation, "mode", mode)
	}
	return mode
}

// modeIn returns the mode in the annotation of n, empty if it is none of modes. It logs an
// unknown mode.
func modeIn(log klog.Logger, modes []v1alpha1.ProxyMode, n *corev1.Node) v1alpha1.ProxyMode {
	mode := v1alpha1.ProxyMode(strings.TrimSpace(n.Annotations[modeAnnotation]))
	if mode != "" && !slices.Contains(modes, mode) {
		log.Info("Warning: the Node asks for a mode that does not exist, which is ignored", "annotation", modeAnnotation, "mode", mode, "want", modes)
		return ""
	}
	return mode
}
