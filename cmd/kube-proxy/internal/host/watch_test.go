// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// TestHostWatch starts and stops listeners between polls.
func TestHostWatch(t *testing.T) {
	ssh := track.Socket{Protocol: service.TCP, Addr: netip.MustParseAddrPort("0.0.0.0:22")}
	dns := track.Socket{Protocol: service.UDP, Addr: netip.MustParseAddrPort("0.0.0.0:53")}
	client := track.Socket{Protocol: service.UDP, Addr: netip.MustParseAddrPort("0.0.0.0:40000")}
	own := track.Socket{Protocol: service.TCP, Addr: netip.MustParseAddrPort("127.0.0.1:9")}
	var now []track.Socket
	w := &hostWatch{
		addrs:   func() ([]netip.Prefix, error) { return nil, nil },
		sockets: func() ([]track.Socket, error) { return now, nil },
		seen:    map[track.Socket]*socketSeen{},
	}
	for i, step := range []struct{ now, want []track.Socket }{
		{[]track.Socket{dns, dns, own}, []track.Socket{dns}},
		{[]track.Socket{dns, ssh, client}, []track.Socket{ssh, dns}},
		{[]track.Socket{dns}, []track.Socket{ssh, dns}},
		{nil, []track.Socket{ssh, dns}},
		{nil, []track.Socket{ssh, dns}}, {nil, []track.Socket{ssh, dns}}, {nil, []track.Socket{ssh, dns}},
		{[]track.Socket{client}, []track.Socket{ssh, dns, client}},
		{nil, []track.Socket{dns, client}},
		{nil, []track.Socket{client}},
	} {
		now = step.now
		h, err := w.poll()
		kit.Must(t, err)
		less := cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })
		kit.Same(t, fmt.Sprintf("look %d (-want +got)", i), step.want, h.Listening, less)
	}
}
