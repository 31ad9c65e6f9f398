// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/netlink"
)

// elementCommand is a command that has elements.
type elementCommand struct {
	command int
	verb    string // for an error, before the set
}

// Add adds elements. An element that is already present is no error and gets the new
// comment. If another process made the set without comments, its elements get none.
// After an error some elements may have been added.
func (k *Kernel) Add(s Set, members []Member) error {
	return k.changeElements(s, elementCommand{nl.IPSET_CMD_ADD, "add to"}, normalize(members))
}

// Del deletes elements. A missing element is no error. After an error some elements may
// have been deleted.
func (k *Kernel) Del(s Set, entries []Entry) error {
	members := make([]Member, len(entries))
	for i, e := range entries {
		members[i].Entry = e
	}
	return k.changeElements(s, elementCommand{nl.IPSET_CMD_DEL, "delete from"}, normalize(members))
}

func (k *Kernel) changeElements(s Set, c elementCommand, members []Member) error {
	k.lock.Lock()
	defer k.lock.Unlock()
	if err := k.batches(s, c, members); err != nil {
		return fmt.Errorf("%s ipset %s: %w", c.verb, s.Name, err)
	}
	return nil
}

func (k *Kernel) batches(s Set, c elementCommand, members []Member) error {
	// The kernel ignores attributes that the type of the set does not have.
	if err := k.checkExisting(s); err != nil {
		return err
	}
	for len(members) > 0 {
		n, err := k.batch(s, c, members)
		if errors.Is(err, unix.Errno(nl.IPSET_ERR_COMMENT)) {
			members = withoutComments(members)
			n, err = k.batch(s, c, members)
		}
		if errors.As(err, new(unix.Errno)) {
			err = k.retryOneByOne(s, c, members[:n])
		}
		if err != nil {
			return err
		}
		members = members[n:]
	}
	return nil
}

// batchSize is the length at which a batch ends. With the one element that exceeds it, a
// message stays below 32 KiB.
const batchSize = 31 << 10

// batch executes c with the first members and returns how many they were. It stops at
// the first one that fails.
func (k *Kernel) batch(s Set, c elementCommand, members []Member) (int, error) {
	e := request(c.command, s.Name)
	e.Uint32(nl.IPSET_ATTR_LINENO|netByteOrder, 0)
	at := e.Nest(nl.IPSET_ATTR_ADT)
	n := 0
	for n < len(members) && len(e.Buf) < batchSize {
		encodeElement(e, s.Type, members[n])
		n++
	}
	e.EndNest(at)
	return n, k.execute(e, nil)
}

// retryOneByOne repeats a failed batch one by one, to find the element at fault.
func (k *Kernel) retryOneByOne(s Set, c elementCommand, members []Member) error {
	for i, m := range members {
		if _, err := k.batch(s, c, members[i:i+1]); err != nil {
			return fmt.Errorf("%s: %w", s.Text(m.Entry), describeErrno(err))
		}
	}
	return nil
}

// withoutComments returns members without comments.
func withoutComments(members []Member) []Member {
	members = slices.Clone(members)
	for i := range members {
		members[i].Comment = ""
	}
	return members
}

// dump requests a list. each may be called again from the start.
func (k *Kernel) dump(e *netlink.Encoder, each func(attrs []byte)) error {
	return describeErrno(netlink.RetryInterrupted(func() error { return k.execute(e, each) }))
}

// List returns the elements without their comments, as Members does.
func (k *Kernel) List(s Set) ([]Entry, error) {
	members, err := k.Members(s)
	if err != nil {
		return nil, err
	}
	var entries []Entry
	for _, m := range members {
		entries = append(entries, m.Entry)
	}
	return entries, nil
}

// Members returns the elements, sorted. A prefix of length 0 is returned as its two
// halves. If the set does not exist, the error is ErrMissing.
func (k *Kernel) Members(s Set) ([]Member, error) {
	k.lock.Lock()
	defer k.lock.Unlock()
	members, err := k.list(s)
	if err != nil {
		return nil, fmt.Errorf("list ipset %s: %w", s.Name, err)
	}
	slices.SortFunc(members, func(a, b Member) int { return a.Compare(b.Entry) })
	return members, nil
}

func (k *Kernel) list(s Set) ([]Member, error) {
	var members []Member
	var mismatch error
	err := k.dump(request(nl.IPSET_CMD_LIST, s.Name), func(part []byte) {
		// Only the first part contains the header.
		if h := readHeader(part); h.Type != "" {
			members, mismatch = nil, s.checkType(h)
		}
		for typ, elements := range netlink.Attributes(part) {
			if typ == nl.IPSET_ATTR_ADT {
				members = appendMembers(members, elements)
			}
		}
	})
	return members, errors.Join(err, mismatch)
}

func appendMembers(members []Member, elements []byte) []Member {
	for typ, element := range netlink.Attributes(elements) {
		if typ == nl.IPSET_ATTR_DATA {
			members = append(members, readMember(element))
		}
	}
	return members
}

// headersOnly makes e request a list without elements.
func headersOnly(e *netlink.Encoder) *netlink.Encoder {
	e.Uint32(nl.IPSET_ATTR_FLAGS|netByteOrder, 1<<2) // IPSET_FLAG_LIST_HEADER
	return e
}

// Headers returns all sets, including foreign ones, without their elements. It does not
// make the kernel load ipsets.
func (k *Kernel) Headers() ([]Header, error) {
	if !Present() {
		return nil, nil
	}
	k.lock.Lock()
	defer k.lock.Unlock()
	var heads []Header
	err := netlink.RetryInterrupted(func() error {
		heads = nil
		return k.execute(headersOnly(requestForAll(nl.IPSET_CMD_LIST)), func(attrs []byte) { heads = append(heads, readHeader(attrs)) })
	})
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", describeErrno(err))
	}
	return heads, nil
}
