// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"cmp"
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/packet"
)

// Connection tracking knows the endpoint of a TCP connection from its first packet on. If nobody
// answers there, each SYN that the client repeats meets the entry, for two minutes, and goes to
// the same endpoint. So connections to Services have timeouts of their own: the entry of a SYN
// that nobody answered ends after a second. Clients repeat it after a second (RFC 6298, 2.1), and
// timers of Linux are never early, so the repeated SYN is a new connection and draws again. With
// the answer the entry enters another state, so an endpoint that answers keeps its clients, also
// if the answer is lost behind this node.
//
// The chains of type nat have what it takes: they see the first packet alone, and its entry is
// not confirmed, after which its timeouts could not be set (kernel: net/netfilter/nft_ct.c,
// nft_ct_timeout_obj_eval). That function looks at the protocol itself. SCTP needs nothing: its
// entry ends after 3 s (kernel: net/netfilter/nf_conntrack_proto_sctp.c, sctp_timeouts), when
// Linux repeats an INIT, see rto_initial in
// https://docs.kernel.org/networking/ip-sysctl.html

// timeouts are those of TCP connections by state, in seconds, as an object of the kernel has
// them. Later settings of the kernel do not concern it, and nothing can change it, so its name
// follows from all of them.
type timeouts [len(tcpStates)]uint32

// tcpStates are the states, by the names that nft gives them, in the order of the kernel's
// attributes (kernel: include/uapi/linux/netfilter/nfnetlink_cttimeout.h,
// CTA_TIMEOUT_TCP_SYN_SENT and on), and those of the kernel's settings. nft does not list the
// values that are usual (kernel: net/netfilter/nf_conntrack_proto_tcp.c, tcp_timeouts).
var tcpStates = [...]struct {
	name, setting string
	usual         uint32
}{
	{"syn_sent", "", 120}, {"syn_recv", "syn_recv", 60}, {"established", "established", 432000}, {"fin_wait", "fin_wait", 120},
	{"close_wait", "close_wait", 60}, {"last_ack", "last_ack", 30}, {"time_wait", "time_wait", 120}, {"close", "close", 10},
	{"syn_sent2", "", 120}, {"retrans", "max_retrans", 300}, {"unack", "unacknowledged", 300},
}

// unanswered is how long the entry of a first packet without an answer stays, in seconds. The
// kernel takes no fractions.
const unanswered = 1

// drawTimeouts returns the timeouts for a second draw, with the settings of the kernel that setting
// returns, 0 for one that is not known.
func drawTimeouts(setting func(string) uint32) timeouts {
	var t timeouts
	for i, s := range tcpStates {
		if s.setting != "" {
			t[i] = setting(s.setting)
		}
		t[i] = cmp.Or(t[i], s.usual)
	}
	t[0] = unanswered
	return t
}

func unknownSetting(string) uint32 { return 0 }

// set reports whether t are timeouts for a second draw.
func (t timeouts) set() bool { return t != timeouts{} }

// policy returns those of t that are not usual, as nft lists them.
func (t timeouts) policy() string {
	var parts []string
	for i, n := range t {
		if n != tcpStates[i].usual {
			parts = append(parts, fmt.Sprintf("%s : %d", tcpStates[i].name, n))
		}
	}
	return strings.Join(parts, ", ")
}

// object is an object of the table.
type object struct {
	name     string
	kind     uint32 // of the kernel, such as timeoutObject
	timeouts timeouts
}

// timeoutObject is NFT_OBJECT_CT_TIMEOUT.
const timeoutObject = 7

// objects are those that o needs.
func (o Options) objects() []*object {
	if !o.draw.set() {
		return nil
	}
	sum := sha256.Sum256(fmt.Append(nil, o.draw))
	return []*object{{fmt.Sprintf("second-draw-%x", sum[:4]), timeoutObject, o.draw}}
}

// text returns x in the syntax of nft.
func (x *object) text(f service.Family) string {
	return fmt.Sprintf("\tct timeout %s {\n\t\tprotocol tcp;\n\t\tl3proto %s\n\t\tpolicy = { %s }\n\t}\n", x.name, netlink.FamilyName(f), x.timeouts.policy())
}

// drawsAgain returns the rules of a chain that draws an endpoint. If nobody answers there, the
// client's next packet gets there, too.
func (o Options) drawsAgain(rules []rule) []rule {
	for _, x := range o.objects() {
		rules[0] = append(rule{setTimeouts{x.name}}, rules[0]...)
	}
	return rules
}

// setTimeouts gives a TCP connection the timeouts of an object.
type setTimeouts struct{ object string }

func (s setTimeouts) text(service.Family) string { return fmt.Sprintf("ct timeout set %q", s.object) }

func (s setTimeouts) expressions(service.Family) []packet.Expression {
	return []packet.Expression{s}
}

// drawFeature returns ops that a kernel refuses if it lacks what a second draw needs.
func drawFeature() []op {
	o := Options{draw: drawTimeouts(unknownSetting)}
	chain := &chain{name: "draw", rules: o.drawsAgain([]rule{dnatRule})}
	return appendChain([]op{{verb: addTable}, {verb: addObject, object: o.objects()[0]}, {verb: addSet, set: endpoints}}, chain)
}

func lacksDraw(f service.Family, err error) string {
	return fmt.Sprintf("the kernel has no timeouts in rules for %s (module nft_ct, CONFIG_NF_CONNTRACK_TIMEOUT), so a connection that its endpoint does not answer gets no other one: %v", f, err)
}

// Rules of iptables can give a connection timeouts in table raw alone, which sees every packet.
// So modes that translate by such rules have a table of nftables beside them, with nothing but
// the frontends and the timeouts. Its chains run just before those of table nat, and once for a
// connection, too.

// drawTable returns the name of that table.
func drawTable(proxyName string) string {
	if proxyName == "" {
		return "kube-second-draw"
	}
	return "kube-second-draw-" + proxyName
}

var (
	frontends         = &set{name: "frontends", kind: plainSet, key: addrKey}
	nodePortFrontends = &set{name: "nodeport-frontends", kind: plainSet, key: nodePortKey}
)

// drawChains are those of a table with nothing else.
func drawChains(o Options) []*chain {
	var all []*chain
	for _, at := range []string{"prerouting", outputChain} {
		c := &chain{name: at, hook: &hook{name: at, priority: dstNAT - 1}}
		for _, x := range o.objects() {
			c.rules = []rule{
				{lookup{addrKey, frontends, false}, setTimeouts{x.name}},
				{isLocal{daddr}, lookup{nodePortKey, nodePortFrontends, false}, setTimeouts{x.name}},
			}
		}
		all = append(all, c)
	}
	return all
}

// drawElements are those of p, which may be nil, sorted.
func drawElements(p *service.Port) []element {
	if p == nil || p.Name.Protocol != service.TCP {
		return nil
	}
	var all []element
	b := builder{layout: layout{port: p}, family: p.Family}
	for i := range p.Frontends {
		e := element{in: frontends, key: b.key(&p.Frontends[i], -1), comment: comment(p.Name)}
		if p.Frontends[i].Kind == service.NodePort {
			e.in = nodePortFrontends
		}
		all = append(all, e)
	}
	slices.SortFunc(all, element.compare)
	return all
}

// planDrawOnly is plan for a table with nothing else.
func (c *comparison) planDrawOnly() *plan {
	for _, x := range c.next.options.objects() {
		c.addObject(x)
	}
	for _, s := range []*set{frontends, nodePortFrontends} {
		c.addSet(&c.baseOps, s)
	}
	for _, x := range drawChains(c.next.options) {
		c.addChain(&c.baseOps, x)
	}
	if len(c.baseOps) > 0 {
		c.units = append(c.units, unit{ops: c.baseOps, prerequisite: true})
	}
	for p := range c.want.Ports(c.backend.family) {
		if ops := c.compareElements(nil, drawElements(p)...); len(ops) > 0 {
			c.units = append(c.units, unit{to: layout{port: p}, ops: ops})
		}
	}
	c.deleteExtraneous()
	return &plan{backend: c.backend, next: c.next, units: c.units, fullSync: true}
}

// noDraw is the Backend of NewSecondDraw on a kernel that cannot have it.
type noDraw struct {
	reconcile.Base
	reason string
}

// Plan implements reconcile.Backend.
func (n noDraw) Plan(context.Context, *service.Snapshot) (reconcile.Plan, error) {
	return &plan{backend: &Backend{lacks: n.reason}}, nil
}

// Cleanup implements reconcile.Backend.
func (noDraw) Cleanup(context.Context) error { return nil }
