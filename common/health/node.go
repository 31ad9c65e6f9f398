// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import corev1 "k8s.io/api/core/v1"

// deletionTaint is the taint by which the cluster autoscaler announces the deletion of a
// node: kubernetes/enhancements#3836.
const deletionTaint = "ToBeDeletedByClusterAutoscaler"

// node determines whether load balancers should send new connections to this node.
type node struct {
	state  nodeState
	reason string // for nodeLeaving
}

type nodeState uint8

const (
	nodeUnknown nodeState = iota
	nodeActive
	nodeLeaving
)

func readNode(n *corev1.Node) node {
	if !n.DeletionTimestamp.IsZero() {
		return node{nodeLeaving, "the Node object is being deleted"}
	}
	for _, t := range n.Spec.Taints {
		if t.Key == deletionTaint {
			return node{nodeLeaving, "the Node has the taint " + deletionTaint}
		}
	}
	return node{state: nodeActive}
}

// eligible also returns why not.
func (n node) eligible(required bool) (bool, string) {
	if n.state == nodeUnknown && required {
		return false, "the Node object is not known"
	}
	return n.state != nodeLeaving, n.reason
}
