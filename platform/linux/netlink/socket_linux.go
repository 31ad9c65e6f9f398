// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/sysctl"
)

// Socket is a netlink socket. Only Wait may run beside another method.
type Socket struct {
	fd      int
	portID  uint32
	buf     []byte
	timeout time.Duration
}

// Options are what a Socket needs. The zero value is for short answers.
type Options struct {
	// Buffer is requested for both directions, 0 means the default of the system. Without
	// CAP_NET_ADMIN a limit of the system applies, see socket(7).
	Buffer int
	// Datagram bounds a datagram of the kernel. Dumps come in parts as large as the receive
	// buffer, at most 32 KiB (kernel: net/netlink/af_netlink.c, netlink_recvmsg and
	// netlink_dump), and all other messages are smaller. 0 means 32 KiB.
	Datagram int
	// Timeout limits the wait for an answer, 0 means none.
	Timeout time.Duration
}

const defaultDatagram = 32 << 10

// Dial opens a socket to a subsystem, as unix.NETLINK_NETFILTER, in this thread's namespace.
func Dial(protocol int, o Options) (*Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink socket: %w", err)
	}
	s := &Socket{fd: fd, timeout: o.Timeout}
	if err := s.setUp(o.Buffer); err != nil {
		s.Close()
		return nil, fmt.Errorf("set up netlink socket: %w", err)
	}
	if o.Datagram == 0 {
		o.Datagram = defaultDatagram
	}
	s.buf = make([]byte, o.Datagram)
	return s, nil
}

func (s *Socket) setUp(buffer int) error {
	if err := unix.Bind(s.fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	addr, err := unix.Getsockname(s.fd)
	if err != nil {
		return err
	}
	s.portID = addr.(*unix.SockaddrNetlink).Pid
	for forced, plain := range map[int]int{unix.SO_SNDBUFFORCE: unix.SO_SNDBUF, unix.SO_RCVBUFFORCE: unix.SO_RCVBUF} {
		if buffer != 0 && unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, forced, buffer) != nil {
			// Best effort: the system's limit may be sufficient.
			_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, plain, buffer)
		}
	}
	// Both make answers shorter or clearer. They are older than every supported kernel.
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_CAP_ACK, 1)
	_ = unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1)
	return nil
}

// Close closes s.
func (s *Socket) Close() { _ = unix.Close(s.fd) }

// PortID returns the port of s, which notifications about its changes contain.
func (s *Socket) PortID() uint32 { return s.portID }

// Join makes s receive the notifications of a group.
func (s *Socket) Join(group int) error {
	return unix.SetsockoptInt(s.fd, unix.SOL_NETLINK, unix.NETLINK_ADD_MEMBERSHIP, group)
}

// Send sends messages as one datagram.
func (s *Socket) Send(b []byte) error {
	err := unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	for errors.Is(err, unix.EINTR) {
		err = unix.Sendto(s.fd, b, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	return err
}

// Poll returns a queued datagram, valid until the next one. The error is unix.EAGAIN if there is
// none, unix.ENOBUFS if the kernel had to drop some.
func (s *Socket) Poll() ([]byte, error) {
	for {
		n, _, err := unix.Recvfrom(s.fd, s.buf, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return nil, err
		case n > len(s.buf):
			return nil, fmt.Errorf("netlink answer of %d bytes", n)
		}
		return s.buf[:n], nil
	}
}

// Receive calls each for every message until it returns false or an error, or ctx ends.
func (s *Socket) Receive(ctx context.Context, each func(Message) (more bool, err error)) error {
	for {
		b, err := s.next(ctx)
		if err != nil {
			return fmt.Errorf("read netlink socket: %w", err)
		}
		for m, err := range Messages(b) {
			if err != nil {
				return err
			}
			if more, err := each(m); err != nil || !more {
				return err
			}
		}
	}
}

// next waits for a datagram.
func (s *Socket) next(ctx context.Context) ([]byte, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		b, err := s.Poll()
		if !errors.Is(err, unix.EAGAIN) {
			return b, err
		}
		if err := s.Wait(ctx); err != nil {
			return nil, err
		}
	}
}

// Wait waits until a datagram is queued. It returns the error of ctx when that ends.
func (s *Socket) Wait(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	fds := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	if ctx.Done() != nil {
		wake, release, err := wakeAtEnd(ctx)
		if err != nil {
			return err
		}
		defer release()
		fds = append(fds, unix.PollFd{Fd: int32(wake), Events: unix.POLLIN})
	}
	limit := -1
	if s.timeout != 0 {
		limit = int(s.timeout.Milliseconds())
	}
	n, err := unix.Poll(fds, limit)
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && !errors.Is(err, unix.EINTR):
		return err
	case err == nil && n == 0:
		return fmt.Errorf("no answer of the kernel in %s: %w", s.timeout, os.ErrDeadlineExceeded)
	}
	return nil
}

// wakeAtEnd returns a file descriptor that becomes readable when ctx ends.
func wakeAtEnd(ctx context.Context) (fd int, release func(), err error) {
	fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return 0, nil, err
	}
	woke := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(woke)
		_, _ = unix.Write(fd, []byte{1, 0, 0, 0, 0, 0, 0, 1})
	})
	return fd, func() {
		if !stop() {
			<-woke // otherwise it could write to a reused file descriptor
		}
		_ = unix.Close(fd)
	}, nil
}

// Transact sends messages of which the last asks for an acknowledgement, and returns the first
// error. The kernel processes them within sendto (kernel: net/netlink/af_netlink.c,
// netlink_unicast_kernel), so all answers are queued then. All are read: a failed commit is
// reported beside them (kernel: net/netfilter/nfnetlink.c, nfnetlink_rcv_batch).
func (s *Socket) Transact(batch []byte) error {
	s.drain()
	if err := s.Send(batch); err != nil {
		return fmt.Errorf("send a transaction of %d bytes: %w", len(batch), err)
	}
	answers := 0
	var first error
	for {
		b, err := s.Poll()
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			return fmt.Errorf("read the answer to a transaction: %w", err)
		}
		for m, err := range Messages(b) {
			if err == nil && m.Type == unix.NLMSG_ERROR {
				answers++
				err = m.Err()
			}
			if first == nil {
				first = err
			}
		}
	}
	if answers == 0 {
		return errors.New("the kernel did not answer a transaction")
	}
	return first
}

// Query sends one request and calls each for every answer until the last one. It returns
// ErrInterrupted if the list changed meanwhile. It skips answers to other requests.
func (s *Socket) Query(ctx context.Context, request []byte, each func(Message) error) error {
	s.drain()
	if err := s.Send(request); err != nil {
		return err
	}
	seq := binary.NativeEndian.Uint32(request[8:])
	return s.Receive(ctx, func(m Message) (bool, error) {
		switch {
		case m.Seq != seq:
			return true, nil
		case m.Flags&unix.NLM_F_DUMP_INTR != 0:
			return false, ErrInterrupted
		case m.Type == unix.NLMSG_DONE, m.Type == unix.NLMSG_ERROR:
			return false, m.Err()
		}
		return m.Flags&unix.NLM_F_MULTI != 0, each(m)
	})
}

// maxAttempts bounds how often a list is requested because it changes each time.
const maxAttempts = 30

// RetryInterrupted calls list until its error is not ErrInterrupted: the kernel marks a list that
// changed between parts (NLM_F_DUMP_INTR, see
// https://docs.kernel.org/userspace-api/netlink/intro.html). Pauses let others finish.
func RetryInterrupted(list func() error) error {
	for n := 1; ; n++ {
		err := list()
		if !errors.Is(err, ErrInterrupted) {
			return err
		}
		if n == maxAttempts {
			return fmt.Errorf("%w, %d times in a row", err, n)
		}
		time.Sleep(time.Duration(min(n, 10)) * time.Millisecond)
	}
}

// drain discards what is left of an earlier exchange.
func (s *Socket) drain() {
	for err := error(nil); err == nil || errors.Is(err, unix.ENOBUFS); {
		_, err = s.Poll()
	}
}

// IgnorePort filters out notifications about changes through a netlink port, by the first
// message's, at offset 12: the kernel groups them by transaction (kernel:
// net/netfilter/nf_tables_api.c, nft_commit_notify).
func (s *Socket) IgnorePort(port uint32) error {
	// BPF loads words in network byte order. The header is in host byte order.
	var b [4]byte
	binary.NativeEndian.PutUint32(b[:], port)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, Jf: 1, K: binary.BigEndian.Uint32(b[:])},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
	err := unix.SetsockoptSockFprog(s.fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER,
		&unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]})
	if err != nil {
		return fmt.Errorf("filter netlink notifications: %w", err)
	}
	return nil
}

// IgnoreNoPort removes the filter of IgnorePort.
func (s *Socket) IgnoreNoPort() error {
	err := unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_DETACH_FILTER, 0)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("stop to filter netlink notifications: %w", err)
	}
	return nil
}

// ErrInterrupted means that a table changed while the kernel listed it.
var ErrInterrupted = errors.New("the table changed while it was read")

// Err returns the error in a message of type NLMSG_ERROR or NLMSG_DONE, nil for an
// acknowledgement. It includes the kernel's own words if there are any.
func (m Message) Err() error {
	if len(m.Body) < 4 {
		if m.Type == unix.NLMSG_DONE {
			return nil
		}
		return errors.New("short netlink error")
	}
	code := int32(binary.NativeEndian.Uint32(m.Body))
	if code == 0 || m.Type == unix.NLMSG_DONE && code > 0 {
		return nil
	}
	err := error(unix.Errno(-code))
	if text := Text(Attribute(m.errorAttributes(), unix.NLMSGERR_ATTR_MSG)); text != "" {
		err = fmt.Errorf("%w (%s)", err, text)
	}
	return err
}

// errorAttributes returns the attributes of an error. They follow the header of the
// request, or the whole request if it is repeated, see https://docs.kernel.org/userspace-api/netlink/intro.html.
func (m Message) errorAttributes() []byte {
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return nil
	}
	at := 4
	if m.Type == unix.NLMSG_ERROR {
		if len(m.Body) < at+messageHeader {
			return nil
		}
		if m.Flags&unix.NLM_F_CAPPED == 0 {
			at += align(int(binary.NativeEndian.Uint32(m.Body[at:])))
		} else {
			at += messageHeader
		}
	}
	return m.Body[min(max(at, 0), len(m.Body)):]
}

// NFTType returns the netlink type of a message, such as unix.NFT_MSG_GETCHAIN.
func NFTType(msg int) uint16 { return uint16(unix.NFNL_SUBSYS_NFTABLES<<8 | msg) }

// NFTFamily returns the number of the family whose tables see the packets of f alone.
func NFTFamily(f service.Family) uint8 {
	if f == service.IPv6 {
		return unix.NFPROTO_IPV6
	}
	return unix.NFPROTO_IPV4
}

// FamilyNames are nft(8)'s for families whose tables see packets of IPv4 or IPv6, by number.
var FamilyNames = map[uint8]string{unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_INET: "inet"}

// NFTHint adds the usual remedy to an error of the kernel.
func NFTHint(err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: the right CAP_NET_ADMIN is needed", err)
	case LacksNFTables(err):
		return sysctl.Missing(fmt.Errorf("%w: a kernel with nf_tables is needed (module nf_tables)", err), "nf_tables")
	}
	return err
}

// LacksNFTables reports whether err means that the kernel has no nf_tables at all.
func LacksNFTables(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// DumpNFT sends a request for a list and passes the family and the attributes of each answer
// to each. It starts again, with begin, whenever anything in the ruleset changes meanwhile.
func DumpNFT(ctx context.Context, s *Socket, request []byte, begin func(), each func(family uint8, attributes []byte) error) error {
	return RetryInterrupted(func() error {
		begin()
		return s.Query(ctx, request, func(m Message) error { return each(m.Netfilter()) })
	})
}

// Chain is a chain of nf_tables.
type Chain struct {
	Family      uint8
	Table, Name string
	Base        *Base // nil if no hook of the kernel calls the chain
}

// Base is what only base chains have.
type Base struct {
	Type     string
	Hook     uint32
	Priority int32
	Drops    bool // by its policy
	Devices  []string
}

// Chains lists the chains of a family, or of all for unix.NFPROTO_UNSPEC, none without nf_tables.
func Chains(ctx context.Context, s *Socket, family uint8) ([]Chain, error) {
	e := &Encoder{}
	e.NetfilterMessage(NFTType(unix.NFT_MSG_GETCHAIN), unix.NLM_F_DUMP, family, 0)
	e.EndMessage()
	var all []Chain
	err := DumpNFT(ctx, s, e.Buf, func() { all = nil }, func(f uint8, body []byte) error {
		all = append(all, Chain{
			Family: f, Table: Text(Attribute(body, unix.NFTA_CHAIN_TABLE)),
			Name: Text(Attribute(body, unix.NFTA_CHAIN_NAME)), Base: decodeBase(body),
		})
		return nil
	})
	switch {
	case LacksNFTables(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list chains of nftables: %w", err)
	}
	return all, nil
}

// Attributes of a hook with its devices: one, or a list (kernel:
// include/uapi/linux/netfilter/nf_tables.h, nft_hook_attributes).
const hookDevice, hookDevices = 3, 4

func decodeBase(chain []byte) *Base {
	hook := Attribute(chain, unix.NFTA_CHAIN_HOOK)
	if hook == nil {
		return nil
	}
	policy := Attribute(chain, unix.NFTA_CHAIN_POLICY)
	var devices []string
	for typ, v := range Attributes(hook) {
		switch typ {
		case hookDevice:
			devices = append(devices, Text(v))
		case hookDevices:
			for _, one := range Attributes(v) {
				devices = append(devices, Text(one))
			}
		}
	}
	return &Base{
		Devices: devices,
		Type:    Text(Attribute(chain, unix.NFTA_CHAIN_TYPE)), Hook: Uint32(Attribute(hook, unix.NFTA_HOOK_HOOKNUM)),
		Priority: int32(Uint32(Attribute(hook, unix.NFTA_HOOK_PRIORITY))),
		Drops:    policy != nil && Uint32(policy) == Drop,
	}
}
