// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// largest is the element that needs the most bytes.
func largest() Member {
	return Member{entry("2001:db8::1", service.TCP, 80, "2001:db8::/32"), strings.Repeat("x", commentSize)}
}

// TestBatchSize checks that the message of a full batch is below 32 KiB, whatever its
// last element is.
func TestBatchSize(t *testing.T) {
	e := &netlink.Encoder{Buf: make([]byte, batchSize-1)}
	encodeElement(e, HashIPPortNet, largest())
	if len(e.Buf) > 32<<10 {
		t.Errorf("message of %d bytes", len(e.Buf))
	}
}

// TestCutAnswers checks that a truncated reply is parsed up to its end and no further.
func TestCutAnswers(t *testing.T) {
	m := largest()
	e := &netlink.Encoder{}
	encodeElement(e, HashIPPortNet, m)
	w := e.Buf
	for n := range w {
		cut := w[:n]
		if got := appendMembers(nil, cut); len(got) != 0 {
			t.Errorf("%d of %d bytes are %v", n, len(w), got)
		}
		short := readMember(cut[min(n, 4):])
		if short.Addr.IsValid() && short.Addr != m.Addr || short.Net.IsValid() && short.Net.Addr() != m.Net.Addr() {
			t.Errorf("%d of %d bytes are %v", n, len(w), short)
		}
	}
	if got := appendMembers(nil, w); len(got) != 1 || got[0] != m {
		t.Errorf("all bytes are %v, want %v", got, m)
	}
}

// TestShortAttributes parses attributes that are too short for their type.
func TestShortAttributes(t *testing.T) {
	for typ := range uint16(64) {
		e := &netlink.Encoder{}
		e.Uint8(typ, 1)
		e.Bytes(typ, nil)
		w := e.Buf
		if e := readMember(w); e.Addr != (netip.Addr{}) || e.Port != 0 {
			t.Errorf("attribute %d is read as %v", typ, e)
		}
		if h := readHeader(w); h.Entries != 0 || h.References != 0 {
			t.Errorf("attribute %d is read as %v", typ, h)
		}
		binary.NativeEndian.PutUint16(w, 3)
		if e := readMember(w); e != (Member{}) {
			t.Errorf("attribute of 3 bytes is read as %v", e)
		}
	}
}
