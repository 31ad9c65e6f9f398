// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package direct

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// protocols returns those that the kernel has.
func protocols() []string {
	if netlab.SCTP() {
		return []string{"tcp", "udp", "sctp"}
	}
	return []string{"tcp", "udp"}
}

// ask sends requests of a host to the Service, and returns how many each endpoint answered. direct is whether it
// sees the host's address.
func (p *proxies) ask(t *testing.T, host, proto string, f service.Family, direct bool) map[string]int {
	t.Helper()
	seen := map[string]int{}
	for range 30 {
		a, err := p.Host(host).Ask(t.Context(), netlab.Query{Proto: proto, To: netip.AddrPortFrom(balancer[f], 80)})
		if err != nil || a.Outcome != netlab.Answered || direct && a.Masqueraded() {
			t.Fatalf("%s %s %s: %+v, %v", host, proto, f, a, err)
		}
		seen[a.Backend]++
	}
	return seen
}

// everywhere calls fn for each family and each ingress node, where packets of customers come in.
func (p *proxies) everywhere(t *testing.T, nodes []string, fn func(f service.Family, ingress string)) {
	t.Helper()
	for _, f := range service.Families {
		p.run(t, f)
		for _, ingress := range nodes {
			kit.Must(t, p.Host("customer").Lead(p.Host(ingress), balancer[f]))
			fn(f, ingress)
		}
	}
}

// TestEndpointsOnNodes has endpoints with the addresses of nodes, several on a node, beside pods. Clients inside
// of the cluster ask, too: a pod may get itself.
func TestEndpointsOnNodes(t *testing.T) {
	p := newProxies(t)
	for _, e := range []end{{"node-a", "node-a", 8090}, {"node-b", "node-b", 8090}, {"node-b", "node-b", 8091}} {
		p.ends = append(p.ends, e)
		_, err := p.Host(e.host).Echo(fmt.Sprint(e.host, "-", e.port), e.port)
		kit.Must(t, err)
	}
	p.everywhere(t, p.names(), func(f service.Family, ingress string) {
		for _, proto := range protocols() {
			if seen := p.ask(t, "customer", proto, f, true); len(seen) < len(p.ends)-2 {
				t.Errorf("%s %s %s: %v served", ingress, proto, f, seen)
			}
			p.ask(t, ingress, proto, f, false)
		}
	})
	for _, pod := range webs {
		p.ask(t, pod, "tcp", service.IPv6, false) // the family of the last run
	}
}

// mirror sends datagrams back from a port of a host.
func (p *proxies) mirror(t *testing.T, host string, port uint16) {
	t.Helper()
	for _, a := range []netip.Addr{p.Host(host).IPv4, p.Host(host).IPv6} {
		c, err := p.Host(host).ListenPacket(t.Context(), "udp", netip.AddrPortFrom(a, port).String())
		kit.Must(t, err)
		t.Cleanup(func() { c.Close() })
		go func() {
			b := make([]byte, 1<<16)
			for {
				n, from, err := c.ReadFrom(b)
				if errors.Is(err, net.ErrClosed) {
					return
				}
				_, _ = c.WriteTo(b[:n], from) // an error is about an earlier one
			}
		}()
	}
}

// TestDatagrams sends datagrams that need fragments, somewhere, in both directions. The first one may be answered
// by an ICMP error.
func TestDatagrams(t *testing.T) {
	p := newProxies(t)
	for _, e := range []end{{"web-2", "node-b", 8081}, {"node-b", "node-b", 8082}} {
		p.mirror(t, e.host, e.port)
		p.ends = []end{e}
		p.everywhere(t, []string{"node-c", "node-b"}, func(f service.Family, ingress string) {
			for _, size := range []int{1400, 1440, 1472, 4000, 60000} {
				c, err := p.Host("customer").Dial(t.Context(), "udp", netip.AddrPortFrom(balancer[f], 80).String())
				kit.Must(t, err)
				kit.Until(t, fmt.Sprintf("%s answers %d bytes of %s through %s", e.host, size, f, ingress), func() bool {
					_, _ = c.Write(make([]byte, size))
					kit.Must(t, c.SetDeadline(time.Now().Add(netlab.SilenceTimeout)))
					n, err := c.Read(make([]byte, 1<<16))
					return err == nil && n == size
				})
				kit.Must(t, c.Close())
			}
		})
	}
}

// TestSmallLink has clients behind a router with a small link. What it says of large answers is for the
// Service's address, and comes in anywhere.
func TestSmallLink(t *testing.T) {
	p := newProxies(t)
	customer, router := p.Host("customer"), p.Host("router")
	far := [...]netip.Addr{netip.MustParseAddr("198.51.100.9"), netip.MustParseAddr("2001:db8:198::9")}
	for _, f := range service.Families {
		kit.Must(t, router.Lead(p.Host("node-d"), balancer[f]), customer.AddAddr(far[f]), router.Do(func() error {
			link := &netlink.Route{Dst: netlink.NewIPNet(far[f].AsSlice()), Gw: customer.Addr(far[f]).AsSlice(), MTU: 1280}
			return errors.Join(netlink.RouteReplace(link), os.WriteFile([...]string{"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv6/conf/all/forwarding"}[f], []byte("1"), 0))
		}))
		for _, n := range p.names() {
			kit.Must(t, p.Host(n).Lead(router, far[f]))
		}
	}
	const size = 1 << 18
	for _, e := range []end{{"web-1", "node-a", 8081}, {"web-2", "node-b", 8081}, {"node-b", "node-b", 8082}} {
		p.ends = []end{e}
		l, err := p.Host(e.host).Listen(t.Context(), "tcp", fmt.Sprint(":", e.port))
		kit.Must(t, err)
		t.Cleanup(func() { l.Close() })
		go netlab.Serve(l, func(c net.Conn) { _, _ = c.Write(make([]byte, size)) })
		p.everywhere(t, []string{"node-c", "node-b", "node-a"}, func(f service.Family, ingress string) {
			kit.Must(t, customer.Do(func() error {
				c, err := (&net.Dialer{LocalAddr: &net.TCPAddr{IP: far[f].AsSlice()}}).Dial("tcp", netip.AddrPortFrom(balancer[f], 80).String())
				if err != nil {
					return err
				}
				defer c.Close()
				n, err := io.Copy(io.Discard, deadline(c))
				if err == nil && n != size {
					err = io.ErrUnexpectedEOF
				}
				return err
			}))
		})
	}
}

// deadline bounds what c waits.
func deadline(c net.Conn) net.Conn {
	_ = c.SetDeadline(time.Now().Add(kit.Limit))
	return c
}

// TestNotServed asks the Service where it does not answer.
func TestNotServed(t *testing.T) {
	sources := func(all ...string) func(string, *service.Port) {
		return func(_ string, x *service.Port) {
			x.Frontends[0].Sources = []netip.Prefix{netip.MustParsePrefix(all[x.Family])}
		}
	}
	p, patience := newProxies(t), [...]time.Duration{netlab.TimedOut: netlab.SilenceTimeout / 3, netlab.Broken: 0}
	for _, tt := range []struct {
		what  string
		port  uint16 // of the endpoints
		alter func(node string, x *service.Port)
		want  netlab.Outcome
	}{
		{"nothing listens", 8089, nil, netlab.Refused},
		{"the client is in the source ranges", 8080, sources("192.0.2.100/32", "2001:db8:2::100/128"), netlab.Answered},
		{"it is not", 8080, sources("192.0.2.0/28", "2001:db8:2::/124"), netlab.TimedOut},
		{"source ranges are for the other node only", 8080, func(node string, x *service.Port) {
			if node == "node-b" {
				sources("192.0.2.0/28", "2001:db8:2::/124")(node, x)
			}
		}, netlab.TimedOut},
	} {
		p.ends, p.alter = []end{{"web-2", "node-b", tt.port}, {"web-3", "node-b", tt.port}}, tt.alter
		p.everywhere(t, []string{"node-c", "node-a", "node-b"}, func(f service.Family, ingress string) {
			for _, proto := range protocols() {
				a, err := p.Host("customer").Ask(t.Context(), netlab.Query{Proto: proto, To: netip.AddrPortFrom(balancer[f], 80), Timeout: patience[tt.want]})
				if err != nil || a.Outcome != tt.want || a.Masqueraded() {
					t.Errorf("%s: %s %s through %s: %+v, %v", tt.what, proto, f, ingress, a, err)
				}
			}
		})
	}
}

// TestViews has each node take the other one for that of some endpoints. A packet for those crosses the tunnel
// once: the rules translate it there if the node has another endpoint, and else it is dropped.
func TestViews(t *testing.T) {
	p := newProxies(t)
	p.ends = []end{{"web-2", "node-b", 8080}, {"web-3", "node-b", 8080}}
	for _, f := range service.Families {
		for wrong := range 2 {
			p.alter = func(node string, x *service.Port) {
				at := cmp.Or(map[string]string{"node-b": "node-a"}[node], "node-b")
				for i := range wrong + 1 {
					x.Cluster[i].Local, x.Cluster[i].Remote, x.Direct.Nodes[i] = false, true, at
				}
			}
			p.run(t, f)
			kit.Must(t, p.Host("customer").Lead(p.Host("node-a"), balancer[f]))
			seen, before := map[netlab.Outcome]int{}, p.crossed(t)
			for range 20 {
				a, err := p.Host("customer").Ask(t.Context(), netlab.Query{Proto: "udp", To: netip.AddrPortFrom(balancer[f], 80), Timeout: netlab.SilenceTimeout / 3})
				kit.Must(t, err)
				seen[a.Outcome]++
			}
			if crossed := p.crossed(t) - before; crossed < 20 || crossed > 30 || seen[[]netlab.Outcome{netlab.Answered, netlab.TimedOut}[wrong]] != 20 {
				t.Errorf("%s: %v, %d packets crossed", f, seen, crossed)
			}
		}
	}
}

// crossed returns how many packets came out of all tunnels.
func (p *proxies) crossed(t *testing.T) (n uint64) {
	t.Helper()
	for _, node := range p.names() {
		kit.Must(t, p.Host(node).Do(func() error {
			l, err := netlink.LinkByName(Device)
			if err == nil {
				n += l.Attrs().Statistics.RxPackets
			}
			return err
		}))
	}
	return n
}
