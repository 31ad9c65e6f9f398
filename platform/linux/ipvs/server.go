// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/ipvs/companion"
)

// key identifies a virtual server.
type key struct {
	addr  netip.Addr
	port  uint16
	proto service.Protocol
}

func (k key) compare(l key) int {
	return cmp.Or(k.addr.Compare(l.addr), cmp.Compare(k.port, l.port), cmp.Compare(k.proto, l.proto))
}

func (k key) String() string {
	return fmt.Sprintf("%s %s", netip.AddrPortFrom(k.addr, k.port), k.proto)
}

// frontend returns the frontend that k stands for.
func (k key) frontend() service.Frontend {
	return service.Frontend{Kind: service.ExternalIP, Addr: k.addr, Port: k.port} // or any kind
}

// server is a virtual server without its destinations. Equal values need no change.
type server struct {
	scheduler string
	flags     uint32
	timeout   uint32 // of persistence, in seconds
}

// Flags of a virtual server (kernel: include/uapi/linux/ip_vs.h).
const (
	flagPersistent = 1 << 0
	flagHashed     = 1 << 1 // set by the kernel
	flagSched1     = 1 << 3 // the meaning depends on the scheduler:
	flagSched2     = 1 << 4 // fall back to another server; use ports, too

	// The kernel keeps bits that it does not define (kernel: net/netfilter/ipvs/ip_vs_ctl.c,
	// ip_vs_add_service). These identify our virtual servers, even after a restart.
	flagOwned     = 0x6b700000
	flagOwnedMask = 0xffff0000
)

func (s server) owned() bool { return s.flags&flagOwnedMask == flagOwned }

// normalized returns s without what the kernel adds.
func (s server) normalized() server {
	s.flags &^= flagHashed
	if s.flags&flagPersistent == 0 {
		s.timeout = 0
	}
	return s
}

// schedulerFlags are the flags for schedulers that select by client address. With them,
// the scheduler includes ports where it can, and selects again if the selected endpoint
// accepts no new connections, for example because it drains.
var schedulerFlags = map[string]uint32{"mh": flagSched1 | flagSched2, "sh": flagSched1}

// dest is a destination of a virtual server.
type dest struct {
	addr      netip.AddrPort
	weight    uint16
	conns     uint32 // number of connections, if it was read
	wrongMode bool   // its forwarding method is not masquerading
}

// desiredServer is a virtual server that a Port needs.
type desiredServer struct {
	key
	server
	endpoints         []service.Endpoint // sorted; empty if the virtual server may be deleted
	preservesClientIP bool               // see companion.PreservesClientIP
	refused           bool               // the rules reject, as the Port has no endpoints
}

// servers returns the desired virtual servers of p's frontends on node at.
func (o Options) servers(p *service.Port, at localNode) []desiredServer {
	var all []desiredServer
	for i := range p.Frontends {
		f := &p.Frontends[i]
		w := desiredServer{
			key{f.Addr, f.Port, p.Name.Protocol}, o.server(p),
			companion.ServerEndpoints(p, f.Kind), companion.PreservesClientIP(p, f.Kind), !p.HasEndpoints(),
		}
		if f.Kind != service.NodePort {
			all = append(all, w)
			continue
		}
		for _, a := range at.node.Addrs {
			if w.addr = a; service.FamilyOf(a) == p.Family && at.node.AnswersNodePorts(a) && !at.reserved[w.key] {
				all = append(all, w)
			}
		}
	}
	return all
}

func (o Options) server(p *service.Port) server {
	s := server{scheduler: o.scheduler(), flags: flagOwned | schedulerFlags[o.scheduler()]}
	if p.Affinity > 0 {
		s.flags |= flagPersistent
		s.timeout = uint32(p.Affinity / time.Second)
	}
	return s
}

// ownAddrs returns the node's own addresses of one family.
func ownAddrs(node *service.Node, f service.Family) []netip.Addr {
	var own []netip.Addr
	for _, a := range node.Addrs {
		if service.FamilyOf(a) == f {
			own = append(own, a)
		}
	}
	return own
}

// virtualAddrs returns the addresses of p that the node has for Services only.
func virtualAddrs(p *service.Port, node *service.Node) []netip.Addr {
	var all []netip.Addr
	for _, f := range p.Frontends {
		if f.Kind != service.NodePort && !slices.Contains(node.Addrs, f.Addr) && !slices.Contains(all, f.Addr) {
			all = append(all, f.Addr)
		}
	}
	return all
}

// entry returns k as an element of the set of virtual servers.
func (k key) entry() ipset.Entry { return ipset.Entry{Addr: k.addr, Protocol: k.proto, Port: k.port} }
