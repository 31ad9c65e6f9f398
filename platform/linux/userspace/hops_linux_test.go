// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

import (
	"net"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// TestDatagramHops checks that datagrams of both families come with their hop limit.
func TestDatagramHops(t *testing.T) {
	for _, f := range service.Families {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: service.Localhost(f).AsSlice()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		receiveHops(c)
		if _, err := c.WriteTo([]byte("x"), c.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(long))
		var data [1]byte
		var control [128]byte
		_, n, _, _, err := c.ReadMsgUDP(data[:], control[:])
		if hops := datagramHops(control[:n]); err != nil || hops < 1 || hops > 255 {
			t.Errorf("%s: a hop limit of %d, %v", f, hops, err)
		}
	}
}
