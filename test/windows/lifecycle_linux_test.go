// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"strings"
	"testing"
	"time"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/wine"
)

func shop() (web, cart, dns app) {
	return app{"web", 10, []string{"10.244.1.11", "10.244.2.11", "10.244.2.12"}},
		app{"cart", 20, []string{"10.244.2.12", "10.244.2.13"}},
		app{"dns", 30, []string{"10.244.1.12"}}
}

// TestLifecycle follows a node from its first start to its cleanup, in every version of
// HNS.
func TestLifecycle(t *testing.T) {
	for _, v := range hns.Versions() {
		t.Run(v.String(), func(t *testing.T) {
			n := newNode(t, hns.Options{Version: v})
			n.installForeign(t)
			web, cart, dns := shop()
			n.save(t, web, cart)
			n.start(t)
			n.awaitProgrammed(t, web, cart)
			n.checkIdle(t, "after the start")

			n.churn(t, web, cart, dns)
			n.restarts(t, web, dns)
			n.clean(t)
		})
	}
}

// churn ends with web and dns.
func (n *node) churn(t *testing.T, web, cart, dns app) {
	t.Helper()
	n.save(t, dns)
	n.awaitProgrammed(t, web, cart, dns)

	before := n.hns.Calls()
	less := web.on("10.244.1.11", "10.244.2.11")
	n.save(t, less)
	n.awaitProgrammed(t, less, cart, dns)
	most := 4
	if n.hns.Version().Major < 10 {
		most = 6 // a deletion may fail the first time
	}
	if calls := n.hns.Calls().Sub(before); calls.Writes("") > most {
		t.Errorf("one endpoint left, on two addresses: %s, want at most %d calls that change something", calls, most)
	}
	n.remove(t, cart)
	n.awaitProgrammed(t, less, dns)
	n.save(t, web)
	n.awaitProgrammed(t, web, dns)
	n.checkIdle(t, "after the churn")
}

// restarts ends the proxy in two ways; the next process recognizes its objects.
func (n *node) restarts(t *testing.T, apps ...app) {
	t.Helper()
	n.stop(t)
	before := n.hns.Calls()
	n.awaitProgrammed(t, apps...) // a stop changes nothing
	n.start(t)
	kit.Until(t, "a look at HNS", func() bool { return n.hns.Calls().Sub(before).Lists(hns.LoadBalancer) > 0 })
	n.checkIdle(t, "after a restart")
	if calls := n.hns.Calls().Sub(before); calls.Writes("") != 0 {
		t.Errorf("a restart: %s, want no call that changes something", calls)
	}
	n.kill(t)
	before = n.hns.Calls()
	n.start(t)
	kit.Until(t, "a look at HNS", func() bool { return n.hns.Calls().Sub(before).Lists(hns.LoadBalancer) > 0 })
	n.checkIdle(t, "after a crash")
	if calls := n.hns.Calls().Sub(before); calls.Writes("") != 0 {
		t.Errorf("a crash: %s, want no call that changes something", calls)
	}
}

// clean removes all objects of the proxy and nothing else.
func (n *node) clean(t *testing.T) {
	t.Helper()
	n.stop(t)
	program, err := exe()
	if err != nil {
		t.Fatal(err)
	}
	code, output, err := n.wine.Run(t.Context(), wine.Program{Path: program, Args: []string{"--cleanup", "--hostname-override=node-a"}})
	if err != nil || code != 0 {
		t.Errorf("--cleanup: exit code %d, %v\n%s", code, err, output)
	}
	n.awaitProgrammed(t)
	for _, kind := range []hns.Kind{hns.LoadBalancer, hns.Endpoint} {
		if made := n.hns.CreatedCount(kind); made != 0 {
			t.Errorf("%d left of kind %s after --cleanup:\n%s", made, kind, output)
		}
	}
	if have := len(n.hns.Objects(hns.Endpoint)); have != len(locals)+1 {
		t.Errorf("%d endpoints of others, want %d", have, len(locals)+1)
	}
}

// TestHNSFailures causes several failures. After each one, the previous state must be
// restored.
func TestHNSFailures(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 15, Minor: 4}, Case: hns.UpperCase})
	n.installForeign(t)
	web, cart, dns := shop()
	n.save(t, web, cart, dns)
	if err := n.hns.Inject(hns.Fault{Function: "HcnCreate*", Code: hns.ServerUnavailable, Count: 2, When: hns.Afterwards}); err != nil {
		t.Fatal(err)
	}
	n.start(t)
	n.awaitProgrammed(t, web, cart, dns)

	for name, befall := range map[string]func(*testing.T){
		"another program deletes load balancers": func(t *testing.T) { n.deleteOurs(t, hns.LoadBalancer) },
		"another program deletes endpoints":      func(t *testing.T) { n.deleteOurs(t, hns.Endpoint) },
		"HNS restarts":                           func(*testing.T) { n.hns.Restart(hns.Everything) },
		"connections break":                      func(*testing.T) { n.hns.DropConnections() },
		"HNS forgets what is not a pod's": func(*testing.T) {
			n.hns.Restart(hns.Pods)
			clear(n.foreign) // Reset of HNS removes them, too
		},
		"HNS is away for a while":        func(t *testing.T) { n.changeWithoutHNS(t, cart, web, dns) },
		"a pod is made anew":             func(t *testing.T) { n.remakePod(t, "10.244.1.12") },
		"a pod is not on the switch yet": func(t *testing.T) { n.addRefusedPod(t, web, cart, dns) },
		"a crash in the middle of a change": func(t *testing.T) {
			n.hns.Delay("HcnCreate*", 300*time.Millisecond)
			before := n.hns.Calls()
			more := app{"more", 40, []string{"10.244.2.21", "10.244.2.22", "10.244.2.23"}}
			n.save(t, more)
			kit.Until(t, "the change begins", func() bool { return n.hns.Calls().Sub(before).Writes("") > 1 })
			n.kill(t)
			n.hns.ClearFaults()
			n.remove(t, more)
			n.start(t)
		},
	} {
		t.Run(name, func(t *testing.T) {
			befall(t)
			n.awaitProgrammed(t, web, cart, dns)
			n.checkIdle(t, name)
		})
	}
	n.stop(t)
}

// remakePod deletes a pod's endpoint and makes another one.
func (n *node) remakePod(t *testing.T, ip string) {
	t.Helper()
	for _, e := range n.hns.Objects(hns.Endpoint) {
		if e.Name() != "pod-"+ip {
			continue
		}
		if err := n.hns.Delete(hns.Endpoint, e.ID()); err != nil {
			t.Fatal(err)
		}
	}
	n.installPod(t, ip)
}

// changeWithoutHNS changes cart while HNS does not run.
func (n *node) changeWithoutHNS(t *testing.T, cart app, others ...app) {
	t.Helper()
	less := cart.on(cart.pods[1:]...)
	n.hns.Stop(hns.ServerUnavailable)
	n.save(t, less)
	before := n.hns.Calls()
	kit.Until(t, "the proxy asks in vain", func() bool { return n.hns.Calls().Sub(before).Lists("") > 1 })
	n.hns.Start(hns.Everything)
	n.awaitProgrammed(t, append(others, less)...)
	n.save(t, cart)
}

// addRefusedPod gives web a pod that HNS refuses at first: its present pod serves on.
func (n *node) addRefusedPod(t *testing.T, web app, others ...app) {
	t.Helper()
	const late = "10.244.1.13"
	id := n.installPod(t, late)
	if err := n.hns.Detach(id); err != nil {
		t.Fatal(err)
	}
	n.save(t, web.on(locals[0], late))
	n.awaitProgrammed(t, append(others, web.on(locals[0]))...)
	if err := n.hns.Attach(id); err != nil {
		t.Fatal(err)
	}
	n.awaitProgrammed(t, append(others, web.on(locals[0], late))...)
	n.save(t, web)
}

// deleteOurs deletes the proxy's objects of a kind, all remote endpoints or all load
// balancers.
func (n *node) deleteOurs(t *testing.T, kind hns.Kind) {
	t.Helper()
	for _, o := range n.hns.Objects(kind) {
		ours := kind == hns.LoadBalancer && o.VIPs() == nil || kind == hns.Endpoint && o.Remote()
		for _, vip := range o.VIPs() {
			ours = ours || strings.HasPrefix(vip, "10.96.")
		}
		if !ours || kind == hns.Endpoint && len(o.IPs()) > 0 && o.IPs()[0].String() == "10.244.2.99" {
			continue
		}
		if err := n.hns.Delete(kind, o.ID()); err != nil {
			t.Fatal(err)
		}
	}
}
