// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
)

// TestCounters adds up the rules of both policies of a port, as iptables-save -c prints
// them, and leaves out those of others.
func TestCounters(t *testing.T) {
	p := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Port: "http", Protocol: service.TCP}}
	want := service.New(1, &service.Node{}, []*service.Port{p})
	cluster, local := portChainName(clusterPrefix, p), portChainName(localPrefix, p)
	text := strings.NewReplacer("CLUSTER", cluster, "LOCAL", local).Replace(`*nat
:CLUSTER - [0:0]
[40:2400] -A PREROUTING -j KUBE-SERVICES
[3:180] -A CLUSTER -d 10.96.0.1/32 -j KUBE-MARK-CLUSTER
[7:420] -A CLUSTER -p tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.244.0.1:8080
[5:300] -A CLUSTER -p tcp -j DNAT --to-destination 10.244.0.2:8080 --random
[2:120] -A LOCAL -p tcp -j DNAT --to-destination 10.244.0.1:8080
[9:540] -A CNI-DN-1 -p tcp -j DNAT --to-destination 10.244.0.9:80
[x:y] -A CLUSTER -p tcp -j DNAT --to-destination 10.244.0.3:8080
COMMIT
`)
	c := &Counters{family: service.IPv4, list: func(context.Context) (string, error) { return text, nil }}
	samples, err := c.Read(t.Context(), want)
	got := map[string]uint64{}
	for _, s := range samples {
		if s.Name != p.Name {
			t.Errorf("%v has another name", s)
		}
		got[s.Endpoint.String()] = s.Connections
	}
	if diff := cmp.Diff(map[string]uint64{"10.244.0.1:8080": 9, "10.244.0.2:8080": 5}, got); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	c.list = func(context.Context) (string, error) { return "", errors.New("refused") }
	if _, err := c.Read(t.Context(), want); err == nil || !strings.Contains(err.Error(), "iptables what its rules have counted: refused") {
		t.Errorf("%v, want the error of the command", err)
	}
	if _, to, _ := parseTranslation("[1:60] -A X -j DNAT --to-destination [fd00::1]:80\n"); to != netip.MustParseAddrPort("[fd00::1]:80") {
		t.Errorf("an address of IPv6 is %s", to)
	}
	if k := c.Kinds(); k != (traffic.Kinds{}) {
		t.Errorf("%+v are counted, too", k)
	}
}
