// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/program"
)

// testUserspace runs mode userspace. One Service goes through all its types while another
// one carries traffic. Then the node switches between this mode and mode iptables while
// Services are created, changed and deleted.
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
		x.kernel = program.NewUserspaceKernel(t, w.Node, userspace.Options{Rules: o})
	}
	return &x
}

// testHandOver replaces the process several times: by mode relays, twice, by mode other,
// and by relays again. Changes before the end of a process, and while there is none, are
// programmed afterwards, and no connection to an unchanged endpoint is lost.
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
		w.set(t, endpoints("web", w.webs(4 + i)[i:]...)...) // one is removed and serves on, one is added
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
