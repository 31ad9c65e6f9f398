// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

func open(t *testing.T, o Options) *Socket {
	t.Helper()
	s, err := Dial(unix.NETLINK_NETFILTER, o)
	kit.Must(t, err)
	t.Cleanup(s.Close)
	return s
}

// makeTable adds a table of nftables through s.
func makeTable(s *Socket, name string) error {
	var e Encoder
	e.NetfilterMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	e.EndMessage()
	e.NetfilterMessage(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, unix.NFPROTO_IPV4, 0)
	e.Text(unix.NFTA_TABLE_NAME, name)
	e.EndMessage()
	e.AddFlags(unix.NLM_F_ACK)
	e.NetfilterMessage(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	e.EndMessage()
	return s.Transact(e.Buf)
}

// tablesRequest requests a list of the tables of nftables.
func tablesRequest() *Encoder {
	var e Encoder
	e.NetfilterMessage(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP, unix.NFPROTO_IPV4, 0)
	e.EndMessage()
	return &e
}

func tables(t *testing.T, s *Socket) []string {
	t.Helper()
	e := tablesRequest()
	var names []string
	err := s.Query(t.Context(), e.Buf, func(m Message) error {
		_, attrs := m.Netfilter()
		names = append(names, Text(Attribute(attrs, unix.NFTA_TABLE_NAME)))
		return nil
	})
	kit.Check(t, err == nil, "%v", err)
	return names
}

func TestTransactionAndQuery(t *testing.T) {
	netlab.InNamespace(t, func() {
		s := open(t, Options{Buffer: 1 << 20, Timeout: time.Minute})
		for _, name := range []string{"one", "two"} {
			kit.Must(t, makeTable(s, name))
		}
		err := makeTable(s, "two")
		kit.Check(t, errors.Is(err, unix.EEXIST), "the second table of a name: %v", err)
		got := strings.Join(tables(t, s), " ")
		kit.Check(t, got == "one two", "tables %q", got)
		err = s.Transact([]byte{})
		kit.Check(t, err != nil, "no error without an answer")
		// An unread answer to an earlier request is no answer to the next one.
		kit.Must(t, s.Send(tablesRequest().Buf))
		err = makeTable(s, "three")
		kit.Check(t, err == nil, "after an abandoned request: %v", err)
		kit.Must(t, s.Send(tablesRequest().Buf))
		kit.Equal(t, strings.Join(tables(t, s), " "), "one two three", "tables after an abandoned request")
	})
}

// Only changes through other ports are reported, and all of them without the filter.
func TestIgnorePort(t *testing.T) {
	netlab.InNamespace(t, func() {
		own, other, m := open(t, Options{}), open(t, Options{}), open(t, Options{})
		kit.Must(t, errors.Join(m.IgnorePort(own.PortID()), m.Join(unix.NFNLGRP_NFTABLES)))
		heard := func() (all []byte) {
			for {
				b, err := m.Poll()
				if errors.Is(err, unix.EAGAIN) {
					return all
				}
				kit.Must(t, err)
				all = append(all, b...)
			}
		}
		kit.Must(t, errors.Join(makeTable(own, "ours"), makeTable(other, "theirs")))
		if got := heard(); bytes.Contains(got, []byte("ours\x00")) || !bytes.Contains(got, []byte("theirs\x00")) {
			t.Errorf("heard %q", got)
		}
		kit.Must(t, errors.Join(m.IgnoreNoPort(), m.IgnoreNoPort(), makeTable(own, "again")))
		got := heard()
		kit.Check(t, bytes.Contains(got, []byte("again\x00")), "heard %q without a filter", got)
	})
}

func TestWaitEnds(t *testing.T) {
	s := open(t, Options{Timeout: time.Millisecond})
	err := s.Wait(t.Context())
	kit.Check(t, errors.Is(err, os.ErrDeadlineExceeded), "without an answer: %v", err)
	s = open(t, Options{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Receive(ctx, func(Message) (bool, error) { return true, nil }) }()
	cancel()
	err = <-ended
	kit.Check(t, errors.Is(err, context.Canceled), "after the end of the context: %v", err)
}

// An error has the kernel's own words, wherever they are in the message.
func TestErr(t *testing.T) {
	code := []byte{0xff, 0xff, 0xff, 0xff} // EPERM in any byte order
	var header, words Encoder
	header.Message(1, 0)
	header.Uint32(9, 9)
	header.EndMessage()
	words.Text(unix.NLMSGERR_ATTR_MSG, "because")
	join := func(parts ...[]byte) []byte { return bytes.Join(parts, nil) }
	for name, c := range map[string]struct {
		m    Message
		want string
	}{
		"acknowledged":  {Message{Type: unix.NLMSG_ERROR, Body: make([]byte, 20)}, ""},
		"done":          {Message{Type: unix.NLMSG_DONE, Body: make([]byte, 4)}, ""},
		"done, empty":   {Message{Type: unix.NLMSG_DONE}, ""},
		"number":        {Message{Type: unix.NLMSG_ERROR, Body: join(code, header.Buf)}, "operation not permitted"},
		"short":         {Message{Type: unix.NLMSG_ERROR, Body: code[:3]}, "short netlink error"},
		"only a number": {Message{Type: unix.NLMSG_ERROR, Flags: unix.NLM_F_ACK_TLVS, Body: code}, "operation not permitted"},
		"request repeated": {Message{Type: unix.NLMSG_ERROR, Flags: unix.NLM_F_ACK_TLVS,
			Body: join(code, header.Buf, words.Buf)}, "operation not permitted (because)"},
		"header repeated": {Message{Type: unix.NLMSG_ERROR, Flags: unix.NLM_F_ACK_TLVS | unix.NLM_F_CAPPED,
			Body: join(code, header.Buf[:16], words.Buf)}, "operation not permitted (because)"},
		"list failed": {Message{Type: unix.NLMSG_DONE, Flags: unix.NLM_F_ACK_TLVS, Body: join(code, words.Buf)}, "operation not permitted (because)"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ""
			if err := c.m.Err(); err != nil {
				got = err.Error()
			}
			kit.Check(t, got == c.want, "Err = %q, want %q", got, c.want)
		})
	}
	long := Message{Type: unix.NLMSG_ERROR, Flags: unix.NLM_F_ACK_TLVS, Body: join(code, []byte{0xff, 0xff, 0xff, 0xff}, make([]byte, 12))}
	err := long.Err()
	kit.Check(t, errors.Is(err, unix.EPERM), "a request that is longer than the answer: %v", err)
}

// TestRetryInterrupted checks that a list that changed meanwhile is requested again, but
// not forever.
func TestRetryInterrupted(t *testing.T) {
	for interruptions, want := range map[int]error{0: nil, maxAttempts - 1: nil, maxAttempts: ErrInterrupted} {
		n := 0
		err := RetryInterrupted(func() error {
			n++
			if n <= interruptions {
				return ErrInterrupted
			}
			return nil
		})
		kit.Check(t, errors.Is(err, want) && n == min(interruptions+1, maxAttempts),
			"%d interruptions: asked %d times, %v; want %v", interruptions, n, err, want)
	}
}

const ruleset = `table ip one {
	chain plain { }
	chain guard { type filter hook forward priority -5; policy drop; }
}
table ip6 two {
	chain nat { type nat hook postrouting priority 100; }
}
table inet three {
	chain in { type filter hook input priority 0; policy accept; }
}
`

// TestChains compares lists with what nft installed.
func TestChains(t *testing.T) {
	netlab.InNamespace(t, func() {
		c := exec.Command("nft", "-f", "-")
		c.Stdin = strings.NewReader(ruleset)
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("nft: %v\n%s", err, out)
		}
		s, err := Dial(unix.NETLINK_NETFILTER, Options{})
		kit.Must(t, err)
		defer s.Close()
		v4, v6 := []string{"ip one guard filter 2 -5 true", "ip one plain"}, []string{"ip6 two nat nat 4 100 false"}
		for family, want := range map[uint8][]string{
			NFTFamily(service.IPv4): v4, NFTFamily(service.IPv6): v6, unix.NFPROTO_BRIDGE: nil,
			unix.NFPROTO_UNSPEC: slices.Concat([]string{"inet three in filter 1 0 false"}, v4, v6),
		} {
			got := listed(t, s, family)
			kit.Check(t, slices.Equal(got, want), "chains of family %d = %q, want %q", family, got, want)
		}
	})
}

// listed returns a line for each chain, in order.
func listed(t *testing.T, s *Socket, family uint8) []string {
	t.Helper()
	all, err := Chains(t.Context(), s, family)
	kit.Check(t, err == nil, "%v", err)
	var lines []string
	for _, c := range all {
		line := fmt.Sprintf("%s %s %s", FamilyNames[c.Family], c.Table, c.Name)
		if b := c.Base; b != nil {
			line += fmt.Sprintf(" %s %d %d %t", b.Type, b.Hook, b.Priority, b.Drops)
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return lines
}
