// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package trafficview

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/traffic"
	"kubeproxy/test/kit"
)

// TestWidth prints the longest names that Kubernetes allows, and all columns.
func TestWidth(t *testing.T) {
	name := strings.Repeat("service-", 7) + "is-long"
	const address = "[2001:db8:1111:2222:3333:4444:5555:7777]:65535"
	n := Numbers{Counts: traffic.Counts{Connections: 1 << 40, BytesIn: 1 << 50, BytesOut: 1 << 50}, PerSecond: &Rate{Connections: 123456789, BytesIn: 1 << 40, BytesOut: 1 << 40}}
	a := &Answer{
		Node: strings.Repeat("node-of-a-", 6) + "long", Mode: "userspace", Time: time.Unix(1e9, 0), Since: time.Unix(1e8, 0), Seconds: 10,
		Counted: traffic.Kinds{Bytes: true}, Error: strings.Repeat("no answer ", 20), Total: n,
		Services: []Service{{Namespace: strings.Repeat("n", 63), Name: name, Numbers: n, Endpoints: []Endpoint{{Port: "port-fifteen-ch", Protocol: "sctp", Address: address, Numbers: n}}}},
	}
	a.Services = append(a.Services, a.Services[0])
	var out bytes.Buffer
	if err := (View{}).Print(&out, a); err != nil {
		t.Fatal(err)
	}
	kit.CheckWidth(t, out.String(), name, address)
	t.Logf("\n%s", out.String())
}
