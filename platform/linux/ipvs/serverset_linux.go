// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"net/netip"

	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/ipvs/companion"
)

// openSets opens the socket for ipsets on first use.
func (k *kernel) openSets() (err error) {
	if k.sets == nil {
		k.sets, err = ipset.Open()
	}
	return err
}

// removeFromSet removes from the set the virtual servers that ops delete.
func (k *kernel) removeFromSet(ops []op) error {
	var entries []ipset.Entry
	for i := range ops {
		if ops[i].removesFromSet() {
			entries = append(entries, ops[i].key.entry())
		}
	}
	return k.deleteEntries(companion.VirtualServerSet(k.family), entries)
}

// addToSet adds to the set the virtual servers that exist after ops, some of which
// failed.
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
	if err := k.sets.Add(companion.VirtualServerSet(k.family), members); !errors.Is(err, ipset.ErrMissing) {
		return err
	}
	return nil // without the set, no chain refers to it
}

// deleteEntries removes entries from s. It succeeds if the set does not exist.
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

// applySetOp creates the sets of virtual servers and of node addresses, and changes the
// latter.
func (k *kernel) applySetOp(o *op) error {
	servers, addrs := companion.VirtualServerSet(k.family), companion.NodeIPSet(k.family)
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

// readSets adds the contents of these sets to s.
func (k *kernel) readSets(s *state) error {
	if !ipset.Present() {
		return nil
	}
	if err := k.openSets(); err != nil {
		return err
	}
	servers, err := k.sets.List(companion.VirtualServerSet(k.family))
	addrs, addrsErr := k.sets.List(companion.NodeIPSet(k.family))
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
	for _, h := range heads { // an altered set is replaced, see ipset.Header
		switch {
		case h.Altered && h.Name == companion.VirtualServerSet(k.family).Name:
			s.hasSets, servers = false, nil
		case h.Altered && h.Name == companion.NodeIPSet(k.family).Name:
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
