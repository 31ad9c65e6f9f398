// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// DialAddress completes an address, and converts a listen address to one to connect to.
func DialAddress(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		_, port, _ = net.SplitHostPort(DefaultServer)
		host = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	}
	_, badPort := strconv.ParseUint(port, 10, 16)
	if _, err := netip.ParseAddr(host); badPort != nil || port == "0" || err != nil && strings.ContainsAny(host, ":/[]") {
		return "", fmt.Errorf("--server: %q is no address: want HOST or HOST:PORT, such as 127.0.0.1:10249 or [::1]:10249", s)
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case host == "" || err == nil && addr == netip.IPv4Unspecified():
		host = "127.0.0.1"
	case err == nil && addr == netip.IPv6Unspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}
