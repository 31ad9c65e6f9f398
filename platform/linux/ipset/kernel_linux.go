// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// Kernel gives access to a network namespace's ipsets, one request at a time, for any goroutine.
type Kernel struct {
	lock   sync.Mutex
	socket *netlink.Socket
	// destroyTimeout is how long Destroy waits for rules to disappear.
	destroyTimeout time.Duration
}

// receiveTimeout limits the wait for a reply. The kernel may have to load a type.
const receiveTimeout = 30 * time.Second

// Open opens a socket in this thread's network namespace. The kernel need not have ipsets yet.
func Open() (*Kernel, error) {
	s, err := netlink.Dial(unix.NETLINK_NETFILTER, netlink.Options{Timeout: receiveTimeout})
	if err != nil {
		return nil, fmt.Errorf("netfilter: %w", err)
	}
	return &Kernel{socket: s, destroyTimeout: busyTimeout}, nil
}

// Close closes the socket. Sets stay.
func (k *Kernel) Close() error {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.socket.Close()
	return nil
}

// request begins a request about a set. Without a name the kernel would take all sets
// (kernel: net/netfilter/ipset/ip_set_core.c, ip_set_destroy), so an empty one is sent, too.
func request(command int, name string) *netlink.Encoder {
	e := requestForAll(command)
	e.Text(nl.IPSET_ATTR_SETNAME, name)
	return e
}

// requestForAll begins a request about all sets.
func requestForAll(command int) *netlink.Encoder {
	e := &netlink.Encoder{}
	e.NetfilterMessage(uint16(command|unix.NFNL_SUBSYS_IPSET<<8), uint16(nl.GetIpsetFlags(command)), unix.AF_INET, 0)
	e.Uint8(nl.IPSET_ATTR_PROTOCOL, nl.IPSET_PROTOCOL)
	return e
}

// execute sends a request and calls each, if set, with the attributes of every reply.
func (k *Kernel) execute(e *netlink.Encoder, each func(attrs []byte)) error {
	e.EndMessage()
	return k.socket.Query(context.Background(), e.Buf, func(m netlink.Message) error {
		if _, attrs := m.Netfilter(); each != nil {
			each(attrs)
		}
		return nil
	})
}

// revisions are the first revision of each type that has comments. Later ones add
// options that are not used here. Every kernel supports the earlier ones, too.
var revisions = map[Type]byte{HashIP: 2, HashIPPort: 3, HashIPPortNet: 5}

// Create creates a set with comments, for up to 1,048,576 elements. An existing set of
// this name, type and family is no error. If that set is Altered, Create replaces it by
// an empty one. If the type or family differs, the error is ErrTypeMismatch.
func (k *Kernel) Create(s Set) error {
	k.lock.Lock()
	defer k.lock.Unlock()
	if err := k.create(s); err != nil {
		return fmt.Errorf("create ipset %s: %w", s.Name, err)
	}
	return nil
}

func (k *Kernel) create(s Set) error {
	revision, known := revisions[s.Type]
	switch {
	case !known:
		return fmt.Errorf("type %s: %w", s.Type, errors.ErrUnsupported)
	case s.Name == "" || len(s.Name) > nameSize:
		return fmt.Errorf("its name has %d bytes, want 1 to %d", len(s.Name), nameSize)
	}
	e := request(nl.IPSET_CMD_CREATE, s.Name)
	e.Text(nl.IPSET_ATTR_TYPENAME, string(s.Type))
	e.Uint8(nl.IPSET_ATTR_REVISION, revision)
	e.Uint8(nl.IPSET_ATTR_FAMILY, af(s.Family))
	at := e.Nest(nl.IPSET_ATTR_DATA)
	e.Uint32(nl.IPSET_ATTR_MAXELEM|netByteOrder, maxElements)
	e.Uint32(nl.IPSET_ATTR_CADT_FLAGS|netByteOrder, nl.IPSET_FLAG_WITH_COMMENT)
	e.EndNest(at)
	// Without this flag the kernel would require that an existing set was created with
	// the same options (kernel: net/netfilter/ipset/ip_set_core.c, ip_set_create).
	e.AddFlags(unix.NLM_F_EXCL)
	err := k.execute(e, nil)
	if errors.Is(err, unix.EEXIST) {
		if err := k.checkExisting(s); err != nil {
			return err
		}
		return k.replaceAltered(s)
	}
	return describeErrno(err)
}

// replaceAltered replaces s, if it is Altered, by an empty set in all rules.
func (k *Kernel) replaceAltered(s Set) error {
	altered := false
	err := k.dump(headersOnly(request(nl.IPSET_CMD_LIST, s.Name)), func(attrs []byte) { altered = altered || readHeader(attrs).Altered })
	if err != nil || !altered {
		return err
	}
	fresh := s
	fresh.Name += "~"
	destroy := func() error {
		if err := k.execute(request(nl.IPSET_CMD_DESTROY, fresh.Name), nil); !errors.Is(err, unix.ENOENT) {
			return describeErrno(err)
		}
		return nil
	}
	if err := errors.Join(destroy(), k.create(fresh)); err != nil {
		return err
	}
	swap := request(nl.IPSET_CMD_SWAP, s.Name)
	swap.Text(nl.IPSET_ATTR_TYPENAME, fresh.Name) // the second name (IPSET_ATTR_SETNAME2)
	if err := k.execute(swap, nil); err != nil {
		return describeErrno(err)
	}
	return destroy()
}

func af(f service.Family) byte {
	if f == service.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// checkExisting checks that a set of this name, type and family exists.
func (k *Kernel) checkExisting(s Set) error {
	var mismatch error
	err := k.execute(request(nl.IPSET_CMD_HEADER, s.Name), func(attrs []byte) { mismatch = s.checkType(readHeader(attrs)) })
	if err != nil {
		return describeErrno(err)
	}
	return mismatch
}

func (s Set) checkType(h Header) error {
	if h.Type == s.Type && h.Family == s.Family {
		return nil
	}
	return fmt.Errorf("%w: it is %s for %s, want %s for %s", ErrTypeMismatch, h.Type, h.Family, s.Type, s.Family)
}

// After iptables-nft has removed a rule, the kernel releases the set a moment later, in a
// work queue (kernel: net/netfilter/nf_tables_api.c, nf_tables_trans_destroy_work).
const (
	busyTimeout  = time.Second
	busyInterval = 5 * time.Millisecond
)

// Destroy destroys a set with its elements. It succeeds if the set does not exist. It
// waits up to a second for rules that still refer to it.
func (k *Kernel) Destroy(name string) error {
	if !Present() {
		return nil
	}
	k.lock.Lock()
	defer k.lock.Unlock()
	for deadline := time.Now().Add(k.destroyTimeout); ; time.Sleep(busyInterval) {
		err := k.execute(request(nl.IPSET_CMD_DESTROY, name), nil)
		switch {
		case err == nil, errors.Is(err, unix.ENOENT): // returned by older kernels
			return nil
		case !errors.Is(err, unix.Errno(nl.IPSET_ERR_BUSY)):
			return fmt.Errorf("destroy ipset %s: %w", name, describeErrno(err))
		case time.Now().After(deadline):
			return fmt.Errorf("destroy ipset %s: a rule refers to it", name)
		}
	}
}

// module exists if the kernel has ipsets loaded or built in: they have a module parameter.
const module = "/sys/module/ip_set"

// Present reports whether the kernel has loaded ipsets, which a request would. A type may lack.
func Present() bool {
	_, err := os.Stat(module)
	return !errors.Is(err, fs.ErrNotExist)
}

// Errors of hash types (kernel: include/uapi/linux/netfilter/ipset/ip_set_hash.h).
const (
	hashFull = nl.IPSET_ERR_TYPE_SPECIFIC + iota
	hashElement
	invalidProtocol
)

// errnoText are texts for error numbers that only ipsets have.
var errnoText = map[unix.Errno]string{
	nl.IPSET_ERR_PROTOCOL:     "it does not fit the type or family of the set",
	nl.IPSET_ERR_MAX_SETS:     "the kernel takes no more sets",
	nl.IPSET_ERR_INVALID_CIDR: "the length of the prefix is not possible",
	hashFull:                  "the set is full",
	hashElement:               "no set takes the zero address",
	invalidProtocol:           "the protocol is not possible",
}

// describeErrno describes an error of the kernel.
func describeErrno(err error) error {
	var number unix.Errno
	if !errors.As(err, &number) {
		return err
	}
	switch {
	case number == unix.ENOENT:
		return ErrMissing
	case number == unix.EINVAL && !Present():
		return fmt.Errorf("the kernel has no ipsets: %w", errors.ErrUnsupported)
	case number == nl.IPSET_ERR_FIND_TYPE:
		return fmt.Errorf("the kernel lacks the type of the set: %w", errors.ErrUnsupported)
	case errnoText[number] != "":
		return fmt.Errorf("%s (%w)", errnoText[number], number)
	}
	return err
}

// elementCommand is a command that has elements.
type elementCommand struct {
	command int
	verb    string // for an error, before the set
}

// Add adds elements. One that is there is no error and gets the new comment, if the set has
// comments. After an error some may have been added.
func (k *Kernel) Add(s Set, members []Member) error {
	return k.changeElements(s, elementCommand{nl.IPSET_CMD_ADD, "add to"}, normalize(members))
}

// Del deletes elements, if they exist. After an error some may have been deleted.
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

// batchSize is where a batch ends. With one more element, a message stays below 32 KiB.
const batchSize = 31 << 10

// batch executes c with the first members until one fails, and returns how many they were.
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

// Headers returns all sets, foreign ones, too, without elements and without loading ipsets.
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

// netByteOrder marks a number or an address in network byte order, as ipsets require.
const netByteOrder = netlink.NetByteOrder

func encodeAddr(e *netlink.Encoder, typ uint16, a netip.Addr) {
	at := e.Nest(typ)
	switch {
	case a.Is4():
		e.Bytes(nl.IPSET_ATTR_IPADDR_IPV4|netByteOrder, a.AsSlice())
	case a.Is6():
		e.Bytes(nl.IPSET_ATTR_IPADDR_IPV6|netByteOrder, a.AsSlice())
	}
	e.EndNest(at)
}

// encodeElement appends m in the form for a set of type t.
func encodeElement(e *netlink.Encoder, t Type, m Member) {
	at := e.Nest(nl.IPSET_ATTR_DATA)
	encodeAddr(e, nl.IPSET_ATTR_IP, m.Addr)
	if t != HashIP {
		e.Uint16(nl.IPSET_ATTR_PORT|netByteOrder, m.Port)
		e.Uint8(nl.IPSET_ATTR_PROTO, uint8(m.Protocol))
	}
	if t == HashIPPortNet {
		encodeAddr(e, nl.IPSET_ATTR_IP2, m.Net.Addr())
		e.Uint8(nl.IPSET_ATTR_CIDR2, uint8(m.Net.Bits()))
	}
	if m.Comment != "" {
		e.Text(nl.IPSET_ATTR_COMMENT, m.Comment)
	}
	e.EndNest(at)
}

func readMember(b []byte) Member {
	var e Member
	var start netip.Addr
	bits := 0
	for typ, v := range netlink.Attributes(b) {
		switch {
		case typ == nl.IPSET_ATTR_IP:
			e.Addr = readAddr(v)
		case typ == nl.IPSET_ATTR_PORT && len(v) >= 2:
			e.Port = binary.BigEndian.Uint16(v)
		case typ == nl.IPSET_ATTR_PROTO && len(v) >= 1:
			e.Protocol = service.Protocol(v[0])
		case typ == nl.IPSET_ATTR_IP2:
			start = readAddr(v)
		case typ == nl.IPSET_ATTR_CIDR2 && len(v) >= 1:
			bits = int(v[0])
		case typ == nl.IPSET_ATTR_COMMENT:
			e.Comment = netlink.Text(v)
		}
	}
	if start.IsValid() {
		e.Net = netip.PrefixFrom(start, bits)
	}
	return e
}

func readAddr(b []byte) netip.Addr {
	var a netip.Addr
	for _, v := range netlink.Attributes(b) {
		a, _ = netip.AddrFromSlice(v)
	}
	return a
}

func readHeader(b []byte) Header {
	var h Header
	for typ, v := range netlink.Attributes(b) {
		switch {
		case typ == nl.IPSET_ATTR_SETNAME:
			h.Name = netlink.Text(v)
		case typ == nl.IPSET_ATTR_TYPENAME:
			h.Type = Type(netlink.Text(v))
		case typ == nl.IPSET_ATTR_FAMILY && len(v) >= 1 && v[0] == unix.AF_INET6:
			h.Family = service.IPv6
		case typ == nl.IPSET_ATTR_DATA:
			h.readData(v)
		}
	}
	return h
}

func (h *Header) readData(b []byte) {
	room, flags := uint32(0), uint32(0)
	for typ, v := range netlink.Attributes(b) {
		switch {
		case typ == nl.IPSET_ATTR_ELEMENTS && len(v) >= 4:
			h.Entries = int(binary.BigEndian.Uint32(v))
		case typ == nl.IPSET_ATTR_REFERENCES && len(v) >= 4:
			h.References = int(binary.BigEndian.Uint32(v))
		case typ == nl.IPSET_ATTR_MAXELEM && len(v) >= 4:
			room = binary.BigEndian.Uint32(v)
		case typ == nl.IPSET_ATTR_CADT_FLAGS && len(v) >= 4:
			flags = binary.BigEndian.Uint32(v)
		case typ == nl.IPSET_ATTR_TIMEOUT:
			h.Altered = true
		}
	}
	if room != 0 { // a type that this package creates
		h.Altered = h.Altered || room != maxElements || flags != nl.IPSET_FLAG_WITH_COMMENT
	}
}
