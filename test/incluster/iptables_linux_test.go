// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"kubeproxy/platform/linux/iptables"
	"kubeproxy/test/program"
)

// testIPTables applies the deployment of mode iptables and runs the proxy with its
// configuration, with each variant of iptables. One Service goes through all its types
// while another one carries traffic.
func testIPTables(t *testing.T, w *fixture) {
	if err := w.api.Apply(t.Context(), deployment(t, "iptables")); err != nil {
		t.Fatalf("deployment iptables: %v", err)
	}
	spec, file := w.pods(t, "kubeproxy", "localhost/kubeproxy-iptables:dev")
	w.validate(t, file, "linux")
	proxy := spec.Containers[0]
	if add := proxy.SecurityContext.Capabilities.Add; !slices.Contains(add, "NET_RAW") || !slices.Contains(add, "NET_ADMIN") {
		t.Errorf("rights %v, want those that iptables-legacy needs", add)
	}
	if !slices.ContainsFunc(proxy.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/run/xtables.lock" && !m.ReadOnly }) {
		t.Errorf("mounts %v lack the lock of the node", proxy.VolumeMounts)
	}
	for _, v := range program.IPTablesVariants {
		t.Run(v, func(t *testing.T) {
			w.clear(t)
			x := *w
			x.mode, x.commands, x.trackOptions.NodePortsPrimary = "iptables", program.IPTables(t, v), false
			x.flags = []string{"--config=" + file}
			x.kernel = program.NewIPTablesKernel(t, w.Node, iptables.Options{MasqueradeBit: 14, DropInvalid: true, Dir: x.commands})
			testTypes(t, &x)
		})
	}
}
