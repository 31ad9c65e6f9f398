// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"

	"kubeproxy/common/explain"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// TestProbe dials more endpoints of this host than are dialed, one of which works.
func TestProbe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	to := l.Addr().String()
	defer l.Close()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	kit.Must(t, free.Close())
	ask := func(source string, endpoints ...string) *explain.Explanation {
		x := &explain.Explanation{Source: source, Destination: to, Protocol: "tcp", Action: "forward", Steps: []explain.Step{{Rule: "source ranges"}}}
		for _, a := range endpoints {
			x.Endpoints = append(x.Endpoints, explain.Endpoint{Listed: track.Listed{Address: a, Local: true}, Chosen: true})
		}
		return x
	}
	x := ask("127.0.0.1", to, free.Addr().String())
	kit.Must(t, Probe(t.Context(), x))
	if d := x.Probe.Dials; len(d) != 3 || d[0].Result != explain.Connected || d[1].Result != explain.Refused || d[2].To != to || d[2].Result != explain.Connected || !x.Probe.Fails() {
		t.Errorf("%+v", x.Probe)
	}
	x = ask("127.0.0.1", to)
	x.Protocol = "sctp"
	kit.Must(t, Probe(t.Context(), x))
	if r := x.Probe.Dials[0].Result; r != explain.Refused && r != explain.NotDialed {
		t.Errorf("SCTP, on which nobody listens: %+v", x.Probe.Dials[0])
	}
	var many []string
	for i := range MostDials + 2 {
		many = append(many, fmt.Sprintf("127.0.0.1:%d", i+1))
	}
	x = ask("203.0.113.1", many...)
	kit.Must(t, Probe(t.Context(), x))
	if p := x.Probe; len(p.Dials) != MostDials || len(p.Untold) != 3 {
		t.Errorf("%d dials, %q; want that some, the client and the destination are not dialed", len(p.Dials), p.Untold)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err = Probe(ctx, ask("127.0.0.1", to))
	kit.Check(t, errors.Is(err, context.Canceled), "an interrupt ends it with %v", err)
}
