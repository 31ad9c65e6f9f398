// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// Kernel gives access to the ipsets of a network namespace. It is safe for concurrent
// use and executes one request at a time.
type Kernel struct {
	lock   sync.Mutex
	socket *netlink.Socket
	// destroyTimeout is how long Destroy waits for rules to disappear.
	destroyTimeout time.Duration
}

// receiveTimeout limits the wait for a reply. The kernel may have to load a type.
const receiveTimeout = 30 * time.Second

// Open opens a socket in the network namespace of the calling thread. It sends no
// request yet, so the kernel need not have ipsets.
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

// execute sends a request and calls each, unless it is nil, with the attributes of every
// reply.
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

// replaceAltered replaces s by an empty set if it is Altered. Rules that refer to s then
// refer to the new set.
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
