// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/common/lease"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/abstract"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
	processes "kubeproxy/platform/linux/process"
	"kubeproxy/platform/linux/sysctl"
	"kubeproxy/platform/linux/userspace"
)

const hostOS = config.Linux

// cleanupPrivileges is the advice to a user who lacks the privileges for a cleanup.
const cleanupPrivileges = "run this as root, or with the rights CAP_NET_ADMIN, CAP_NET_RAW and CAP_DAC_READ_SEARCH"

// dataplane is a mode of Linux. A mode can run if it is in this table, in builtModes and
// in settings.go.
type dataplane struct {
	mode v1alpha1.ProxyMode
	// probe returns in one sentence what the node lacks for a family. It changes nothing.
	probe func(*config.Config, service.Family) error
	// create returns the backend of a family, which changes nothing before its first
	// round.
	create func(*config.Config, service.Family) (reconcile.Backend, error)
	// audit, if set, returns a backend that reports what is in force. The caller
	// closes it.
	audit func(*config.Config, service.Family) (reconcile.Backend, error)
	// ownedTargets returns the names of the places, of those of places, that the rounds
	// of a family keep in order, whoever left something there.
	ownedTargets func(*config.Config, service.Family) ([]string, error)
}

// dataplanes returns all modes of Linux.
func dataplanes() []dataplane {
	return []dataplane{
		{
			mode:   config.NFTables,
			probe:  func(_ *config.Config, f service.Family) error { return nftables.Probe(f) },
			create: newNFTables,
			audit:  newNFTables,
			ownedTargets: func(c *config.Config, f service.Family) ([]string, error) {
				return []string{ownTable(c, f).String()}, nil
			},
		},
		{
			mode:         config.IPTables,
			probe:        func(c *config.Config, f service.Family) error { return iptables.Probe(f, iptablesOptions(c)) },
			create:       newIPTables,
			audit:        newIPTables,
			ownedTargets: ownedByIPTables,
		},
		newUserspace(),
		{
			mode:   config.IPVS,
			probe:  func(c *config.Config, f service.Family) error { return ipvs.Probe(f, ipvsOptions(c)) },
			create: newIPVS,
			audit:  newIPVS,
			ownedTargets: func(_ *config.Config, f service.Family) ([]string, error) {
				return []string{ipvs.Leftovers{Family: f}.String()}, nil
			},
		},
	}
}

func newNFTables(c *config.Config, f service.Family) (reconcile.Backend, error) {
	return nftables.New(f, nftablesOptions(c))
}

func newIPTables(c *config.Config, f service.Family) (reconcile.Backend, error) {
	return iptables.New(f, iptablesOptions(c))
}

func ownedByIPTables(_ *config.Config, f service.Family) ([]string, error) {
	v, err := iptables.NodeVariant(f)
	return []string{iptables.Leftovers{Variant: v, Family: f}.String()}, err
}

func newIPVS(c *config.Config, f service.Family) (reconcile.Backend, error) {
	return ipvs.New(f, ipvsOptions(c))
}

// newBackends selects a mode and returns its backends. c decides; if c names no mode, the
// annotation of the Node decides.
func newBackends(ctx context.Context, c *config.Config, o *agent.Options, annotated v1alpha1.ProxyMode) (*agent.Selected, error) {
	x, err := selectMode(klog.FromContext(ctx), candidates(c, o, annotated), func(w candidate) (*agent.Selected, error) { return open(c, w) })
	if err != nil {
		return nil, err
	}
	for _, b := range x.Backends {
		b.CleanConntrack = agent.WithTrackedSnapshot(b, newConntrackCleaner(ctx, b))
	}
	addLocalhost(x, klog.FromContext(ctx))
	return x, nil
}

// open returns the backends of candidate w, or an error of one sentence if the mode
// cannot work on this node.
func open(c *config.Config, w candidate) (*agent.Selected, error) {
	for _, d := range dataplanes() {
		if d.mode != w.mode {
			continue
		}
		if err := checkNamed(c, w.mode); err != nil {
			return nil, err
		}
		x, err := d.open(w.configFor(c))
		if err != nil {
			return nil, fmt.Errorf("mode %s cannot work here: %w", w.mode, err)
		}
		x.Origin = w.origin
		return x, nil
	}
	return nil, checkBuilt(w.mode, c.OS)
}

func (d dataplane) open(c *config.Config) (*agent.Selected, error) {
	files := sysctl.Host()
	families, unavailable, err := familiesOf(c, func(f service.Family) error { return withConntrackHint(d.probe(c, f), files) })
	if err != nil {
		return nil, err
	}
	backends, err := d.backends(c, families)
	return &agent.Selected{Config: c, Backends: backends, Unavailable: unavailable}, err
}

// withConntrackHint names the reason of a failed probe if that is the lack of connection
// tracking. Without that the kernel lacks each module that depends on it.
func withConntrackHint(err error, files sysctl.Files) error {
	if err == nil || sysctl.HasConntrack(files) {
		return err
	}
	return fmt.Errorf("the kernel has no connection tracking (module nf_conntrack): %w", err)
}

func (d dataplane) backends(c *config.Config, families []service.Family) ([]*agent.Backend, error) {
	var all []*agent.Backend
	for _, f := range families {
		b, err := d.create(c, f)
		if err != nil {
			return nil, err // err names the family
		}
		owned, err := d.ownedTargets(c, f)
		if err != nil {
			return nil, err
		}
		one := &agent.Backend{Backend: b, Mode: string(d.mode), Family: f, OwnedTargets: owned}
		if d.audit != nil {
			one.Audit = func() (reconcile.Backend, error) { return d.audit(c, f) }
		}
		all = append(all, one)
	}
	return all, nil
}

// ownTable is the table that the proxy of the name in c has in mode nftables.
func ownTable(c *config.Config, f service.Family) nftables.Leftovers {
	return nftables.Leftovers{Family: f, Table: nftables.TableOf(c.ProxyName)}
}

// cleanupTargets lists where any mode of ours may have left rules, or kube-proxy. A proxy
// that serves labelled Services has one place alone: the others are in use by
// whoever serves the rest.
func cleanupTargets(c *config.Config) ([]takeover.Target, error) {
	var all []takeover.Target
	for _, f := range service.Families {
		if c.ProxyName != "" {
			all = append(all, takeover.Target{Leftovers: ownTable(c, f), Family: f})
			continue
		}
		for _, v := range iptables.Variants {
			all = append(all, takeover.Target{Leftovers: iptables.Leftovers{Variant: v, Family: f}, Family: f})
		}
		all = append(all,
			takeover.Target{Leftovers: userspace.Leftovers{Family: f}, Family: f},
			takeover.Target{Leftovers: ipvs.Leftovers{Family: f, Exclude: ipvsOptions(c).Exclude}, Family: f, IPVS: true},
			takeover.Target{Leftovers: ipvs.Upstream{Family: f, Exclude: ipvsOptions(c).Exclude}, Family: f, IPVS: true, Upstream: true},
			takeover.Target{Leftovers: ownTable(c, f), Family: f},
			takeover.Target{Leftovers: nftables.Leftovers{Family: f, Table: nftables.UpstreamTable}, Family: f, Upstream: true})
	}
	return all, nil
}

// newConntrackCleaner returns a function that deletes the conntrack entries that a round
// made stale.
func newConntrackCleaner(ctx context.Context, b *agent.Backend) agent.ConntrackCleaner {
	log := klog.FromContext(ctx)
	f := b.Family
	flows := &conntrack.Reconciler{Driver: conntrack.Netlink{}, Family: f}
	return func(ctx context.Context, r reconcile.Result) (int, time.Duration, error) {
		now := r.Snapshot
		if b.Recheck.Swap(false) || len(r.Drift) > 0 { // foreign rules may have created entries
			flows.Resync()
		}
		n, err := flows.Sync(ctx, now)
		if len(r.Removed) > 0 && !errors.Is(err, errors.ErrUnsupported) {
			removedFlows, removeErr := flows.Reconcile(ctx, removedRules(r.Removed), now)
			n, err = n+removedFlows, errors.Join(err, removeErr)
		}
		if n > 0 {
			log.V(2).Info("Removed stale flows", "family", f.String(), "flows", n)
		}
		if r.Err != nil { // a port that failed keeps its old rules, which may still create entries
			flows.Resync()
		}
		return n, flows.ResyncAfter(), err
	}
}

// removedRules returns conntrack rules for frontends that an earlier process left and
// that this process does not know.
func removedRules(ports []*service.Port) []conntrack.Rule {
	var rules []conntrack.Rule
	for _, p := range ports {
		rules = append(rules, conntrack.Changes(p, nil)...)
	}
	return rules
}

// leaseTransport returns how service proxies of a node find each other, and what this one
// says of itself. Proxies that serve other Services do not meet.
func leaseTransport(proxyName string) (lease.Transport, lease.Identity) {
	return abstract.Of(proxyName), abstract.Self()
}

// otherProxies names the processes that look like service proxies of this node.
func otherProxies() string {
	var all []string
	for _, p := range processes.ByName(os.DirFS("/proc"), "kube-proxy") {
		all = append(all, p.String())
	}
	return strings.Join(all, ", ")
}
