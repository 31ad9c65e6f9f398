// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// floor is a table with the same entries as ours in its two large maps, and the fewest
// rules that use them, pushed by a bare loop.
type floor struct {
	conn                *nftables.Conn
	table               *nftables.Table
	services, endpoints *nftables.Set
}

const (
	floorName    = "floor"
	floorPick    = "pick"
	perMessage   = 500  // elements: the length of an attribute has 16 bits (kernel: include/uapi/linux/netlink.h, struct nlattr)
	perFlush     = 8000 // elements, as ours
	floorSockets = 64 << 20
)

// measureFloor measures the least costs of such a table with the library.
func measureFloor(_ context.Context, t task) (*figures, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer n.close()
	f, l := newFigures(), &floor{}
	if err := n.node.Do(l.open); err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	t.logf("first program")
	before, err := t.kernelMemory()
	if err != nil {
		return nil, err
	}
	m := start()
	if err := l.program(t.Services); err != nil {
		return nil, fmt.Errorf("program the floor: %w", err)
	}
	f.usage("first", m)
	after, err := t.kernelMemory()
	if err != nil {
		return nil, err
	}
	f.set("kernel", after-before)
	t.logf("changes")
	if err := l.changes(t, f); err != nil {
		return nil, err
	}
	rss, err := peakRSS("self")
	f.set("rss", rss)
	return f, err
}

func (l *floor) open() (err error) {
	l.conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		if err := c.SetWriteBuffer(floorSockets); err != nil {
			return err
		}
		return c.SetReadBuffer(floorSockets)
	}))
	return err
}

// program adds the sets, then the rules, then the elements: a rule that is bound to a
// full map makes the kernel walk it (kernel: nf_tables_bind_set in
// net/netfilter/nf_tables_api.c).
func (l *floor) program(services int) error {
	l.table = l.conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: floorName})
	key := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	slotKey := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeInteger)
	to := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	l.services = &nftables.Set{Table: l.table, Name: "services", IsMap: true, Concatenation: true, KeyType: key, DataType: nftables.TypeVerdict}
	l.endpoints = &nftables.Set{Table: l.table, Name: "endpoints", IsMap: true, Concatenation: true, KeyType: slotKey, DataType: to}
	for _, s := range []*nftables.Set{l.services, l.endpoints} {
		if err := l.conn.AddSet(s, nil); err != nil {
			return err
		}
	}
	l.addRules()
	var dial, answer []nftables.SetElement
	for i := range services {
		dial = append(dial, serviceElement(i))
		for j := range perService {
			answer = append(answer, endpointElement(i, j, j))
		}
	}
	for _, step := range []struct {
		set      *nftables.Set
		elements []nftables.SetElement
	}{{l.endpoints, answer}, {l.services, dial}} {
		if err := l.push(step.set, step.elements); err != nil {
			return err
		}
	}
	return nil
}

// addRules adds the two chains that use the sets.
func (l *floor) addRules() {
	key := []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG32_01},
		&expr.Payload{DestRegister: unix.NFT_REG32_02, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
	pick := l.conn.AddChain(&nftables.Chain{Table: l.table, Name: floorPick})
	l.conn.AddRule(&nftables.Rule{Table: l.table, Chain: pick, Exprs: append(key[:3:3],
		&expr.Numgen{Register: unix.NFT_REG32_03, Modulus: perService, Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SetName: l.endpoints.Name, SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: unix.NFT_REG32_00, RegProtoMin: unix.NFT_REG32_01},
	)})
	enter := l.conn.AddChain(&nftables.Chain{
		Table: l.table, Name: "prerouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	l.conn.AddRule(&nftables.Rule{Table: l.table, Chain: enter, Exprs: append(key[:3:3],
		&expr.Lookup{SetName: l.services.Name, SourceRegister: unix.NFT_REG32_00, IsDestRegSet: true},
	)})
}

// push adds elements in as many messages and transactions as necessary.
func (l *floor) push(s *nftables.Set, elements []nftables.SetElement) error {
	waiting := 0
	for len(elements) > 0 {
		n := min(len(elements), perMessage)
		if err := l.conn.SetAddElements(s, elements[:n]); err != nil {
			return err
		}
		elements = elements[n:]
		if waiting += n; waiting < perFlush && len(elements) > 0 {
			continue
		}
		if err := l.conn.Flush(); err != nil {
			return err
		}
		waiting = 0
	}
	return nil
}

func appendKey(key []byte, a netip.Addr, port uint16) []byte {
	ip := a.As4()
	return append(key, ip[0], ip[1], ip[2], ip[3], unix.IPPROTO_TCP, 0, 0, 0, byte(port>>8), byte(port), 0, 0)
}

func serviceElement(i int) nftables.SetElement {
	return nftables.SetElement{
		Key:         appendKey(nil, clusterIP(i), servicePort),
		VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: floorPick},
		Comment:     commentOf(i),
	}
}

// endpointElement is the element of endpoint number of Service i in a slot.
func endpointElement(i, slot, number int) nftables.SetElement {
	ip, port := endpointIP(i, number).As4(), uint16(targetPort)
	return nftables.SetElement{
		Key: binary.NativeEndian.AppendUint32(appendKey(nil, clusterIP(i), servicePort), uint32(slot)),
		Val: []byte{ip[0], ip[1], ip[2], ip[3], byte(port >> 8), byte(port), 0, 0},
	}
}

// changes measures the smallest transactions with the same effect as ours.
func (l *floor) changes(t task, f *figures) error {
	const last = perService - 1
	for _, c := range []struct {
		metric string
		step   func(i, round int) error
	}{{"replace", func(i, round int) error {
		old, now := last+round%2, last+1-round%2
		return l.exchange([]nftables.SetElement{endpointElement(i, last, old)}, []nftables.SetElement{endpointElement(i, last, now)})
	}}, {"scale", func(i, round int) error {
		one := []nftables.SetElement{endpointElement(i, last, last)}
		if round%2 == 0 {
			return l.exchange(one, nil)
		}
		return l.exchange(nil, one)
	}}} {
		var took []time.Duration
		for round := range t.pick(changeRounds, 20) {
			i := serviceOfRound(round, t.Services)
			began := time.Now()
			if err := c.step(i, round); err != nil {
				return fmt.Errorf("change the floor: %w", err)
			}
			took = append(took, time.Since(began))
		}
		f.set(c.metric+".p50", quantile(took, 0.5))
		f.set(c.metric+".p99", quantile(took, 0.99))
	}
	return l.many(t, f)
}

// exchange removes and adds endpoints in one transaction.
func (l *floor) exchange(gone, come []nftables.SetElement) error {
	for part := range chunksOf(gone) {
		if err := l.conn.SetDeleteElements(l.endpoints, part); err != nil {
			return err
		}
	}
	for part := range chunksOf(come) {
		if err := l.conn.SetAddElements(l.endpoints, part); err != nil {
			return err
		}
	}
	return l.conn.Flush()
}

// many removes one endpoint from many Services at once, and adds it again.
func (l *floor) many(t task, f *figures) error {
	var took []time.Duration
	for round := range t.pick(manyRounds, 2) {
		began := time.Now()
		var list []nftables.SetElement
		for i := range min(manyServices, t.Services) {
			list = append(list, endpointElement(i, perService-1, perService-1))
		}
		gone, come := list, list
		if round%2 == 0 {
			come = nil
		} else {
			gone = nil
		}
		if err := l.exchange(gone, come); err != nil {
			return fmt.Errorf("change many Services of the floor: %w", err)
		}
		took = append(took, time.Since(began))
	}
	f.set("many", quantile(took, 0.5))
	return nil
}
