// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
)

// Switches are settings that kube-proxy does not have. It warns of their fields and
// ignores them.
type Switches struct {
	// CountTraffic counts what Services carry.
	CountTraffic bool
	// SocketAcceleration gives TCP sockets their endpoint when they connect.
	SocketAcceleration Acceleration
}

// Acceleration is whose sockets get their endpoint when they connect. It implements
// pflag.Value and json.Unmarshaler. As a boolean, true is AccelerateAll.
type Acceleration string

// The values of Acceleration.
const (
	AccelerateNone Acceleration = ""
	AccelerateNode Acceleration = "node" // what runs on the network of the node
	AccelerateAll  Acceleration = "all"  // pods, too
)

// accelerations has the forms of each Acceleration. The first one is that of output.
var accelerations = []struct {
	a     Acceleration
	forms []string
}{
	{AccelerateNone, []string{"false", "f", "0", "no", "n", "off"}},
	{AccelerateNode, []string{"node"}},
	{AccelerateAll, []string{"all", "true", "t", "1", "yes", "y", "on"}},
}

const wantAcceleration = "node, all, true for all, or false"

// Set implements pflag.Value.
func (a *Acceleration) Set(text string) error {
	for _, x := range accelerations {
		if slices.Contains(x.forms, strings.ToLower(text)) {
			*a = x.a
			return nil
		}
	}
	return errors.New("want " + wantAcceleration)
}

// String implements pflag.Value.
func (a *Acceleration) String() string {
	for _, x := range accelerations {
		if *a == x.a {
			return x.forms[0]
		}
	}
	return string(*a)
}

// Type implements pflag.Value.
func (a *Acceleration) Type() string { return "node|all" }

// UnmarshalJSON implements json.Unmarshaler.
func (a *Acceleration) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	return a.Set(s)
}

// ownSwitch is one of Switches: a flag, a field of the file, and why it has no effect on
// Windows.
type ownSwitch struct {
	flag, path, help, windows string
	of                        func(*Switches) pflag.Value
}

var ownSwitches = []ownSwitch{
	{
		flag: "count-traffic", path: "countTraffic",
		help:    "count the connections of each Service and endpoint, for kube-proxy top and the metrics; modes ipvs and userspace count bytes, too",
		windows: "HNS does not count what a load balancer carries",
		of:      func(s *Switches) pflag.Value { return (*onOff)(&s.CountTraffic) },
	},
	{
		flag: "socket-acceleration", path: "socketAcceleration",
		help:    "give TCP sockets of this node the endpoint of a ClusterIP when they connect, so that their packets need no translation; rules serve all other connections. node leaves pods to the rules, all or no value takes them, too",
		windows: "it is for programs of the Linux kernel",
		of:      func(s *Switches) pflag.Value { return &s.SocketAcceleration },
	},
}

// onOff is a boolean switch. It implements pflag.Value.
type onOff bool

func (o *onOff) Set(text string) error {
	on, err := strconv.ParseBool(text)
	*o = onOff(on)
	return err
}

func (o *onOff) String() string { return strconv.FormatBool(bool(*o)) }
func (o *onOff) Type() string   { return "bool" }

// IsBoolFlag lets pflag print a switch like its own booleans.
func (o *onOff) IsBoolFlag() bool { return true }

// off reports whether a switch is.
func off(v pflag.Value) bool { return v.String() == "false" }

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
		fs.Var(s.of(&f.switches), s.flag, s.help)
		fs.Lookup(s.flag).NoOptDefVal = "true"
		group(fs, s.flag, groupTraffic)
	}
}

// applySwitches returns what the file and flags switch on.
func (b *build) applySwitches(f *Flags) Switches {
	result := b.file.Switches
	for _, s := range ownSwitches {
		now, byFlag := s.of(&result), s.of(&f.switches)
		if f.changed(s.flag) {
			if _, inFile := b.file.Lines[s.path]; inFile && now.String() != byFlag.String() {
				b.overrides = append(b.overrides, Override{s.flag, s.path, now.String(), byFlag.String()})
			}
			_ = now.Set(byFlag.String()) // a flag has read it
			b.flagged[s.path] = s.flag
		}
		if !off(now) && b.os == Windows {
			b.notef(s.path, "has no effect on %s: %s", b.os, s.windows)
		}
	}
	return result
}

// diffSwitches lists the switches that differ.
func diffSwitches(old, now *Config) []Change {
	var all []Change
	for _, s := range ownSwitches {
		from, to := s.of(&old.Switches).String(), s.of(&now.Switches).String()
		if from == to {
			continue
		}
		c := Change{Path: s.path, From: from, To: to}
		if now.OS != Windows {
			c.Effect = Restart
		}
		all = append(all, c)
	}
	return all
}
