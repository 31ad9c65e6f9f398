// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// fault is what goes wrong on a node, and what has to be said about it.
type fault struct {
	node   string
	alerts []string
	// start starts the proxy. Without one, it starts as usual.
	start func(*testing.T, *site, *node)
	// begin starts the fault, after which end ends it.
	begin func(*testing.T, *site, *node) (end func())
}

// faults are those that the alerts are for. An absent proxy is apart, as it takes all
// nodes.
var faults = []fault{
	{node: "well"},
	{
		node: "down", alerts: []string{"ServiceProxyDown"},
		begin: func(t *testing.T, s *site, n *node) func() { n.proxy.Stop(t); return func() { s.start(t, n, nil) } },
	},
	{
		node: "unsynced", alerts: []string{"ServiceProxyNotSynced", "ServiceProxySourceStale", "ServiceProxyCondition"},
		start: func(t *testing.T, s *site, n *node) { n.cut(t, s); s.start(t, n, nil) },
		begin: func(t *testing.T, _ *site, n *node) func() { return func() { n.mend(t) } },
	},
	{
		node: "cut", alerts: []string{"ServiceProxySourceStale", "ServiceProxyCondition"},
		begin: func(t *testing.T, s *site, n *node) func() { n.cut(t, s); return func() { n.mend(t) } },
	},
	{
		node: "broken", alerts: []string{"ServiceProxyChangesNotInForce", "ServiceProxyRoundsFail"},
		start: startBreakable, begin: breakCommands,
	},
	{
		node: "cramped", alerts: []string{"ServiceProxyServicePortsFailed", "ServiceProxyRoundsFail", "ServiceProxyCondition"},
		start: startCramped,
		begin: func(t *testing.T, s *site, n *node) func() {
			return func() { n.proxy.Stop(t); s.start(t, n, nil, "--proxy-mode=userspace") }
		},
	},
	{node: "altered", alerts: []string{"ServiceProxyRulesAltered", "ServiceProxyCondition"}, begin: alter},
	{
		node: "rejected", alerts: []string{"ServiceProxyConfigurationRejected", "ServiceProxyCondition"},
		start: func(t *testing.T, s *site, n *node) {
			s.start(t, n, nil, "--config="+n.write(t, "config.yaml", goodConfig))
		},
		begin: func(t *testing.T, _ *site, n *node) func() {
			n.write(t, "config.yaml", goodConfig+"nodePortAddresses: [everywhere]\n")
			return func() { n.write(t, "config.yaml", goodConfig) }
		},
	},
	{node: "full", alerts: []string{"ServiceProxyConntrackFull"}, start: startFillable, begin: fill},
	{node: "besieged", alerts: []string{"ServiceProxyRelayRefuses", "ServiceProxyCondition"}, start: startLimited, begin: besiege},
}

const goodConfig = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// cut refuses connections to the API server, and resets those that there are.
func (n *node) cut(t *testing.T, s *site) {
	t.Helper()
	script := `table inet cut { chain out { type filter hook output priority 0; ip daddr %s tcp dport 6443 reject with tcp reset; }; }`
	if err := n.nft(t.Context(), fmt.Sprintf(script, s.Host(control).IPv4)); err != nil {
		t.Fatal(err)
	}
}

func (n *node) mend(t *testing.T) {
	t.Helper()
	if err := n.nft(t.Context(), "delete table inet cut"); err != nil {
		t.Fatal(err)
	}
}

// startBreakable starts the proxy in mode iptables, with commands that fail while a file
// exists.
func startBreakable(t *testing.T, s *site, n *node) {
	dir := filepath.Join(n.dir, "commands")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-restore", "-save"} {
			script := fmt.Sprintf("#!/bin/sh\nif [ -e %s/broken ]; then echo 'out of memory' >&2; exit 4; fi\nexec /usr/sbin/%s-nft%s \"$@\"\n", n.dir, c, suffix)
			n.write(t, filepath.Join("commands", c+suffix), script)
		}
	}
	s.start(t, n, nil, "--proxy-mode=iptables")
}

func breakCommands(t *testing.T, _ *site, n *node) func() {
	path := n.write(t, "broken", "")
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// startCramped starts the proxy in mode userspace with fewer ports for its listeners than
// Services have.
func startCramped(t *testing.T, s *site, n *node) {
	s.start(t, n, nil, "--proxy-mode=userspace", "--proxy-port-range=25000-25000", "--bind-address="+n.IPv4.String())
}

// alter deletes rules of the proxy again and again.
func alter(t *testing.T, _ *site, n *node) func() {
	return repeat(t, 300*time.Millisecond, func(ctx context.Context, _ int) error {
		return n.nft(ctx, "flush chain ip kube-services dispatch")
	})
}

// fillable are the entries that the conntrack table of the node called full may have.
const fillable = 1000

// startFillable starts the proxy where it reads another limit of the conntrack table: the
// real one is the machine's, and no namespace may change it.
func startFillable(t *testing.T, s *site, n *node) {
	limit := n.write(t, "limit", fmt.Sprintln(fillable))
	s.start(t, n, []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /proc/sys/net/netfilter/nf_conntrack_max && exec "$@"`, limit})
}

// fill has a client of a pod use many ports.
func fill(t *testing.T, s *site, n *node) func() {
	var all []net.Conn
	for range fillable * 95 / 100 {
		c, err := n.Dial(t.Context(), "udp", netip.AddrPortFrom(s.webs()[0].IPv4, target).String())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	stop := repeat(t, 5*time.Second, func(context.Context, int) error {
		for _, c := range all {
			_, _ = c.Write([]byte("x"))
		}
		return nil
	})
	return func() {
		stop()
		for _, c := range all {
			_ = c.Close()
		}
		if err := n.run(t.Context(), "", "conntrack", "--delete", "--proto=udp"); err != nil {
			t.Fatal(err)
		}
	}
}

// startLimited starts the proxy in mode userspace with few open files.
func startLimited(t *testing.T, s *site, n *node) {
	s.start(t, n, []string{"prlimit", "--nofile=256:256", "setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"}, "--proxy-mode=userspace")
}

// besiege keeps connections to a Service open, and tries to open more.
func besiege(t *testing.T, _ *site, n *node) func() {
	var all []net.Conn
	stop := repeat(t, 20*time.Millisecond, func(ctx context.Context, _ int) error {
		if c, err := n.Dial(ctx, "tcp", webAddr.String()); err == nil { // else it was refused
			all = append(all, c)
		}
		return nil
	})
	return func() {
		stop()
		for _, c := range all {
			_ = c.Close()
		}
	}
}
