// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/socketlb"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// cluster is a lab, with the manifests that node-a should forward.
type cluster struct {
	*netlab.Lab
	dir    string
	mode   mode
	kernel *program.Kernel
	// commands is the folder of the iptables commands, in mode iptables.
	commands string
	opened   atomic.Uint32 // conversations so far
	// accelerated is whether socket acceleration is on and can work.
	accelerated bool
}

// mode is a way to run the proxy: its flags, and their meaning for the judge.
type mode struct {
	flags        []string
	trackOptions track.Options
	// bridge is the interface through which pods are seen, empty if each has one of its
	// own.
	bridge string
	bit    int // of the mark for masquerading, 0 for the default
	// iptables is the variant of mode iptables, legacy or nft, empty for mode nftables.
	iptables string
	// userspace is for mode userspace, with that variant of iptables.
	userspace bool
	// bound are the choices of mode userspace for listeners.
	bound userspace.Options
	ipvs  bool
	// scheduler is that of mode ipvs, empty for the usual one.
	scheduler string
	// plain leaves socket acceleration to the test.
	plain bool
	// localhost is whether NodePorts answer on 127.0.0.1, which the judge does not cover.
	localhost bool
}

// defaultMode is the mode of tests that are not about modes.
func defaultMode() mode {
	m := mode{flags: []string{"--cluster-cidr=" + netlab.ClusterCIDR}}
	m.trackOptions.Pods.Prefixes = prefixes(strings.Split(netlab.ClusterCIDR, ",")...)
	return m
}

func prefixes(list ...string) []netip.Prefix {
	var all []netip.Prefix
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}

// The hosts of every cluster: two serving pods on each node, a pod that does not serve,
// and a client outside.
var (
	locals  = []string{"web-1", "web-2", "shopper"}
	remotes = []string{"web-3", "web-4"}
	outside = []string{"customer"}
)

// newCluster builds a lab with an echo server on every web host, and an empty directory
// of manifests.
func newCluster(t *testing.T, m mode) *cluster {
	t.Helper()
	c := &cluster{dir: t.TempDir(), mode: m, accelerated: accelerated() && !m.plain}
	c.Lab = netlab.Start(t, netlab.Config{
		Pods: locals, Remote: remotes, Clients: outside, Bridge: m.bridge,
		Cgroups: c.accelerated, Unbound: prefixes("10.96.0.0/12", "fd00:10:96::/112"),
	})
	for _, h := range c.webs() {
		if _, err := h.Echo("", target); err != nil {
			t.Fatal(err)
		}
	}
	c.setMode(t, m)
	c.write(t, "node.yaml", program.Manifest[any](t, node()))
	return c
}

// setMode makes m the mode of the next start.
func (c *cluster) setMode(t *testing.T, m mode) {
	t.Helper()
	c.mode, c.commands = m, ""
	c.kernel = c.audit(t)
	if c.accelerated {
		c.kernel.Accelerate(t, socketlb.Options{Cgroup: c.Cgroup, Pins: filepath.Join(c.Root, "sys/fs/bpf")})
	}
}

// webs returns web-1 to web-4.
func (c *cluster) webs() []*netlab.Host {
	return []*netlab.Host{c.Host("web-1"), c.Host("web-2"), c.Host("web-3"), c.Host("web-4")}
}

// start starts the proxy and waits until all is programmed.
func (c *cluster) start(t *testing.T) *program.Proxy {
	t.Helper()
	p := c.launch(t)
	c.awaitProgrammed(t)
	for _, f := range service.Families {
		p.AwaitLog(t, `"Programmed"`, c.mode.proxyMode()+" "+f.String())
	}
	return p
}

// launch starts the proxy.
func (c *cluster) launch(t *testing.T) *program.Proxy {
	t.Helper()
	args := []string{"--manifests=" + c.dir, "--iptables-min-sync-period=10ms"}
	return program.Start(t, c.Node, c.command(append(args, c.mode.flags...)...))
}

// save writes apps, each to a file of its name.
func (c *cluster) save(t *testing.T, apps ...app) {
	t.Helper()
	for _, a := range apps {
		c.write(t, a.name+".yaml", a.yaml(t))
	}
}

// write replaces a file in one step, so that no reader sees half of it.
func (c *cluster) write(t *testing.T, name string, text []byte) {
	t.Helper()
	next := filepath.Join(c.dir, name+".next")
	if err := os.WriteFile(next, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(c.dir, name)); err != nil {
		t.Fatal(err)
	}
}

// remove removes a file.
func (c *cluster) remove(t *testing.T, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(c.dir, name)); err != nil {
		t.Fatal(err)
	}
}

// want reads the manifests as the proxy does.
func (c *cluster) want(t *testing.T) *service.Snapshot {
	t.Helper()
	o := c.mode.trackOptions
	o.NodeName, o.NodePortsPrimary = netlab.NodeName, len(o.NodePorts) == 0 && c.mode.proxyMode() == "nftables"
	if !o.NodePortsPrimary {
		o.NodePorts = service.OrAnyAddress(o.NodePorts)
	}
	tracker := track.New(o)
	files := source.Manifests{Paths: []string{c.dir}, NodeName: netlab.NodeName}
	if err := files.Load(t.Context(), tracker); err != nil {
		t.Fatalf("the test's own manifests: %v", err)
	}
	want := tracker.Latest()
	for _, p := range tracker.Problems() {
		t.Fatalf("the test's own manifests: %s", p)
	}
	return want
}

// awaitProgrammed waits until the kernel holds exactly what the manifests describe, and
// no UDP flow that they do not allow.
func (c *cluster) awaitProgrammed(t *testing.T) *service.Snapshot {
	t.Helper()
	want := c.want(t)
	c.awaitSnapshot(t, want)
	return want
}

func (c *cluster) awaitSnapshot(t *testing.T, want *service.Snapshot) {
	t.Helper()
	c.kernel.AwaitProgrammed(t, want)
}
