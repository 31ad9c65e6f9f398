// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kubeproxy/common/peers"
	"kubeproxy/common/service"
	"kubeproxy/platform/mode"
	"kubeproxy/test/kit"
)

// prober is the layer of a node with real peers.
type prober struct {
	*peers.Set
	layer *Backend
	stop  func()
	apply func() error
}

// probe runs the layer on a node until stop. Each change of its peers is followed by a round.
func (p *proxies) probe(t *testing.T, f service.Family, node string) *prober {
	x := &prober{}
	var round sync.Mutex
	x.apply = func() error {
		round.Lock()
		defer round.Unlock()
		return p.Host(node).Do(func() error {
			plan, err := x.layer.Plan(context.Background(), p.snapshot(node, f))
			if err != nil {
				return err
			}
			return plan.Apply(context.Background()).Err
		})
	}
	x.Set = peers.New(peers.Options{
		Node: node, Key: Key, Port: Probe,
		Find: func(_ context.Context, names []string, found func(string, []netip.Addr)) error {
			for _, n := range p.names() {
				found(n, []netip.Addr{p.Host(n).Addr(balancer[f])})
			}
			return nil
		},
		Open: func(own netip.Addr) (c peers.Conn, err error) {
			err = p.Host(node).Do(func() error {
				c, err = Open(own, x.layer.Road)
				return err
			})
			return c, err
		},
		Changed: func() {
			if err := x.apply(); err != nil && t.Context().Err() == nil {
				t.Errorf("%s: %v", node, err)
			}
		},
	})
	kit.Must(t, p.Host(node).Do(func() error {
		x.layer = New(f, NewKernel(f, ""), func() mode.Peers { return x.Set })
		return nil
	}), x.apply())
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { x.Run(ctx) })
	x.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(x.stop)
	return x
}

// TestProbes has an ingress node probe the nodes of endpoints through real tunnels.
func TestProbes(t *testing.T) {
	for _, f := range service.Families {
		t.Run(f.String(), func(t *testing.T) {
			p := newProxies(t)
			var off atomic.Bool
			p.alter = func(node string, x *service.Port) {
				if node == "node-a" && off.Load() {
					x.Direct = nil
				}
			}
			all := map[string]*prober{}
			for _, n := range []string{"node-a", "node-b", "node-c"} {
				all[n] = p.probe(t, f, n)
			}
			c := all["node-c"]
			answers := func(node string) bool {
				_, is := c.Answering(f == service.IPv6)[node]
				return is
			}
			until := func(what string, done func() bool) (took time.Duration) {
				start := time.Now()
				defer func() {
					if t.Failed() {
						t.Logf("missing: %v, a knows %v", c.Missing(f == service.IPv6), all["node-a"].Known(f == service.IPv6))
					}
				}()
				kit.Until(t, what, done)
				took = time.Since(start)
				t.Logf("%s after %v", what, took.Round(100*time.Millisecond))
				return took
			}
			until("both answer", func() bool { return answers("node-a") && answers("node-b") && c.Settled() })

			all["node-b"].stop()
			for start, clock := time.Now(), time.Tick(100*time.Millisecond); time.Since(start) < 6*time.Second; <-clock {
				if !answers("node-b") {
					t.Fatalf("its process ended, and the node is no peer after %v: %v", time.Since(start), c.Missing(f == service.IPv6))
				}
			}
			kit.Must(t, p.Host("node-b").Do(func() error {
				family := map[service.Family]string{service.IPv4: "ip", service.IPv6: "ip6"}[f]
				rules := fmt.Sprintf("table %s lost {\nchain c {\ntype filter hook prerouting priority -400\nudp dport %d drop\n}\n}", family, Port)
				out, err := exec.Command("nft", rules).CombinedOutput()
				if err != nil {
					err = fmt.Errorf("%w: %s", err, out)
				}
				return err
			}))
			until("nothing gets to node-b, and it is no peer", func() bool { return !answers("node-b") })
			if !answers("node-a") {
				t.Error("node-a is no peer")
			}
			off.Store(true)
			kit.Must(t, all["node-a"].apply())
			if took := until("node-a is turned off, and is no peer", func() bool { return !answers("node-a") }); took > 2*time.Second {
				t.Error("node-a did not say so")
			}
		})
	}
}
