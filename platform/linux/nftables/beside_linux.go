// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/netlink"
)

// LeftTable is the table with connections to endpoints that left, in the network namespace
// of the calling thread. It implements orphans.Table.
type LeftTable struct {
	place Leftovers
	known bool // have is what the table holds
	have  []element
	flows []conntrack.Flow
}

// NewLeftTable returns the table at a LeftPlace.
func NewLeftTable(place Leftovers) *LeftTable { return &LeftTable{place: place} }

// LeftPlace is where the table of the proxy of a name is, also if an earlier process left it.
func LeftPlace(f service.Family, proxyName string) Leftovers {
	return Leftovers{Family: f, Table: LeftTableOf(proxyName)}
}

// Forget implements orphans.Table.
func (t *LeftTable) Forget() { t.known, t.have, t.flows = false, nil, nil }

// Set implements orphans.Table. A table that is not as expected is made again.
func (t *LeftTable) Set(flows []conntrack.Flow) error {
	want := leftElements(flows)
	ops := leftOps(t.have, want)
	if len(ops) == 0 && len(want) > 0 { // which fails if the table is gone
		ops = []op{{verb: addElement, element: want[0]}}
	}
	t.nudge(ended(t.flows, flows), endpointEnd)
	if t.known && t.commit(ops) == nil {
		t.have, t.flows = want, flows
		t.nudge(flows, clientEnd)
		return nil
	}
	t.Forget()
	if err := t.place.Remove(context.Background()); err != nil {
		return err
	}
	if err := t.commit(leftOps(nil, want)); err != nil {
		return fmt.Errorf("%s: %w", t.place, netlink.NFTHint(err))
	}
	t.known, t.have, t.flows = true, want, flows
	t.nudge(flows, clientEnd)
	return nil
}

// nudge nudges one end of flows. It needs CAP_NET_RAW, and ends that send do not need it.
func (t *LeftTable) nudge(flows []conntrack.Flow, end func(conntrack.Flow) (from, to netip.AddrPort)) {
	if len(flows) == 0 {
		return
	}
	fd, err := unix.Socket(int(netlink.NFTFamily(t.place.Family)), unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	for _, f := range flows {
		from, at := end(f)
		var to unix.Sockaddr = &unix.SockaddrInet6{Addr: at.Addr().As16()}
		if at.Addr().Is4() {
			to = &unix.SockaddrInet4{Addr: at.Addr().As4()}
		}
		_ = unix.Sendto(fd, nudge(from, at), unix.MSG_DONTWAIT, to) // the next look nudges clients again
	}
}

func (t *LeftTable) commit(ops []op) error {
	if len(ops) == 0 {
		return nil
	}
	return t.place.withSocket(func(s *netlink.Socket, e *encoder) error { return transact(s, e, ops) })
}

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

// The settings with which a proxy runs are in a table of their own, in every mode: they have to
// outlive the process and its container, and to end with the network namespace, as the rules do.
// The table has no chain, so no packet meets it. Comments hold the text, which is packed, since nft
// could not load its own listing again with longer comments or with quotes in them.
const settingsTable, commentSize = "kube-settings", 120

var settings = &set{name: "settings", key: []field{slot}}

// SettingsPlace is where the settings of the proxy that serves the Services labelled with name are.
func SettingsPlace(f service.Family, name string) Leftovers {
	return Leftovers{Family: f, Table: strings.TrimSuffix(settingsTable+"-"+name, "-")}
}

// KeepSettings replaces the text in the table, if it is another one.
func (l Leftovers) KeepSettings(ctx context.Context, text []byte) error {
	has, err := l.Settings()
	if err == nil && bytes.Equal(has, text) {
		return nil
	}
	var packed bytes.Buffer
	encoder64 := base64.NewEncoder(base64.StdEncoding, &packed)
	z := gzip.NewWriter(encoder64)
	_, _ = z.Write(text) // a buffer takes all
	_, _ = z.Close(), encoder64.Close()
	ops := []op{{verb: addTable}, {verb: addSet, set: settings}}
	for i := uint32(0); packed.Len() > 0; i++ {
		ops = append(ops, op{verb: addElement, element: element{in: settings, key: binary.NativeEndian.AppendUint32(nil, i), comment: string(packed.Next(commentSize))}})
	}
	if len(has) > 0 {
		ops, err = append([]op{{verb: delTable}}, ops...), nil
	} else { // there is no table, or none that can be read
		err = l.Remove(ctx)
	}
	if err == nil {
		err = l.withSocket(func(s *netlink.Socket, e *encoder) error { return transact(s, e, ops) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", l, netlink.NFTHint(err))
	}
	return nil
}

// read returns a set of the table, nil if there is no table.
func (l Leftovers) read(set string) (*observedSet, error) {
	r, err := dialReader(l.Family, Options{Table: l.Table})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	found, there := newObservedSet(setSpec{}), false
	err = retryRead(func() error {
		clear(found.elements)
		err := r.find()
		if there = r.table != nil; err != nil || !there {
			return err
		}
		return r.elements(set, found)
	})
	switch {
	case netlink.LacksNFTables(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", l, netlink.NFTHint(err))
	case !there:
		return nil, nil
	}
	return found, nil
}

// Settings returns the text in the table, nil if there is no table.
func (l Leftovers) Settings() ([]byte, error) {
	found, err := l.read(settings.name)
	switch {
	case err != nil || found == nil:
		return nil, err
	case len(found.elements) == 0:
		return nil, nil
	}
	var packed strings.Builder
	for i := uint32(0); ; i++ {
		e, more := found.get(string(binary.NativeEndian.AppendUint32(nil, i)))
		if !more {
			break
		}
		packed.WriteString(e.comment)
	}
	z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(packed.String())))
	if err != nil {
		return nil, fmt.Errorf("read %s: it was altered: %w", l, err)
	}
	text, err := io.ReadAll(io.LimitReader(z, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read %s: it was altered: %w", l, err)
	}
	return text, nil
}
