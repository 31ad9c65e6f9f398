// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"bytes"
	"strings"
	"testing"

	"kubeproxy/test/vm"
)

// A mode whose kernel lacks something says what, in one sentence, and ends.
// The modules are taken away before anything needs them.
func TestKernelLacks(t *testing.T) {
	const script = `rmmod nft_numgen nft_masq xt_statistic 2>/dev/null
rm $(find /usr/lib/modules -name nft_numgen.ko -o -name nft_masq.ko -o -name xt_statistic.ko)
mkdir /tmp/none
for mode in nftables iptables; do
	timeout 60 kube-proxy --proxy-mode=$mode --manifests=/tmp/none --hostname-override=node --cluster-cidr=10.0.0.0/8,fd00::/48 \
		--conntrack-max-per-core=0 2>/tmp/said >/dev/null
	echo "$mode: exit $?: $(tr '\n' ' ' </tmp/said)"
done`
	var out bytes.Buffer
	code, err := machine(t).Run(t.Context(), vm.Job{Command: []string{"bash", "-c", script}, Proxy: true, Stdout: &out, Stderr: &out})
	if err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	want := [][]string{
		{"nftables: exit 1: ", "kube-proxy: mode nftables cannot work here", "(module nft_numgen and nft_nat), masquerading in rules (module nft_masq): "},
		{"iptables: exit 1: ", "kube-proxy: mode iptables cannot work here", "there is no match statistic (kernel module xt_statistic)"},
	}
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), out.String())
	}
	for i, parts := range want {
		for _, part := range parts {
			if !strings.Contains(lines[i], part) {
				t.Errorf("%q lacks %q", lines[i], part)
			}
		}
	}
}
