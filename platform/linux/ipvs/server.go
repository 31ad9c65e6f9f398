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
	"kubeproxy/platform/linux/beside"
	"kubeproxy/platform/linux/ipset"
)

// key is what a virtual server is found by.
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

// frontend returns what k is about.
func (k key) frontend() service.Frontend {
	return service.Frontend{Kind: service.ExternalIP, Addr: k.addr, Port: k.port} // or any other kind
}

// server is what a virtual server is, but for its destinations. Two that are
// equal need no change.
type server struct {
	scheduler string
	flags     uint32
	timeout   uint32 // of persistence, in seconds
}

// Flags of a virtual server, as the kernel has them.
const (
	flagPersistent = 1 << 0
	flagHashed     = 1 << 1 // set by the kernel alone
	flagSched1     = 1 << 3 // what they mean depends on the scheduler:
	flagSched2     = 1 << 4 // fall back to another server; look at ports, too

	// The kernel keeps the bits that it knows nothing of. These tell our
	// virtual servers from everybody else's, across restarts as well.
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

// schedulerFlags are those of schedulers that choose by the client's address:
// they take ports into account, where they can, and choose again when the
// chosen endpoint takes no new connections, as one that drains.
var schedulerFlags = map[string]uint32{"mh": flagSched1 | flagSched2, "sh": flagSched1}

// dest is a destination of a virtual server.
type dest struct {
	addr      netip.AddrPort
	weight    uint16
	conns     uint32 // that it has, as far as that was asked
	wrongMode bool   // it is not reached by masquerading
}

// desiredServer is a virtual server as a Port wants it.
type desiredServer struct {
	key
	server
	endpoints         []service.Endpoint // sorted; empty if the virtual server may go
	preservesClientIP bool               // see beside.PreservesClientIP
	refused           bool               // by the rules, as nobody serves the Port
}

// servers returns what p wants of the virtual servers of its frontends, on the
// node of at.
func (o Options) servers(p *service.Port, at localNode) []desiredServer {
	var all []desiredServer
	for i := range p.Frontends {
		f := &p.Frontends[i]
		w := desiredServer{
			key{f.Addr, f.Port, p.Name.Protocol}, o.server(p),
			beside.ServerEndpoints(p, f.Kind), beside.PreservesClientIP(p, f.Kind), !p.HasEndpoints(),
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

// ownAddrs are the node's own addresses of one family.
func ownAddrs(node *service.Node, f service.Family) []netip.Addr {
	var own []netip.Addr
	for _, a := range node.Addrs {
		if service.FamilyOf(a) == f {
			own = append(own, a)
		}
	}
	return own
}

// virtualAddrs returns the addresses of p that the node has for it alone.
func virtualAddrs(p *service.Port, node *service.Node) []netip.Addr {
	var all []netip.Addr
	for _, f := range p.Frontends {
		if f.Kind != service.NodePort && !slices.Contains(node.Addrs, f.Addr) && !slices.Contains(all, f.Addr) {
			all = append(all, f.Addr)
		}
	}
	return all
}

// entry is k in the set of virtual servers.
func (k key) entry() ipset.Entry { return ipset.Entry{Addr: k.addr, Protocol: k.proto, Port: k.port} }
