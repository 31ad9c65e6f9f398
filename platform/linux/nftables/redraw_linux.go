// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// A table of its own leads single connections to another endpoint, see socketlb.Watcher. It is
// there only while there are such, and is asked for new ones alone.

// redrawTable returns the name of the table of the proxy for Services labelled with name.
func redrawTable(name string) string {
	const table = "kube-redraw"
	if name == "" {
		return table
	}
	return table + "-" + name
}

// redrawn has the endpoints by connection. TCP repeats a first packet after 16 s at most,
// unless it waits for long already.
var redrawn = &set{name: "connections", kind: targetMap, key: leftFlows.key[:4], timeout: 20 * time.Second, limit: 4096}

// notAck matches first packets. The client may have got an answer of the endpoint before:
// then its next packet belongs to that connection.
var notAck = without{0x10, "ack"}

// redrawOps make the table.
func redrawOps() []op {
	ops := []op{{verb: addTable}, {verb: addSet, set: redrawn}}
	for _, name := range []string{"prerouting", outputChain} {
		ops = appendChain(ops, &chain{name: name, hook: &hook{name: name, priority: dstNAT - 2}, rules: []rule{
			{isProto{service.TCP}, notAck, dnat{redrawn.key, 0, redrawn}},
		}})
	}
	return ops
}

// RedrawTable is the table of the proxy of a name, in the network namespace of the calling
// thread, also if an earlier process left it. It implements socketlb.Table.
type RedrawTable struct{ Leftovers }

// RedrawPlace returns the table of a family.
func RedrawPlace(f service.Family, proxyName string) RedrawTable {
	return RedrawTable{Leftovers{Family: f, Table: redrawTable(proxyName)}}
}

// Lead implements socketlb.Table.
func (t RedrawTable) Lead(from, to, endpoint netip.AddrPort) error {
	e := element{in: redrawn, value: appendPort(appendAddr(nil, endpoint.Addr()), endpoint.Port())}
	for _, a := range []netip.AddrPort{from, to} {
		e.key = appendPort(appendAddr(e.key, a.Addr()), a.Port())
	}
	add := op{verb: addElement, element: e}
	err := t.commit(add)
	switch {
	case err == nil || errors.Is(err, unix.ENFILE):
		return err
	case errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EEXIST): // it leads elsewhere
		return t.commit(op{verb: delElement, element: e}, add)
	}
	if err := t.Remove(context.Background()); err != nil {
		return err
	}
	if err := t.commit(append(redrawOps(), add)...); err != nil {
		return fmt.Errorf("%s: %w", t, netlink.NFTHint(err))
	}
	return nil
}

func (t RedrawTable) commit(ops ...op) error {
	return t.withSocket(func(s *netlink.Socket, e *encoder) error { return transact(s, e, ops) })
}
