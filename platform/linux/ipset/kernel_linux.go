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

// Kernel is the ipsets of a network namespace. It does one thing at a time,
// whoever asks.
type Kernel struct {
	lock sync.Mutex
	// sockets has one, to netfilter, in the form that the library wants it in.
	sockets map[int]*nl.SocketHandle
	// destroyTimeout is how long Destroy waits for rules to go.
	destroyTimeout time.Duration
}

// receiveTimeout is how long the kernel may take: it may have to load a type.
const receiveTimeout = 30 * time.Second

// Open is for the network namespace of the calling thread. It asks nothing of
// the kernel yet, which may have no ipsets.
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

// Close gives the socket back. Sets stay.
func (k *Kernel) Close() error {
	k.lock.Lock()
	defer k.lock.Unlock()
	k.sockets[unix.NETLINK_NETFILTER].Close()
	return nil
}

// request begins a request with the attributes that all have.
func (k *Kernel) request(command int, attrs wire) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(command|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(command))
	r.Sockets = k.sockets
	r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	r.AddRawData(attrs)
	return r
}

// execute sends a request that is answered by success or failure.
func execute(r *nl.NetlinkRequest) error {
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

// payload returns an answer without its header.
func payload(answer []byte) []byte {
	return answer[min(len(answer), nl.SizeofNfgenmsg):]
}

// revisions are the first of each type that has comments. Newer ones add what
// is not wanted here, and every kernel knows the older ones too.
var revisions = map[Type]byte{HashIP: 2, HashIPPort: 3, HashIPPortNet: 5}

// Create makes a set, with room for 1,048,576 elements and for comments. One of
// that name, type and family is success. If it is Altered, an empty one takes its
// place. If its type or family is another, the error is ErrTypeMismatch.
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
	// Without this flag a set that is there must be the same in all it was
	// made with.
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

// replaceAltered has an empty set made by create take the place of s if that is Altered.
// Rules refer to it from then on.
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
	swap.text(nl.IPSET_ATTR_TYPENAME, fresh.Name) // the second name
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

// checkExisting looks whether there is a set of that name, type and family.
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

// A rule that iptables has removed goes a moment later in the kernel.
const (
	busyTimeout  = time.Second
	busyInterval = 5 * time.Millisecond
)

// Destroy removes a set with its elements. That there is none is success. It
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
		case err == nil, errors.Is(err, unix.ENOENT): // older kernels say so
			return nil
		case !errors.Is(err, unix.Errno(nl.IPSET_ERR_BUSY)):
			return fmt.Errorf("destroy ipset %s: %w", name, describeErrno(err))
		case time.Now().After(deadline):
			return fmt.Errorf("destroy ipset %s: a rule refers to it", name)
		}
	}
}
