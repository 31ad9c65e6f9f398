// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// Kernel gives access to the ipsets of a network namespace. It is safe for concurrent
// use and executes one request at a time.
type Kernel struct {
	lock sync.Mutex
	// sockets contains one socket, to netfilter, in the form that the library needs.
	sockets map[int]*nl.SocketHandle
	// destroyTimeout is how long Destroy waits for rules to disappear.
	destroyTimeout time.Duration
}

// receiveTimeout limits the wait for a reply. The kernel may have to load a type.
const receiveTimeout = 30 * time.Second

// Open opens a socket in the network namespace of the calling thread. It sends no
// request yet, so the kernel need not have ipsets.
func Open() (*Kernel, error) {
	s, err := nl.Subscribe(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket to netfilter: %w", err)
	}
	tv := unix.NsecToTimeval(int64(receiveTimeout))
	err = errors.Join(s.SetSendTimeout(&tv), s.SetReceiveTimeout(&tv))
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("set up netlink socket to netfilter: %w", err)
	}
	sockets := map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: s}}
	return &Kernel{sockets: sockets, destroyTimeout: busyTimeout}, nil
}

// Close closes the socket. Sets stay.
func (k *Kernel) Close() error {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.sockets[unix.NETLINK_NETFILTER].Close()
	return nil
}

// request returns a request with the attributes that all requests have.
func (k *Kernel) request(command int, attrs wire) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(command|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(command))
	r.Sockets = k.sockets
	r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	r.AddRawData(attrs)
	return r
}

// execute sends a request whose reply is only success or failure.
func execute(r *nl.NetlinkRequest) error {
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

// payload returns a reply without its header.
func payload(answer []byte) []byte {
	return answer[min(len(answer), nl.SizeofNfgenmsg):]
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
	var w wire
	w.text(nl.IPSET_ATTR_SETNAME, s.Name)
	w.text(nl.IPSET_ATTR_TYPENAME, string(s.Type))
	w.bytes(nl.IPSET_ATTR_REVISION, revision)
	w.bytes(nl.IPSET_ATTR_FAMILY, af(s.Family))
	at := w.nest(nl.IPSET_ATTR_DATA | unix.NLA_F_NESTED)
	w.u32(nl.IPSET_ATTR_MAXELEM, maxElements)
	w.u32(nl.IPSET_ATTR_CADT_FLAGS, nl.IPSET_FLAG_WITH_COMMENT)
	w.end(at)
	r := k.request(nl.IPSET_CMD_CREATE, w)
	// Without this flag the kernel would require that an existing set was created with
	// the same options.
	r.Flags |= unix.NLM_F_EXCL
	err := execute(r)
	if errors.Is(err, unix.EEXIST) {
		if err := k.checkExisting(s); err != nil {
			return err
		}
		return k.replaceAltered(s)
	}
	return describeErrno(err)
}

// replaceAltered replaces s by an empty set if it is Altered. Rules that refer to s then
// refer to the new set.
func (k *Kernel) replaceAltered(s Set) error {
	var w wire
	w.text(nl.IPSET_ATTR_SETNAME, s.Name)
	w.u32(nl.IPSET_ATTR_FLAGS, headersOnly)
	answers, err := k.dump(w)
	if err != nil {
		return describeErrno(err)
	}
	if !slices.ContainsFunc(answers, func(a []byte) bool { return readHeader(a).Altered }) {
		return nil
	}
	fresh := s
	fresh.Name += "~"
	destroy := func() error {
		var w wire
		w.text(nl.IPSET_ATTR_SETNAME, fresh.Name)
		if err := execute(k.request(nl.IPSET_CMD_DESTROY, w)); !errors.Is(err, unix.ENOENT) {
			return describeErrno(err)
		}
		return nil
	}
	if err := errors.Join(destroy(), k.create(fresh)); err != nil {
		return err
	}
	var swap wire
	swap.text(nl.IPSET_ATTR_SETNAME, s.Name)
	swap.text(nl.IPSET_ATTR_TYPENAME, fresh.Name) // the second name (IPSET_ATTR_SETNAME2)
	if err := execute(k.request(nl.IPSET_CMD_SWAP, swap)); err != nil {
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
	var w wire
	w.text(nl.IPSET_ATTR_SETNAME, s.Name)
	answers, err := k.request(nl.IPSET_CMD_HEADER, w).Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return describeErrno(err)
	}
	for _, a := range answers {
		if err := s.checkType(readHeader(payload(a))); err != nil {
			return err
		}
	}
	return nil
}

func (s Set) checkType(h Header) error {
	if h.Type == s.Type && h.Family == s.Family {
		return nil
	}
	return fmt.Errorf("%w: it is %s for %s, want %s for %s", ErrTypeMismatch, h.Type, h.Family, s.Type, s.Family)
}

// After iptables has removed a rule, the kernel releases the set a moment later.
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
	var w wire
	w.text(nl.IPSET_ATTR_SETNAME, name)
	for deadline := time.Now().Add(k.destroyTimeout); ; time.Sleep(busyInterval) {
		err := execute(k.request(nl.IPSET_CMD_DESTROY, w))
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
