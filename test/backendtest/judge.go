// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package backendtest

import "testing"

// Judge compares connections with route.Decide: 20 to each of 100 clusters of each
// family. Each cluster is programmed over another one.
func Judge(t *testing.T, h Harness) {
	eachCase(t, h, func(r *run) {
		r.next()
		r.reach()
		r.next()
		r.reach()
		for range 20 {
			r.node.Judge(r.t, r.want, r.cluster.Conn(r.ports))
		}
	})
}
