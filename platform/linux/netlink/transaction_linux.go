// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Transact sends messages whose last one requests an acknowledgement, and returns the first
// error. The kernel processes them within sendto (kernel: net/netlink/af_netlink.c,
// netlink_unicast_kernel), so all answers are queued when that returns. All are read,
// because the kernel reports a failed commit of netfilter in addition to the answers to
// messages (kernel: net/netfilter/nfnetlink.c, nfnetlink_rcv_batch).
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

// RetryInterrupted calls list until its error is not ErrInterrupted. The kernel marks a
// list that changed between two of its parts (NLM_F_DUMP_INTR, see
// https://docs.kernel.org/userspace-api/netlink/intro.html). Pauses let others complete
// their changes.
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
