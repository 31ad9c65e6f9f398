// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/document"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftcommand"
)

var flipShape = flag.String("flip", "50x100", "ports and endpoints of the Service in BenchmarkFlip, such as 500x1000")

// flipNode stays the same, as in a cluster.
var flipNode = &service.Node{}

// flipped returns a snapshot of one Service whose first endpoint is ready or not.
func flipped(generation uint64, ports, endpoints int, ready bool) *service.Snapshot {
	var all []*service.Port
	var list []service.Endpoint
	for i := range endpoints {
		if i > 0 || ready {
			list = append(list, service.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128, byte(i / 200), byte(1 + i%200)}), 8080)})
		}
	}
	for i := range ports {
		all = append(all, &service.Port{
			Name: service.PortName{Namespace: "shop", Name: "wide", Port: fmt.Sprint("p", i), Protocol: service.TCP}, Family: service.IPv4,
			Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: uint16(8000 + i)}},
			Cluster:   list,
		})
	}
	return service.New(generation, flipNode, all)
}

// cpu returns the CPU time of this process and its children so far.
func cpu() time.Duration {
	var sum time.Duration
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		if unix.Getrusage(who, &u) == nil {
			sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
		}
	}
	return sum
}

func round(b *testing.B, x reconcile.Backend, want *service.Snapshot) {
	b.Helper()
	p, err := x.Plan(context.Background(), want)
	if err == nil {
		err = p.Apply(context.Background()).Err
	}
	kit.Must(b, err)
}

// BenchmarkFlip measures one endpoint that is added to and removed from every port of a
// Service.
func BenchmarkFlip(b *testing.B) {
	backends := map[string]func() (reconcile.Backend, error){
		"nftables":        func() (reconcile.Backend, error) { return nftables.New(service.IPv4, nftables.Options{}) },
		"iptables-nft":    iptablesOf(b, "nft"),
		"iptables-legacy": iptablesOf(b, "legacy"),
		"ipvs":            func() (reconcile.Backend, error) { return ipvs.New(service.IPv4, ipvs.Options{}) },
		"userspace": func() (reconcile.Backend, error) {
			return userspace.New(service.IPv4, userspace.Options{}, userspace.NewLimits(100000))
		},
	}
	var ports, endpoints int
	_, err := fmt.Sscanf(*flipShape, "%dx%d", &ports, &endpoints)
	kit.Must(b, err)
	for name, open := range backends {
		b.Run(name, func(b *testing.B) {
			if name == "ipvs" && !ipvs.Installed() {
				b.Skip("the kernel has no IPVS")
			}
			netlab.InNamespace(b, func() { benchmarkFlip(b, open, ports, endpoints) })
		})
	}
}

// iptablesOf opens mode iptables with the commands of one variant.
func iptablesOf(b *testing.B, variant string) func() (reconcile.Backend, error) {
	dir := b.TempDir()
	for _, name := range []string{"iptables", "iptables-save", "iptables-restore"} {
		kit.Must(b, os.Symlink("/usr/sbin/xtables-"+variant+"-multi", filepath.Join(dir, name)))
	}
	return func() (reconcile.Backend, error) {
		return iptables.New(service.IPv4, iptables.Options{MasqueradeBit: 14, Dir: dir})
	}
}

func benchmarkFlip(b *testing.B, open func() (reconcile.Backend, error), ports, endpoints int) {
	// Without its local table a namespace has no unicast addresses for IPVS.
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		b.Fatalf("%v: %s", err, out)
	}
	x, err := open()
	kit.Must(b, err)
	begin := time.Now()
	round(b, x, flipped(1, ports, endpoints, true))
	b.Logf("first program: %s", time.Since(begin).Round(time.Millisecond))
	before, n := cpu(), 0
	for i := 0; b.Loop(); i++ {
		round(b, x, flipped(uint64(i+2), ports, endpoints, i%2 == 1))
		n++
	}
	b.ReportMetric(float64((cpu()-before).Microseconds())/1000/float64(n), "cpu-ms/flip")
}

// TestNFTAcceptsScenarios checks with nft and the kernel what Render writes for each
// cluster, in a network namespace that ends with the command. It needs no capabilities
// where users may create namespaces.
func TestNFTAcceptsScenarios(t *testing.T) {
	nftcommand.NeedTables(t)
	for _, path := range scenarioPaths(t) {
		t.Run(scenarioName(path), func(t *testing.T) {
			_, want := openScenario(t, path)
			nftAccepts(t, renderNFTables(t, want, document.Text))
		})
	}
	t.Run("skeleton", func(t *testing.T) {
		text := kit.ReadFile(t, skeletonPath)
		nftAccepts(t, text)
	})
}

func nftAccepts(t *testing.T, text []byte) {
	t.Helper()
	err := nftcommand.Check(string(text))
	kit.Check(t, err == nil, "%v\n%s", err, text)
}

// TestIPTablesAcceptsScenarios checks that both variants of iptables accept what Render
// writes for each cluster, first as a test and then for real, in a network namespace
// that ends with the command.
func TestIPTablesAcceptsScenarios(t *testing.T) {
	for _, path := range scenarioPaths(t) {
		t.Run(scenarioName(path), func(t *testing.T) {
			_, want := openScenario(t, path)
			checkBothVariants(t, renderIPTables(t, want))
			checkBothVariants(t, renderUserspace(t, want))
		})
	}
}

// checkBothVariants checks that both variants accept text, which has a part for each
// family.
func checkBothVariants(t *testing.T, text []byte) {
	t.Helper()
	four, six, found := bytes.Cut(text, []byte("# for ip6tables-restore\n"))
	kit.Need(t, found, "there is no part for IPv6")
	for _, variant := range []string{"legacy", "nft"} {
		iptablesAccepts(t, "/usr/sbin/iptables-"+variant+"-restore", four)
		iptablesAccepts(t, "/usr/sbin/ip6tables-"+variant+"-restore", six)
	}
}

func iptablesAccepts(t *testing.T, command string, text []byte) {
	t.Helper()
	for _, args := range [][]string{{"--test"}, nil} {
		c := exec.Command(command, args...)
		c.Stdin = bytes.NewReader(text)
		netlab.Isolate(c)
		// Other processes on the machine use their own lock.
		c.Env = append(os.Environ(), "XTABLES_LOCKFILE="+t.TempDir()+"/lock")
		out, err := c.CombinedOutput()
		kit.Check(t, err == nil, "%s %s: %v\n%s\n%s", command, args, err, out, text)
	}
}
