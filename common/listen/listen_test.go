// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"net"
	"testing"
)

// TestInUse listens twice at one address, over TCP and UDP.
func TestInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := net.Listen("tcp", l.Addr().String()); !InUse(err) {
		t.Errorf("TCP: %v is not in use", err)
	}
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if _, err := net.ListenPacket("udp", u.LocalAddr().String()); !InUse(err) {
		t.Errorf("UDP: %v is not in use", err)
	}
	if InUse(nil) || InUse(errors.New("other")) {
		t.Error("another error is in use")
	}
}
