// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/test/program"
)

// testUserspace runs mode userspace: one Service goes through all that it may
// be while another one carries traffic, and then the node changes between this
// mode and mode iptables while Services come, change and go.
func testUserspace(t *testing.T, w *fixture) {
	x := w.inMode(t, "userspace", "nft")
	testTypes(t, x)
	w.clear(t)
	testHandOver(t, x, w.inMode(t, "iptables", "nft"))
}

// inMode returns w with another mode, by a variant of iptables.
func (w *fixture) inMode(t *testing.T, mode, variant string) *fixture {
	t.Helper()
	x := *w
	x.mode, x.commands, x.trackOptions.NodePortsPrimary = mode, program.IPTables(t, variant), false
	x.flags = []string{"--proxy-mode=" + mode, "--iptables-localhost-nodeports=false"}
	o := iptables.Options{MasqueradeBit: 14, DropInvalid: true, Dir: x.commands}
	x.kernel = program.NewIPTablesKernel(t, w.Node, o)
	if mode == "userspace" {
		x.kernel = program.NewUserspaceKernel(t, w.Node, o)
	}
	return &x
}

// testHandOver has the process end and another one begin, in turn of mode
// relays, twice, of mode other, and of relays again. What changes before the end,
// and what while there is no process, is right afterwards, and no connection to
// what stays is lost.
func testHandOver(t *testing.T, relays, other *fixture) {
	w := relays
	web := newService("web", typed(corev1.ServiceTypeNodePort))
	w.set(t, append(endpoints("web", w.webs(4)...), web)...)
	p := w.start(t)
	traffic := w.load(t, web)
	old, past := web, w.calls(t, web)[:0]
	for i, next := range []*fixture{relays, other, relays} {
		came := newService([]string{"one", "two", "three"}[i])
		w.set(t, append(endpoints(came.Name, w.webs(3)...), came)...)
		calls := join(w.calls(t, web), w.calls(t, came))
		w.awaitProgrammed(t).Check(t, calls)
		w.set(t, endpoints("web", w.webs(4 + i)[i:]...)...) // one leaves and serves on, one comes
		p.Stop(t)
		w.set(t, endpoints(came.Name, w.webs(4)[2:]...)...)
		if old != web {
			past = w.calls(t, old)
			w.remove(t, append(endpoints(old.Name), old)...)
		}
		old, w = came, next
		p = w.launch(t)
		for _, f := range service.Families {
			p.AwaitLog(t, `"Programmed"`, w.mode+" "+f.String())
		}
		w.awaitProgrammed(t).Check(t, join(calls, past))
	}
	traffic.stop(t)
	p.Stop(t)
}
