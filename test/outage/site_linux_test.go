// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"bytes"
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftmonitor"
	"kubeproxy/test/program"
)

// kubeProxy is the program under test.
var kubeProxy program.Program

func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }

// site is a network with a control plane, two pods that serve, and hosts on the LAN as
// nodes. Each node has the rules of its own proxy, and reaches the pods.
type site struct {
	*netlab.Lab
	*cluster.Cluster

	saving sync.Mutex // while it is held, nothing is saved
}

// newSite returns a site whose nodes have the given names.
func newSite(t *testing.T, o cluster.Options, nodes ...string) *site {
	t.Helper()
	s := &site{Lab: netlab.Start(t, netlab.Config{Pods: []string{"web-1", "web-2"}, Clients: append([]string{"control"}, nodes...)})}
	o.Host = s.Host("control")
	s.Cluster = cluster.Start(t, o)
	for _, h := range s.webs() {
		if _, err := h.Echo("", target); err != nil {
			t.Fatal(err)
		}
	}
	var all []metav1.Object
	for _, name := range nodes {
		all = append(all, nodeObject(s.Host(name)))
	}
	if err := s.Set(t.Context(), all...); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) webs() []*netlab.Host { return []*netlab.Host{s.Host("web-1"), s.Host("web-2")} }

// node is a host with a proxy.
type node struct {
	*program.Proxy
	site   *site
	host   *netlab.Host
	kernel *program.Kernel
	rules  *nftmonitor.Listener

	guarded atomic.Pointer[[2][]byte] // addresses as the kernel writes them
	touched atomic.Int32              // changes with one of these
}

// join makes a host a node, without a proxy yet.
func (s *site) join(t *testing.T, name string) *node {
	t.Helper()
	n := &node{site: s, host: s.Host(name)}
	n.kernel = program.NewKernel(t, n.host, 0)
	var err error
	if n.rules, err = nftmonitor.Listen(n.host, n.observe); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = n.rules.Close() })
	return n
}

// start starts the node's proxy without waiting for it.
func (n *node) start(t *testing.T, l cluster.Login, args ...string) {
	t.Helper()
	n.launch(t, n.flags(t, l, args...), nil)
}

// flags are those of a proxy with login l.
func (n *node) flags(t *testing.T, l cluster.Login, args ...string) []string {
	t.Helper()
	kubeconfig, err := n.site.Kubeconfig(l)
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{
		"--kubeconfig=" + kubeconfig, "--hostname-override=" + n.host.Name, "--cluster-cidr=" + netlab.ClusterCIDR,
	}, args...)
}

func (n *node) launch(t *testing.T, args, env []string) {
	t.Helper()
	cmd := kubeProxy.Command(args...)
	cmd.Env = append(os.Environ(), env...)
	n.Proxy = program.Start(t, n.host, cmd)
}

// want is the desired state of the node according to the API server.
func (n *node) want(t *testing.T) *service.Snapshot {
	t.Helper()
	o := track.Options{NodeName: n.host.Name, NodePortsPrimary: true}
	for cidr := range strings.SplitSeq(netlab.ClusterCIDR, ",") {
		o.Pods.Prefixes = append(o.Pods.Prefixes, netip.MustParsePrefix(cidr))
	}
	tracker := track.New(o)
	api, all := n.site.Client, metav1.ListOptions{}
	services, err := api.CoreV1().Services("").List(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	for i := range services.Items {
		tracker.SetService(&services.Items[i])
	}
	slices, err := api.DiscoveryV1().EndpointSlices("").List(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	for i := range slices.Items {
		tracker.SetSlice(&slices.Items[i])
	}
	ranges, err := api.NetworkingV1().ServiceCIDRs().List(t.Context(), all)
	if err != nil {
		t.Fatal(err)
	}
	for i := range ranges.Items {
		tracker.SetServiceCIDR(&ranges.Items[i])
	}
	own, err := api.CoreV1().Nodes().Get(t.Context(), n.host.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	tracker.SetNode(own)
	tracker.Synced()
	return tracker.Latest()
}

// awaitProgrammed waits until the kernel holds exactly the desired state, which may
// change meanwhile.
func (n *node) awaitProgrammed(t *testing.T) {
	t.Helper()
	lacks := ""
	for deadline := time.Now().Add(kit.Limit); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if lacks = n.kernel.Diff(t, n.want(t)); lacks == "" {
			return
		}
	}
	t.Fatalf("after %s the kernel of %s lacks:\n%s", kit.Limit, n.host.Name, lacks)
}

// healthy waits until the proxy reports that it is healthy.
func (n *node) healthy(t *testing.T) {
	t.Helper()
	kit.Until(t, n.host.Name+" is healthy", func() bool { return n.Status(t, program.HealthAddr, "/healthz") == 200 })
}

// report is the content and the status of /healthz.
func (n *node) report(t *testing.T) (r health.Report, status int) {
	t.Helper()
	page := n.Fetch(t, program.HealthAddr, "/healthz")
	if err := json.Unmarshal(page.Body, &r); err != nil {
		t.Fatalf("/healthz: %v\n%s", err, page.Body)
	}
	return r, page.Status
}

// source is the part of /healthz about one kind of objects.
func (n *node) source(t *testing.T, kind string) health.SourceReport {
	t.Helper()
	r, _ := n.report(t)
	for _, s := range r.Sources {
		if s.Name == kind {
			return s
		}
	}
	t.Fatalf("/healthz knows no source %q: %+v", kind, r.Sources)
	return health.SourceReport{}
}

// guard counts, from now on, changes of the rules that contain an address of a.
func (n *node) guard(a app) {
	n.guarded.Store(&[2][]byte{a.addr().Addr().AsSlice(), a.addr6().AsSlice()})
}

func (n *node) observe(x nftmonitor.Event) {
	all := n.guarded.Load()
	if all != nil && (bytes.Contains(x.Data, all[0]) || bytes.Contains(x.Data, all[1])) {
		n.touched.Add(1)
	}
}

// counts counts the kernel's notifications about the node's rules so far.
func (n *node) counts(t *testing.T) nftmonitor.Counts {
	t.Helper()
	tally, err := n.rules.Counts()
	if err != nil {
		t.Fatalf("listen to the rules of %s: %v", n.host.Name, err)
	}
	return tally
}

// load connects to a continuously, from the node itself.
func (n *node) load(t *testing.T, a app) *netlab.Load {
	t.Helper()
	l := n.host.Load(context.WithoutCancel(t.Context()), netlab.LoadConfig{Query: netlab.Query{Proto: "tcp", To: a.addr()}, Workers: 1})
	kit.Until(t, "a first answer of "+a.name, func() bool { return l.Report().Outcomes[netlab.Answered] > 0 })
	return l
}

// lossless stops a load and requires that each of its connections was answered.
func lossless(t *testing.T, l *netlab.Load) {
	t.Helper()
	r := l.Stop()
	if r.Lost() > 0 || r.Connections == 0 {
		t.Errorf("%d connections lost: %s", r.Lost(), r)
	}
	t.Logf("meanwhile: %s", r)
}

// answers returns whether a serves, as seen from the node.
func (n *node) answers(t *testing.T, a app) bool {
	t.Helper()
	answer, err := n.host.Ask(t.Context(), netlab.Query{Proto: "tcp", To: a.addr()})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Outcome == netlab.Answered
}
