// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"testing"
	"time"

	"kubeproxy/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m.Run)) }

// await polls until ok, up to a limit that only a fault reaches.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	const most = time.Minute
	for deadline := time.Now().Add(most); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s in vain: %s", most, what)
		}
	}
}

// start creates a network with a node and a control plane beside it.
func start(t *testing.T, o Options) (*netlab.Lab, *Cluster) {
	t.Helper()
	lab := netlab.Start(t, netlab.Config{Clients: []string{"control"}})
	o.Host = lab.Host("control")
	return lab, Start(t, o)
}
