// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/nftcommand"
)

// TestNftAcceptsUnusualNames checks that nft reads the output of Render, and that the
// kernel and nft keep every name unchanged.
func TestNftAcceptsUnusualNames(t *testing.T) {
	nftcommand.NeedTables(t)
	want := service.New(1, &service.Node{NodePorts: service.AnyAddress(), Name: "node-a"}, unusualPorts())
	inNamespace(t, func() {
		text, _ := Render(want, Options{MasqueradeBit: 14})
		runNft(t, text.String(), "-f", "-")
		wantNames(t, "loaded by nft")
		runNft(t, "", "flush", "ruleset")
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		apply(t, b, want)
		wantNames(t, "programmed")
		if p, err := newKernel(t, service.IPv4).Plan(context.Background(), want); err != nil || !p.Empty() {
			t.Errorf("a new backend finds %v, or something to do:\n%s", err, generate.Text(p))
		}
	})
}

func wantNames(t *testing.T, how string) {
	t.Helper()
	listing := runNft(t, "", "list", "table", "ip", TableName)
	for _, p := range unusualPorts() {
		for _, n := range affinityNames(p) {
			if !strings.Contains(listing, " "+n+" {\n") {
				t.Errorf("%s: the listing lacks %q", how, n)
			}
		}
		if c := `comment "` + comment(p.Name) + `" :`; !strings.Contains(listing, c) {
			t.Errorf("%s: the listing lacks %s", how, c)
		}
	}
}
