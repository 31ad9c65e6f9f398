// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import "testing"

// testModeAnnotation has the Node ask for a mode, as Nodes did in old times,
// and the configuration overrule it.
func testModeAnnotation(t *testing.T, w *world) {
	n := node()
	const annotation = "net.experimental.kubernetes.io/proxy-mode"
	for _, tc := range []struct {
		annotated string
		flags     []string
		want      []string
	}{
		{"iptables", nil, []string{`mode="iptables"`, `modeFrom="the Node's annotation ` + annotation + `"`}},
		{"iptables", []string{"--proxy-mode=nftables"}, []string{`mode="nftables"`, `modeFrom="--proxy-mode"`}},
		{"magic", nil, []string{`mode="nftables"`, `modeFrom="the best that works here"`}},
	} {
		n.Annotations = map[string]string{annotation: tc.annotated}
		w.set(t, n)
		p := w.launch(t, tc.flags...)
		p.AwaitLog(t, append(tc.want, `"Starting"`)...)
		p.AwaitLog(t, `"Programmed"`, "IPv4")
		p.Stop(t)
	}
}
