// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"testing"

	"kubeproxy/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m.Run)) }

// start creates a network with a node and a control plane beside it.
func start(t *testing.T, o Options) (*netlab.Lab, *Cluster) {
	t.Helper()
	lab := netlab.Start(t, netlab.Config{Clients: []string{"control"}})
	o.Host = lab.Host("control")
	return lab, Start(t, o)
}
