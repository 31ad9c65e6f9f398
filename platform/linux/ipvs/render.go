// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/document"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/ipvs/companion"
)

// Document is what a node would hold in one family.
type Document struct {
	Family    string          `json:"family"`
	Device    string          `json:"device"`
	Addresses []Address       `json:"addresses"`
	Servers   []VirtualServer `json:"virtualServers"`
	companion.Document

	family      service.Family
	lacksDevice bool
}

// Address has a local route.
type Address struct {
	Addr   netip.Addr `json:"address"`
	Source netip.Addr `json:"source,omitzero"` // of the node's own connections
}

// VirtualServer is the virtual server of one address and port.
type VirtualServer struct {
	Service      string           `json:"service"`
	Protocol     string           `json:"protocol"`
	Address      netip.AddrPort   `json:"address"`
	Scheduler    string           `json:"scheduler"`
	Flags        []string         `json:"flags,omitempty"`
	Persistent   uint32           `json:"persistent,omitempty"` // seconds
	Destinations []netip.AddrPort `json:"destinations"`

	remarks []string // lines, in text only
}

// schedulerWords are the names in ipvsadm(8) of the flags whose meaning depends on the
// scheduler.
var schedulerWords = map[uint32]map[string]string{
	flagSched1: {"mh": "mh-fallback", "sh": "sh-fallback"},
	flagSched2: {"mh": "mh-port", "sh": "sh-port"},
}

// Render writes what a node would hold for want in both families after a start from
// nothing, with exactly the addresses that the snapshot names. The output for the same
// want is the same. The text has parts for each family, each headed by the command that
// accepts it: ip, ipvsadm, which does not accept comments, ipset and iptables or
// ip6tables. The last three have the format of ipvsadm -S, ipset save and iptables-save.
// JSON contains the same in lists.
func Render(w io.Writer, want *service.Snapshot, o Options, format document.Format) error {
	var docs []Document
	for _, f := range service.Families {
		docs = append(docs, NewDocument(f, want, o))
	}
	return format.Write(w, docs, func(b *bufio.Writer) {
		for _, d := range docs {
			d.writeText(b)
		}
	})
}

// NewDocument returns what a node would hold in family f.
func NewDocument(f service.Family, want *service.Snapshot, o Options) Document {
	d := Document{Family: f.String(), Device: Device, family: f}
	counts := map[netip.Addr]int{}
	var served []ipset.Member
	source, at := nodeView{node: want.Node}.source(f), newLocalNode(want, f)
	for p := range want.Ports(f) {
		countAddrs(counts, p, want.Node, 1)
		for _, s := range o.servers(p, at) {
			if len(s.endpoints) > 0 {
				d.Servers = append(d.Servers, newVirtualServer(p, s))
				served = append(served, ipset.Member{Entry: s.key.entry()})
			}
		}
	}
	for _, a := range slices.SortedFunc(maps.Keys(counts), netip.Addr.Compare) {
		d.Addresses = append(d.Addresses, Address{a, source})
	}
	var own []ipset.Member
	for _, a := range ownAddrs(want.Node, f) {
		own = append(own, ipset.Member{Entry: ipset.Entry{Addr: a}})
	}
	d.Document = companion.NewDocument(f, want, o.rulesOptions(), companion.Servers{Served: served, Addrs: own})
	return d
}

func newVirtualServer(p *service.Port, s desiredServer) VirtualServer {
	v := VirtualServer{
		Service: p.Name.String(), Protocol: s.proto.String(), Address: netip.AddrPortFrom(s.addr, s.port),
		Scheduler: s.scheduler, Persistent: s.timeout, Flags: flagWords(s.server),
	}
	for _, e := range s.endpoints {
		v.Destinations = append(v.Destinations, e.Addr)
	}
	return v
}

// flagWords returns the flags of s as ipvsadm(8) calls them.
func flagWords(s server) []string {
	var words []string
	for _, bit := range []uint32{flagSched1, flagSched2} {
		if s.flags&bit != 0 {
			words = append(words, cmp.Or(schedulerWords[bit][s.scheduler], fmt.Sprintf("flag-%d", bit)))
		}
	}
	return words
}

func (d Document) writeText(w *bufio.Writer) {
	ip := "ip"
	if d.family == service.IPv6 {
		ip = "ip -6"
	}
	fmt.Fprintf(w, "# for %s -batch -\n", ip)
	switch {
	case d.lacksDevice:
		fmt.Fprintf(w, "# there is no interface %s\n", Device)
	case d.family == service.IPv4:
		fmt.Fprintf(w, "link add %s type dummy\nlink set %s up\n", Device, Device)
	}
	for _, a := range d.Addresses {
		src := ""
		if a.Source.IsValid() {
			src = " src " + a.Source.String()
		}
		fmt.Fprintf(w, "route replace local %s dev %s table local proto 107 metric 1024%s\n", a.Addr, Device, src)
	}
	fmt.Fprint(w, "# for grep ^- | ipvsadm -R\n")
	for _, s := range d.Servers {
		s.writeText(w)
	}
	d.Document.WriteText(w)
}

// at returns the ipvsadm options that identify s.
func (s VirtualServer) at() string {
	return map[string]string{"tcp": "-t ", "udp": "-u ", "sctp": "--sctp-service "}[s.Protocol] + s.Address.String()
}

// String returns the line of ipvsadm -S -n for s, without destinations.
func (s VirtualServer) String() string {
	text := fmt.Sprintf("-A %s -s %s", s.at(), s.Scheduler)
	if s.Persistent > 0 {
		text += fmt.Sprintf(" -p %d", s.Persistent)
	}
	if len(s.Flags) > 0 {
		text += " -b " + strings.Join(s.Flags, ",")
	}
	return text
}

// writeText writes s in the format of ipvsadm -S -n, after its Service.
func (s VirtualServer) writeText(w *bufio.Writer) {
	fmt.Fprintf(w, "# %s\n%s\n", s.Service, s)
	for _, a := range s.Destinations {
		fmt.Fprintf(w, "-a %s -r %s -m -w 1\n", s.at(), a)
	}
	for _, r := range s.remarks {
		fmt.Fprintln(w, r)
	}
}
