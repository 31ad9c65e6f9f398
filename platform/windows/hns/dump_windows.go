// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"

	"github.com/Microsoft/hcsshim/hcn"
)

// Dump returns everything that HNS holds, of all owners, in the format of ReadState.
func Dump() ([]byte, error) {
	as := func(text []byte) (json.RawMessage, error) { return text, nil }
	var d dump
	var err error
	if d.Version, err = version(); err != nil {
		return nil, err
	}
	if d.Networks, err = list("list networks", hcn.ListNetworks, as); err != nil {
		return nil, err
	}
	if d.Endpoints, err = list("list endpoints", hcn.ListEndpoints, as); err != nil {
		return nil, err
	}
	if d.LoadBalancers, err = list("list load balancers", hcn.ListLoadBalancers, as); err != nil {
		return nil, err
	}
	return json.MarshalIndent(d, "", "  ")
}
