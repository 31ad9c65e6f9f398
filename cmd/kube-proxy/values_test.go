// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestChartValues compares values of the chart, which a test of the chart renders, and what
// the command says of them.
func TestChartValues(t *testing.T) {
	const dir = "testdata/values/"
	noServer := "apiServer: is not known here: helm install asks the cluster, and helm template needs one like https://192.0.2.1:6443"
	notLocal := "linux.config.iptables.localhostNodePorts: is false in the chart: NodePorts no longer answer on 127.0.0.1; true keeps that"
	primary := "linux.config.nodePortAddresses: is [primary] in mode nftables: NodePorts answer on the addresses of the Node, no longer on all of the machine; [all] keeps that"
	ipvs := []string{
		noServer,
		"metricsBindAddress: is left out: the chart always has this server",
		"DIR/ipvs.yaml:13: conntrack.max: is ignored: set conntrack.maxPerCore and conntrack.min",
		"DIR/ipvs.yaml:12: iptables.localhostNodePorts: has no effect in mode ipvs, only in mode iptables or userspace",
		"DIR/ipvs.yaml:14: winkernel.networkName: has no effect on linux",
		"DIR/ipvs.yaml:13: conntrack.tcpBeLiberal: has no effect in mode ipvs, only in mode iptables or nftables",
		"DIR/ipvs.yaml:11: ipvs.excludeCIDRs: has no prefix of the primary family IPv6",
		"DIR/ipvs.yaml:6: healthzBindAddress: 0.0.0.0:10356 answers IPv4 only, while the primary family is IPv6",
		"DIR/ipvs.yaml:16: nodePortAddress: unknown field; did you mean nodePortAddresses?",
	}
	rke2 := "--cluster-cidr=10.42.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-close-wait=0s --conntrack-tcp-timeout-established=0s " +
		"--healthz-bind-address=127.0.0.1 --hostname-override=node-a --kubeconfig=/var/lib/rancher/rke2/agent/kubeproxy.kubeconfig"
	for name, tt := range map[string]struct {
		file, flags string
		notes       []string
	}{
		"kubeadm": {"kubeadm.yaml", "", []string{
			"linux.mode: is iptables, kube-proxy's mode where none is set; with -- --proxy-mode=nftables the values are for nftables, the default of the chart", notLocal}},
		"kubeadm-nftables": {"kubeadm.yaml", "--proxy-mode=nftables", []string{
			"linux.mode: is nftables, and was iptables", "linux.config.nodePortAddresses: has no localhost: NodePorts no longer answer on 127.0.0.1; with it they do", primary}},
		"kubeadm-all":       {"kubeadm.yaml", "--proxy-mode=nftables --nodeport-addresses=all,localhost", []string{"linux.mode: is nftables, and was iptables"}},
		"kubeadm-localhost": {"kubeadm.yaml", "--iptables-localhost-nodeports=true --proxy-mode=iptables", nil},
		"eks": {"eks.yaml", "", []string{notLocal,
			"DIR/eks.yaml:62: udpIdleTimeout: is not a field any more; it has an effect in mode userspace, like --udp-timeout, and elsewhere conntrack.udpTimeout has"}},
		"rke2": {"", rke2 + " --proxy-mode=ipvs --ipvs-strict-arp", []string{noServer,
			"linux.config.healthzBindAddress: is left out: the kubelet does not reach 127.0.0.1:10256; the chart has [::]:10256"}},
		"ipvs": {"ipvs.yaml", "", ipvs},
		"ipvs-nftables": {"ipvs.yaml", "--proxy-mode=nftables --masquerade-all --service-proxy-name=team --nodeport-addresses=primary,10.0.0.0/8 --master=https://192.0.2.1:6443",
			append([]string{"linux.mode: is nftables, and was ipvs", ipvs[1], ipvs[2],
				"DIR/ipvs.yaml:12: iptables.localhostNodePorts: has no effect in mode nftables, only in mode iptables or userspace",
				"DIR/ipvs.yaml:11: ipvs.minSyncPeriod: has no effect in mode nftables, only in mode ipvs",
				"DIR/ipvs.yaml:11: ipvs.scheduler: has no effect in mode nftables, only in mode ipvs",
				"DIR/ipvs.yaml:11: ipvs.excludeCIDRs: has no effect in mode nftables, only in mode ipvs",
				"DIR/ipvs.yaml:11: ipvs.strictARP: has no effect in mode nftables, only in mode ipvs", ipvs[4]}, ipvs[7:]...)},
		"userspace": {"", "--proxy-mode=userspace --udp-timeout=1s --expose-admin-pages --cleanup-ipvs --socket-acceleration=node --count-traffic --iptables-localhost-nodeports=false --metrics-bind-address=0.0.0.0:9999", []string{
			"--expose-admin-pages: is left out: other values, such as extraArgs, have its effect", noServer,
			"--cleanup-ipvs: is deprecated: --cleanup removes what mode ipvs made, too; only false has an effect, which leaves that alone"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"config", "migrate", "--values"}
			if tt.file != "" {
				args = append(args, dir+tt.file)
			}
			want, err := os.ReadFile(dir + name + ".values.yaml")
			if err != nil {
				t.Error(err)
			}
			var notes strings.Builder
			for _, n := range tt.notes {
				notes.WriteString("note: " + strings.ReplaceAll(n, "DIR/", dir) + "\n")
			}
			got := call(t, "", append(append(args, "--"), strings.Fields(tt.flags)...)...)
			if diff := cmp.Diff(outcome{0, string(want), notes.String()}, got); diff != "" {
				t.Errorf("outcome (-want +got):\n%s", diff)
			}
		})
	}
}
