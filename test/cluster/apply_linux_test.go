// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const deployment = `# A comment alone is no object.
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: proxy, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: proxy}
rules:
- {apiGroups: [""], resources: [services], verbs: [list, watch]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {app: proxy}}
  template:
    metadata: {labels: {app: proxy}}
    spec: {containers: [{name: proxy, image: proxy}]}
`

func testApply(t *testing.T, c *Cluster) {
	for range 2 { // the second changes nothing
		if err := c.Apply(t.Context(), []byte(deployment)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Client.AppsV1().DaemonSets("kube-system").Get(t.Context(), "proxy", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	for name, tc := range map[string]struct{ manifest, want string }{
		"unknown field":   {strings.Replace(deployment, "image: proxy", "image: proxy, imgae: x", 1), `document 4: DaemonSet proxy`},
		"field twice":     {strings.Replace(deployment, "image: proxy", "image: proxy, image: x", 1), `document 4`},
		"unknown kind":    {"apiVersion: v1\nkind: Serivce\nmetadata: {name: a}", `kind "Serivce" of "v1"`},
		"unknown version": {"apiVersion: v9\nkind: Service\nmetadata: {name: a}", `kinds of "v9"`},
		"no YAML":         {"a: b: c", "document 1"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.Apply(t.Context(), []byte(tc.manifest))
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Apply = %v, want an error with %q", err, tc.want)
			}
		})
	}
}
