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
	checkLines(t, runScript(t, lackingScript), want)
}

// checkLines checks that each line of out contains all of want's parts.
func checkLines(t *testing.T, out string, want [][]string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != len(want) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(want), out)
	}
	for i, parts := range want {
		for _, part := range parts {
			if !strings.Contains(lines[i], part) {
				t.Errorf("%q lacks %q", lines[i], part)
			}
		}
	}
}

// conntrackScript serves a Service in each mode while the kernel cannot list connections,
// until it can again.
const conntrackScript = `mkdir /tmp/some
cat >/tmp/some/web.yaml <<END
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.1, ports: [{name: web, port: 80}, {name: dns, port: 53, protocol: UDP}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: web, port: 8080}, {name: dns, port: 8053, protocol: UDP}]
endpoints: [{addresses: [10.0.0.9]}]
END
echo hello >/tmp/some/page
sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1
ip address add 10.0.0.9/32 dev lo
ip route add default dev lo
busybox httpd -p 10.0.0.9:8080 -h /tmp/some
wait_for() {
	for i in $(seq 60); do
		"$@" && return
		sleep 1
	done
	echo "never: $*"
}
start="--manifests=/tmp/some/web.yaml --hostname-override=node --cluster-cidr=10.0.0.0/8 --conntrack-max-per-core=0"
reported() { kube-proxy status -o json 2>/dev/null | grep -q stale-connections-IPv4; }
unreported() { ! reported; }
serves() {
	file=$(find /usr/lib/modules -name nf_conntrack_netlink.ko)
	rmmod nf_conntrack_netlink
	mv $file /tmp/hidden
	kube-proxy --proxy-mode=$1 $start 2>/tmp/said >/dev/null &
	proxy=$!
	wait_for reported
	kube-proxy status >/tmp/status
	echo "$1: exit $?, got $(busybox wget -q -O - http://10.96.0.1/page): $(tr -s '\n ' ' ' </tmp/status)"
	mv /tmp/hidden $file
	sed -i 's/port: 80[0-9][0-9], protocol/port: '$2', protocol/' /tmp/some/web.yaml
	wait_for unreported
	kill $proxy
	wait $proxy
	grep 'Stale connections' /tmp/said
	kube-proxy --cleanup 2>/dev/null
}
port=8053
for mode in nftables iptables ipvs userspace; do serves $mode $((++port)); done`

// TestKernelListsNoConnections checks that a proxy whose kernel cannot list connections
// serves, and reports it until the module is there.
func TestKernelListsNoConnections(t *testing.T) {
	const (
		text   = "the kernel lacks the module nf_conntrack_netlink: load it with modprobe"
		failed = `"Stale connections could not all be removed" err="list IPv4 conntrack entries: ` + text + `" backend="`
		again  = `"Stale connections are removed again" backend="`
	)
	var want [][]string
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace"} {
		want = append(want, []string{mode + ": exit 0, got hello: ", "1 Service: all programmed", "stale-connections-IPv4 ", text},
			[]string{failed + mode}, []string{again + mode})
	}
	checkLines(t, runScript(t, conntrackScript), want)
}

// untrackedScript starts each mode on a kernel that tracks no connections.
const untrackedScript = `for i in 1 2 3 4; do
	for module in nf_conntrack_netlink iptable_nat ip6table_nat iptable_filter ip6table_filter nft_compat nft_chain_nat nft_ct nft_nat nft_masq \
		ip_vs_rr ip_vs nf_nat br_netfilter nf_conntrack; do rmmod $module 2>/dev/null; done
done
rm -f $(find /usr/lib/modules -name nf_conntrack.ko)
mkdir /tmp/none
start="--manifests=/tmp/none --hostname-override=node --cluster-cidr=10.0.0.0/8 --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0"
for mode in nftables iptables ipvs userspace; do
	timeout 60 kube-proxy --proxy-mode=$mode $start 2>/tmp/said >/dev/null
	echo "$mode: exit $?: $(tail -n 1 /tmp/said)"
done
kube-proxy --init-only $start 2>/tmp/said >/dev/null
echo "init-only: exit $?: $(tr '\n' ' ' </tmp/said)"`

// TestKernelTracksNoConnections checks that no mode starts on such a kernel, and that one
// sentence says why.
func TestKernelTracksNoConnections(t *testing.T) {
	const none = "the kernel has no connection tracking (module nf_conntrack): "
	var want [][]string
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace"} {
		want = append(want, []string{mode + ": exit 1: kube-proxy: mode " + mode + " cannot work here: ", "cannot be programmed: " + none})
	}
	want = append(want, []string{"init-only: exit 0: ", none})
	checkLines(t, runScript(t, untrackedScript), want)
}

// runScript runs a script in the machine, and returns its output.
func runScript(t *testing.T, script string) string {
	t.Helper()
	var out bytes.Buffer
	code, err := machine(t).Run(t.Context(), vm.Job{Command: []string{"bash", "-c", script}, Proxy: true, Stdout: &out, Stderr: &out})
	if err != nil || code != 0 {
		t.Errorf("exit code %d, %v", code, err)
	}
	return out.String()
}
