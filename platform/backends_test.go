// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"testing"

	"kubeproxy/common/document"
	"kubeproxy/common/service"
)

// backend is what the scenarios know of a backend. A new one adds a row to backends.
type backend struct {
	name string
	// write returns what the backend makes of a cluster and its node, without what is in
	// the skeleton. A scenario has it in the file with the backend's name.
	write func(*testing.T, *service.Snapshot, scenarioOptions) string
	// skeleton is the file with what every node has, "" if that is nothing. render
	// returns all that a node has.
	skeleton string
	render   func(*testing.T, *service.Snapshot) []byte
}

var backends = []backend{
	{"nftables", writeNFTables, skeletonPath, func(t *testing.T, s *service.Snapshot) []byte { return renderNFTables(t, s, document.Text) }},
	{"iptables", writeIPTables, "testdata/skeleton.iptables", renderIPTables},
	{"ipvs", writeIPVS, "testdata/skeleton.ipvs", renderIPVS},
	{"userspace", writeUserspace, "testdata/skeleton.userspace", renderUserspace},
	{"kernelspace", writeKernelspace, "", nil},
}
