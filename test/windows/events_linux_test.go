// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/cluster"
	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/wine"
)

// event waits for an Event with a reason about an object, with all of words.
func (m *mixed) event(t *testing.T, reason, object string, words ...string) {
	t.Helper()
	var seen []string
	reported := func() bool {
		list, err := m.Client.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		seen = nil
		for _, e := range list.Items {
			if e.Reason == reason && e.InvolvedObject.Name == object && has(e.Message, words...) {
				return true
			}
			seen = append(seen, e.Type+" "+e.Reason+" "+e.InvolvedObject.Name+": "+e.Message)
		}
		return false
	}
	deadline := time.Now().Add(kit.Limit)
	for !reported() {
		if time.Now().Before(deadline) {
			time.Sleep(200 * time.Millisecond)
			continue
		}
		t.Fatalf("no Event %s about %s with %q:\n%s\n%s", reason, object, words, strings.Join(seen, "\n"), m.process.Tail())
	}
}

// TestEvents makes HNS refuse a load balancer, lack a feature that a Service needs, and
// stop. Events on a real API server and status report the start and the end of each.
func TestEvents(t *testing.T) {
	m := newMixed(t)
	kubeconfig, err := m.Kubeconfig(cluster.Login{})
	if err != nil {
		t.Fatal(err)
	}
	web, cart, dns := shop()
	m.hns.Hold(6, int(cart.nodePort()))
	m.publish(t, web, cart)
	sticky := dns.service()
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	m.set(t, sticky)
	m.set(t, dns.slice())
	m.start(t, "--kubeconfig="+wine.File(kubeconfig))

	m.event(t, "ServiceNotProgrammed", "cart", "Node node-a", "port web/tcp, IPv4", "HNS says that the port is taken", "0x803b0013")
	m.event(t, "ServiceLimited", "dns", "Limits of mode kernelspace: port web/tcp: session affinity has no timeout")
	if code, output := m.run(t, "status", "shop/dns"); code != 0 || !has(output, "shop/dns: programmed", "session affinity has no timeout") {
		t.Errorf("status shop/dns: exit code %d\n%s", code, output)
	}
	if text := m.fetch(t, "/services"); !has(text, `"unsupported":`, "shop/dns") {
		t.Errorf("no condition in %s", text)
	}
	m.hns.Release(6, int(cart.nodePort()))
	m.event(t, "ServiceProgrammed", "cart", "Node node-a")

	m.hns.Stop(hns.ServerUnavailable)
	m.event(t, "RulesNotProgrammed", "node-a", "HNS is not running")
	m.hns.Start(hns.Everything)
	m.event(t, "RulesProgrammed", "node-a")
	m.node.awaitProgrammed(t, web, cart, dns)
	m.stop(t)
}
