// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"testing"

	"kubeproxy/test/program"
)

const modeAnnotation = "net.experimental.kubernetes.io/proxy-mode"

// testModeAnnotation selects the mode by the Node's annotation, and overrides it in the
// configuration.
func testModeAnnotation(t *testing.T, w *fixture) {
	n := node()
	for _, tc := range []struct {
		annotated string
		flags     []string
		want      []string
	}{
		{"iptables", nil, []string{`mode="iptables"`, `modeFrom="the Node's annotation ` + modeAnnotation + `"`}},
		{"iptables", []string{"--proxy-mode=nftables"}, []string{`mode="nftables"`, `modeFrom="--proxy-mode"`}},
		{"magic", nil, []string{`mode="nftables"`, `modeFrom="the best that works here"`}},
	} {
		n.Annotations = map[string]string{modeAnnotation: tc.annotated}
		w.set(t, n)
		p := w.launchAs(t, tc.want, tc.flags...)
		p.AwaitLog(t, `"Programmed"`, "IPv4")
		p.Stop(t)
	}
}

// launchAs launches a proxy whose start must log the words of want. If the API server is
// too busy to answer the start's question, the proxy is launched again.
func (w *fixture) launchAs(t *testing.T, want []string, flags ...string) *program.Proxy {
	t.Helper()
	var p *program.Proxy
	for range 5 {
		p = w.launch(t, flags...)
		p.AwaitLog(t, `"Starting"`)
		if p.Log.Has(append(want, `"Starting"`)...) || !p.Log.Has("the annotation of the Node cannot be read now") {
			break
		}
		p.Stop(t)
	}
	p.AwaitLog(t, append(want, `"Starting"`)...)
	return p
}
