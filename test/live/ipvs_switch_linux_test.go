// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipvs"
)

// emulated is the pause of clients in a machine whose processor is emulated.
const emulated = 100 * time.Millisecond

// To mode ipvs and back again, with every other mode that needs no process:
// nobody notices. IPVS itself loses some connections of SCTP, which is not about
// switching.
func TestIPVSSwitch(t *testing.T) {
	if !ipvs.Installed() {
		t.Skip("the kernel has no IPVS; make vm runs this on one that has")
	}
	t.Parallel()
	newCluster(t, ways()["ipvs"]).pass(t, []string{"ipvs", "nftables", "ipvs", "iptables-legacy", "ipvs", "iptables-nft", "ipvs"}, emulated, service.SCTP)
}
