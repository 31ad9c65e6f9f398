// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"strconv"

	"github.com/spf13/pflag"
)

// Switches are settings that kube-proxy does not have. It warns of their fields and
// ignores them.
type Switches struct {
	// CountTraffic counts what Services carry.
	CountTraffic bool
	// SocketAcceleration gives TCP sockets their endpoint when they connect.
	SocketAcceleration bool
}

// ownSwitch is one of Switches: a flag, a field of the file, and why it has no effect on
// Windows.
type ownSwitch struct {
	flag, path, help, windows string
	of                        func(*Switches) *bool
}

var ownSwitches = []ownSwitch{
	{
		flag: "count-traffic", path: "countTraffic",
		help:    "count the connections of each Service and endpoint, for kube-proxy top and the metrics; modes ipvs and userspace count bytes, too",
		windows: "HNS does not count what a load balancer carries",
		of:      func(s *Switches) *bool { return &s.CountTraffic },
	},
	{
		flag: "socket-acceleration", path: "socketAcceleration",
		help:    "give TCP sockets of this node the endpoint of a ClusterIP when they connect, so that their packets need no translation; rules serve all other connections",
		windows: "it is for programs of the Linux kernel",
		of:      func(s *Switches) *bool { return &s.SocketAcceleration },
	},
}

// switchOf returns the switch whose field has this path, nil if there is none.
func switchOf(path string) *ownSwitch {
	for i := range ownSwitches {
		if ownSwitches[i].path == path {
			return &ownSwitches[i]
		}
	}
	return nil
}

func (f *Flags) registerSwitches(fs *pflag.FlagSet) {
	for _, s := range ownSwitches {
		fs.BoolVar(s.of(&f.switches), s.flag, false, s.help)
		group(fs, s.flag, groupTraffic)
	}
}

// applySwitches returns what the file and flags switch on.
func (b *build) applySwitches(f *Flags) Switches {
	result := b.file.Switches
	for _, s := range ownSwitches {
		on, byFlag := s.of(&result), *s.of(&f.switches)
		if f.changed(s.flag) {
			if _, inFile := b.file.Lines[s.path]; inFile && *on != byFlag {
				b.overrides = append(b.overrides, Override{s.flag, s.path, strconv.FormatBool(*on), strconv.FormatBool(byFlag)})
			}
			*on = byFlag
			b.flagged[s.path] = s.flag
		}
		if *on && b.os == Windows {
			b.notef(s.path, "has no effect on %s: %s", b.os, s.windows)
		}
	}
	return result
}

// diffSwitches lists the switches that differ.
func diffSwitches(old, now *Config) []Change {
	var all []Change
	for _, s := range ownSwitches {
		from, to := *s.of(&old.Switches), *s.of(&now.Switches)
		if from == to {
			continue
		}
		c := Change{Path: s.path, From: strconv.FormatBool(from), To: strconv.FormatBool(to)}
		if now.OS != Windows {
			c.Effect = Restart
		}
		all = append(all, c)
	}
	return all
}
