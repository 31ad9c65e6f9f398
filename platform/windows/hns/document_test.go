// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
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
		if diff := cmp.Diff(lb, got, sameAddrs); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
	e := Endpoint{Name: "x", Network: "n", Addrs: []netip.Addr{addr("10.244.2.11")}, MAC: "02-11-0a-f4-02-0b", Provider: nodeB, Remote: true}
	text, err := json.Marshal(e.document())
	kit.Must(t, err)
	got, err := parseEndpoint(text)
	if diff := cmp.Diff(e, got, sameAddrs); diff != "" || err != nil {
		t.Errorf("endpoint: %v (-want +got):\n%s", err, diff)
	}
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
		if _, err := ReadState([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
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
			if errors.Is(err, c) != (c == want) {
				t.Errorf("0x%x is %v: %v, want %v only", code, c, errors.Is(err, c), want)
			}
		}
		if s := err.Error(); !strings.HasPrefix(s, "create x: ") {
			t.Errorf("0x%x says %q", code, s)
		}
	}
	missing := &Error{Op: "list", Err: ErrNotInstalled}
	kit.Check(t, errors.Is(missing, ErrNotInstalled) && !errors.Is(missing, ErrRefused),
		"%v is not what it is made of", missing)
}

func TestFile(t *testing.T) {
	f := FileStore(filepath.Join(t.TempDir(), "deep", "state.json"))
	if b, err := f.Load(); b != nil || err != nil {
		t.Fatalf("Load of nothing = %s, %v", b, err)
	}
	for _, s := range []string{"one", "two"} {
		kit.Must(t, f.Save([]byte(s)))
		if b, err := f.Load(); string(b) != s || err != nil {
			t.Fatalf("Load = %s, %v, want %s", b, err, s)
		}
	}
	victim := filepath.Join(t.TempDir(), "of-others")
	if err := errors.Join(os.WriteFile(victim, []byte("theirs"), 0o600), os.Symlink(victim, string(f)+".next")); err == nil { // Wine makes no links
		err = f.Save([]byte("three"))
		if b, _ := os.ReadFile(victim); string(b) != "theirs" || err != nil {
			t.Errorf("through a link of others: %q, %v", b, err)
		}
	}
	for range 2 {
		kit.Must(t, f.Save(nil))
	}
	if left, err := os.ReadDir(filepath.Dir(string(f))); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := FileStore(t.TempDir()).Save([]byte("x")); err == nil {
		t.Error("a folder was replaced by a file")
	}
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
	if !strings.Contains(held, "tcp 10.96.0.10:80 ") || strings.Contains(now, "tcp 10.96.0.10:80 ") || !strings.Contains(now, "30080 -> :9090") {
		t.Errorf("held:\n%s\nafter others changed it:\n%s", held, now)
	}
	observed, gone, err := b.backend.ReadBack(t.Context(), snapshot(2))
	if err != nil || !strings.Contains(observed.String(), "# of no Service") || strings.Contains(gone.String(), "loadbalancer") {
		t.Errorf("%v; without Services held:\n%s\nwanted:\n%s", err, observed, gone)
	}
}
