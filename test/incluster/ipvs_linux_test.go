// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestIPVS runs mode ipvs. It has a control plane of its own, as it runs in a virtual
// machine, where the other tests of this package would take too long.
func TestIPVS(t *testing.T) {
	if !ipvs.Installed() {
		t.Skip("the kernel has no IPVS; make vm runs this on one that has")
	}
	w := newFixture(t)
	w.mode, w.trackOptions.NodePortsPrimary = "ipvs", false
	w.kernel = program.NewIPVSKernel(t, w.Node, ipvs.Options{MasqueradeBit: 14, SyncPeriod: time.Minute})
	t.Run("asked for by the Node", func(t *testing.T) {
		w.clear(t)
		testIPVSByAnnotation(t, w)
	})
	t.Run("every type of Service", func(t *testing.T) {
		w.clear(t)
		w.flags = []string{"--proxy-mode=ipvs"}
		testTypes(t, w)
	})
	w.wantVirtualServers(t, nil) // a Service was left, until the cleanup
}

// testIPVSByAnnotation selects the mode by the Node's annotation, and checks that the
// process reports it. It adds a Service, removes an endpoint and deletes the Service. In
// the end IPVS must be empty according to ipvsadm, not only to the proxy.
func testIPVSByAnnotation(t *testing.T, w *fixture) {
	n := node()
	n.Annotations = map[string]string{modeAnnotation: "ipvs"}
	w.set(t, n)
	w.wantVirtualServers(t, nil)
	p := w.start(t)
	p.AwaitLog(t, `"Starting"`, `mode="ipvs"`, `modeFrom="the Node's annotation `+modeAnnotation+`"`)
	awaitHealth(t, p, "all is programmed", http.StatusOK, http.StatusOK)
	if mode := string(p.Fetch(t, program.MetricsAddr, "/proxyMode").Body); mode != "ipvs" {
		t.Errorf("/proxyMode is %q, want ipvs", mode)
	}
	kit.Until(t, "the Event that the proxy starts", func() bool { return w.hasEvent(t, "Starting") })

	web := newService("web")
	w.set(t, append(endpoints("web", w.webs(4)...), web)...)
	w.awaitProgrammed(t).Check(t, w.calls(t, web))
	w.wantVirtualServers(t, web)
	w.set(t, endpoints("web", w.webs(4)[1:]...)...)
	w.awaitProgrammed(t).Check(t, w.calls(t, web))
	calls := w.calls(t, web)
	w.remove(t, append(endpoints("web"), web)...)
	w.awaitProgrammed(t).Check(t, calls)
	w.wantVirtualServers(t, nil)
	p.Stop(t)
}

// hasEvent returns whether the API server has an Event about the Node.
func (w *fixture) hasEvent(t *testing.T, reason string) bool {
	t.Helper()
	list, err := w.api.Client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
		return e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == netlab.NodeName && e.Reason == reason
	})
}

// wantVirtualServers compares the addresses and ports of all virtual servers in
// ipvsadm(8) with those of a Service, which may be nil.
func (w *fixture) wantVirtualServers(t *testing.T, s *corev1.Service) {
	t.Helper()
	var want, got []string
	if s != nil {
		stored, err := w.api.Client.CoreV1().Services(s.Namespace).Get(t.Context(), s.Name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, a := range stored.Spec.ClusterIPs {
			if strings.Contains(a, ":") {
				a = "[" + a + "]"
			}
			want = append(want, "-t "+a+":80", "-u "+a+":80")
		}
	}
	text, err := program.Run(t, w.Node, exec.Command("ipvsadm", "-S", "-n"))
	if err != nil {
		t.Fatalf("ipvsadm: %v\n%s", err, text)
	}
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "-A" {
			got = append(got, words[1]+" "+words[2])
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("virtual servers %q, want %q, in\n%s", got, want, text)
	}
}
