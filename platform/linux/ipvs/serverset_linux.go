// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net/netip"

	"kubeproxy/platform/linux/beside"
	"kubeproxy/platform/linux/ipset"
)

// openSets opens a socket for ipsets, once one is asked for.
func (k *kernel) openSets() (err error) {
	if k.sets == nil {
		k.sets, err = ipset.Open()
	}
	return err
}

// removeFromSet takes virtual servers out of the set of them that go with ops.
func (k *kernel) removeFromSet(ops []op) error {
	var entries []ipset.Entry
	for i := range ops {
		if ops[i].removesFromSet() {
			entries = append(entries, ops[i].key.entry())
		}
	}
	return k.deleteEntries(beside.VirtualServerSet(k.family), entries)
}

// addToSet puts virtual servers into the set of them that are there by ops, of
// which some failed.
func (k *kernel) addToSet(ops []op, failed map[int]error) error {
	var members []ipset.Member
	for i := range ops {
		if ops[i].addsToSet(failed[i]) {
			members = append(members, ipset.Member{Entry: ops[i].key.entry()})
		}
	}
	if len(members) == 0 {
		return nil
	}
	if err := k.openSets(); err != nil {
		return err
	}
	if err := k.sets.Add(beside.VirtualServerSet(k.family), members); !errors.Is(err, ipset.ErrMissing) {
		return err
	}
	return nil // no chain asks
}

// deleteEntries removes entries from s. Where there is no such set, nothing is in it.
func (k *kernel) deleteEntries(s ipset.Set, entries []ipset.Entry) error {
	if len(entries) == 0 || !ipset.Present() {
		return nil
	}
	if err := k.openSets(); err != nil {
		return err
	}
	if err := k.sets.Del(s, entries); !errors.Is(err, ipset.ErrMissing) {
		return err
	}
	return nil
}

// applySetOp makes the sets of virtual servers and of the node's addresses, and
// changes the latter.
func (k *kernel) applySetOp(o *op) error {
	servers, addrs := beside.VirtualServerSet(k.family), beside.NodeIPSet(k.family)
	e := ipset.Entry{Addr: o.route.addr}
	if o.verb == delAddrFromSet {
		return k.deleteEntries(addrs, []ipset.Entry{e})
	}
	if err := k.openSets(); err != nil {
		return err
	}
	if o.verb == addSets {
		return errors.Join(k.sets.Create(servers), k.sets.Create(addrs))
	}
	return k.sets.Add(addrs, []ipset.Member{{Entry: e}})
}

// readSets fills in what those sets hold.
func (k *kernel) readSets(s *state) error {
	if !ipset.Present() {
		return nil
	}
	if err := k.openSets(); err != nil {
		return err
	}
	servers, err := k.sets.List(beside.VirtualServerSet(k.family))
	addrs, addrsErr := k.sets.List(beside.NodeIPSet(k.family))
	for _, err := range []error{err, addrsErr} {
		if err != nil && !errors.Is(err, ipset.ErrMissing) {
			return err
		}
	}
	s.hasSets, s.serverSet, s.addrSet = err == nil && addrsErr == nil, map[key]bool{}, map[netip.Addr]bool{}
	heads, err := k.sets.Headers()
	if err != nil {
		return err
	}
	for _, h := range heads { // what somebody put in their place goes, see ipset.Header
		switch {
		case h.Altered && h.Name == beside.VirtualServerSet(k.family).Name:
			s.hasSets, servers = false, nil
		case h.Altered && h.Name == beside.NodeIPSet(k.family).Name:
			s.hasSets, addrs = false, nil
		}
	}
	for _, e := range servers {
		s.serverSet[key{e.Addr, e.Port, e.Protocol}] = true
	}
	for _, e := range addrs {
		s.addrSet[e.Addr] = true
	}
	return nil
}
