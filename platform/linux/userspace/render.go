// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"io"

	"kubeproxy/common/document"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
)

// AssumedPorts are the ports of listeners in rendered output if there is no range: only
// a running process has the ports that the system selects.
var AssumedPorts = Range{40000, 65535}

// Render writes the tables of both families that a node would hold for want after a
// start from nothing, and what the mode cannot do. The output for the same want is the
// same.
func Render(w io.Writer, want *service.Snapshot, o Options, format document.Format) error {
	var docs []iptables.Tables
	for _, f := range service.Families {
		d := Document(f, want, o)
		for p := range want.Ports(f) {
			if err := unsupported(p); err != nil {
				d.Unsupported = append(d.Unsupported, (&reconcile.PortError{Family: f, Name: p.Name, Err: err}).Error())
			}
		}
		docs = append(docs, d)
	}
	return iptables.WriteDocuments(w, docs, format)
}

// Document returns what a node would hold in family f.
func Document(f service.Family, want *service.Snapshot, o Options) iptables.Tables {
	return iptables.Document(f, WithAssumedListeners(want, o), o.rules())
}

// WithAssumedListeners returns want with listeners instead of endpoints, on consecutive
// ports. If the range is too short, the remaining Ports have no endpoints.
func WithAssumedListeners(want *service.Snapshot, o Options) *service.Snapshot {
	ports := o.Ports
	if ports.unset() {
		ports = AssumedPorts
	}
	var all []*service.Port
	for _, f := range service.Families {
		next := map[service.Protocol]int{service.TCP: int(ports.First), service.UDP: int(ports.First)}
		for p := range want.Ports(f) {
			all = append(all, o.withListeners(p, func(service.Policy) (uint16, bool) {
				n := next[p.Name.Protocol]
				next[p.Name.Protocol]++
				return uint16(n), n <= int(ports.Last)
			}))
		}
	}
	redirected := service.New(want.Generation, want.Node, all)
	redirected.Incomplete = want.Incomplete
	return redirected
}
