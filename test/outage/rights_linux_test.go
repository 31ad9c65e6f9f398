// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package outage

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

func testWrongToken(t *testing.T, s *site) {
	testUnknownUser(t, s.join(t, "token"), cluster.Login{Token: "wrong"})
}

func testExpired(t *testing.T, s *site) {
	testUnknownUser(t, s.join(t, "expired"), cluster.Login{User: "system:kube-proxy", Until: time.Now().Add(past)})
}

// testUnknownUser checks that a proxy with an unknown user retries, as the cluster may
// add the user later, and reports the reason.
func testUnknownUser(t *testing.T, n *node, l cluster.Login) {
	n.start(t, l)
	kit.Until(t, "the log says why", func() bool { return n.Log.Has("nauthorized") })
	n.AwaitLog(t, "Still reading and programming for the first time")
	n.neverProgrammed(t)
	if e := n.source(t, "services").Error; e == "" {
		t.Error("/healthz has no error of its source")
	}
	if n.Ended() {
		t.Error("the proxy has ended")
	}
	n.checkLogSize(t)
}

// policyRule is a rule of a ClusterRole.
type policyRule struct{ to, rule string }

func readServices() policyRule {
	return policyRule{"services", `{apiGroups: [""], resources: [services], verbs: [list, watch]}`}
}

func readSlices() policyRule {
	return policyRule{"slices", `{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}`}
}

func readNodes() policyRule {
	return policyRule{"nodes", `{apiGroups: [""], resources: [nodes], verbs: [get, list, watch]}`}
}

func readRanges() policyRule {
	return policyRule{"ranges", `{apiGroups: [networking.k8s.io], resources: [servicecidrs], verbs: [list, watch]}`}
}

// grant gives a user additional privileges.
func (s *site) grant(t *testing.T, user string, rights ...policyRule) {
	t.Helper()
	for _, r := range rights {
		name := user + "-" + r.to
		text := fmt.Sprintf(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: %q}
rules: [%s]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: %q}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: %q}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %q}]
`, name, r.rule, name, name, user)
		if err := s.Apply(t.Context(), []byte(text)); err != nil {
			t.Fatalf("grant %s to %s: %v", r.to, user, err)
		}
	}
}

// testNoNodes denies the proxy access to Nodes: it must work without them.
func testNoNodes(t *testing.T, s *site) {
	n := s.join(t, "no-nodes")
	s.grant(t, "no-nodes", readServices(), readSlices(), readRanges())
	n.start(t, cluster.Login{User: "no-nodes"})
	kit.Until(t, "the log says why", func() bool { return n.Log.Has("nodes", "forbidden") })
	kit.Until(t, "the proxy lives", func() bool { return n.Status(t, program.HealthAddr, "/livez") == http.StatusOK })
	if !n.answers(t, webOf(s)) {
		t.Error("the Service does not answer")
	}
	if r, status := n.report(t); status != http.StatusServiceUnavailable || r.NodeReason == "" {
		t.Errorf("/healthz has status %d, %+v; want 503, for nobody knows of the node", status, r)
	}
	s.grant(t, "no-nodes", readNodes())
	n.healthy(t)
	n.awaitProgrammed(t)
	n.checkLogSize(t)
}

// testNoSlices denies the proxy access to EndpointSlices. It must not program Services
// without endpoints, as that would refuse all their traffic.
func testNoSlices(t *testing.T, s *site) {
	n := s.join(t, "no-slices")
	s.grant(t, "no-slices", readServices(), readNodes(), readRanges())
	n.start(t, cluster.Login{User: "no-slices"})
	kit.Until(t, "the log says why", func() bool { return n.Log.Has("endpointslices", "forbidden") })
	n.AwaitLog(t, "Still reading and programming for the first time")
	n.neverProgrammed(t)
	s.grant(t, "no-slices", readSlices())
	n.healthy(t)
	n.awaitProgrammed(t)
	n.checkLogSize(t)
}
