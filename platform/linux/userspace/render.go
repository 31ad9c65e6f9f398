// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"errors"
	"io"

	"kubeproxy/common/document"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
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
		d, out := Document(f, want, o), Lost(want, f)
		d.Unsupported, _ = out.Limits(want, f)
		docs = append(docs, d)
	}
	return iptables.WriteDocuments(w, docs, format)
}

// Lost returns what a round for want says of ports that the mode cannot serve.
func Lost(want *service.Snapshot, f service.Family) reconcile.Outcome {
	var errs []error
	for p := range want.Ports(f) {
		if err := unsupported(p); err != nil {
			errs = append(errs, &reconcile.PortError{Family: f, Name: p.Name, Err: err})
		}
	}
	return reconcile.Outcome{Err: errors.Join(errs...)}
}

// Differences returns what the mode does with c otherwise than Kubernetes says.
func Differences(want *service.Snapshot, c route.Conn, o iptables.Options) []string {
	if c.Protocol == service.SCTP && route.Decide(want, c).Port != nil {
		return []string{onlyTCPAndUDP}
	}
	return iptables.Differences(want, c, o)
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
