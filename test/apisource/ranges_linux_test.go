// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"os/exec"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// nftCommand lists something of the IPv4 table: its type and its name.
func nftCommand(what []string) *exec.Cmd {
	return exec.Command("nft", "list", what[0], "ip", "kube-services", what[1])
}

// A ServiceCIDR that comes or goes changes the rules, without anything else
// having changed.
func TestServiceCIDRs(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	p := w.start(t, cluster.Login{User: "system:kube-proxy"})
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	drops := func(prefix string) func() bool {
		return func() bool { return strings.Contains(w.nft(t, "chain", "postrouting"), prefix+" jump unallocated") }
	}
	kit.Until(t, "the first range", drops(cluster.ServiceCIDRv4))
	more := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"172.20.0.0/16"}}}
	ranges := w.Client.NetworkingV1().ServiceCIDRs()
	if _, err := ranges.Create(t.Context(), more, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "another range", drops("172.20.0.0/16"))
	// No controller runs that would see that no Service needs it.
	now, err := ranges.Get(t.Context(), more.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now.Finalizers = nil
	if _, err := ranges.Update(t.Context(), now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := ranges.Delete(t.Context(), more.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "the range to go", func() bool { return !drops("172.20.0.0/16")() })
	if !drops(cluster.ServiceCIDRv4)() {
		t.Error("the first range went, too")
	}
}

// oldClusterRole are those of a kube-proxy before ServiceCIDRs.
const oldClusterRole = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: old}
rules:
- {apiGroups: [""], resources: [services, nodes], verbs: [list, watch]}
- {apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: old}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: old}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: old}]
`

// A proxy that may not read ServiceCIDRs works without them, logs that once, and is in
// sync.
func TestWithoutServiceCIDRs(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	if err := w.Apply(t.Context(), []byte(oldClusterRole)); err != nil {
		t.Fatal(err)
	}
	w.set(t, newNode())
	p := w.start(t, cluster.Login{User: "old"})
	p.AwaitLog(t, "Going on without", `kind="servicecidrs"`, "forbidden")
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	kit.Until(t, "healthy", func() bool { return p.Status(t, program.HealthAddr, "/healthz") == 200 })
	if _, found := p.Metric(t, "kubeproxy_source_synced", "source", "servicecidrs"); found {
		t.Error("a source that nobody has counts as one")
	}
	p.Stop(t)
	if n := p.Log.Count("servicecidrs"); n != 1 {
		t.Errorf("%d lines about them, want one", n)
	}
}
