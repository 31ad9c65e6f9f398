// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/common/lease"
	"kubeproxy/common/metrics"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/windows/hns"
	"kubeproxy/platform/windows/pipe"
)

const hostOS = config.Windows

// cleanupPrivileges is the advice to a user who lacks the privileges for a cleanup.
const cleanupPrivileges = "run this as an administrator"

// newBackends returns the backends of the mode in c. It makes no call to HNS, as the
// network may be created later.
func newBackends(ctx context.Context, c *config.Config, o *agent.Options, annotated v1alpha1.ProxyMode) (*agent.Selected, error) {
	return selectMode(klog.FromContext(ctx), candidates(c, o, annotated), func(w candidate) (*agent.Selected, error) {
		if err := checkBuilt(w.mode, c.OS); err != nil {
			return nil, err
		}
		if err := checkNamed(c, w.mode); err != nil {
			return nil, err
		}
		c := w.configFor(c)
		backends, err := hnsBackends(ctx, c)
		return &agent.Selected{Config: c, Origin: w.origin, Backends: backends}, err
	})
}

// cleanupTargets lists where the mode may have left HNS objects.
func cleanupTargets(c *config.Config) ([]takeover.Target, error) {
	if err := checkNamed(c, config.Kernelspace); err != nil {
		return nil, err
	}
	backends, err := hnsBackends(context.Background(), c)
	var all []takeover.Target
	for _, b := range backends {
		b.Conditions.Subscribe(func(_, text string) { klog.Background().Info(cmp.Or(text, "HNS answers again")) }, func() {})
		all = append(all, takeover.Target{Leftovers: &hnsLeftovers{Backend: b}, Family: b.Family})
	}
	return all, err
}

// hnsLeftovers are the HNS objects that a backend created. Remove finds out which they
// are.
type hnsLeftovers struct {
	*agent.Backend
	removed bool
}

// Find implements takeover.Leftovers.
func (r *hnsLeftovers) Find(context.Context) (string, error) {
	if r.removed {
		return "", nil
	}
	return "all that this proxy made", nil
}

// Remove implements takeover.Leftovers.
func (r *hnsLeftovers) Remove(ctx context.Context) error {
	err := r.Cleanup(ctx)
	r.removed = err == nil
	return err
}

func hnsBackends(ctx context.Context, c *config.Config) ([]*agent.Backend, error) {
	calls, conditions := &meter{}, &report.DataplaneConditions{}
	h, err := hnsHost(ctx, c, hns.Metered(hns.WithTimeout(hns.NewDriver(), conditions.Setter("dataplane"), conditions.ReportProgress), calls.call))
	if err != nil {
		return nil, err
	}
	h.OnShortage(conditions.Setter("dynamic-ports"))
	_, resync := agent.SyncPeriods(c)
	var all []*agent.Backend
	for _, f := range service.Families {
		b := hns.New(h, f, hnsOptions(c), resync)
		all = append(all, &agent.Backend{Backend: b, Mode: string(config.Kernelspace), Family: f, RegisterMetrics: calls.registerMetrics, Conditions: conditions, Grace: hnsGrace})
	}
	return all, nil
}

// hnsGrace is how long a round may go on when the proxy stops. HNS may hang, and a first
// round of thousands of calls takes minutes. The next process continues where this one
// stopped.
const hnsGrace = 3 * time.Second

func hnsHost(ctx context.Context, c *config.Config, d hns.Driver) (*hns.Host, error) {
	node, err := agent.NodeName(c)
	if err != nil {
		return nil, err
	}
	log := klog.FromContext(ctx)
	return hns.NewHost(d, hns.FileStore(hnsStateFile()), node, func(s string) { log.Info("HNS: " + s) }), nil
}

// prepare selects the network and reserves the source VIP, for a proxy that lacks the
// privileges.
func prepare(ctx context.Context, c *config.Config) error {
	log := klog.FromContext(ctx)
	h, err := hnsHost(ctx, c, hns.WithTimeout(hns.NewDriver(), func(text string) { log.Info(cmp.Or(text, "HNS answers again")) }, func() {}))
	if err != nil {
		return err
	}
	_, resync := agent.SyncPeriods(c)
	node := &service.Node{}
	if ip := c.NodeIP(); ip.IsValid() {
		node.Addrs = []netip.Addr{ip}
	}
	if err := hns.New(h, service.IPv4, hnsOptions(c), resync).Prepare(ctx, node); err != nil {
		return fmt.Errorf("prepare HNS: %w", err)
	}
	return nil
}

func keepNodePrepared(context.Context, agent.Preparation) {}

func trackedConnections() *metrics.Tracked { return nil }

// leaseTransport returns how service proxies of a node find each other, and what this one
// says of itself.
func leaseTransport(string) (lease.Transport, lease.Identity) {
	return pipe.Pipe{}, lease.Identity{OwnPID: os.Getpid(), Command: strings.Join(os.Args, " ")}
}

func otherProxies() string { return "" }
