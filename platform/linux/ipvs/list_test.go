// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/service"
)

const listing = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A60000A:0050 rr persistent 10800 FFFFFFFF
  -> 0AF4010C:1F90      Masq    1      2          3
  -> 0AF4010B:1F90      Route   0      0          0
FWM  00000007 rr
  -> 0AF4010D:1F90      Masq    1      0          0
UDP  0A60000A:0050 rr ops
SCTP [fd00:0010:0096:0000:0000:0000:0000:0010]:0050 mh
  -> [fd00:0010:0244:0001:0000:0000:0000:0011]:1F90      Masq    1      0          1
`

func TestListing(t *testing.T) {
	four, six := netip.MustParseAddr("10.96.0.10"), netip.MustParseAddr("fd00:10:96::10")
	tcp, udp, sctp, omitted := &observedServer{}, &observedServer{}, &observedServer{}, &observedServer{}
	servers := map[service.Address]*observedServer{
		addressAt(four, 80, service.TCP): tcp, addressAt(four, 80, service.UDP): udp, addressAt(six, 80, service.SCTP): sctp, addressAt(four, 81, service.TCP): omitted,
	}
	if err := fillDests(servers, strings.NewReader(listing)); err != nil {
		t.Fatal(err)
	}
	want := dest{addr: netip.MustParseAddrPort("10.244.1.12:8080"), weight: 1, conns: 5}
	if len(tcp.dests) != 2 || tcp.dests[1] != want || tcp.dests[0].weight != 0 || !tcp.dests[0].wrongMode {
		t.Errorf("TCP: %+v", tcp.dests)
	}
	if !udp.destsKnown || len(udp.dests) > 0 || omitted.destsKnown {
		t.Errorf("UDP: %+v, one that is left out: %+v", udp, omitted)
	}
	if len(sctp.dests) != 1 || sctp.dests[0].addr != netip.MustParseAddrPort("[fd00:10:244:1::11]:8080") {
		t.Errorf("SCTP: %+v", sctp.dests)
	}
	if err := fillDests(servers, strings.NewReader("TCP 0A60000A:0050 rr\n -> nonsense Masq 1 0 0\n")); err == nil {
		t.Error("nonsense is taken for a destination")
	}
}
