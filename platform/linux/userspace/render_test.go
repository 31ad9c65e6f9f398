// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace_test

import (
	"bufio"
	"strings"
	"testing"

	"kubeproxy/common/document"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/userspace"
)

// TestRenderUnsupported checks that rendered text and JSON name a port that the mode cannot serve.
func TestRenderUnsupported(t *testing.T) {
	p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "signal", Port: "s", Protocol: service.SCTP}}
	want := service.New(1, &service.Node{}, []*service.Port{p})
	all, doc := userspace.Render(want, userspace.Options{Rules: iptables.Options{MasqueradeBit: 14}})
	for _, format := range []document.Format{document.Text, document.JSON} {
		var b strings.Builder
		if err := format.Write(&b, doc, func(w *bufio.Writer) { w.WriteString(all.String()) }); err != nil {
			t.Fatal(err)
		}
		if text := "service port shop/signal:s (sctp, IPv4): mode userspace forwards TCP and UDP only"; strings.Count(b.String(), text) != 1 {
			t.Errorf("%s does not say once: %s\n%s", format, text, b.String())
		}
	}
}
