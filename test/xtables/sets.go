// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package xtables

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
)

// Sets are ipsets of both families. They change element by element, see ipset(8).
type Sets struct {
	ByName map[string]*SetContents
	// Refuse, if set, may refuse a step before it is done: "add", "del", "create",
	// "destroy", "list" or "heads". It also receives the name of the set.
	Refuse func(step, set string) error
	// Steps counts the completed steps, by name.
	Steps map[string]int
	users []*System
	done  []string // see Changes
}

// SetContents is a set with its elements, and their comments.
type SetContents struct {
	ipset.Set
	Members map[ipset.Entry]string
	Altered bool // see ipset.Header
}

// NewSets returns a kernel without sets.
func NewSets() *Sets { return &Sets{ByName: map[string]*SetContents{}, Steps: map[string]int{}} }

func (k *Sets) step(step, set string) error {
	if k.Refuse != nil {
		if err := k.Refuse(step, set); err != nil {
			return fmt.Errorf("%s ipset %s: %w", step, set, err)
		}
	}
	k.Steps[step]++
	return nil
}

// find returns s with its elements.
func (k *Sets) find(s ipset.Set) (*SetContents, error) {
	h := k.ByName[s.Name]
	switch {
	case h == nil:
		return nil, fmt.Errorf("ipset %s: %w", s.Name, ipset.ErrMissing)
	case h.Set != s:
		return nil, fmt.Errorf("ipset %s: %w", s.Name, ipset.ErrTypeMismatch)
	}
	return h, nil
}

// Create creates a set. If one of that type exists, Create succeeds, and empties it if it
// was Altered.
func (k *Sets) Create(s ipset.Set) error {
	if err := k.step("create", s.Name); err != nil {
		return err
	}
	if h, err := k.find(s); !errors.Is(err, ipset.ErrMissing) && (err != nil || !h.Altered) {
		return err
	}
	k.ByName[s.Name] = &SetContents{Set: s, Members: map[ipset.Entry]string{}}
	k.done = append(k.done, "+ ipset "+s.Name)
	return nil
}

// Destroy removes a set that no rule refers to. A missing set is a success.
func (k *Sets) Destroy(name string) error {
	if err := k.step("destroy", name); err != nil {
		return err
	}
	if slices.ContainsFunc(k.users, func(u *System) bool { return u.refers(name) }) {
		return fmt.Errorf("ipset %s: a rule refers to it: %w", name, errRefused)
	}
	delete(k.ByName, name)
	return nil
}

// Add adds elements.
func (k *Sets) Add(s ipset.Set, members []ipset.Member) error {
	for _, m := range members {
		h, err := k.find(s)
		if err == nil {
			err = fits(s, m.Entry)
		}
		if err == nil {
			err = k.step("add", s.Name)
		}
		if err != nil {
			return err
		}
		k.noteMember(h, m)
		h.Members[m.Entry] = m.Comment
	}
	return nil
}

// Del removes elements. Missing elements are a success.
func (k *Sets) Del(s ipset.Set, entries []ipset.Entry) error {
	for _, e := range entries {
		h, err := k.find(s)
		if err == nil {
			err = fits(s, e)
		}
		if err == nil {
			err = k.step("del", s.Name)
		}
		if err != nil {
			return err
		}
		if _, found := h.Members[e]; found {
			k.done = append(k.done, fmt.Sprintf("- element %s of ipset %s", s.Text(e), s.Name))
		}
		delete(h.Members, e)
	}
	return nil
}

func (k *Sets) noteMember(h *SetContents, m ipset.Member) {
	switch comment, found := h.Members[m.Entry]; {
	case !found:
		k.done = append(k.done, fmt.Sprintf("+ element %s of ipset %s", h.Text(m.Entry), h.Name))
	case comment != m.Comment:
		k.done = append(k.done, fmt.Sprintf("~ element %s of ipset %s has comment %q", h.Text(m.Entry), h.Name, m.Comment))
	}
}

// Changes returns what was changed since the call before, as a plan prints it.
func (k *Sets) Changes() []string {
	all := k.done
	k.done = nil
	return all
}

// fits refuses elements that a kernel would refuse or store in another form.
func fits(s ipset.Set, e ipset.Entry) error {
	port, net := s.Type != ipset.HashIP, s.Type == ipset.HashIPPortNet
	switch {
	case service.FamilyOf(e.Addr) != s.Family, e.Addr.IsUnspecified():
	case (e.Port != 0) != port, !port && e.Protocol != 0, e.Net.IsValid() != net:
	case net && (service.FamilyOf(e.Net.Addr()) != s.Family || e.Net.Bits() == 0 || e.Net != e.Net.Masked()):
	default:
		return nil
	}
	return fmt.Errorf("ipset %s of type %s: %v: %w", s.Name, s.Type, e, errRefused)
}

// Members returns the elements with their comments.
func (k *Sets) Members(s ipset.Set) ([]ipset.Member, error) {
	if err := k.step("list", s.Name); err != nil {
		return nil, err
	}
	h, err := k.find(s)
	if err != nil {
		return nil, err
	}
	var members []ipset.Member
	for _, e := range slices.SortedFunc(maps.Keys(h.Members), ipset.Entry.Compare) {
		members = append(members, ipset.Member{Entry: e, Comment: h.Members[e]})
	}
	return members, nil
}

// Headers returns all sets without their elements.
func (k *Sets) Headers() ([]ipset.Header, error) {
	if err := k.step("heads", ""); err != nil {
		return nil, err
	}
	var all []ipset.Header
	for _, n := range slices.Sorted(maps.Keys(k.ByName)) {
		h := k.ByName[n]
		all = append(all, ipset.Header{Name: n, Type: h.Type, Family: h.Family, Entries: len(h.Members), Altered: h.Altered})
	}
	return all, nil
}

// Text returns the content of all sets, a line each.
func (k *Sets) Text() string {
	var b strings.Builder
	for _, n := range slices.Sorted(maps.Keys(k.ByName)) {
		h := k.ByName[n]
		fmt.Fprintf(&b, "%s:", n)
		for _, e := range slices.SortedFunc(maps.Keys(h.Members), ipset.Entry.Compare) {
			b.WriteString(" " + h.Text(e))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// Close does nothing.
func (k *Sets) Close() error { return nil }

// has returns whether a set contains the element formed by fields of a packet.
func (k *Sets) has(name string, fields []string, p *Tracer) bool {
	h := k.ByName[name]
	e := ipset.Entry{Addr: p.Conn.To.Addr()}
	var from netip.Addr
	switch {
	case h == nil:
		panic("no ipset " + name)
	case slices.Equal(fields, []string{"dst"}) && h.Type == ipset.HashIP:
	case slices.Equal(fields, []string{"dst", "dst", "src"}) && h.Type == ipset.HashIPPortNet:
		from = p.Conn.From
		fallthrough
	case slices.Equal(fields, []string{"dst", "dst"}) && h.Type == ipset.HashIPPort:
		e.Protocol, e.Port = p.Conn.Protocol, p.Conn.To.Port()
	default:
		panic(fmt.Sprintf("ipset %s of type %s is asked for %q", name, h.Type, fields))
	}
	if !from.IsValid() {
		_, found := h.Members[e]
		return found
	}
	for m := range h.Members {
		net := m.Net
		if m.Net = (netip.Prefix{}); m == e && net.Contains(from) {
			return true
		}
	}
	return false
}
