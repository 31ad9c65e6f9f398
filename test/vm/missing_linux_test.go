// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"bytes"
	"strings"
	"testing"

	"kubeproxy/test/vm"
)

// lackingScript starts the proxy where a feature is missing. It hides modules before
// their first use, or unloads them.
const lackingScript = `try() {
	timeout 60 $in kube-proxy --proxy-mode=$* --manifests=/tmp/none --hostname-override=node --cluster-cidr=10.0.0.0/8,fd00::/48 \
		--conntrack-max-per-core=0 2>/tmp/said >/dev/null
	echo "$1: exit $?: $(tr '\n' ' ' </tmp/said)"
}
without() {
	rmmod $* 2>/dev/null
	for module in $*; do rm -f $(find /usr/lib/modules -name $module.ko); done
}
hidden() {
	file=$(find /usr/lib/modules -name $1.ko)
	mv $file /tmp/hidden
	try ipvs
	mv /tmp/hidden $file
}
mkdir /tmp/none
mv /usr/sbin/iptables /tmp/iptables
try ipvs
mv /tmp/iptables /usr/sbin/iptables
for module in ip_set ip_set_hash_ipportnet xt_set; do hidden $module; done
in="/usr/bin/setpriv --bounding-set=-net_raw --inh-caps=-net_raw" try ipvs
in="unshare --user --map-root-user --net" try ipvs
without ip_vs_rr
try ipvs
without dummy
try ipvs --ipvs-scheduler=wrr
without $(lsmod | sed -n 's/^\(ip_vs_[a-z]*\) .*/\1/p') ip_vs
try ipvs
without nft_numgen nft_masq xt_statistic
try nftables
try iptables`

// TestKernelLacks checks that a mode whose node lacks a feature ends with one sentence
// that names it.
func TestKernelLacks(t *testing.T) {
	var out bytes.Buffer
	code, err := machine(t).Run(t.Context(), vm.Job{Command: []string{"bash", "-c", lackingScript}, Proxy: true, Stdout: &out, Stderr: &out})
	if err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	const ipvs = "kube-proxy: mode ipvs cannot work here: IPv4 is the primary family by bindAddress 0.0.0.0 and cannot be programmed: "
	const lacks = ipvs + "IPVS for IPv4: "
	want := [][]string{
		{"ipvs: exit 1: ", ipvs, "the command iptables is missing: install iptables"},
		{"ipvs: exit 1: ", ipvs, "there are no ipsets of type hash:ip (kernel modules ip_set and ip_set_hash_ip): "},
		{"ipvs: exit 1: ", ipvs, "there are no ipsets of type hash:ip,port,net (kernel modules ip_set and ip_set_hash_ipportnet): "},
		{"ipvs: exit 1: ", ipvs, "there is no match set (kernel module xt_set): "},
		{"ipvs: exit 1: ", ipvs, "the right CAP_NET_RAW is needed to ask for ipsets: "},
		{"ipvs: exit 1: ", lacks, "the right CAP_NET_ADMIN is needed"},
		{"ipvs: exit 1: ", lacks, `the kernel has no scheduler "rr" (module ip_vs_rr): it has dh, `},
		{"ipvs: exit 1: ", lacks, "a kernel with dummy interfaces is needed (module dummy)"},
		{"ipvs: exit 1: ", lacks, "the kernel has no IPVS (module ip_vs)"},
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
