// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// entryV4 is Linux 6.18's dump of a flow with a reply from 192.0.2.9:1077 to
// 10.96.0.10:53, translated to 10.244.0.1:53.
const entryV4 = "02000000340001801400018008000100c0000209080002000a60000a1c000280050001001100000006000200043500000600" +
	"0300003500003400028014000180080001000af4000108000200c00002091c00028005000100110000000600020000350000" +
	"06000300043500000600120000070000080003000000000e080008000000000008000c003857c4da08000b00000000010800" +
	"070000000e101c001880080001000000000008000200000000000800030000000000"

func TestDecodeFlow(t *testing.T) {
	raw, err := hex.DecodeString(entryV4)
	if err != nil {
		t.Fatal(err)
	}
	want := Flow{Protocol: service.UDP, Src: at("192.0.2.9:1077"), Dst: at("10.96.0.10:53"),
		ReplySrc: at("10.244.0.1:53"), ReplyDst: at("192.0.2.9:1077"), Zone: 7, ReplyZone: 7, ID: 945276122, Answered: true}
	got, err := decodeFlow(raw)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); d != "" {
		t.Errorf("decodeFlow (-want +got):\n%s", d)
	}
	for n := range len(raw) { // truncated input must not panic
		_, _ = decodeFlow(raw[:n])
	}
	for _, short := range [][]byte{nil, raw[:3], raw[:nfgenmsgSize], raw[:nfgenmsgSize+52]} {
		if f, err := decodeFlow(short); err == nil {
			t.Errorf("decodeFlow(%x) = %v, want an error", short, f)
		}
	}
}

// The reply tuple, the ID and the zone identify the entry to delete.
func TestEncodeDelete(t *testing.T) {
	f := Flow{Protocol: service.UDP, Src: at("[2001:db8::9]:1077"), Dst: at("[fd00:96::a]:53"),
		ReplySrc: at("[fd00:244::1]:5353"), ReplyDst: at("[2001:db8::9]:1077"), Zone: 1, ReplyZone: 7, ID: 0x01020304}
	got, err := encodeDelete(f)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"0a000000", // IPv6
		"4c000280", // CTA_TUPLE_REPLY
		"2c000180", // CTA_TUPLE_IP
		"14000300fd000244000000000000000000000001", // source
		"1400040020010db8000000000000000000000009", // destination
		"1c000280", // CTA_TUPLE_PROTO
		"05000100110000000600020014e90000" + "0600030004350000",
		"0600120000070000", // CTA_ZONE
		"08000c0001020304", // CTA_ID
	}, "")
	if h := hex.EncodeToString(got); h != want {
		t.Errorf("encodeDelete (-want +got):\n%s", cmp.Diff(want, h))
	}
}

func FuzzDecode(f *testing.F) {
	raw, err := hex.DecodeString(entryV4)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(raw)
	f.Add(append(bytes.Repeat([]byte{0}, 16), raw...))
	f.Fuzz(func(t *testing.T, b []byte) {
		for m := range netlink.Messages(b) {
			_, _ = decodeFlow(m.Body)
		}
		flow, err := decodeFlow(b)
		if err != nil {
			return
		}
		if _, err := encodeDelete(flow); err != nil {
			t.Errorf("decodeFlow accepts %v, encodeDelete says %v", flow, err)
		}
	})
}
