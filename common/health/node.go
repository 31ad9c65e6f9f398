// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import corev1 "k8s.io/api/core/v1"

// leaving is the taint by which the cluster autoscaler announces that it is
// going to delete a node.
const leaving = "ToBeDeletedByClusterAutoscaler"

// node says whether load balancers should send new connections here.
type node struct {
	state  nodeState
	reason string // for nodeLeaves
}

type nodeState uint8

const (
	nodeUnknown nodeState = iota
	nodeStays
	nodeLeaves
)

func readNode(n *corev1.Node) node {
	if !n.DeletionTimestamp.IsZero() {
		return node{nodeLeaves, "the Node object is being deleted"}
	}
	for _, t := range n.Spec.Taints {
		if t.Key == leaving {
			return node{nodeLeaves, "the Node has the taint " + leaving}
		}
	}
	return node{state: nodeStays}
}

// eligible also returns why not.
func (n node) eligible(required bool) (bool, string) {
	if n.state == nodeUnknown && required {
		return false, "the Node object is not known"
	}
	return n.state != nodeLeaves, n.reason
}
