// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package backendtest

import (
	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// Explain returns v as far as a Walk is compared with it. hairpin is as in Expect.
func Explain(v route.Verdict, hairpin func(service.Endpoint) bool) *explain.Explanation {
	x := &explain.Explanation{Action: v.Action.String()}
	for _, e := range v.Endpoints {
		client := "kept"
		if v.Masquerades(e) || hairpin(e) {
			client = "masqueraded"
		}
		x.Endpoints = append(x.Endpoints, explain.Endpoint{Listed: track.Listed{Address: e.Addr.String()}, Chosen: true, Client: client})
	}
	return x
}
