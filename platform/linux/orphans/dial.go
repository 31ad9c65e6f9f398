// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
)

// An endpoint has dialTime to answer one of dials SYNs. If one of a hundred packets is
// lost, one of a million endpoints that answer seems silent.
const (
	dials    = 3
	dialTime = 300 * time.Millisecond
)

// Answers dials an endpoint. It reports whether anything came back, also a refusal, and
// true if this node could not send.
func Answers(ctx context.Context, e netip.AddrPort) bool {
	ctx, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	results := make(chan bool, dials)
	for range dials {
		go func() { results <- answersOnce(ctx, e) }()
	}
	for range dials {
		if <-results {
			return true
		}
	}
	return false
}

func answersOnce(ctx context.Context, e netip.AddrPort) bool {
	d := net.Dialer{KeepAlive: -1}
	c, err := d.DialContext(ctx, "tcp", e.String())
	var timeout net.Error
	switch {
	case err == nil:
		_ = c.(*net.TCPConn).SetLinger(0) // the endpoint need not wait for an end
		_ = c.Close()
		return true
	case errors.As(err, &timeout) && timeout.Timeout():
		return false
	}
	return !errors.Is(err, syscall.EHOSTUNREACH) && !errors.Is(err, syscall.ENETUNREACH)
}
