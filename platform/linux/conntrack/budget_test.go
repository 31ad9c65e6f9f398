// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/service"
)

// syn returns the entry of a client that waits for a reply from by.
func syn(by string) Flow {
	f := flow("10.96.0.10:53", by)
	f.Protocol, f.State = service.TCP, tcpSynSent
	return f
}

// If dumps take long, connections are checked less often than datagrams, and every check
// happens in the end.
func TestConnectionScansAreLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slow = 100 * time.Millisecond
		k := &fake{t: t, dumpDelay: slow}
		r := &Reconciler{Driver: k}
		both := func(endpoint string) *service.Snapshot {
			web := *udp(endpoint)
			web.Name.Name, web.Name.Protocol = "web", service.TCP
			return snapshot(udp(endpoint), &web)
		}
		scans, left := 0, 0
		for i := range 20 {
			endpoint := []string{epA, epB}[i%2]
			gone := []string{epB, epA}[i%2]
			k.table = []Flow{flow("10.96.0.10:53", gone), syn(gone)}
			if _, err := r.Sync(t.Context(), both(endpoint)); err != nil {
				t.Fatal(err)
			}
			if len(k.table) == 0 {
				scans++
			} else if k.expect(syn(gone)); r.ResyncAfter() <= 0 {
				t.Errorf("Due = %v with a connection left", r.ResyncAfter())
			}
			left = len(k.table)
		}
		if scans < 1 || scans > 5 || left == 0 {
			t.Errorf("connections were looked at %d times in 20 rounds at once, the last time too: %v", scans, left == 0)
		}
		time.Sleep(r.ResyncAfter())
		k.sync(r, both(epB), 1, nil)
		k.expect()
		if r.ResyncAfter() != 0 {
			t.Errorf("Due = %v with nothing left", r.ResyncAfter())
		}
	})
}
