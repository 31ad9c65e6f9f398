// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os/exec"
	"strings"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// TestFaultsOfManifestsEnd breaks two manifests and repairs them one by one: the status
// command and the log follow.
func TestFaultsOfManifestsEnd(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	p := c.start(t)
	shows := func(words, absent []string) {
		t.Helper()
		var out string
		kit.Until(t, "the status with "+strings.Join(words, ", ")+" and without "+strings.Join(absent, ", "), func() bool {
			out, _ = program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status", "--output=wide"))
			has := func(w string) bool { return strings.Contains(out, w) }
			for _, w := range words {
				if !has(w) {
					return false
				}
			}
			for _, w := range absent {
				if has(w) {
					return false
				}
			}
			return true
		})
	}
	shows([]string{"manifests  synced"}, []string{"WHAT IS WRONG"})
	c.write(t, "one.yaml", []byte("kind: ["))
	c.write(t, "two.yaml", []byte("apiVersion: v1\nkind: Service\nmetadata: {name: two}\nspec: {prots: []}\n"))
	shows([]string{"two.yaml: document at line 1: Service default/two", "; and 1 more", "manifests: 2 faults"}, nil)
	c.write(t, "two.yaml", app{name: "two", number: 12}.yaml(t))
	shows([]string{"one.yaml: document at line 1: ", "manifests: 1 fault"}, []string{"two.yaml", "; and "})
	p.AwaitLog(t, "A manifest can be used again, or is gone", "two.yaml: Service default/two")
	c.write(t, "one.yaml", app{name: "one", number: 11}.yaml(t))
	shows([]string{"manifests  synced", "3 Services"}, []string{".yaml", "WHAT IS WRONG"})
	p.AwaitLog(t, "A manifest can be used again, or is gone", "one.yaml: document at line 1")
}
