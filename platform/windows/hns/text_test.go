// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

var sameAddrs = cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}

// A request, parsed again, equals the original object.
func TestDocumentsThereAndBack(t *testing.T) {
	lbs := map[string]LoadBalancer{
		"ClusterIP": {Address: service.Address{Addr: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}, TargetPort: 8080, Endpoints: []string{"a", "b"}, SourceVIP: addr("10.244.1.2"), DSR: true, Flags: ILB, Distribution: DistributionSourceIP},
		"NodePort":  {Address: service.Address{Port: 30080, Protocol: service.UDP}, TargetPort: 53, Endpoints: []string{"a"}, Flags: LocalRoutedVIP | VIPExternalIP},
		"IPv6":      {Address: service.Address{Addr: addr("fd00::10"), Family: service.IPv6, Port: 80, Protocol: service.TCP}, TargetPort: 80, Endpoints: []string{"a"}},
		"NodePort6": {Address: service.Address{Family: service.IPv6, Port: 30080, Protocol: service.TCP}, TargetPort: 80, Endpoints: []string{"a"}},
	}
	for name, lb := range lbs {
		text, err := json.Marshal(lb.document())
		kit.Must(t, err)
		got, err := parseBalancer(text)
		diff := cmp.Diff(lb, got, sameAddrs)
		kit.Check(t, diff == "" && err == nil, "%s: %v (-want +got):\n%s", name, err, diff)
	}
	e := Endpoint{Name: "x", Network: "n", Addrs: []netip.Addr{addr("10.244.2.11")}, MAC: "02-11-0a-f4-02-0b", Provider: nodeB, Remote: true}
	text, err := json.Marshal(e.document())
	kit.Must(t, err)
	got, err := parseEndpoint(text)
	diff := cmp.Diff(e, got, sameAddrs)
	kit.Check(t, diff == "" && err == nil, "endpoint: %v (-want +got):\n%s", err, diff)
}

const stateText = `{"Version": {"Major": 13, "Minor": 3}, "Networks": [{
	"ID": "AB-CD", "Name": "vxlan0", "Type": "overlay",
	"Ipams": [{"Subnets": [{"IpAddressPrefix": "10.244.1.0/24", "Routes": [{"NextHop": "10.244.1.1", "DestinationPrefix": "0.0.0.0/0"}]}]}],
	"Policies": [
		{"Type": "RemoteSubnetRoute", "Settings": {"DestinationPrefix": "10.244.2.0/24", "ProviderAddress": "192.0.2.11", "IsolationId": 4096}},
		{"Type": "RemoteSubnetRoute", "Settings": {"DestinationPrefix": "nonsense"}},
		{"Type": "ProviderAddress", "Settings": {"ProviderAddress": "192.0.2.10"}}]}],
	"LoadBalancers": [{"ID": "L", "FrontendVIPs": ["10.0.0.1", "10.0.0.2"], "HostComputeEndpoints": ["B", "A", "a"], "Flags": 9,
		"PortMappings": [{"Protocol": 6, "InternalPort": 1, "ExternalPort": 2}]}]}`

func TestReadState(t *testing.T) {
	got, err := ReadState([]byte(stateText))
	kit.Must(t, err)
	want := Listing{
		Version: v13,
		Networks: []Network{{
			ID: "ab-cd", Name: "vxlan0", Kind: Overlay, Subnets: overlayN.Subnets, Gateways: overlayN.Gateways,
			Routes: []Route{{prefix("10.244.2.0/24"), nodeB}}, Provider: nodeA,
		}},
		LoadBalancers: []LoadBalancer{{
			ID: "l", Address: service.Address{Addr: addr("10.0.0.1"), Port: 2, Protocol: service.TCP}, ExtraKeys: []service.Address{{Addr: addr("10.0.0.2"), Port: 2, Protocol: service.TCP}},
			TargetPort: 1, Endpoints: []string{"a", "b"}, DSR: true, Unsupported: true,
		}},
	}
	kit.Same(t, "state (-want +got)", want, got, sameAddrs)
	marked := []byte{0xff, 0xfe} // as Windows' own console writes to a file
	for _, unit := range utf16.Encode([]rune(stateText)) {
		marked = append(marked, byte(unit), byte(unit>>8))
	}
	if again, err := ReadState(marked); err != nil || !cmp.Equal(got, again, sameAddrs) {
		t.Errorf("in UTF-16: %v, %v", again, err)
	}
	for text, want := range map[string]string{
		"[":                  "want an object with Version",
		`{}`:                 "Networks is missing",
		`{"Networks": [{}]}`: `Version is missing: want one such as`,
		`{"Version": {"Major": 13}, "Networks": [{"ID": 1}]}`:                        "Networks[0]",
		`{"Version": {"Major": 13}, "Networks": [{}], "Endpoints": [{}, {"ID":1}]}`:  "Endpoints[1]",
		`{"Version": {"Major": 13}, "Networks": [{}], "LoadBalancers": [{"ID": 1}]}`: "LoadBalancers[0]",
	} {
		_, err := ReadState([]byte(text))
		kit.Check(t, err != nil && strings.Contains(err.Error(), want), "%s: %v, want %q", text, err, want)
	}
}

func FuzzReadState(f *testing.F) {
	f.Add([]byte(stateText))
	f.Fuzz(func(_ *testing.T, text []byte) { _, _ = ReadState(text) })
}

// Each error code has its class.
func TestErrorClasses(t *testing.T) {
	classes := []error{ErrNotFound, ErrNotRunning, ErrExists, ErrBusy, ErrRefused, ErrNotInstalled}
	for code, want := range map[uint32]error{
		0x490: ErrNotFound, 0x80070490: ErrNotFound, 0x803b0001: ErrNotFound, 0x803b0002: ErrNotFound,
		0x6ba: ErrNotRunning, 0x800706ba: ErrNotRunning, 0x6b5: ErrNotRunning, 0x6bf: ErrNotRunning, 0x8007045b: ErrNotRunning,
		0x803b0020: ErrNotRunning, 0x803b0012: ErrExists, 0x803b0010: ErrExists, 0x803b0004: ErrBusy, 0x803b0006: ErrBusy, 0x6bb: ErrBusy,
		0x803b000e: ErrRefused, 0x803b001f: ErrRefused,
		0xb7: ErrExists, 0x803b0013: ErrExists, 0x1392: ErrExists, 0x803b002f: ErrExists,
		0x803b0007: ErrBusy, 0x1f: ErrBusy, 0x57: ErrRefused, 0x80004001: ErrRefused, 0x5: ErrRefused, 0x7e: ErrNotInstalled, 0x7f: ErrNotInstalled, 0x12345678: ErrRefused,
	} {
		err := &Error{Op: "create x", Code: code}
		for _, c := range classes {
			kit.Check(t, errors.Is(err, c) == (c == want), "0x%x is %v: %v, want %v only", code, c, errors.Is(err, c), want)
		}
		s := err.Error()
		kit.Check(t, strings.HasPrefix(s, "create x: "), "0x%x says %q", code, s)
	}
	missing := &Error{Op: "list", Err: ErrNotInstalled}
	kit.Check(t, errors.Is(missing, ErrNotInstalled) && !errors.Is(missing, ErrRefused),
		"%v is not what it is made of", missing)
}

func TestFile(t *testing.T) {
	f := FileStore(filepath.Join(t.TempDir(), "deep", "state.json"))
	b, err := f.Load()
	kit.Need(t, b == nil && err == nil, "Load of nothing = %s, %v", b, err)
	for _, s := range []string{"one", "two"} {
		kit.Must(t, f.Save([]byte(s)))
		b, err := f.Load()
		kit.Need(t, string(b) == s && err == nil, "Load = %s, %v, want %s", b, err, s)
	}
	victim := filepath.Join(t.TempDir(), "of-others")
	if err := errors.Join(os.WriteFile(victim, []byte("theirs"), 0o600), os.Symlink(victim, string(f)+".next")); err == nil { // Wine makes no links
		err = f.Save([]byte("three"))
		b, _ := os.ReadFile(victim)
		kit.Check(t, string(b) == "theirs" && err == nil, "through a link of others: %q, %v", b, err)
	}
	for range 2 {
		kit.Must(t, f.Save(nil))
	}
	if left, err := os.ReadDir(filepath.Dir(string(f))); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	err = FileStore(t.TempDir()).Save([]byte("x"))
	kit.Check(t, err != nil, "a folder was replaced by a file")
}

// Unusable parts of a state file are reported and stop nothing.
func TestStateFileProblems(t *testing.T) {
	for name, tt := range map[string]struct {
		store *memoryStore
		want  string
	}{
		"damaged":         {&memoryStore{document: []byte(`{"version": 1, "no`)}, "is damaged and will be replaced"},
		"of another node": {&memoryStore{document: []byte(`{"version": 1, "node": "node-b"}`)}, `is of node "node-b", not of "node-a"`},
		"newer":           {&memoryStore{document: []byte(`{"version": 2, "node": "node-a"}`)}, "has version 2, want 1"},
		"unreadable":      {&memoryStore{err: errors.New("access is denied")}, "cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTestNode(t, v13, bridgeN)
			b.store = tt.store
			b.restart()
			b.pods("10.244.1.11")
			b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80")))
			n := 0
			for _, s := range b.notes {
				if strings.Contains(s, tt.want) {
					n++
				}
			}
			kit.Check(t, n == 1, "%q is said %d times, want once: %q", tt.want, n, b.notes)
		})
	}
}

// TestLoopbackDSRPolicy knows the policy by which win-bridge prepares a pod for connections to itself.
func TestLoopbackDSRPolicy(t *testing.T) {
	for policies, want := range map[string]bool{
		`[]`: false,
		`[{"Type":"OutBoundNAT","Settings":{"Destinations":["10.244.1.11"]}}]`:                                                                       true,
		`[{"Type":"OutBoundNAT","Settings":{"Exceptions":["10.244.0.0/16"]}},{"Type":"OutBoundNAT","Settings":{"Destinations":["10.244.1.11/32"]}}]`: true,
		`[{"Type":"OutBoundNAT","Settings":{"Exceptions":["10.244.1.11"],"Destinations":["10.244.1.12"]}}]`:                                          false,
		`[{"Type":"OutBoundNAT"},{"Type":"SDNRoute","Settings":{"Destinations":["10.244.1.11"]}}]`:                                                   false,
	} {
		e, err := parseEndpoint([]byte(`{"IpConfigurations":[{"IpAddress":"10.244.1.11"}],"Policies":` + policies + `}`))
		kit.Check(t, err == nil && e.LoopbackDSR == want, "%s: %v, %v, want %v", policies, e.LoopbackDSR, err, want)
	}
}

// TestRenderUnknownMAC renders for a dump in which kube-proxy has endpoints with the MAC of the node, which the dump does
// not have.
func TestRenderUnknownMAC(t *testing.T) {
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.2.11:80@b"), clusterIP("api", "10.96.0.11", "10.244.2.11:80@b"))
	l := Listing{Version: v13, Networks: []Network{overlayN}, Endpoints: []Endpoint{
		{ID: "k", Name: "Ethernet", Network: overlayN.ID, Addrs: []netip.Addr{addr("10.96.0.10")}, MAC: "00-15-5D-AA-AA-AA", Provider: nodeA, Remote: true},
	}}
	all, _, err := Render(want, l, Options{})
	kit.Must(t, err)
	text := all.String()
	for _, line := range []string{
		"endpoint 10.96.0.10 remote 00-15-5D-AA-AA-AA via 192.0.2.10", "endpoint 10.96.0.11 remote the node's MAC via 192.0.2.10",
	} {
		kit.Check(t, strings.Contains(text, line+"\n"), "want %q in\n%s", line, text)
	}
	kit.Check(t, !strings.Contains(text, "leads elsewhere") && !strings.Contains(text, "00-00-00"),
		"an unknown MAC counts:\n%s", text)
}

// readBack reads what HNS holds, as another process does.
func (n *suiteNode) readBack(t *rapid.T, want *service.Snapshot) (held, wanted string) {
	writes := n.hns.writes()
	have, would, err := n.Fresh().(*suiteNode).backend.ReadBack(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	if d := n.hns.writes() - writes; d > 0 {
		t.Fatalf("to read made %d calls that change HNS", d)
	}
	return have.String(), would.String()
}

// TestReadBack compares what HNS holds with what it should: nothing differs on a node in
// order. What is wanted of another snapshot is what is held once that was applied.
func TestReadBack(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				n := drawSuiteNode(t, generate.Cluster{T: r, Family: f}, false)
				n.Start()
				for generation := range 3 {
					want := service.New(uint64(generation+1), n.draw.Node(), n.draw.Ports())
					n.Heal()
					if generation == 0 { // HNS chooses the address of the source VIP
						n.plan(want).Apply(r.Context())
					}
					_, before := n.readBack(r, want)
					for range 2 {
						n.plan(want).Apply(r.Context())
					}
					held, wanted := n.readBack(r, want)
					if held != wanted || held != before {
						r.Fatalf("held:\n%s\nwanted:\n%s\nwanted before:\n%s", held, wanted, before)
					}
				}
			})
		})
	}
}

// TestReadBackTampered names what another program changed and deleted.
func TestReadBackTampered(t *testing.T) {
	b, want := dsrNode(t)
	objects, _, err := b.backend.ReadBack(t.Context(), want)
	kit.Must(t, err)
	held := objects.String()
	for id, lb := range b.hns.balancers {
		switch {
		case lb.Addr == addr("10.96.0.10"):
			delete(b.hns.balancers, id)
		case lb.Port == 30080:
			lb.TargetPort = 9090
			b.hns.balancers[id] = lb
		}
	}
	b.restart()
	observed, wanted, err := b.backend.ReadBack(t.Context(), want)
	now := observed.String()
	kit.Check(t, err == nil && wanted.String() == held, "%v; wanted:\n%s\nheld before:\n%s", err, wanted, held)
	kit.Check(t, strings.Contains(held, "tcp 10.96.0.10:80 ") && !strings.Contains(now, "tcp 10.96.0.10:80 ") && strings.Contains(now, "30080 -> :9090"),
		"held:\n%s\nafter others changed it:\n%s", held, now)
	observed, gone, err := b.backend.ReadBack(t.Context(), snapshot(2))
	kit.Check(t, err == nil && strings.Contains(observed.String(), "# of no Service") && !strings.Contains(gone.String(), "loadbalancer"),
		"%v; without Services held:\n%s\nwanted:\n%s", err, observed, gone)
}

// look follows c and compares it with route.Decide.
func (tn *testNode) look(want *service.Snapshot, c route.Conn) (*explain.Explanation, *explain.Walk) {
	tn.t.Helper()
	writes := tn.hns.writes()
	w, err := tn.backend.Trace(tn.t.Context(), want, c, func(a netip.Addr) bool { return slices.Contains(want.Node.Addrs, a) })
	if err != nil {
		tn.t.Fatal(err)
	}
	n := tn.hns.writes()
	kit.Need(tn.t, n <= writes, "to look made %d calls that change HNS", n-writes)
	v := route.Decide(want, c)
	x := &explain.Explanation{Action: v.Action.String()}
	for _, e := range v.Endpoints {
		x.Endpoints = append(x.Endpoints, explain.Endpoint{Listed: track.Listed{Address: e.Addr.String()}, Chosen: true, Client: "kept"})
	}
	x.Compare(w.Path())
	return x, w
}

// tamperings change what HNS has for a connection: its load balancer, or the endpoint
// with an ID. They return the text that a difference must contain, "" if they do not
// apply.
var tamperings = map[string]func(k *fake, lb LoadBalancer, endpoint string) string{
	"a load balancer is gone": func(k *fake, lb LoadBalancer, _ string) string {
		delete(k.balancers, lb.ID)
		return "no load balancer has " + lb.Address.String()
	},
	"another target port": func(k *fake, lb LoadBalancer, _ string) string {
		lb.TargetPort++
		k.balancers[lb.ID] = lb
		return lb.ID + " has the target port"
	},
	"direct server return": func(k *fake, lb LoadBalancer, _ string) string {
		lb.DSR = !lb.DSR
		k.balancers[lb.ID] = lb
		return lb.ID + " has direct server return"
	},
	"the flag ILB": func(k *fake, lb LoadBalancer, _ string) string {
		lb.Flags |= ILB
		k.balancers[lb.ID] = lb
		return lb.ID + " has the port flags internal"
	},
	"session affinity": func(k *fake, lb LoadBalancer, _ string) string {
		lb.Distribution = DistributionSourceIPProtocol
		k.balancers[lb.ID] = lb
		return lb.ID + " has the distribution"
	},
	"another source VIP": func(k *fake, lb LoadBalancer, _ string) string {
		lb.SourceVIP = addr("198.51.100.77")
		k.balancers[lb.ID] = lb
		return lb.ID + " has the source VIP 198.51.100.77"
	},
	"flags of the load balancer": func(k *fake, lb LoadBalancer, _ string) string {
		lb.Unsupported = true
		k.balancers[lb.ID] = lb
		return lb.ID + " has properties that kube-proxy never sets"
	},
	"fewer endpoints": func(k *fake, lb LoadBalancer, endpoint string) string {
		lb.Endpoints = slices.DeleteFunc(slices.Clone(lb.Endpoints), func(id string) bool { return id == endpoint })
		k.balancers[lb.ID] = lb
		return lb.ID + " lacks endpoint " + endpoint
	},
	"a foreign endpoint": func(k *fake, lb LoadBalancer, _ string) string {
		if slices.Contains(lb.Endpoints, "foreign-endpoint") { // a Service leads to it
			return ""
		}
		lb.Endpoints = append(slices.Clone(lb.Endpoints), "foreign-endpoint")
		k.balancers[lb.ID] = lb
		return lb.ID + " has endpoint foreign-endpoint"
	},
	"an endpoint has another address": func(k *fake, _ LoadBalancer, endpoint string) string {
		e := k.endpoints[endpoint]
		e.Addrs = []netip.Addr{e.Addrs[0].Prev()}
		for _, other := range k.endpoints {
			if other.HasAddr(e.Addrs[0]) {
				return ""
			}
		}
		k.endpoints[endpoint] = e
		return "has endpoint " + endpoint
	},
	"an endpoint is gone": func(k *fake, _ LoadBalancer, endpoint string) string {
		delete(k.endpoints, endpoint)
		return "endpoint " + endpoint + " of load balancer"
	},
	"an endpoint leads elsewhere": func(k *fake, _ LoadBalancer, endpoint string) string {
		e := k.endpoints[endpoint]
		if !e.Remote {
			return ""
		}
		e.MAC = "02-00-00-00-00-99"
		k.endpoints[endpoint] = e
		return "endpoint " + endpoint + " is"
	},
	"a foreign load balancer has the port": func(k *fake, lb LoadBalancer, _ string) string {
		delete(k.balancers, lb.ID)
		other := lb.Address
		other.Port += 5
		lb.ID, lb.Endpoints, lb.ExtraKeys = "foreign", []string{"foreign-endpoint"}, []service.Address{other}
		k.balancers[lb.ID] = lb
		return "load balancer foreign has " + lb.Address.String()
	},
}

// Whatever a connection meets in HNS, Trace finds that it is missing or changed, and
// finds nothing before.
func TestTraceFindsTampering(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				n := drawSuiteNode(t, generate.Cluster{T: r, Family: f}, false)
				n.Start()
				ports := n.draw.Ports()
				want := service.New(1, n.draw.Node(), ports)
				for range 2 {
					n.Heal()
					n.plan(want).Apply(r.Context())
				}
				for range 2 {
					tamperOnPath(r, n, want, n.draw.Conn(ports))
				}
			})
		})
	}
}

func tamperOnPath(t *rapid.T, n *suiteNode, want *service.Snapshot, c route.Conn) {
	x, w := n.look(want, c)
	if x.Verdict != explain.Agree {
		t.Fatalf("%+v: %q before anything was changed", c, x.Differences)
	}
	var got []netip.AddrPort
	for a := range w.Targets {
		got = append(got, a)
	}
	slices.SortFunc(got, netip.AddrPort.Compare)
	if met := trace(n.hns, n.draw.family, c); w.Action == route.Forward && !slices.Equal(met, got) {
		t.Fatalf("%+v: forwarded to %v, and HNS has %v", c, got, met)
	}
	var lb *LoadBalancer
	for _, x := range n.hns.balancers {
		if slices.ContainsFunc(w.Hops, func(h explain.Hop) bool { return h.Object == "load balancer "+x.ID }) {
			lb = &x
		}
	}
	if lb == nil {
		return
	}
	balancers, endpoints := n.hns.balancers, n.hns.endpoints
	endpoint := rapid.SampledFrom(lb.Endpoints).Draw(t, "endpoint")
	for _, name := range slices.Sorted(maps.Keys(tamperings)) {
		n.hns.balancers, n.hns.endpoints = maps.Clone(balancers), maps.Clone(endpoints)
		named := tamperings[name](n.hns, *lb, endpoint)
		if x, _ := n.look(want, c); named != "" && (x.Verdict != explain.Differ || !slices.ContainsFunc(x.Differences, func(s string) bool { return strings.Contains(s, named) })) {
			t.Errorf("%+v: %s: no %q in %q", c, name, named, x.Differences)
		}
	}
	n.hns.balancers, n.hns.endpoints = balancers, endpoints
}

// to is a connection of a client outside of the cluster.
func to(a string) route.Conn {
	c := route.Conn{Protocol: service.TCP, From: addr("203.0.113.1"), To: netip.MustParseAddrPort(a), Interface: "eth0"}
	c.ToNode = slices.Contains(theNode.Addrs, c.To.Addr())
	return c
}

// The path names each object of HNS by its ID, and what it does.
func TestTracePath(t *testing.T) {
	b, want := dsrNode(t)
	ids := map[service.Address]string{}
	for id, lb := range b.hns.balancers {
		ids[lb.Address] = id
	}
	cluster, node := ids[service.Address{Addr: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}], ids[service.Address{Port: 30080, Protocol: service.TCP}]
	local, remote, vip := "endpoint-000001", b.remote("10.244.2.11"), b.remote("10.96.0.10")
	ends := []explain.Hop{
		{Object: "endpoint " + local, Does: "10.244.1.11 local"},
		{Object: "endpoint " + remote, Does: "10.244.2.11 remote 02-11-0a-f4-02-0b via 192.0.2.11"},
	}
	network := explain.Hop{Object: "network vxlan0", Does: "Overlay, HNS 15.5"}
	for destination, hops := range map[string][]explain.Hop{
		"10.96.0.10:80": {
			network, {Object: "endpoint " + vip, Does: "10.96.0.10 remote 00-15-5d-aa-aa-aa via 192.0.2.10: the ClusterIP is at the node"},
			{Object: "load balancer " + cluster, Does: "tcp 10.96.0.10:80 -> :80 dsr source-vip 10.244.1.254, of shop/web:http"}, ends[0], ends[1],
		},
		"192.0.2.10:30080": {
			network, {Object: "load balancer " + node, Does: "tcp node:30080 -> :80 local-routed external source-vip 10.244.1.254, of shop/web:http"}, ends[0], ends[1],
		},
		"192.0.2.10:22": {network},
	} {
		x, w := b.look(want, to(destination))
		diff := cmp.Diff(hops, w.Hops)
		kit.Check(t, diff == "" && x.Verdict == explain.Agree, "%s: %s, %q (-want +got):\n%s", destination, x.Verdict, x.Differences, diff)
	}
}

// Where HNS differs from the rules of Kubernetes without a fault, the Walk says why.
func TestTraceSaysLimits(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	ranges, empty := allKinds("10.244.1.11:80"), clusterIP("empty", "10.96.0.11")
	ranges.Frontends[3].Sources = []netip.Prefix{prefix("203.0.113.0/24")}
	kept := clusterIP("kept", "10.96.0.12", "10.244.1.11:80", "10.244.2.11:80@b")
	kept.KeepVIP, kept.Frontends = true, append(kept.Frontends, frontend(service.LoadBalancerIP, "203.0.113.12", 80))
	want := snapshot(1, ranges, empty, kept)
	for range 2 {
		b.now = b.now.Add(2 * listingTTL)
		b.plan(want).Apply(t.Context())
	}
	for destination, text := range map[string]string{
		"10.96.0.11:80":   "HNS can neither refuse nor drop a connection",
		"203.0.113.10:80": "HNS has no source ranges: 203.0.113.10 is not programmed",
		"203.0.113.12:80": keptHere,
	} {
		x, w := b.look(want, to(destination))
		kit.Check(t, x.Verdict == explain.Agree && strings.Contains(w.ByDesign, text),
			"%s: %s, faults %q, by design %q, want %q", destination, x.Verdict, w.Faults, w.ByDesign, text)
	}
}

// This checks what Trace reports about a port that HNS refused, about objects that are
// not wanted any more, about objects of others, and about a node without a network.
func TestTraceOddities(t *testing.T) {
	b := newTestNode(t, v13, bridgeN)
	b.pods("10.244.1.11")
	held := service.Address{Addr: addr("10.96.0.12"), Port: 80, Protocol: service.TCP}
	b.hns.heldPorts[held] = true
	want := snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80"), clusterIP("held", "10.96.0.12", "10.244.1.11:80"), clusterIP("early", "10.96.0.13", "10.244.1.12:80"))
	_, err := b.round(want)
	wantFailed(t, err, "port is taken", "early", "held")
	b.hns.balancers["other"] = LoadBalancer{ID: "other", Address: service.Address{Port: 40000, Protocol: service.TCP}, TargetPort: 1, Endpoints: []string{"endpoint-000001"}}
	for destination, text := range map[string]string{
		"10.96.0.10:80":    "",
		"10.96.0.12:80":    "no load balancer has tcp 10.96.0.12:80, of shop/held:http: create load balancer: HNS says that the port is taken",
		"10.96.0.13:80":    "no load balancer has tcp 10.96.0.13:80, of shop/early:http: none of its endpoints is in HNS",
		"192.0.2.10:40000": "",
	} {
		x, w := b.look(want, to(destination))
		if got := strings.Join(w.Faults, "\n"); !strings.HasPrefix(got, text) || (got == "") != (text == "") || text == "" && x.Verdict != explain.Agree {
			t.Errorf("%s: %s, faults %q, want %q", destination, x.Verdict, got, text)
		}
	}
	if x, _ := b.look(snapshot(2), to("10.96.0.10:80")); !slices.ContainsFunc(x.Differences, func(s string) bool { return strings.Contains(s, "it is left over") }) {
		t.Errorf("a load balancer that no Service wants: %q", x.Differences)
	}
	b.hns.networks = nil
	x, _ := b.look(want, to("10.96.0.10:80"))
	kit.Check(t, len(x.Differences) != 0 && strings.Contains(x.Differences[0], "waiting for a network"), "without a network: %q", x.Differences)
	b.hns.down = true
	_, err = b.backend.Trace(t.Context(), want, to("10.96.0.10:80"), generate.IsNodeLocal)
	kit.Check(t, err != nil, "no error while HNS is down")
}
