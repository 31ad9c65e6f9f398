// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// nodeLog logs what is known of the own Node, whenever that changes, and once if nothing
// is known.
type nodeLog struct {
	log  klog.Logger
	name string
	// podCIDRs is whether the podCIDRs of the Node matter.
	podCIDRs bool

	mu         sync.Mutex
	last       *service.Node
	ineligible string // why /healthz keeps load balancers away
}

// nodeTimeout is how long the Node may be unknown before a warning.
const nodeTimeout = 30 * time.Second

// nodeChanged logs the Node as t knows it now.
func (l *nodeLog) nodeChanged(t *track.Tracker) {
	now := t.Node()
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.last
	if l.last = now; old != nil && slices.Equal(old.Addrs, now.Addrs) && slices.Equal(old.Pods.Prefixes, now.Pods.Prefixes) {
		return
	}
	args := []any{"node", l.name, "nodeIPs", fmt.Sprint(now.Addrs)}
	if l.podCIDRs {
		args = append(args, "podCIDRs", fmt.Sprint(now.Pods.Prefixes))
	}
	if old == nil {
		l.log.Info("The Node is known", args...)
		return
	}
	l.log.Info("The Node has changed", args...)
}

// eligibilityChanged logs when /healthz starts or stops to keep load balancers away
// because of the Node. An empty reason means that it does not.
func (l *nodeLog) eligibilityChanged(reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if reason == l.ineligible {
		return
	}
	if l.ineligible = reason; reason == "" {
		l.log.Info("Load balancers are not told to leave this node any more", "node", l.name)
		return
	}
	l.log.Info("Load balancers are told to leave this node, by /healthz", "node", l.name, "reason", reason)
}

// warnIfUnknown warns once if the Node is not known within nodeTimeout.
func (l *nodeLog) warnIfUnknown(ctx context.Context, sources *Sources, t *track.Tracker) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(nodeTimeout):
	}
	now := t.Node()
	closed := now.NodePortsPending != [2]bool{}
	l.mu.Lock()
	defer l.mu.Unlock()
	lost := "its addresses, zone and pod ranges"
	if closed {
		lost += "; no address answers NodePorts that did not before, as nodePortAddresses is primary"
	}
	switch {
	case l.last != nil:
	case !sources.api:
		if closed || l.podCIDRs {
			l.log.Info("Warning: no manifest has a Node of this name; going on without "+lost, "node", l.name, "after", nodeTimeout,
				"remedy", "add the Node to the manifests, set --hostname-override to its name, or set --nodeport-addresses")
		}
	case sources.nodesRead():
		l.log.Info("Warning: the API server has no Node of this name; going on without "+lost+", and no endpoint counts as local to this node unless it has the same name",
			"node", l.name, "after", nodeTimeout, "cause", "usually the host's name is not the Node's: a full instead of a short name, or one that the cloud gives",
			"remedy", "set --hostname-override to the name that kubectl get nodes shows")
	default:
		l.log.Info("Warning: the API server has not sent the Node yet; going on without "+lost, "node", l.name, "after", nodeTimeout)
	}
}
