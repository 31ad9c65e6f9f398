// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"slices"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/program"
)

// withUserspace runs test in mode userspace with each of the variants of iptables.
func withUserspace(t *testing.T, test func(*testing.T, mode)) {
	t.Parallel()
	for _, v := range program.IPTablesVariants {
		t.Run(v, func(t *testing.T) {
			t.Parallel()
			test(t, inUserspace(v))
		})
	}
}

// slowUDP gives an endpoint of UDP ten seconds for an answer: on a busy machine the
// default of 250 ms may pass before it has the request.
const slowUDP = "--udp-timeout=10s"

func inUserspace(variant string) mode {
	m := defaultMode()
	m.flags = append(m.flags, "--proxy-mode=userspace", "--iptables-localhost-nodeports=false", slowUDP)
	m.iptables, m.userspace = variant, true
	return m
}

// protocols lists those that c's mode forwards.
func (c *cluster) protocols() []service.Protocol {
	if c.mode.userspace {
		return slices.DeleteFunc(protocols(), func(p service.Protocol) bool { return p == service.SCTP })
	}
	return protocols()
}

func TestUserspaceEveryCell(t *testing.T) { withUserspace(t, everyCell) }

func TestUserspaceModes(t *testing.T) { withUserspace(t, everyMode) }

func TestUserspaceBridge(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) { onBridge(t, m.withoutPodDetection()) })
}
