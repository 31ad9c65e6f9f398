// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mode defines the Descriptor, which is what the rest of the program knows of a
// proxy mode. Each backend has a package named descriptor with its own. Package modes has
// the Table of all of them. Code that selects, renders, starts or cleans up modes reads a
// Table; nothing else lists modes.
package mode

import (
	"context"
	"io"
	"time"

	"kubeproxy/common/document"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
)

// Descriptor describes a mode.
type Descriptor struct {
	// Mode is the part that the configuration reads.
	config.Mode
	// DefaultRank is the place in the order in which modes are tried if none is
	// configured, from 1. A mode of rank 0 is used on request only.
	DefaultRank int
	// FallbackRank is the place in the order of --proxy-mode-fallback, from 1. A mode of
	// rank 0 has no part in it.
	FallbackRank int
	// Named says where the objects of the mode have the name of --service-proxy-name. It
	// is empty if they have the same names for every service proxy, so that only one proxy
	// of a node may use the mode.
	Named string
	// Deprecated is why the mode is about to be removed from Kubernetes, and what to use
	// instead, empty if it stays.
	Deprecated string
	// Relays is whether connections pass through the process, not only through rules.
	Relays bool
	// ListedEndpoints is whether the mode needs to know endpoints that are not ready.
	ListedEndpoints bool
	// MemoryShare divides the memory of the cgroup: the process uses one such part and
	// leaves the rest to commands that it starts. 0 and 1 leave nothing to them.
	MemoryShare int
	// Needs and Leaves are the cells of the mode in docs/modes.md: what a node must have,
	// and what the mode leaves there. What a mode cannot do is reported for each Service
	// port, see reconcile.UnsupportedError.
	Needs, Leaves string

	// Section returns the section of the configuration for the mode.
	Section func(*config.Config) Section
	// Render prints what a node would install for a snapshot. It needs no system.
	Render func(w io.Writer, want *service.Snapshot, r Rendering) error
	// Limits, if set, returns what a round for a family of want would say of Service ports that the mode cannot serve as
	// they ask. It needs no system.
	Limits func(want *service.Snapshot, f service.Family, r Rendering) (reconcile.Outcome, error)
	// Differences, if set, returns what the mode would do with a connection otherwise than Kubernetes says. It needs no
	// system.
	Differences func(want *service.Snapshot, c route.Conn, r Rendering) ([]string, error)
	// System is what the mode does on its system, nil in programs for another system.
	System *System
}

// Section is what every mode has in a section of the configuration.
type Section struct {
	MinSyncPeriod, SyncPeriod time.Duration
	MasqueradeAll             bool
}

// Rendering says how Render prints.
type Rendering struct {
	Config *config.Config
	Format document.Format
	// State is the file with what the node holds, empty if that is unknown. Only modes
	// whose system can print such a file read it, see System.Dump.
	State string
	// Note receives what the reader of the output should know.
	Note func(string)
}

// System is what a mode does on its system.
type System struct {
	// Probe returns in one sentence what the node lacks for a family. It changes nothing.
	// A nil Probe accepts every node.
	Probe func(*config.Config, service.Family) error
	// ProbeLeavesTraces is whether a probe makes objects for a moment. Commands that must
	// change nothing run it in a network namespace of its own.
	ProbeLeavesTraces bool
	// Open returns the backends of families, which change nothing before their first round.
	Open func(context.Context, Setup, []service.Family) ([]*Backend, error)
	// Owned names the targets that the rounds of a family keep in order, including what
	// others left there. A nil Owned means none: nothing is taken over.
	Owned func(*config.Config, service.Family) ([]string, error)
	// Targets lists where the mode, or kube-proxy in a similar mode, may have left
	// something on this node.
	Targets func(context.Context, Setup) ([]takeover.Target, error)
	// Prepare, if set, is what --init-only does for the mode.
	Prepare func(context.Context, Setup) error
	// Pending, if set, lists what Prepare would change, one a line. It changes nothing.
	Pending func(context.Context, Setup) ([]string, error)
	// ReadBack, if set, returns what the node holds of a family, and what it would hold for
	// a snapshot, both in the text of Render and in one order, so that they can be compared.
	// It changes nothing.
	ReadBack func(context.Context, Setup, service.Family, *service.Snapshot) (held, wanted string, err error)
	// Dump, if set, returns what the node holds, for Rendering.State.
	Dump func() ([]byte, error)
	// Conntrack is whether the kernel tracks the connections of the mode, so that entries
	// become stale when rules change.
	Conntrack bool
	// Translates is whether it is these entries that translate packets, so that clients reach
	// an endpoint as long as the entry exists, whatever the rules are.
	Translates bool
}

// Setup is what a mode gets from the process.
type Setup struct {
	Config *config.Config
	// NodeName returns the name of the own Node.
	NodeName func() (string, error)
	// Condition returns the setter of a condition. An empty text clears it.
	Condition func(name string) func(text string)
	// DetailedCondition is Condition with a second text, which may name Services and
	// clients. Both are empty without a fault.
	DetailedCondition func(name string) func(text, detail string)
	// Progress is called when a round makes progress that takes long.
	Progress func()
	// Unreached receives how many clients of a Service port were not served by a listener
	// because endpoints failed.
	Unreached func(f service.Family, name service.PortName, clients int, err error)
}
