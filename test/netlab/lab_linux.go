// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import (
	"errors"
	"fmt"
	"net/netip"
)

// Config describes a Lab. Names become interface names with the prefix "veth-", so they
// have at most ten characters, and no name occurs twice.
type Config struct {
	Pods    []string // on node-a: 10.244.1.11, .12 and so on
	Remote  []string // pods on node-b: 10.244.2.11 and so on
	Clients []string // on the LAN: 192.0.2.100 and so on
	// Bridge, if not empty, is the name of a bridge on node-a to which its pods are
	// attached. Without it node-a has an interface "veth-NAME" for each pod, as node-b
	// always does.
	Bridge string
	// Cgroups puts node-a and its pods in cgroups like those of a kubelet, below Lab.Cgroup.
	// What is started on node-a sees that cgroup as the hierarchy of version 2, and has a BPF
	// file system of its own.
	Cgroups bool
	// Unbound are destinations to which TCP clients in these cgroups connect without a port
	// of their own, see Query.Unbound.
	Unbound []netip.Prefix
}

// ClusterCIDR contains the pod addresses of all nodes, in the form of the flag
// --cluster-cidr. The pods of node-a are in 10.244.1.0/24 and fd00:10:244:1::/64.
const ClusterCIDR = "10.244.0.0/16,fd00:10:244::/48"

// The names of the two nodes.
const (
	NodeName  = "node-a"
	OtherName = "node-b"
)

// Lab is a network. Its methods may be called from several goroutines.
type Lab struct {
	Node  *Host // node-a, where the proxy is to run
	Other *Host // node-b, a plain router for its pods
	// Cgroup is the folder of the cgroups, empty unless there are some.
	Cgroup string
	// Root is where this process finds the file systems that what is started on node-a sees,
	// empty unless they differ from its own.
	Root string

	lan, gateway *Host // lan is the bridge that connects all; gateway refuses unknown destinations
	hosts        map[string]*Host
}

// New builds a network. The caller closes it.
func New(cfg Config) (*Lab, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	l := &Lab{hosts: map[string]*Host{}}
	if err := l.build(cfg); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (c Config) check() error {
	seen := map[string]bool{NodeName: true, OtherName: true, lanName: true, gatewayName: true}
	for _, names := range [][]string{c.Pods, c.Remote, c.Clients} {
		if len(names) > maxHosts {
			return fmt.Errorf("lab with %d hosts of one sort: at most %d fit", len(names), maxHosts)
		}
		for _, name := range names {
			switch {
			case name == "" || len(name) > 10:
				return fmt.Errorf("host name %q: must have 1 to 10 characters", name)
			case seen[name]:
				return fmt.Errorf("host name %q: taken", name)
			}
			seen[name] = true
		}
	}
	return nil
}

// build creates the namespaces, those in the middle of the picture first.
func (l *Lab) build(cfg Config) error {
	var err error
	if l.lan, err = l.addHost(lanName); err != nil {
		return err
	}
	if err := l.lan.addBridge(lanBridge, nil); err != nil {
		return err
	}
	if l.gateway, err = l.addNode(gatewayName, 1); err != nil {
		return err
	}
	if l.Node, err = l.addNode(NodeName, 10); err != nil {
		return err
	}
	if l.Other, err = l.addNode(OtherName, 11); err != nil {
		return err
	}
	if err := l.connectNodes(); err != nil {
		return err
	}
	if cfg.Bridge != "" {
		if err := l.Node.addBridge(cfg.Bridge, singles(podGateway(1))); err != nil {
			return err
		}
	}
	for i, name := range cfg.Pods {
		if err := l.addPod(pod{name: name, node: l.Node, net: 1, bridge: cfg.Bridge}, i+11); err != nil {
			return err
		}
	}
	for i, name := range cfg.Remote {
		if err := l.addPod(pod{name: name, node: l.Other, net: 2}, i+11); err != nil {
			return err
		}
	}
	for i, name := range cfg.Clients {
		if err := l.addClient(name, i+100); err != nil {
			return err
		}
	}
	if cfg.Cgroups {
		if err := l.addCgroups(cfg.Pods); err != nil {
			return err
		}
		for _, h := range l.hosts {
			h.unbound = cfg.Unbound
		}
	}
	return l.awaitLinks()
}

// Host returns the node, pod or client of that name, nil if there is none.
func (l *Lab) Host(name string) *Host { return l.hosts[name] }

// Close ends the processes that were started in the lab, closes its echo servers and its
// namespaces. The kernel then removes the namespaces with everything in them.
func (l *Lab) Close() error {
	var errs []error
	for _, h := range l.hosts {
		errs = append(errs, h.close())
	}
	return errors.Join(append(errs, l.removeCgroups())...)
}

// TB is the part of testing.TB that Start needs.
type TB interface {
	Helper()
	Cleanup(func())
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// Start builds a network for one test and closes it with the test. If namespaces or cgroups
// are not allowed, the test is skipped.
func Start(t TB, cfg Config) *Lab {
	t.Helper()
	l, err := New(cfg)
	if errors.Is(err, ErrNotAllowed) || errors.Is(err, ErrNoCgroups) {
		t.Skipf("%v", err)
	}
	if err != nil {
		t.Fatalf("build network: %v", err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Fatalf("close network: %v", err)
		}
	})
	return l
}
