// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"net/netip"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/proc"
)

// TestHidden checks that a listener is reported only if a NodePort really takes its
// clients away.
func TestHidden(t *testing.T) {
	port := func(f service.Family, proto service.Protocol, kind service.Kind) *service.Port {
		return &service.Port{
			Name:      service.PortName{Namespace: "shop", Name: "web", Protocol: proto},
			Family:    f,
			Frontends: []service.Frontend{{Kind: kind, Port: 30080}},
		}
	}
	plain := port(service.IPv4, service.TCP, service.NodePort)
	for situation, test := range map[string]struct {
		ports  []*service.Port
		listen string
		want   string
	}{
		"on every address":           {[]*service.Port{plain}, "tcp 0.0.0.0:30080", "1 NodePorts are ports that programs of this node listen on, the first of them: shop/web hides a program that listens on 0.0.0.0:30080/tcp"},
		"on every address of both":   {[]*service.Port{plain}, "tcp [::]:30080", "1 NodePorts are ports that programs of this node listen on, the first of them: shop/web hides a program that listens on [::]:30080/tcp"},
		"on an answering address":    {[]*service.Port{plain}, "tcp 192.0.2.1:30080", "1 NodePorts are ports that programs of this node listen on, the first of them: shop/web hides a program that listens on 192.0.2.1:30080/tcp"},
		"both families":              {[]*service.Port{plain, port(service.IPv6, service.TCP, service.NodePort)}, "tcp [::]:30080", "2 NodePorts are ports that programs of this node listen on, the first of them: shop/web hides a program that listens on [::]:30080/tcp"},
		"on another of the node's":   {[]*service.Port{plain}, "tcp 198.51.100.1:30080", ""},
		"on loopback":                {[]*service.Port{plain}, "tcp 127.0.0.1:30080", ""},
		"another port":               {[]*service.Port{plain}, "tcp 0.0.0.0:30081", ""},
		"another protocol":           {[]*service.Port{plain}, "udp 0.0.0.0:30080", ""},
		"another family":             {[]*service.Port{port(service.IPv6, service.TCP, service.NodePort)}, "tcp 0.0.0.0:30080", ""},
		"the port of an external IP": {[]*service.Port{port(service.IPv4, service.TCP, service.ExternalIP)}, "tcp 0.0.0.0:30080", ""},
	} {
		t.Run(situation, func(t *testing.T) {
			node := &service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}
			proto, addr, _ := strings.Cut(test.listen, " ")
			l := proc.Listener{Protocol: service.TCP, Addr: netip.MustParseAddrPort(addr)}
			if proto == "udp" {
				l.Protocol = service.UDP
			}
			if got := hiddenListeners(service.New(1, node, test.ports), []proc.Listener{l}); got != test.want {
				t.Errorf("hidden = %q, want %q", got, test.want)
			}
		})
	}
	own := []proc.Listener{{Protocol: service.TCP, Addr: netip.MustParseAddrPort("127.0.0.1:30080")}}
	if got := hiddenListeners(service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{plain}), own); got != "" {
		t.Errorf("on loopback, where every address answers: %q", got)
	}
	if got := hiddenListeners(nil, []proc.Listener{{}}); got != "" {
		t.Errorf("before the first snapshot: %q", got)
	}
}
