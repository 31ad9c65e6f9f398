// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winparity

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/cluster"
	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/wine"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m.Run)) }

// namespace is the namespace of all Services.
const namespace = "shop"

// setting is the HNS of both sides.
type setting struct {
	version hns.Version
	network string // type of the network
}

func (s setting) overlay() bool { return s.network == "Overlay" }

// parity is a cluster with one API server and two Windows machines, each of which is
// node-a: on one kube-proxy.exe runs, on the other ours.
type parity struct {
	setting
	lab            *netlab.Lab
	api            *cluster.Cluster
	upstream, ours *side
	now            state // the API server's Services
	round          int
	before         map[string]string // what ours served before the last step
}

func newParity(t *testing.T, s setting, more ...string) *parity {
	t.Helper()
	d := &parity{setting: s, lab: netlab.Start(t, netlab.Config{Clients: []string{"control"}}), now: state{}}
	d.api = cluster.Start(t, cluster.Options{Host: d.lab.Host("control")})
	d.set(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	d.set(t, node(netlab.NodeName, d.lab.Node.IPv4, "10.244.1.0/24"))
	d.set(t, node(netlab.OtherName, d.lab.Other.IPv4, "10.244.2.0/24"))
	kubeconfig, err := d.api.Kubeconfig(cluster.Login{})
	if err != nil {
		t.Fatal(err)
	}
	flags := []string{
		"--kubeconfig=" + wine.File(kubeconfig), "--proxy-mode=kernelspace", "--hostname-override=" + netlab.NodeName,
		"--enable-dsr=true", "--network-name=net0", "--cluster-cidr=10.244.0.0/16", "--iptables-min-sync-period=10ms",
		"--bind-address=" + d.lab.Node.IPv4.String(),
	}
	flags = append(flags, more...)
	if s.overlay() {
		flags = append(flags, "--source-vip=10.244.1.2")
	}
	share(t, d.lab.Other, d.lab.Node.IPv4)
	known, err := cluster.UpstreamProxy(t.Context(), os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	d.upstream = newSide(t, d, d.lab.Node, proxy{"kube-proxy.exe", known, flags})
	d.ours = newSide(t, d, d.lab.Other, proxy{"ours", build(t), flags})
	return d
}

// share gives a host the address of another one, on an unconnected interface. The host
// does not answer for it elsewhere.
func share(t *testing.T, h *netlab.Host, ip netip.Addr) {
	t.Helper()
	for _, line := range []string{
		"sysctl -qw net.ipv4.conf.all.arp_ignore=1", "ip link add shared type veth peer name nobody", "ip link set shared up",
		"ip addr add " + ip.String() + "/32 dev shared",
	} {
		words := strings.Fields(line)
		cmd := exec.CommandContext(t.Context(), words[0], words[1:]...)
		if err := errors.Join(h.Start(cmd), cmd.Wait()); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
}

// interfaces lists those of a host, with their hardware addresses.
func interfaces(t *testing.T, h *netlab.Host) string {
	t.Helper()
	var out strings.Builder
	cmd := exec.CommandContext(t.Context(), "ip", "-o", "link")
	cmd.Stdout = &out
	if err := errors.Join(h.Start(cmd), cmd.Wait()); err != nil {
		t.Fatalf("ip -o link: %v", err)
	}
	return out.String()
}

// build builds our program for Windows.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kube-proxy.exe")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-buildvcs=false", "-o", path, "kubeproxy/cmd/kube-proxy")
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build kube-proxy.exe: %v\n%s", err, text)
	}
	return path
}

func node(name string, ip netip.Addr, pods string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.PodCIDR, n.Spec.PodCIDRs = pods, []string{pods}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip.String()}}
	return n
}

func (d *parity) set(t *testing.T, objects ...metav1.Object) {
	t.Helper()
	if err := d.api.Set(t.Context(), objects...); err != nil {
		t.Fatal(err)
	}
}

func (d *parity) sides() []*side { return []*side{d.upstream, d.ours} }

// apply makes the API server's objects those of next, and then changes the marker
// Service. A proxy that has programmed the marker has received all the rest.
func (d *parity) apply(t *testing.T, next state) {
	t.Helper()
	d.round++
	next[marker] = markerOf(d.round)
	for _, name := range sorted(d.now) {
		if old := d.now[name]; next[name] == nil {
			if err := d.api.Delete(t.Context(), old.service(), old.slice()); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, name := range sorted(next) {
		if name != marker && !equal(d.now[name], next[name]) {
			d.set(t, next[name].slice())
			d.set(t, next[name].service())
		}
	}
	d.set(t, next[marker].slice())
	d.set(t, next[marker].service())
	d.now = next
}

// awaitMarker returns when both sides have the last change.
func (d *parity) awaitMarker(t *testing.T) {
	t.Helper()
	want := fmt.Sprintf("%s%d", markerVIP, markerPort(d.round))
	for _, s := range d.sides() {
		if s.process == nil {
			continue
		}
		kit.Until(t, s.name+" has the marker "+want, func() bool { return s.programmed()[want] != "" })
	}
}

// compare waits until both sides serve alike, except for known differences, and returns
// the other differences.
func (d *parity) compare(t *testing.T, known differences) string {
	t.Helper()
	var rest string
	for deadline := time.Now().Add(kit.Limit / 2); ; time.Sleep(50 * time.Millisecond) {
		rest = known.unexplained(d.upstream.programmed(), d.ours.programmed())
		if rest == "" || time.Now().After(deadline) {
			return rest
		}
	}
}

// side is one machine: its HNS, its Wine and its proxy.
type side struct {
	proxy
	setting
	other   netip.Addr // of the other node
	hns     *hns.Server
	macs    string // of the interfaces of its host
	wine    *wine.Wine
	process *wine.Process
}

// proxy is a program with its command line.
type proxy struct {
	name, path string
	flags      []string
}

// otherMAC is what an overlay network calls the other node.
const otherMAC = "00-15-5D-00-00-02"

func newSide(t *testing.T, d *parity, host *netlab.Host, p proxy) *side {
	t.Helper()
	l, err := host.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &side{proxy: p, setting: d.setting, other: d.lab.Other.IPv4}
	s.hns = hns.NewServer(hns.New(hns.Options{Version: d.version, Steady: true}), l)
	t.Cleanup(func() { _ = s.hns.Close() })
	config := hns.NetworkConfig{Name: "net0", Type: d.network, Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
	if d.overlay() {
		config.Routes = []hns.Route{{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: d.lab.Other.IPv4, MAC: otherMAC}}
	}
	if _, err := s.hns.AddNetwork(config); err != nil {
		t.Fatal(err)
	}
	s.macs = interfaces(t, host)
	s.wine = wine.Start(t, wine.Options{Host: host, Env: []string{"HNS_SIM_ADDR=" + s.hns.Addr}})
	t.Cleanup(func() {
		if t.Failed() && s.process != nil {
			t.Logf("log of %s:\n%s", s.name, tail(s.process.Log()))
		}
	})
	return s
}

func tail(log string) string {
	const most = 12000
	return log[max(0, len(log)-most):]
}

func (s *side) start(t *testing.T) {
	t.Helper()
	var err error
	if s.process, err = s.wine.Start(wine.Program{Path: s.path, Args: s.flags}); err != nil {
		t.Fatal(err)
	}
}

// stop ends the proxy as Ctrl+C does.
func (s *side) stop(t *testing.T) {
	t.Helper()
	if err := s.process.Interrupt(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-s.process.Ended():
	case <-time.After(kit.Limit / 4): // kube-proxy.exe may hang
		s.process.Kill()
	}
	s.process = nil
}

// kill ends the proxy as a crash does.
func (s *side) kill(t *testing.T) {
	t.Helper()
	s.process.Kill()
	s.hns.DropConnections()
	kit.Until(t, "the last call is over", func() bool { return s.hns.Connections() == 0 })
	s.process = nil
}

// programmed returns the endpoints of the load balancers of HNS, by their frontends.
func (s *side) programmed() map[string]string {
	ips := map[string]string{}
	for _, e := range s.hns.Objects(hns.Endpoint) {
		for _, ip := range e.IPs() {
			ips[e.ID()] = ip.String()
		}
	}
	have := map[string]string{}
	for _, lb := range s.hns.Objects(hns.LoadBalancer) {
		var leads []string
		for _, id := range lb.Endpoints() {
			ip, ok := ips[id]
			if !ok {
				ip = "(deleted endpoint)"
			}
			leads = append(leads, ip)
		}
		slices.Sort(leads)
		for _, p := range lb.Ports() {
			for _, f := range frontendsOf(lb, p) {
				have[f] = fmt.Sprintf("%v on %s, distribution %v", p["InternalPort"], strings.Join(leads, " "), p["DistributionType"])
			}
		}
	}
	return have
}

// frontends returns the frontends of a load balancer.
func frontends(lb hns.Document) []string {
	var list []string
	for _, p := range lb.Ports() {
		list = append(list, frontendsOf(lb, p)...)
	}
	return list
}

// frontendsOf returns the frontends of one port of a load balancer.
func frontendsOf(lb, port hns.Document) []string {
	vips := lb.VIPs()
	if len(vips) == 0 {
		vips = []string{"node"}
	}
	for i, vip := range vips {
		vips[i] = fmt.Sprintf("%v %s:%v", port["Protocol"], vip, port["ExternalPort"])
	}
	return vips
}
