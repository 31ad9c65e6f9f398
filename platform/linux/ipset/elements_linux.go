// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
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
	w := make(wire, 0, 32<<10)
	w.text(nl.IPSET_ATTR_SETNAME, s.Name)
	w.u32(nl.IPSET_ATTR_LINENO, 0)
	at := w.nest(nl.IPSET_ATTR_ADT | unix.NLA_F_NESTED)
	n := 0
	for n < len(members) && len(w) < batchSize {
		w.element(s.Type, members[n])
		n++
	}
	w.end(at)
	return n, execute(k.request(c.command, w))
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

// dump requests a list.
func (k *Kernel) dump(attrs wire) ([][]byte, error) {
	answers, err := retryInterrupted(func() ([][]byte, error) {
		return k.request(nl.IPSET_CMD_LIST, attrs).Execute(unix.NETLINK_NETFILTER, 0)
	})
	for i, a := range answers {
		answers[i] = payload(a)
	}
	return answers, describeErrno(err)
}

// maxDumpAttempts limits the attempts for a list that changes meanwhile.
const maxDumpAttempts = 5

// retryInterrupted calls dump until the reply is complete (NLM_F_DUMP_INTR, see
// docs.kernel.org/userspace-api/netlink/intro.html).
func retryInterrupted(dump func() ([][]byte, error)) ([][]byte, error) {
	answers, err := dump()
	for n := 1; n < maxDumpAttempts && errors.Is(err, nl.ErrDumpInterrupted); n++ {
		answers, err = dump()
	}
	return answers, err
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
	var w wire
	w.text(nl.IPSET_ATTR_SETNAME, s.Name)
	parts, err := k.dump(w)
	if err != nil {
		return nil, err
	}
	var members []Member
	for _, part := range parts {
		// Only the first part contains the header.
		if h := readHeader(part); h.Type != "" {
			err = errors.Join(err, s.checkType(h))
		}
		for typ, elements := range attributes(part) {
			if typ == nl.IPSET_ATTR_ADT {
				members = appendMembers(members, elements)
			}
		}
	}
	return members, err
}

func appendMembers(members []Member, elements []byte) []Member {
	for typ, element := range attributes(elements) {
		if typ == nl.IPSET_ATTR_DATA {
			members = append(members, readMember(element))
		}
	}
	return members
}

// headersOnly requests a list of sets without elements.
const headersOnly = 1 << 2

// Headers returns all sets, including foreign ones, without their elements. It does not
// make the kernel load ipsets.
func (k *Kernel) Headers() ([]Header, error) {
	if !Present() {
		return nil, nil
	}
	k.lock.Lock()
	defer k.lock.Unlock()
	var w wire
	w.u32(nl.IPSET_ATTR_FLAGS, headersOnly)
	answers, err := k.dump(w)
	if err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	heads := make([]Header, len(answers))
	for i, a := range answers {
		heads[i] = readHeader(a)
	}
	return heads, nil
}
