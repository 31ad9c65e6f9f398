// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"

	"kubeproxy/platform/linux/ipvs"
)

// withIPVS runs test in mode ipvs.
func withIPVS(t *testing.T, test func(*testing.T, mode)) {
	t.Helper()
	if !ipvs.Installed() {
		t.Skip("the kernel has no IPVS; make vm runs this on one that has")
	}
	t.Parallel()
	m := usual()
	m.flags = append(m.flags, "--proxy-mode=ipvs")
	m.ipvs = true
	test(t, m)
}

func TestIPVSEveryCell(t *testing.T) { withIPVS(t, everyCell) }

func TestIPVSModes(t *testing.T) { withIPVS(t, everyMode) }

func TestIPVSBridge(t *testing.T) {
	withIPVS(t, func(t *testing.T, m mode) { onBridge(t, m.bare()) })
}
