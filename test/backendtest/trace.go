// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"context"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// Traced is a connection to a node. The backend follows it through its fake, and tests
// change what the fake holds. The backend sets Follow, Hairpin and State.
type Traced struct {
	T    *rapid.T
	Want *service.Snapshot
	Conn route.Conn
	// Follow is the backend's Trace of Conn.
	Follow func(context.Context) (*explain.Walk, error)
	// Hairpin is as in Expect.
	Hairpin func(service.Endpoint) bool
	// State returns what the fake holds.
	State func() string
}

// TraceTampering draws nodes of both families. start installs the rules for Want, and
// returns what tampers with the fake for Conn. It is called for two connections of each
// node.
func TraceTampering(t *testing.T, cluster func(generate.Cluster) Cluster, start func(w generate.Cluster, c *Traced) (tamper func())) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				w := generate.Cluster{T: t, Family: f}
				drawn := cluster(w)
				ports := drawn.Ports()
				c := &Traced{T: t, Want: service.New(1, drawn.Node(), ports)}
				tamper := start(w, c)
				for range 2 {
					c.Conn = drawn.Conn(ports)
					tamper()
				}
			})
		})
	}
}

// Look compares what Follow finds with what route decides.
func (c *Traced) Look() *explain.Explanation {
	w, err := c.Follow(context.Background())
	if err != nil {
		c.T.Fatal(err)
	}
	x := Explain(route.Decide(c.Want, c.Conn), c.Hairpin)
	x.Compare(w.Path())
	return x
}

// RequireAgreement requires that nothing differs yet.
func (c *Traced) RequireAgreement() {
	if x := c.Look(); x.Verdict != explain.Agree {
		c.T.Fatalf("%+v: %q before anything was changed\n%s", c.Conn, x.Differences, c.State())
	}
}

// RequireNamed requires that a difference contains text.
func (c *Traced) RequireNamed(text string) {
	x := c.Look()
	named := slices.ContainsFunc(x.Differences, func(s string) bool { return strings.Contains(s, text) })
	if x.Verdict != explain.Differ || !named {
		c.T.Errorf("%+v: want %q, found %s %q\n%s", c.Conn, text, x.Verdict, x.Differences, c.State())
	}
}
