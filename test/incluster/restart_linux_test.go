// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/common/service"
	"kubeproxy/test/program"
)

// testRestart stops and kills the proxy while connections are made all the time. None is
// lost, and a proxy that finds the desired state writes nothing.
func testRestart(t *testing.T, w *fixture) {
	web := newService("web", typed(corev1.ServiceTypeNodePort))
	sticky := newService("sticky", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
	w.set(t, append(endpoints("web", w.webs(4)...), web)...)
	w.set(t, append(endpoints("sticky", w.webs(4)...), sticky)...)
	p := w.start(t)
	traffic, more := w.load(t, web), w.load(t, sticky)
	before := program.Generation(t, w.Node)

	for _, end := range []struct {
		how string
		do  func()
	}{{"killed", func() { p.Kill() }}, {"stopped", func() { p.Stop(t) }}} {
		end.do()
		p = w.launch(t)
		for _, f := range service.Families {
			p.AwaitLog(t, `"Programmed"`, "nftables "+f.String(), "changed=false")
		}
		if now := program.Generation(t, w.Node); now != before {
			t.Errorf("%s and started again, the proxy wrote the rules %d times", end.how, now-before)
		}
		w.awaitProgrammed(t)
	}

	// The new process programs what changed in between, and nothing else. The removed
	// endpoint serves on for a while, as terminating pods do.
	p.Kill()
	w.set(t, endpoints("web", w.webs(10)[1:]...)...)
	w.remove(t, append(endpoints("sticky"), sticky)...)
	gone := more.calls
	more.stop(t)
	p = w.launch(t)
	w.awaitProgrammed(t).Check(t, gone)
	traffic.stop(t)
	p.Stop(t)
}
