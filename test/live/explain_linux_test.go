// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os/exec"
	"strings"
	"testing"

	"kubeproxy/test/program"
)

// TestExplain asks what becomes of connections, of a node as it should be and of one that
// somebody altered.
func TestExplain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.webs()...), app{name: "sticky", number: 11, sticky: 600}.on(c.webs()...), app{name: "empty", number: 12})
	c.start(t)
	c.awaitProgrammed(t)
	explain := func(args ...string) (code int, out string) {
		cmd := exec.Command(kubeProxy.Path, append([]string{"explain"}, args...)...)
		out, err := program.Run(t, c.Node, cmd)
		if err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), out
	}
	for _, tc := range []struct {
		source, destination string
		code                int
		want                []string
	}{
		{"10.244.1.99", "10.96.0.10:80", 0, []string{"Forwarded to one of", "map endpoints", "The node does what it should."}},
		{"10.244.1.99", "svc/shop/sticky:lines", 0, []string{"session affinity", "The node does what it should."}},
		{"outside", "node:30010", 0, []string{"map nodeports", "masqueraded", "The node does what it should."}},
		{"node", "[fd00:10:96::a]:80", 0, []string{"the node itself", "The node does what it should."}},
		{"10.244.1.99", "svc/shop/empty:lines", 0, []string{"Refused at once", "goto refuse", "The node does what it should."}},
		{"10.244.1.99", "svc/shop/none", 2, []string{"there is no service shop/none"}},
	} {
		code, out := explain(tc.source, tc.destination)
		for _, w := range tc.want {
			if code != tc.code || !strings.Contains(out, w) {
				t.Errorf("explain %s %s: exit %d, want %d; want %q in\n%s", tc.source, tc.destination, code, tc.code, w, out)
			}
		}
	}
	// The proxy repairs this at once the first times, and later once in a second.
	var out string
	program.Await(t, "explain to see what somebody altered", func() bool {
		nft(t, c.Node, "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }\n")
		var code int
		code, out = explain("10.244.1.99", "10.96.0.10:80")
		if code == 1 {
			return true
		}
		program.Await(t, "the element to be back", func() bool {
			return strings.Contains(nft(t, c.Node, "list map ip kube-services services\n"), "10.96.0.10 . tcp . 80")
		})
		return false
	})
	for _, w := range []string{"The node does not do what it should", "services lacks the element 10.96.0.10 . tcp . 80"} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
}
