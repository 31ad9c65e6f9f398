// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"maps"
	"testing"

	"kubeproxy/test/kit"
)

// encoded are three messages. The first has each sort of attribute.
func encoded() *Encoder {
	e := &Encoder{}
	e.NetfilterMessage(0x0a05, 4, 2, 0x0102)
	at := e.Nest(1)
	e.Text(2, "name")
	e.Bytes(3, []byte{1, 2, 3})
	e.Uint8(4, 5)
	e.EndNest(at)
	e.Uint16(5, 0x0102)
	e.Uint32(6|NetByteOrder, 0x01020304)
	e.Uint64(7, 0x0102030405060708)
	e.Native16(8, 0x0102)
	e.Native32(9, 0x01020304)
	e.EndMessage()
	e.Message(7, 0)
	e.EndMessage()
	e.AddFlags(8)
	e.GenericMessage(30, 4, 5)
	e.Native16(1, 2)
	e.EndMessage()
	return e
}

func TestWhatIsEncodedIsRead(t *testing.T) {
	var all []Message
	for m, err := range Messages(encoded().Buf) {
		kit.Must(t, err)
		all = append(all, m)
	}
	if len(all) != 3 || all[0].Type != 0x0a05 || all[0].Flags != 4|request || all[0].Seq != 1 ||
		all[1].Type != 7 || all[1].Flags != 8|request || all[1].Seq != 2 || len(all[1].Body) != 0 {
		t.Fatalf("messages: %+v", all)
	}
	if g := all[2]; g.Type != 30 || g.Flags != 4|request || g.Body[0] != 5 || Native16(Attribute(g.Generic(), 1)) != 2 || all[1].Generic() != nil {
		t.Errorf("header of generic netlink: %+v", g)
	}
	family, attrs := all[0].Netfilter()
	if family != 2 || binary.BigEndian.Uint16(all[0].Body[2:]) != 0x0102 {
		t.Errorf("header of netfilter: %x", all[0].Body)
	}
	nested := maps.Collect(Attributes(Attribute(attrs, 1)))
	want := map[uint16][]byte{2: []byte("name\x00"), 3: {1, 2, 3}, 4: {5}}
	kit.Same(t, "nested attributes (-want +got)", want, nested)
	want = map[uint16][]byte{
		5: {1, 2}, 6: {1, 2, 3, 4}, 7: {1, 2, 3, 4, 5, 6, 7, 8},
		8: binary.NativeEndian.AppendUint16(nil, 0x0102), 9: binary.NativeEndian.AppendUint32(nil, 0x01020304),
	}
	got := maps.Collect(Attributes(attrs))
	delete(got, 1)
	kit.Same(t, "attributes (-want +got)", want, got)
	if s, n := Text(nested[2]), Uint32(got[6]); s != "name" || n != 0x01020304 || Uint32(got[5]) != 0 || Uint16(got[5]) != 0x0102 ||
		Native16(got[8]) != 0x0102 || Native32(got[9]) != 0x01020304 || Uint16(nil)+Native16(nil) != 0 || Native32(nil) != 0 || Native64(nil) != 0 || Native64(got[7]) != binary.NativeEndian.Uint64(got[7]) || Attribute(attrs, 99) != nil {
		t.Errorf("values %q, %#x", s, n)
	}
}

func TestTruncated(t *testing.T) {
	b := encoded().Buf
	for n := range len(b) {
		for m, err := range Messages(b[:n]) {
			kit.Check(t, err != nil || len(m.Body) <= n, "of %d bytes: %v", n, m)
		}
		for _, v := range Attributes(b[20 : 20+min(n, len(b)-20)]) {
			kit.Check(t, len(v) <= n, "an attribute of %d bytes in %d", len(v), n)
		}
	}
	for _, size := range []uint32{0, 15, 17} {
		bad := binary.NativeEndian.AppendUint32(nil, size)
		bad = append(bad, make([]byte, 12)...)
		failed := false
		for _, err := range Messages(bad) {
			failed = failed || err != nil
		}
		kit.Check(t, failed, "no error for a message of %d bytes in 16", size)
	}
	family, attrs := (Message{Body: []byte{2, 0, 0}}).Netfilter()
	kit.Check(t, family == 0 && attrs == nil, "a short header of netfilter has family %d and %x", family, attrs)
}

func FuzzMessages(f *testing.F) {
	f.Add(encoded().Buf)
	f.Fuzz(func(_ *testing.T, b []byte) {
		for m := range Messages(b) {
			_, attrs := m.Netfilter()
			for _, v := range Attributes(attrs) {
				_, _, _ = Text(v), Uint32(v), Native16(v)
			}
		}
	})
}
