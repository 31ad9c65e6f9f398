// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/windows"

	"kubeproxy/common/service"
	sim "kubeproxy/test/hns"
	"kubeproxy/test/kit"
)

// startSimulator starts a simulated HNS for the driver, with one network and two pods.
func startSimulator(t *testing.T, v Version, spelling sim.Case) *sim.Server {
	t.Helper()
	return simulate(t, sim.Options{Version: sim.Version{Major: v.Major, Minor: v.Minor}, Case: spelling, Steady: true})
}

func simulate(t *testing.T, o sim.Options) *sim.Server {
	t.Helper()
	s := sim.Start(t, o)
	t.Setenv("HNS_SIM_ADDR", s.Addr)
	_, err := s.AddNetwork(sim.NetworkConfig{
		Name: "vxlan0", Type: "Overlay", Subnets: overlayN.Subnets,
		Routes: []sim.Route{{Prefix: prefix("10.244.2.0/24"), Provider: nodeB, MAC: "00-15-5d-00-00-02"}},
	})
	for _, a := range []string{"10.244.1.11", "10.244.1.12"} {
		if err == nil {
			_, err = s.AddPod("vxlan0", "pod-"+a, addr(a))
		}
	}
	kit.Must(t, err)
	return s
}

// A listing returns created objects unchanged, in whatever case HNS writes IDs.
func TestDriver(t *testing.T) {
	for _, spelling := range []sim.Case{sim.MixedCase, sim.LowerCase, sim.UpperCase} {
		t.Run("spelling "+string(spelling), func(t *testing.T) {
			startSimulator(t, v15, spelling)
			d, ctx := NewDriver(), t.Context()
			l, err := d.List(ctx, All)
			kit.Need(t, err == nil && len(l.Networks) == 1 && len(l.Endpoints) == 2 && l.Version == v15,
				"List = %+v, %v", l, err)
			n := l.Networks[0]
			if n.Kind != Overlay || n.routeProvider(addr("10.244.2.9")) != nodeB || !slices.Equal(n.Subnets, overlayN.Subnets) || l.Endpoints[0].Network != n.ID {
				t.Errorf("network %+v, endpoint %+v", n, l.Endpoints[0])
			}
			vip, err := d.CreateEndpoint(ctx, Endpoint{Name: sourceVIPName, Network: n.ID})
			kit.Need(t, err == nil && len(vip.Addrs) == 1 && n.contains(vip.Addrs[0]),
				"endpoint with an address of HNS's choice = %+v, %v", vip, err)
			remote := Endpoint{Name: "x", Network: n.ID, Addrs: []netip.Addr{addr("10.244.2.11")}, MAC: remoteMAC(addr("10.244.2.11")), Provider: nodeB, Remote: true}
			created, err := d.CreateEndpoint(ctx, remote)
			if remote.ID = created.ID; err != nil || created.ID == "" || !equalMAC(created.MAC, remote.MAC) {
				t.Fatalf("remote endpoint = %+v, %v", created, err)
			}
			lb := LoadBalancer{Address: service.Address{Addr: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}, TargetPort: 8080, Endpoints: []string{l.Endpoints[0].ID, created.ID}, SourceVIP: vip.Addrs[0], Flags: ILB, DSR: true, Distribution: DistributionSourceIP}
			slices.Sort(lb.Endpoints)
			made, err := d.CreateLoadBalancer(ctx, lb)
			if lb.ID = made.ID; err != nil || !made.equal(&lb) {
				t.Fatalf("made %+v, %v", made, err)
			}
			lb.Endpoints = []string{created.ID}
			now, err := d.UpdateLoadBalancer(ctx, lb)
			diff := cmp.Diff(lb, now, sameAddrs)
			kit.Check(t, diff == "" && err == nil, "changed in place: %v (-want +got):\n%s", err, diff)
			l, err = d.List(ctx, Endpoints|LoadBalancers)
			if err != nil || len(l.Networks) != 0 || len(l.Endpoints) != 4 || len(l.LoadBalancers) != 1 || !l.LoadBalancers[0].equal(&lb) || l.LoadBalancers[0].ID != lb.ID {
				t.Errorf("List = %+v, %v, want it with %+v", l, err, lb)
			}
			err = errors.Join(d.DeleteLoadBalancer(ctx, lb), d.DeleteEndpoint(ctx, created.ID), d.DeleteEndpoint(ctx, vip.ID))
			kit.Check(t, err == nil, "%v", err)
			err = d.DeleteLoadBalancer(ctx, lb)
			kit.Check(t, errors.Is(err, ErrNotFound), "second deletion = %v, want ErrNotFound", err)
		})
	}
}

// Error codes become their classes.
func TestDriverErrors(t *testing.T) {
	s := startSimulator(t, v13, sim.MixedCase)
	for code, want := range map[sim.Code]error{
		sim.ServerUnavailable: ErrNotRunning, sim.UnknownInterface: ErrNotRunning, sim.EndpointNotFound: ErrNotFound, sim.NotFound: ErrNotFound,
		sim.PortExists: ErrExists, sim.AlreadyExists: ErrExists, sim.ObjectExists: ErrExists, sim.AddressReserved: ErrExists,
		sim.PortNotFound: ErrBusy, sim.GeneralFailure: ErrBusy, sim.InvalidParameter: ErrRefused, sim.NotImplemented: ErrRefused,
	} {
		kit.Must(t, s.Inject(sim.Fault{Function: "HcnCreateLoadBalancer", Code: code, Count: 1}))
		_, err := NewDriver().CreateLoadBalancer(t.Context(), LoadBalancer{})
		kit.Check(t, errors.Is(err, want), "%v becomes %v, want %v", code, err, want)
	}
	s.Stop(sim.ServerUnavailable)
	if _, err := NewDriver().List(t.Context(), All); !errors.Is(err, ErrNotRunning) || errors.Is(err, ErrNotFound) {
		t.Errorf("List of an HNS that is down = %v, want ErrNotRunning", err)
	}
}

// An object that disappears during a listing does not fail the listing.
func TestDriverListsAgain(t *testing.T) {
	s := startSimulator(t, v13, sim.MixedCase)
	kit.Must(t, s.Inject(sim.Fault{Function: "HcnOpenEndpoint", Code: sim.EndpointNotFound, Count: 1}))
	l, err := NewDriver().List(t.Context(), Endpoints)
	kit.Check(t, err == nil && len(l.Endpoints) == 2, "List = %v, %v, want both pods", l.Endpoints, err)
}

// hcsshim passes on what each personality of HNS gives back, as the stand-in of tests within the process does.
func TestDriverOnPersonalities(t *testing.T) {
	for _, p := range sim.Personalities() {
		if p.FailEvery > 0 {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			s := simulate(t, sim.Options{Personality: p, Steady: true})
			d, ctx := NewDriver(), t.Context()
			l, err := d.List(ctx, Networks)
			kit.Must(t, err)
			a := addr("10.244.2.11")
			_, err = d.CreateEndpoint(ctx, Endpoint{Name: remoteName(a), Network: l.Networks[0].ID, Addrs: []netip.Addr{a}, MAC: remoteMAC(a), Provider: nodeB, Remote: true})
			kit.Must(t, err)
			l, err = d.List(ctx, Endpoints)
			kit.Must(t, err)
			lb := LoadBalancer{Address: service.Address{Addr: addr("10.96.0.10"), Port: 80, Protocol: service.TCP}, TargetPort: 8080, SourceVIP: nodeA, Flags: VIPExternalIP}
			for _, e := range l.Endpoints {
				if e.Remote {
					lb.Endpoints = []string{e.ID}
				}
			}
			if _, err = d.CreateLoadBalancer(ctx, lb); err != nil {
				t.Fatal(err)
			}
			have, err1 := d.List(ctx, All)
			want, err2 := simulated{s.Simulator}.List(ctx, All)
			if diff := cmp.Diff(want, have, sameAddrs); diff != "" || errors.Join(err1, err2) != nil {
				t.Errorf("%v, %v (-stand-in +hcsshim):\n%s", err1, err2, diff)
			}
		})
	}
}

// The backend works through the library: create, change, adopt, clean up.
func TestBackendOnSimulator(t *testing.T) {
	for _, v := range []Version{{9, 5}, v13, {15, 4}, v15} {
		t.Run(v.String(), func(t *testing.T) {
			s := startSimulator(t, v, sim.MixedCase)
			b := newTestNode(t, v, overlayN)
			b.restartOn(NewDriver())
			web := func(endpoints ...string) *service.Snapshot {
				return snapshot(1, clusterIP("web", "10.96.0.10", endpoints...))
			}
			b.converge(web("10.244.1.11:80", "10.244.2.11:80@b"))
			b.converge(web("10.244.1.11:80", "10.244.1.12:80"))
			writes := s.Calls().Writes("")
			b.restartOn(NewDriver())
			text := b.converge(web("10.244.1.11:80", "10.244.1.12:80"))
			kit.Check(t, text == "" && s.Calls().Writes("") == writes, "a restart changes:\n%s", text)
			s.Restart(sim.Everything)
			b.converge(web("10.244.1.12:80", "10.244.2.12:80@b"))
			err := b.backend.Cleanup(t.Context())
			kit.Check(t, err == nil, "%v", err)
			n, m := len(s.Objects(sim.LoadBalancer)), len(s.Objects(sim.Endpoint))
			kit.Check(t, n == 0 && m == 2, "%d load balancers, %d endpoints left, want 0 and the 2 pods", n, m)
		})
	}
}

// ReadState of a dump equals a listing.
func TestDump(t *testing.T) {
	s := startSimulator(t, v15, sim.MixedCase)
	b := newTestNode(t, v15, overlayN)
	b.restartOn(NewDriver())
	b.converge(snapshot(1, clusterIP("web", "10.96.0.10", "10.244.1.11:80", "10.244.2.11:80@b")))
	writes := s.Calls().Writes("")
	text, err := Dump()
	kit.Must(t, err)
	got, err := ReadState(text)
	kit.Need(t, err == nil, "%v in\n%s", err, text)
	want, err := NewDriver().List(t.Context(), All)
	kit.Need(t, err == nil && len(want.LoadBalancers) == 1, "%d load balancers, %v", len(want.LoadBalancers), err)
	diff := cmp.Diff(want, got, sameAddrs)
	kit.Check(t, diff == "" && s.Calls().Writes("") == writes, "(-listed +dumped):\n%s", diff)
	s.Stop(sim.ServerUnavailable)
	if _, err := Dump(); !errors.Is(err, ErrNotRunning) || !strings.Contains(err.Error(), "HNS is not running: Start-Service hns starts it (0x6ba)") {
		t.Errorf("Dump while HNS is down = %v", err)
	}
}

// TestVersionErrors covers the one call whose error code the library reports only as
// text.
func TestVersionErrors(t *testing.T) {
	s := startSimulator(t, v13, sim.MixedCase)
	for code, want := range map[sim.Code]error{sim.ServerUnavailable: ErrNotRunning, sim.GeneralFailure: ErrBusy, 0x80070005: ErrRefused} {
		kit.Must(t, s.Inject(sim.Fault{Function: "HNSCall", Code: code, Count: 1}))
		if _, err := version(); !errors.Is(err, want) || !strings.Contains(err.Error(), "(0x") {
			t.Errorf("%v becomes %v, want %v", code, err, want)
		}
	}
	v, err := version()
	kit.Check(t, err == nil && v == v13, "version = %v, %v", v, err)
}

// TestPortsLeft queries the system, which has free ports wherever tests run. A system
// without this function, such as Wine, must return an error.
func TestPortsLeft(t *testing.T) {
	for _, k := range []service.Address{
		{Protocol: service.TCP}, {Protocol: service.UDP}, {Family: service.IPv6, Protocol: service.TCP}, {Family: service.IPv6, Protocol: service.UDP},
	} {
		left, err := NewDriver().PortsLeft(t.Context(), k)
		kit.Check(t, err != nil || left, "%s over %s: none are left", k.Protocol, k.Family)
		t.Logf("%s over %s: %t, %v", k.Protocol, k.Family, left, err)
	}
	in, out := unsafe.Sizeof(portRange{}), unsafe.Sizeof(portReservation{})
	kit.Check(t, in == 4 && out == 16, "%d and %d bytes, want 4 and 16 as in mstcpip.h", in, out)
}

// TestFileOfOthers has a state file that everybody may write to, or its folder.
func TestFileOfOthers(t *testing.T) {
	for _, open := range []string{"", "state.json"} {
		dir := filepath.Join(t.TempDir(), "data")
		f := FileStore(filepath.Join(dir, "state.json"))
		kit.Must(t, f.Save([]byte("ours")))
		b, err := f.Load()
		kit.Check(t, string(b) == "ours" && err == nil, "before: %q, %v", b, err)
		openToAll(t, filepath.Join(dir, open))
		if b, err := f.Load(); b != nil || err == nil || !strings.Contains(err.Error(), "others may write to "+filepath.Join(dir, open)) {
			t.Errorf("%q is open to all: %q, %v", open, b, err)
		}
	}
}

// openToAll lets everybody write to a file or folder.
func openToAll(t *testing.T, path string) {
	t.Helper()
	sd, err := windows.SecurityDescriptorFromString("D:P(A;OICI;FA;;;SY)(A;OICI;FA;;;BA)(A;OICI;FA;;;WD)")
	kit.Must(t, err)
	dacl, _, err := sd.DACL()
	if err == nil {
		err = windows.SetNamedSecurityInfo(path, windows.SE_FILE_OBJECT, windows.DACL_SECURITY_INFORMATION|windows.PROTECTED_DACL_SECURITY_INFORMATION, nil, nil, dacl, nil)
	}
	kit.Must(t, err)
}
