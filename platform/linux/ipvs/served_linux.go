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

// closeServers takes virtual servers out of the set of them that go with ops.
func (k *kernel) closeServers(ops []op) error {
	var entries []ipset.Entry
	for i := range ops {
		if ops[i].closes() {
			entries = append(entries, ops[i].key.entry())
		}
	}
	return k.drop(beside.Served(k.family), entries)
}

// openServers puts virtual servers into the set of them that are there by ops, of
// which some failed.
func (k *kernel) openServers(ops []op, failed map[int]error) error {
	var members []ipset.Member
	for i := range ops {
		if ops[i].opens(failed[i]) {
			members = append(members, ipset.Member{Entry: ops[i].key.entry()})
		}
	}
	if len(members) == 0 {
		return nil
	}
	if err := k.openSets(); err != nil {
		return err
	}
	if err := k.sets.Add(beside.Served(k.family), members); !errors.Is(err, ipset.ErrMissing) {
		return err
	}
	return nil // no chain asks
}

// drop removes entries from s. Where there is no such set, nothing is in it.
func (k *kernel) drop(s ipset.Set, entries []ipset.Entry) error {
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

// serve makes the sets of virtual servers and of the node's addresses, and
// changes the latter.
func (k *kernel) serve(o *op) error {
	servers, addrs := beside.Served(k.family), beside.NodeIPs(k.family)
	e := ipset.Entry{Addr: o.route.addr}
	if o.verb == closeAddr {
		return k.drop(addrs, []ipset.Entry{e})
	}
	if err := k.openSets(); err != nil {
		return err
	}
	if o.verb == addSets {
		return errors.Join(k.sets.Create(servers), k.sets.Create(addrs))
	}
	return k.sets.Add(addrs, []ipset.Member{{Entry: e}})
}

// readServed fills in what those sets hold.
func (k *kernel) readServed(s *state) error {
	if !ipset.Present() {
		return nil
	}
	if err := k.openSets(); err != nil {
		return err
	}
	servers, err := k.sets.List(beside.Served(k.family))
	addrs, addrsErr := k.sets.List(beside.NodeIPs(k.family))
	for _, err := range []error{err, addrsErr} {
		if err != nil && !errors.Is(err, ipset.ErrMissing) {
			return err
		}
	}
	s.sets, s.served, s.own = err == nil && addrsErr == nil, map[key]bool{}, map[netip.Addr]bool{}
	heads, err := k.sets.Heads()
	if err != nil {
		return err
	}
	for _, h := range heads { // what somebody put in their place goes, see ipset.Head
		switch {
		case h.Altered && h.Name == beside.Served(k.family).Name:
			s.sets, servers = false, nil
		case h.Altered && h.Name == beside.NodeIPs(k.family).Name:
			s.sets, addrs = false, nil
		}
	}
	for _, e := range servers {
		s.served[key{e.Addr, e.Port, e.Protocol}] = true
	}
	for _, e := range addrs {
		s.own[e.Addr] = true
	}
	return nil
}
