// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"testing"
	"unsafe"

	"kubeproxy/common/service"
)

// TestPortsLeft queries the system, which has free ports wherever tests run. A system
// without this function, such as Wine, must return an error.
func TestPortsLeft(t *testing.T) {
	for _, k := range []Key{
		{Protocol: service.TCP}, {Protocol: service.UDP}, {Family: service.IPv6, Protocol: service.TCP}, {Family: service.IPv6, Protocol: service.UDP},
	} {
		left, err := NewDriver().PortsLeft(t.Context(), k)
		if err == nil && !left {
			t.Errorf("%s over %s: none are left", k.Protocol, k.Family)
		}
		t.Logf("%s over %s: %t, %v", k.Protocol, k.Family, left, err)
	}
	if in, out := unsafe.Sizeof(portRange{}), unsafe.Sizeof(portReservation{}); in != 4 || out != 16 {
		t.Errorf("%d and %d bytes, want 4 and 16 as in mstcpip.h", in, out)
	}
}
