// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// TestAdoptsWhatIsThere starts a new backend that finds nothing to do, and after that
// nothing to read.
func TestAdoptsWhatIsThere(t *testing.T) {
	k := newFake()
	apply(t, newBackend(service.IPv4, k), simple(50))
	restores := k.Restores
	b := newBackend(service.IPv4, k)
	p := apply(t, b, simple(50))
	if !p.Empty() || k.Restores != restores {
		t.Errorf("a new process would do:\n%s", p.Changes())
	}
	kit.Check(t, len(p.Outcome().Drift) <= 0 && p.Outcome().FullSync, "drift %v, whole %v, want none and true", p.Outcome().Drift, p.Outcome().FullSync)
	saves := k.Saves
	apply(t, b, simple(51))
	kit.Check(t, k.Saves == saves, "the tables were read though nobody touched them")
}

// TestCostFollowsChange shows what small changes write.
func TestCostFollowsChange(t *testing.T) {
	first := simple(300)
	old := first.Port(service.IPv4, service.PortName{Namespace: "shop", Name: "web-050", Protocol: service.TCP})
	one := *old
	one.Cluster = old.Cluster[:1]
	none := *old
	none.Cluster = nil
	checked := *old
	checked.HealthCheck = 30900
	tests := []struct {
		situation string
		change    service.Change
		want      []string
	}{
		{"an endpoint leaves", service.Change{Old: old, New: &one}, []string{"+ nat chain KUBE-SVC-XKQL4HAOBVWIKFA6 (rules: 2) # shop/web-050"}},
		{"the last one leaves", service.Change{Old: old, New: &none}, []string{
			"+ nat chain KUBE-NP-TCP-30048-30063 (rules: 15)", "+ nat chain KUBE-IP-10.96.0.48/28 (rules: 16)",
			"+ filter chain KUBE-NODEPORTS (rules: 1)",
			"- nat chain KUBE-EXT-XKQL4HAOBVWIKFA6 # shop/web-050", "- nat chain KUBE-SVC-XKQL4HAOBVWIKFA6 # shop/web-050",
		}},
		{"a health check comes", service.Change{Old: old, New: &checked}, []string{
			"+ filter chain KUBE-HEALTH-CHECKS (rules: 2)", "+ filter chain KUBE-HEALTH-PORTS (rules: 1)",
		}},
		{"nothing", service.Change{Old: old, New: old}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.situation, func(t *testing.T) {
			k := newFake()
			b := newBackend(service.IPv4, k)
			apply(t, b, first)
			p := apply(t, b, first.With(2, first.Node, []service.Change{tt.change}))
			got := strings.Split(strings.TrimSuffix(p.Changes().String(), "\n"), "\n")
			if p.Empty() {
				got = nil
			}
			name := portChainName("", old)
			for i := range got {
				got[i] = strings.ReplaceAll(got[i], name, "XKQL4HAOBVWIKFA6")
			}
			slices.Sort(got)
			slices.Sort(tt.want)
			kit.Same(t, "plan (-want +got)", tt.want, got)
		})
	}
}

// TestTreesReachEveryEntry connects to every Service of many, and to unused addresses
// and ports next to each.
func TestTreesReachEveryEntry(t *testing.T) {
	var ports []*service.Port
	for i := range 700 {
		p := simplePort(i * 7 % 4096)
		p.Name.Protocol = []service.Protocol{service.TCP, service.UDP, service.SCTP}[i%3]
		if i%5 == 0 {
			p.Cluster = nil
		}
		ports = append(ports, p)
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	k := newFake()
	apply(t, newBackend(service.IPv4, k), want)
	longest := 0
	for i, rules := range parse(k.Text(), nil).chains {
		if (*Role)(nil).isTree(i) {
			longest = max(longest, len(rules))
		}
	}
	kit.Check(t, longest <= 1<<branchBits*inlineSize+2, "a chain of a tree has %d rules", longest)
	for _, p := range ports {
		for _, near := range []uint16{0, 1} {
			dialed(t, k, want, p.Name.Protocol, netip.AddrPortFrom(p.Frontends[0].Addr, 80+near))
			dialed(t, k, want, p.Name.Protocol, netip.AddrPortFrom(generate.NodeAddr[0], p.Frontends[1].Port+near))
		}
	}
}

// dialed checks the connection of an external client.
func dialed(t *testing.T, k *fake, want *service.Snapshot, proto service.Protocol, to netip.AddrPort) {
	t.Helper()
	c := route.Conn{Protocol: proto, From: netip.MustParseAddr("192.0.2.77"), To: to, Interface: "eth0", ToNode: generate.IsNodeLocal(to.Addr())}
	got, v := k.Trace(c, generate.IsNodeLocal), route.Decide(want, c)
	kit.Need(t, got.Action == v.Action, "%v: %v, want %v: %s", c, got.Action, v.Action, v.Reason)
}

// TestAddressOfTheNodeGoesBeforeNodePorts has a load balancer address and an external IP
// that the node owns, on the NodePort of another Service.
func TestAddressOfTheNodeGoesBeforeNodePorts(t *testing.T) {
	other := simplePort(0)
	empty, closed := simplePort(1), simplePort(2)
	empty.Cluster = nil
	empty.Frontends = []service.Frontend{{Kind: service.ExternalIP, Addr: generate.NodeAddr[0], Port: 30000}}
	closed.Frontends = []service.Frontend{{
		Kind: service.LoadBalancerIP, Addr: generate.OtherNodeAddr[0], Port: 30000, Sources: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")},
	}}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{other, empty, closed})
	k := newFake()
	apply(t, newBackend(service.IPv4, k), want)
	for _, to := range []netip.Addr{generate.NodeAddr[0], generate.OtherNodeAddr[0]} {
		dialed(t, k, want, service.TCP, netip.AddrPortFrom(to, 30000))
	}
}

// TestDriftIsReportedAndRepaired alters, flushes and removes jumps.
func TestDriftIsReportedAndRepaired(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	want := simple(2)
	apply(t, b, want)
	good := k.Text()
	k.Tables[nat][markChain] = nil
	k.Tables[nat]["OUTPUT"] = nil
	k.Tables[filter][forwardChain] = append(k.Tables[filter][forwardChain], "-j DROP")
	k.Tables[nat]["KUBE-SVC-STRAY"] = nil
	k.Dirty = true
	p := apply(t, b, want)
	reported := strings.Join(p.Outcome().Drift, "\n")
	for _, s := range []string{
		"altered: rules of chain KUBE-MARK-MASQ of table nat", "altered: rules of chain KUBE-FORWARD of table filter",
		"foreign: chain KUBE-SVC-STRAY of table nat", `missing: rule "-j KUBE-SERVICES" of chain OUTPUT of table nat`,
	} {
		kit.Check(t, strings.Contains(reported, s), "drift lacks %q:\n%s", s, reported)
	}
	kit.Same(t, "after the repair (-before +after)", good, k.Text())
}

// TestPartialSnapshotTakesNothingAway keeps what an earlier process left for Services
// that could not be read, until they can be.
func TestPartialSnapshotTakesNothingAway(t *testing.T) {
	k := newFake()
	apply(t, newBackend(service.IPv4, k), simple(40))
	b := newBackend(service.IPv4, k)
	few := service.New(2, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{simplePort(1)})
	few.Incomplete = true
	if p := apply(t, b, few); !p.Empty() || len(p.Outcome().Removed) > 0 {
		t.Errorf("a partial snapshot changes:\n%s", p.Changes())
	}
	// Services are added and removed meanwhile.
	more := few.With(3, few.Node, []service.Change{{New: simplePort(2)}, {New: simplePort(77)}})
	apply(t, b, more)
	less := more.With(4, few.Node, []service.Change{{Old: more.Port(service.IPv4, simplePort(2).Name)}})
	apply(t, b, less)
	n := strings.Count(k.Text(), "shop/web-")
	kit.Check(t, n == 2*(40-1+1), "%d entries, want 80", n)
	p := apply(t, b, simple(1))
	if n := strings.Count(k.Text(), "shop/web-"); n != 2 {
		t.Errorf("%d entries once all was read, want 2", n)
	}
	if n := len(p.Outcome().Removed); n != 2*39 {
		t.Errorf("%d frontends are said to go, want 78", n)
	}
}

// TestRemovedWhileDown has a Service go while no process runs. Its frontends are said to
// go, in their family, so that their UDP flows are forgotten.
func TestRemovedWhileDown(t *testing.T) {
	for _, f := range service.Families {
		k := newFake()
		dns := &service.Port{
			Name: service.PortName{Namespace: "shop", Name: "dns", Protocol: service.UDP}, Family: f,
			Frontends: []service.Frontend{{Addr: service.Localhost(f).Next(), Port: 53}},
		}
		apply(t, newBackend(f, k), service.New(1, &service.Node{}, []*service.Port{dns}))
		removed := apply(t, newBackend(f, k), service.New(2, &service.Node{}, nil)).Outcome().Removed
		kit.Need(t, len(removed) == 1 && len(removed[0].Frontends) == 1,
			"%s: %d ports are said to go, want one", f, len(removed))
		got, want := removed[0].Frontends[0], dns.Frontends[0]
		if removed[0].Family != f || removed[0].Name.Protocol != service.UDP || got.Addr != want.Addr || got.Port != want.Port {
			t.Errorf("%s: %+v is said to go", f, *removed[0])
		}
	}
}

// TestPartialSnapshotKeepsReferencedChains removes an address of a port and then the
// port, while rules for that address stay: the snapshot is incomplete.
func TestPartialSnapshotKeepsReferencedChains(t *testing.T) {
	k := newFake()
	whole := simplePort(1)
	whole.Frontends = append(whole.Frontends[:1], service.Frontend{Kind: service.LoadBalancerIP, Addr: generate.NthAddr("203.0.113.0", 1), Port: 80})
	apply(t, newBackend(service.IPv4, k), service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{whole}))
	b := newBackend(service.IPv4, k)
	without := *whole
	without.Frontends = whole.Frontends[:1]
	less := service.New(2, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{&without})
	less.Incomplete = true
	apply(t, b, less)
	none := less.With(3, less.Node, []service.Change{{Old: less.Port(service.IPv4, whole.Name)}})
	apply(t, b, none)
	kit.Check(t, strings.Contains(k.Text(), "203.0.113.1"), "an address is gone before all was read:\n%s", k.Text())
	apply(t, b, simple(0))
	if left := strings.Count(k.Text(), "KUBE-SVC-") + strings.Count(k.Text(), "KUBE-EXT-"); left > 0 {
		t.Errorf("something is left once all was read:\n%s", k.Text())
	}
}

// TestCleanup keeps what others have, and names the chains that their rules refer to.
func TestCleanup(t *testing.T) {
	k := newFake()
	k.addForeignChains()
	before := k.Text()
	b := newBackend(service.IPv6, k)
	for range 2 { // a cleanup without leftovers succeeds
		if err := b.Cleanup(context.Background()); err != nil || k.Text() != before {
			t.Fatalf("Cleanup: %v\n%s", err, k.Text())
		}
		apply(t, b, simple(3))
	}
	kit.Must(t, b.Cleanup(context.Background()))
	kit.Same(t, "after cleanup (-before +after)", before, k.Text())
	apply(t, b, simple(3))
	k.Tables[nat]["CNI-HOSTPORT"] = append(k.Tables[nat]["CNI-HOSTPORT"], "-j KUBE-MARK-MASQ")
	if err := b.Cleanup(context.Background()); err == nil || !strings.Contains(err.Error(), "chain KUBE-MARK-MASQ of table nat is in use: chain CNI-HOSTPORT") {
		t.Errorf("Cleanup = %v, want it to name the chain in use", err)
	}
}

// TestTakesOverFromKubeProxy finds the chains of kube-proxy and keeps only what is
// desired.
func TestTakesOverFromKubeProxy(t *testing.T) {
	k := newFake()
	const theirs = `-m comment --comment "portals of services" `
	k.Tables[nat]["KUBE-SERVICES"] = []string{`-d 10.96.0.1/32 -p tcp -m comment --comment "default/kubernetes:https" -m tcp --dport 443 -j KUBE-SVC-NPX46M4PTMTKRN6Y`}
	k.Tables[nat]["KUBE-SVC-NPX46M4PTMTKRN6Y"] = []string{"-j KUBE-SEP-AAAAAAAAAAAAAAAA"}
	k.Tables[nat]["KUBE-SEP-AAAAAAAAAAAAAAAA"] = []string{"-p tcp -m tcp -j DNAT --to-destination 192.0.2.1:6443"}
	k.Tables[nat]["PREROUTING"] = []string{theirs + "-j KUBE-SERVICES"}
	k.Tables[filter]["KUBE-EXTERNAL-SERVICES"] = nil
	k.Tables[filter]["INPUT"] = []string{"-m conntrack --ctstate NEW " + theirs + "-j KUBE-EXTERNAL-SERVICES"}
	p := apply(t, newBackend(service.IPv4, k), simple(1))
	text := k.Text()
	for _, gone := range []string{"KUBE-SEP-", "KUBE-SVC-NPX46M4PTMTKRN6Y", "KUBE-EXTERNAL-SERVICES", "10.96.0.1/32"} {
		kit.Check(t, !strings.Contains(text, gone), "%s is left:\n%s", gone, text)
	}
	n := strings.Count(text, "-A PREROUTING")
	kit.Check(t, n == 1, "%d jumps from PREROUTING, want theirs alone:\n%s", n, text)
	removed := p.Outcome().Removed
	kit.Check(t, len(removed) == 1 && removed[0].Frontends[0].Addr.String() == "10.96.0.1" && removed[0].Frontends[0].Port == 443,
		"removed = %v, want 10.96.0.1:443", removed)
}

// TestDisturbedListingIsReadAgain returns the output of a disturbed iptables-nft-save.
func TestDisturbedListingIsReadAgain(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	apply(t, b, simple(3))
	saves := k.Saves
	k.InterruptedSaves = 2
	k.Dirty = true
	if p := apply(t, b, simple(3)); !p.Empty() || len(p.Outcome().Drift) > 0 || k.Saves != saves+3 {
		t.Errorf("read %d times, drift %v, and would do:\n%s", k.Saves-saves, p.Outcome().Drift, p.Changes())
	}
	k.InterruptedSaves, k.Dirty = 99, true
	_, err := b.Plan(context.Background(), simple(3))
	kit.Check(t, err != nil && strings.Contains(err.Error(), "others changed them meanwhile"), "Plan = %v, want it to say that it cannot read", err)
}

// TestPlanThatIsNotApplied lets another process make the planned change, without a
// notification.
func TestPlanThatIsNotApplied(t *testing.T) {
	k := newFake()
	b := newBackend(service.IPv4, k)
	apply(t, b, simple(3))
	if p, err := b.Plan(context.Background(), simple(4)); err != nil || p.Empty() {
		t.Fatalf("Plan: %v, to do:\n%s", err, generate.Text(p))
	}
	apply(t, newBackend(service.IPv4, k), simple(4))
	if p, err := b.Plan(context.Background(), simple(4)); err != nil || !p.Empty() {
		t.Errorf("Plan: %v, still to do:\n%s", err, generate.Text(p))
	}
}

// TestHalfProgrammed lets table nat accept a change that table filter refuses, once or
// twice. Ports that are not at fault must not suffer from the part that was applied.
func TestHalfProgrammed(t *testing.T) {
	for refusals := range 3 {
		k := newFake()
		b := newBackend(service.IPv4, k)
		one, two, three := simplePort(1), simplePort(2), simplePort(3)
		node := &service.Node{NodePorts: service.AnyAddress()}
		apply(t, b, service.New(1, node, []*service.Port{two, three}))
		want := service.New(2, node, []*service.Port{one, two})
		p, err := b.Plan(t.Context(), want)
		kit.Must(t, err)
		left := refusals
		k.Refuse = func(text string) error {
			if left == 0 || !strings.HasPrefix(text, "*"+filter) {
				return nil
			}
			left--
			return errors.New("not now")
		}
		err = p.Apply(t.Context()).Err
		kit.Check(t, err == nil, "%d refusals: %v", refusals, err)
		fresh := newFake()
		apply(t, newBackend(service.IPv4, fresh), want)
		kit.Same(t, fmt.Sprintf("%d refusals: chains (-fresh +now)", refusals), parse(fresh.Text(), nil).chains, parse(k.Text(), nil).chains, cmp.AllowUnexported(id{}))
	}
}

// simple returns a snapshot of n Services with two endpoints each.
func simple(n int) *service.Snapshot {
	var ports []*service.Port
	for i := range n {
		ports = append(ports, simplePort(i))
	}
	return service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
}

func simplePort(i int) *service.Port {
	return &service.Port{
		Name: service.PortName{Namespace: "shop", Name: fmt.Sprintf("web-%03d", i), Protocol: service.TCP},
		Frontends: []service.Frontend{
			{Addr: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), Port: 80},
			{Kind: service.NodePort, Port: uint16(30000 + i)},
		},
		Cluster: []service.Endpoint{
			{Addr: netip.MustParseAddrPort("10.244.1.1:8080")}, {Addr: netip.MustParseAddrPort("10.244.1.2:8080")},
		},
	}
}

// TestOneRefusedPortDoesNotBlockOthers refuses everything that concerns one Service.
func TestOneRefusedPortDoesNotBlockOthers(t *testing.T) {
	want := simple(100)
	k := newFake()
	b := newBackend(service.IPv4, k)
	k.Refuse = func(text string) error {
		if strings.Contains(text, "shop/web-042") {
			return errInjected
		}
		return nil
	}
	p, err := b.Plan(context.Background(), want)
	kit.Need(t, err == nil, "Plan: %v", err)
	err = p.Apply(context.Background()).Err
	failed := reconcile.PortErrors(err)
	kit.Check(t, len(failed) == 1 && failed[0].Name.Name == "web-042" && errors.Is(failed[0], errInjected),
		"Apply = %v, want one failure of web-042", err)
	got := strings.Count(k.Text(), "shop/web-")
	kit.Check(t, got == 198, "%d entries programmed, want 198", got)
	kit.Check(t, k.Restores <= 30, "%d restores, want about two per halving", k.Restores)
	k.Refuse = nil
	apply(t, b, want)
	if got := strings.Count(k.Text(), "shop/web-"); got != 200 {
		t.Errorf("%d entries programmed after the retry, want 200", got)
	}
}

// TestRefusedPortKeepsWhatItHad changes a Service and removes another while the kernel
// refuses the change.
func TestRefusedPortKeepsWhatItHad(t *testing.T) {
	k := newFake()
	apply(t, newBackend(service.IPv4, k), simple(3))
	changed := simplePort(1)
	changed.Cluster = changed.Cluster[:1]
	want := service.New(2, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{simplePort(0), changed})
	had := k.Tables[nat][portChainName(clusterPrefix, changed)]
	k.Refuse = func(text string) error {
		if strings.Contains(text, "-A "+portChainName(clusterPrefix, changed)) {
			return errInjected
		}
		return nil
	}
	b := newBackend(service.IPv4, k) // as after a restart
	p, err := b.Plan(context.Background(), want)
	kit.Must(t, err)
	failed := reconcile.PortErrors(p.Apply(context.Background()).Err)
	kit.Check(t, len(failed) == 1 && failed[0].Name.Name == "web-001", "failed: %v, want web-001", failed)
	got := k.Tables[nat][portChainName(clusterPrefix, changed)]
	kit.Check(t, slices.Equal(got, had), "the refused Service has now %q, had %q", got, had)
	if text := k.Text(); !strings.Contains(text, "shop/web-001") || strings.Contains(text, "shop/web-002") {
		t.Errorf("want web-001 to be there and web-002 to be gone:\n%s", text)
	}
}

// TestRemovalOrder checks that rules that reject are removed before rules that
// translate.
func TestRemovalOrder(t *testing.T) {
	c := &change{deletes: []id{{nat, servicesChain}, {filter, servicesChain}, {mangle, "KUBE-PROXY-CANARY"}}}
	got := regexp.MustCompile(`(?m)^\*\w+|^-X .*`).FindAllString(c.removal(), -1)
	want := []string{"*filter", "-X KUBE-SERVICES", "*nat", "-X KUBE-SERVICES", "*mangle", "-X KUBE-PROXY-CANARY"}
	kit.Same(t, "(-want +got)", want, got)
}

// Until the last piece no packet meets a new chain, and the last piece has no new chain.
func TestPieces(t *testing.T) {
	k := newFake()
	k.Piece = 20
	b := newBackend(service.IPv4, k)
	var ports []*service.Port
	for i := range 40 {
		ports = append(ports, servicePort(i))
	}
	apply(t, b, service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports))
	kit.Need(t, k.Restores >= 5, "%d texts, want many", k.Restores)
	for i, text := range k.Texts[:len(k.Texts)-1] {
		for line := range strings.Lines(text) {
			kit.Check(t, !strings.HasPrefix(line, "-I ") && !strings.HasPrefix(line, "-X "),
				"text %d of %d changes what packets meet: %s", i+1, len(k.Texts), line)
		}
		n := strings.Count(text, "\n-A ")
		kit.Check(t, n <= 3*k.Piece, "text %d has %d rules", i+1, n)
	}
	last := k.Texts[len(k.Texts)-1]
	kit.Check(t, !strings.Contains(last, "\n:"), "the last text makes chains:\n%s", last)
	before := k.Restores
	ports[0] = servicePort(100)
	apply(t, b, service.New(2, &service.Node{NodePorts: service.AnyAddress()}, ports))
	n := k.Restores - before
	kit.Check(t, n == 1, "a change of one Service takes %d texts", n)
}

// A process that dies between two pieces leaves what the next one takes over.
func TestDeathBetweenPieces(t *testing.T) {
	k := newFake()
	k.Piece = 20
	var ports []*service.Port
	for i := range 40 {
		ports = append(ports, servicePort(i))
	}
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	n := 0
	k.Refuse = func(string) error {
		if n++; n > 4 {
			return ErrBusy
		}
		return nil
	}
	p, err := newBackend(service.IPv4, k).Plan(context.Background(), want)
	kit.Must(t, err)
	out := p.Apply(context.Background())
	kit.Need(t, out.Err != nil, "no error although iptables was busy")
	k.Refuse = nil
	apply(t, newBackend(service.IPv4, k), want)
	fresh := newFake()
	apply(t, newBackend(service.IPv4, fresh), want)
	if got, want := k.Text(), fresh.Text(); got != want {
		t.Errorf("after a death:\n%s\nwithout:\n%s", got, want)
	}
}

// servicePort is Service i with three endpoints.
func servicePort(i int) *service.Port {
	p := &service.Port{Name: service.PortName{Namespace: "shop", Name: fmt.Sprint("web-", i), Protocol: service.TCP}}
	p.Frontends = []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr(fmt.Sprintf("10.96.0.%d", i+1)), Port: 80}}
	for j := range 3 {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.MustParseAddrPort(fmt.Sprintf("10.244.%d.%d:8080", i, j+1))})
	}
	return p
}
