// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// creations is a Driver that keeps the requests for endpoints.
type creations struct {
	Driver
	texts []string
}

func (c *creations) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	text, err := json.Marshal(e.document())
	if err != nil {
		return Endpoint{}, err
	}
	c.texts = append(c.texts, string(text))
	return c.Driver.CreateEndpoint(ctx, e)
}

// TestEndpointRequests asks HNS for endpoints as kube-proxy 1.37 does, apart from names: with a provider address on an
// overlay alone, and with the MAC of the host for the source VIP.
func TestEndpointRequests(t *testing.T) {
	const schema = `"SchemaVersion":{"Major":2,"Minor":0}}`
	for _, tt := range []struct {
		network Network
		want    []string
	}{
		{bridgeN, []string{
			`{"Name":"kube-proxy-remote-10.244.2.11","HostComputeNetwork":"net-bridge","IpConfigurations":[{"IpAddress":"10.244.2.11"}],` +
				`"MacAddress":"02-11-0a-f4-02-0b","Flags":1,` + schema,
		}},
		{overlayN, []string{
			`{"Name":"kube-proxy-source-vip","HostComputeNetwork":"net-overlay","IpConfigurations":[{"IpAddress":"10.244.1.254"}],"MacAddress":"` + site(overlayN, v13).HostMAC + `",` + schema,
			`{"Name":"kube-proxy-remote-10.96.0.10","HostComputeNetwork":"net-overlay","Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"192.0.2.10"}}],` +
				`"IpConfigurations":[{"IpAddress":"10.96.0.10"}],"MacAddress":"` + site(overlayN, v13).HostMAC + `","Flags":1,` + schema,
			`{"Name":"kube-proxy-remote-10.244.2.11","HostComputeNetwork":"net-overlay","Policies":[{"Type":"ProviderAddress","Settings":{"ProviderAddress":"192.0.2.11"}}],` +
				`"IpConfigurations":[{"IpAddress":"10.244.2.11"}],"MacAddress":"02-11-0a-f4-02-0b","Flags":1,` + schema,
		}},
	} {
		b := newTestNode(t, v13, tt.network)
		b.pods("10.244.1.11")
		r := &creations{Driver: b.hns}
		b.restartOn(r)
		b.converge(snapshot(1, clusterIP("web", "10.96.0.10", localEndpoint, remoteEndpoint)))
		if diff := cmp.Diff(tt.want, r.texts); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.network.Kind, diff)
		}
	}
}
