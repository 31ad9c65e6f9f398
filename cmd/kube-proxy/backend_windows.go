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

	"kubeproxy/common/lease"
	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/windows/hns"
	"kubeproxy/platform/windows/pipe"
)

const hostOS = config.Windows

// cleanupRight is what a user does who may not clean up.
const cleanupRight = "run this as an administrator"

// newBackends returns the backends of the mode that c asks for. The network
// may come later, so nothing is asked of HNS here.
func newBackends(ctx context.Context, c *config.Config, o *options, annotated v1alpha1.ProxyMode) (*chosen, error) {
	return choose(klog.FromContext(ctx), candidates(c, o, annotated), func(w candidate) (*chosen, error) {
		if err := checkBuilt(w.mode, c.OS); err != nil {
			return nil, err
		}
		if err := checkNamed(c, w.mode); err != nil {
			return nil, err
		}
		c := w.with(c)
		backends, err := hnsBackends(ctx, c)
		return &chosen{config: c, from: w.from, backends: backends}, err
	})
}

// places lists where the mode may have left something.
func places(c *config.Config) ([]place, error) {
	if err := checkNamed(c, config.Kernelspace); err != nil {
		return nil, err
	}
	backends, err := hnsBackends(context.Background(), c)
	var all []place
	for _, b := range backends {
		b.remarks.hear(func(_, text string) { klog.Background().Info(cmp.Or(text, "HNS answers again")) }, func() {})
		all = append(all, place{remains: &hnsRemains{backend: b}, family: b.family})
	}
	return all, err
}

// hnsRemains are what a backend has made. What that is turns out as it is
// removed.
type hnsRemains struct {
	*backend
	removed bool
}

// Find implements remains.
func (r *hnsRemains) Find(context.Context) (string, error) {
	if r.removed {
		return "", nil
	}
	return "all that this proxy made", nil
}

// Remove implements remains.
func (r *hnsRemains) Remove(ctx context.Context) error {
	err := r.Cleanup(ctx)
	r.removed = err == nil
	return err
}

func hnsBackends(ctx context.Context, c *config.Config) ([]*backend, error) {
	calls, remarks := &meter{}, &remarks{}
	h, err := hnsHost(ctx, c, hns.Metered(hns.Patient(hns.Windows(), remarks.about("dataplane"), remarks.move), calls.call))
	if err != nil {
		return nil, err
	}
	h.OnShortage(remarks.about("dynamic-ports"))
	_, most := syncPeriods(c)
	var all []*backend
	for _, f := range service.Families {
		b := hns.New(h, f, hnsOptions(c), most)
		all = append(all, &backend{Backend: b, mode: string(config.Kernelspace), family: f, count: calls.count, remarks: remarks, grace: hnsGrace})
	}
	return all, nil
}

// hnsGrace is how long a round may go on when the proxy stops. HNS may hang, and a
// first round of thousands of calls take minutes; the next start goes on from there.
const hnsGrace = 3 * time.Second

func hnsHost(ctx context.Context, c *config.Config, d hns.Driver) (*hns.Host, error) {
	node, err := nodeName(c)
	if err != nil {
		return nil, err
	}
	log := klog.FromContext(ctx)
	return hns.NewHost(d, hns.File(hnsStateFile()), node, func(s string) { log.Info("HNS: " + s) }), nil
}

// prepare chooses the network and reserves the source VIP, for a proxy that
// may not.
func prepare(ctx context.Context, c *config.Config) error {
	log := klog.FromContext(ctx)
	h, err := hnsHost(ctx, c, hns.Patient(hns.Windows(), func(text string) { log.Info(cmp.Or(text, "HNS answers again")) }, func() {}))
	if err != nil {
		return err
	}
	_, most := syncPeriods(c)
	node := &service.Node{}
	if ip := c.NodeIP(); ip.IsValid() {
		node.Addrs = []netip.Addr{ip}
	}
	if err := hns.New(h, service.IPv4, hnsOptions(c), most).Prepare(ctx, node); err != nil {
		return fmt.Errorf("prepare HNS: %w", err)
	}
	return nil
}

func keepPrepared(context.Context, *effective, *observers) {}

func tracked() *metrics.Tracked { return nil }

// leaseOf returns how service proxies of a node find each other, and what this one
// says of itself.
func leaseOf(string) (lease.Transport, lease.Identity) {
	return pipe.Pipe{}, lease.Identity{OwnPID: os.Getpid(), Command: strings.Join(os.Args, " ")}
}

func otherProxies() string { return "" }
