// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/test/kit"
)

func TestFaults(t *testing.T) {
	w := newFixture(t, Options{Seed: 1})
	inject := func(f Fault) {
		t.Helper()
		kit.Must(t, w.Inject(f))
	}
	list := func() Code { return w.call("HcnEnumerateEndpoints", "", 0, "{}").Code }

	inject(Fault{Function: "HcnEnumerate*", Code: ServerUnavailable, Count: 2})
	if got := []Code{list(), w.call("HcnOpenNetwork", w.network, 0).Code, list(), list()}; !slices.Equal(got, []Code{ServerUnavailable, OK, ServerUnavailable, OK}) {
		t.Errorf("two lists to fail: %v", got)
	}

	inject(Fault{Function: "HcnCreateEndpoint", Code: ServerUnavailable, When: Afterwards, Count: 1})
	before := w.CreatedCount(Endpoint)
	if _, code := w.create(Endpoint, w.network, remote("10.244.7.1")); code != ServerUnavailable || w.CreatedCount(Endpoint) != before+1 {
		t.Errorf("create without an answer: %v, %d endpoints more", code, w.CreatedCount(Endpoint)-before)
	}
	if _, code := w.create(Endpoint, w.network, remote("10.244.7.1")); code != ObjectExists {
		t.Errorf("create again: %v", code)
	}

	inject(Fault{Function: "*", Code: GeneralFailure, Share: 0.5})
	bad := 0
	for range 200 {
		if list() != OK {
			bad++
		}
	}
	kit.Check(t, bad >= 60 && bad <= 140, "%d of 200 calls failed, want about half", bad)
	w.ClearFaults()
	kit.Equal(t, list(), OK, "after Heal")
	if _, err := w.AddPod("vxlan0", "untouched"); err != nil {
		t.Errorf("another program's call: %v", err)
	}
	for _, f := range []Fault{{}, {Function: "["}, {Function: "*"}, {Function: "*", Code: NotFound, Share: 2}, {Function: "*", Code: NotFound, When: "soon"}} {
		kit.Check(t, w.Inject(f) != nil, "fault %+v was taken", f)
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{})
		s.Delay("*", time.Second)
		s.Delay("HcnCreate*", 20*time.Second)
		for function, want := range map[string]time.Duration{"HcnEnumerateNetworks": time.Second, "HcnCreateNetwork": 20 * time.Second} {
			start := time.Now()
			s.CallAs(Caller, Request{Function: function, Args: [3]string{"{}"}})
			if took := time.Since(start); took != want {
				t.Errorf("%s took %s, want %s", function, took, want)
			}
		}
		start := time.Now()
		if s.Call(Request{Function: "HcnCreateNetwork", Args: [3]string{"{}"}}); time.Since(start) != 0 {
			t.Error("another program waited")
		}
	})
}

func TestRestart(t *testing.T) {
	for keep, want := range map[Survivors][3]int{ // networks, endpoints, load balancers
		Everything: {1, 2, 1}, Pods: {1, 1, 0}, Nothing: {0, 0, 0},
	} {
		t.Run(string(keep), func(t *testing.T) {
			w := newFixture(t, Options{})
			far, _ := w.create(Endpoint, w.network, remote("10.244.7.1"))
			lb, _ := w.create(LoadBalancer, "", balancer(w.pod, far))
			h := w.must("HcnOpenLoadBalancer", lb, 0).Handle

			w.Stop(ServerUnavailable)
			if _, ok := w.try("HcnEnumerateNetworks", "", 0, "{}"); ok {
				t.Error("the connection did not break")
			}
			w.client = dial(t, w.Server)
			kit.Equal(t, w.call("HcnEnumerateNetworks", "", 0, "{}").Code, ServerUnavailable, "while HNS is down")
			if got := w.call("HNSCall", "", 0, "GET", "/globals/version").Code; got != ServerUnavailable {
				t.Errorf("version while HNS is down: %v", got)
			}
			w.Start(keep)
			kit.Equal(t, w.call("HcnQueryLoadBalancerProperties", "", h, "{}").Code, InvalidHandle, "handle of before")
			if got := w.call("HcnCloseLoadBalancer", "", h).Code; got != InvalidHandle || len(w.Warnings()) != 0 {
				t.Errorf("close of a handle of before: %v, warnings %v", got, w.Warnings())
			}
			got := [3]int{len(w.Objects(Network)), len(w.Objects(Endpoint)), len(w.Objects(LoadBalancer))}
			kit.Check(t, got == want, "survivors %v, want %v", got, want)
			if keep != Everything {
				return
			}
			if id := w.Objects(LoadBalancer)[0].ID(); id != lb {
				t.Errorf("load balancer %s came back as %s", lb, id)
			}
			if _, code := w.create(LoadBalancer, "", balancer(w.pod)); code != AlreadyExists {
				t.Errorf("what came back, once more: %v", code)
			}
			w.must("HcnDeleteLoadBalancer", lb, 0)
			w.create(LoadBalancer, "", balancer(w.pod))
			if _, code := w.create(LoadBalancer, "", balancer(w.pod)); code != PortExists {
				t.Errorf("what is new, once more: %v", code)
			}
		})
	}
}

func TestRestartBreaksConnections(t *testing.T) {
	w := newFixture(t, Options{})
	// Only an accepted connection can break; an answer proves the acceptance.
	w.must("HcnEnumerateNetworks", "", 0, "{}")
	w.Restart(Everything)
	if _, ok := w.try("HcnEnumerateNetworks", "", 0, "{}"); ok {
		t.Error("the connection survived a restart")
	}
	w.client = dial(t, w.Server)
	w.must("HcnEnumerateNetworks", "", 0, "{}")
	w.DropConnections()
	if _, ok := w.try("HcnEnumerateNetworks", "", 0, "{}"); ok {
		t.Error("the connection survived being dropped")
	}
}

// recordingT records the failures of a test.
type recordingT struct {
	*testing.T
	errors int
}

func (s *recordingT) Errorf(string, ...any) { s.errors++ }

func TestWarnings(t *testing.T) {
	for name, misdeed := range map[string]func(w *fixture, far, lb string){
		"endpoint in use deleted":  func(w *fixture, far, _ string) { w.must("HcnDeleteEndpoint", far, 0) },
		"foreign endpoint deleted": func(w *fixture, _, _ string) { w.must("HcnDeleteEndpoint", w.pod, 0) },
		"foreign network modified": func(w *fixture, _, _ string) { modifyNetwork(w) },
		"endpoint twice": func(w *fixture, far, _ string) {
			w.create(LoadBalancer, "", with(balancer(far, far), "FrontendVIPs", nil))
		},
		"handle closed that is not": func(w *fixture, _, _ string) { w.call("HcnCloseEndpoint", "", 99) },
	} {
		t.Run(name, func(t *testing.T) {
			quiet := &recordingT{T: t}
			w := &fixture{Server: StartAt(quiet, listener(t), Options{})}
			w.client = dial(t, w.Server)
			w.network = added(t)(w.AddNetwork(NetworkConfig{Name: "vxlan0", Type: "Overlay", Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}}))
			w.pod = added(t)(w.AddPod("vxlan0", "pod"))
			far, _ := w.create(Endpoint, w.network, remote("10.244.7.1"))
			lb, _ := w.create(LoadBalancer, "", balancer(far))
			if n := len(w.Warnings()); n != 0 {
				t.Fatalf("warnings before: %v", w.Warnings())
			}
			misdeed(w, far, lb)
			if n := len(w.Warnings()); n != 1 {
				t.Errorf("%d warnings %q, want one", n, w.Warnings())
			}
			if w.report(quiet); quiet.errors != 1 {
				t.Errorf("%d errors of the test, want one", quiet.errors)
			}
		})
	}
}

func modifyNetwork(w *fixture) {
	h := w.must("HcnOpenNetwork", w.network, 0).Handle
	w.must("HcnModifyNetwork", "", h, `{"ResourceType":"Policy","RequestType":"Add","Settings":{}}`)
	w.must("HcnCloseNetwork", "", h)
}

func TestExtraneousObjectsAreDeleted(t *testing.T) {
	w := newFixture(t, Options{})
	far, _ := w.create(Endpoint, w.network, remote("10.244.7.1"))
	if unused := w.Unused(); len(unused) != 1 || unused[0].ID() != far {
		t.Errorf("unused %v, want %s", unused, far)
	}
	lb, _ := w.create(LoadBalancer, "", balancer(far, w.pod))
	if unused, loose := w.Unused(), w.DanglingReferences(); len(unused)+len(loose) != 0 {
		t.Errorf("unused %v, loose %v", unused, loose)
	}
	if err := w.Delete(Endpoint, w.pod); err != nil { // done by another program
		t.Fatal(err)
	}
	if loose := w.DanglingReferences(); len(loose) != 1 || len(w.Warnings()) != 0 {
		t.Errorf("loose %v, warnings %v", loose, w.Warnings())
	}
	w.must("HcnDeleteLoadBalancer", lb, 0)
	if loose := w.DanglingReferences(); len(loose) != 0 {
		t.Errorf("loose %v", loose)
	}
}

func TestJournal(t *testing.T) {
	w := newFixture(t, Options{})
	before := w.Calls()
	far, _ := w.create(Endpoint, w.network, remote("10.244.7.1"))
	w.create(Endpoint, w.network, remote("10.244.7.1"))
	w.must("HcnEnumerateEndpoints", "", 0, "{}")
	w.must("HcnDeleteEndpoint", far, 0)
	calls := w.Calls().Sub(before)
	if got, want := [4]int{calls.Writes(""), calls.Writes(LoadBalancer), calls.Lists(Endpoint), calls.Reads("")}, [4]int{3, 0, 1, 1}; got != want {
		t.Errorf("writes, of load balancers, lists, reads: %v, want %v (%s)", got, want, calls)
	}
	var lines []string
	for _, e := range w.Journal() {
		if e.By == Caller {
			lines = append(lines, e.String())
		}
	}
	want := []string{
		"HcnCreateEndpoint " + far,
		"HcnCreateEndpoint : The object already exists. (0x80071392)",
		"HcnDeleteEndpoint " + far,
	}
	kit.Check(t, slices.Equal(lines, want), "journal %q, want %q", lines, want)
}

func TestServer2019FailsToDelete(t *testing.T) {
	w := newFixture(t, Options{Version: Version{9, 5}})
	failed := 0
	for range 32 {
		lb, code := w.create(LoadBalancer, "", balancer(w.pod))
		kit.Need(t, code == OK, "%v", code)
		if got := w.call("HcnDeleteLoadBalancer", lb, 0).Code; got == GeneralFailure {
			failed++
			w.must("HcnDeleteLoadBalancer", lb, 0) // the second time it works
		}
	}
	kit.Check(t, failed == 4, "%d of 32 did not go at once, want 4", failed)
}

func TestMissing(t *testing.T) {
	w := newFixture(t, Options{})
	for kind, want := range map[Kind]Code{Network: NetworkNotFound, Endpoint: EndpointNotFound, LoadBalancer: NotFound} {
		if got := w.call("HcnDelete"+string(kind), "5f0b1190-63be-4e0c-b974-bd0f55675a42", 0).Code; got != want {
			t.Errorf("delete of a %s that is not there: %v, want %v", kind, got, want)
		}
	}
	if _, err := w.AddPod("nowhere", "pod"); err == nil {
		t.Error("pod in a network that is not there")
	}
}
