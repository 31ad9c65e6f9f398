// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/netlink"
	"kubeproxy/test/kit"
)

// TestReadDump reads recorded messages. A dump that the kernel interrupted is an error, so
// that it is done again.
func TestReadDump(t *testing.T) {
	raw, err := hex.DecodeString(entryV4)
	kit.Must(t, err)
	entry := netlink.Message{Body: raw}
	done := netlink.Message{Type: unix.NLMSG_DONE, Body: make([]byte, 4)}
	marked := func(m netlink.Message) netlink.Message { m.Flags |= unix.NLM_F_DUMP_INTR; return m }
	fails := netlink.Message{Type: unix.NLMSG_ERROR, Body: binary.NativeEndian.AppendUint32(nil, ^uint32(unix.EPERM)+1)}
	for name, tt := range map[string]struct {
		messages []netlink.Message
		entries  int
		want     error
	}{
		"whole":             {[]netlink.Message{entry, entry, done}, 2, nil},
		"interrupted":       {[]netlink.Message{entry, marked(entry), entry, done}, 3, unix.EINTR},
		"interrupted first": {[]netlink.Message{marked(entry), done}, 1, unix.EINTR},
		"interrupted last":  {[]netlink.Message{entry, marked(done)}, 1, unix.EINTR},
		"refused":           {[]netlink.Message{entry, fails, entry}, 1, unix.EPERM},
		"cut short":         {[]netlink.Message{entry, {Body: raw[:8]}, done}, 1, errShort},
	} {
		n := 0
		err := readDump(func(Flow) { n++ }, func(handle func(netlink.Message) (bool, error)) error {
			for _, m := range tt.messages {
				if more, err := handle(m); err != nil || !more {
					return err
				}
			}
			return nil
		})
		if n != tt.entries || !errors.Is(err, tt.want) {
			t.Errorf("%s: %d entries, %v; want %d, %v", name, n, err, tt.entries, tt.want)
		}
	}
}

// TestMeaningOfErrors checks what the errors of the kernel stand for.
func TestMeaningOfErrors(t *testing.T) {
	for err, want := range map[error]bool{
		unix.ENETUNREACH: true, unix.EHOSTUNREACH: true, unix.EACCES: true, unix.EINVAL: true,
		unix.EAGAIN: true, // a route of type throw
		unix.EPERM:  false, unix.ENOBUFS: false, nil: false,
	} {
		if got := noRoute(err); got != want {
			t.Errorf("%v means that there is no route: %t, want %t", err, got, want)
		}
	}
	for err, want := range map[error]bool{unix.EPROTONOSUPPORT: true, unix.EAFNOSUPPORT: true, unix.EPERM: false, nil: false} {
		got := missingSocket(fmt.Errorf("socket: %w", err))
		if missing, is := errors.AsType[*MissingModuleError](got); is != want || is && missing.Module != "nfnetlink" {
			t.Errorf("%v: %v, want a missing module: %t", err, got, want)
		}
	}
}

// TestShortAttributes checks that attributes with too few or too many bytes are ignored.
func TestShortAttributes(t *testing.T) {
	for _, size := range []int{0, 1, 3} {
		var e netlink.Encoder
		for _, typ := range []uint16{ctaProtoNum, ctaProtoSrcPort, ctaProtoDstPort} {
			if typ != ctaProtoNum || size != 1 {
				e.Bytes(typ, make([]byte, size))
			}
		}
		got := tuple{protocol: 17, from: 1, to: 2}
		got.decodeProto(e.Buf)
		if want := (tuple{protocol: 17, from: 1, to: 2}); got != want {
			t.Errorf("attributes of %d bytes: %+v, want %+v", size, got, want)
		}
	}
}
