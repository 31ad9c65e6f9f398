// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/pflag"
)

// udpIdlePath is the removed field for what is now a flag only.
const udpIdlePath = "udpIdleTimeout"

const udpIdleText = "is not a field any more; it has an effect in mode userspace, like --udp-timeout, and elsewhere conntrack.udpTimeout has"

const defaultUDPIdle = 250 * time.Millisecond

func (f *Flags) registerUDPIdle(fs *pflag.FlagSet) {
	const name = "udp-timeout"
	fs.DurationVar(&f.udpIdle, name, defaultUDPIdle, "`TIME` that mode userspace keeps a UDP client which is silent, more than 0")
	group(fs, name, groupTraffic)
}

// applyUDPIdle determines the timeout. The mode must be known.
func (b *build) applyUDPIdle(f *Flags) {
	_, inFile := b.file.Lines[udpIdlePath]
	b.udpIdle = defaultUDPIdle
	if inFile {
		b.udpIdle = b.file.UDPIdleTimeout
	}
	if f.changed("udp-timeout") {
		if inFile && b.udpIdle != f.udpIdle {
			b.overrides = append(b.overrides, Override{"udp-timeout", udpIdlePath, b.udpIdle.String(), f.udpIdle.String()})
		}
		b.udpIdle = f.udpIdle
		b.flagged[udpIdlePath] = "udp-timeout"
		if !b.mode().uses(udpIdlePath) {
			b.notes = append(b.notes, Note{Origin: "--udp-timeout", Text: fmt.Sprintf("has an effect in mode %s only, see --conntrack-udp-timeout", b.usersOf(udpIdlePath, Linux))})
		}
	}
	b.period(udpIdlePath, b.udpIdle)
}

// Listeners returns the range of ports for the listeners of mode userspace, or 0 and 0 if
// the system chooses them.
func (c *Config) Listeners() (first, last uint16) {
	from, to, _ := portRange(c.PortRange) // validated when it was read
	return uint16(from), uint16(to)
}

// ListenAddr returns the address of the node for the listeners of mode userspace of its
// family. It is invalid if they have an address of their own. That is so without a range
// of ports, because it would be unknown which ports of the node's address are theirs.
func (c *Config) ListenAddr() netip.Addr {
	if first, _ := c.Listeners(); first == 0 || !listenable(c.NodeIP()) {
		return netip.Addr{}
	}
	return c.NodeIP()
}

// listenable reports whether rules can lead packets from any source to a.
func listenable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsLoopback() && !a.IsMulticast() && (a.Is4() || !a.IsLinkLocalUnicast())
}
