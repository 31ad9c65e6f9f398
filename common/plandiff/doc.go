// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package plandiff says what differs between two states of a node: the Service ports that
// it must forward, the changes that a backend would make, and the texts of rules.
// Snapshots, plans and texts go in. A Difference comes out, which prints for people and
// as JSON.
package plandiff

import "kubeproxy/common/service"

// Difference is what differs between two states. New versions may add fields to its JSON
// form, but must not rename or remove any.
type Difference struct {
	Node string `json:"node"`
	Mode string `json:"mode"`
	// From and To name the two states.
	From string `json:"from"`
	To   string `json:"to"`
	Same bool   `json:"same"`
	// Settings are lines about what does not belong to a Service port.
	Settings []string `json:"settings"`
	// Ports are the Service ports that differ. They are empty if one state is what the node
	// has installed: that has no Services.
	Ports []PortChange `json:"ports"`
	// Affected are the names of the Service ports in Ports, Plan and Text. A name that is cut
	// there is left out if no known Service port begins with it.
	Affected []string `json:"affected"`
	// Plan are the changes that the node would make, one a line, if From is what it has
	// installed.
	Plan  []string                        `json:"plan"`
	plans [len(service.Families)][]string // by family
	// Text is a unified diff of what both states have installed. It is empty if that cannot
	// be read back.
	Text string `json:"diff"`
	// Limits are what the mode does otherwise than the Services of the new state ask, one a line.
	Limits []string `json:"limits"`
	Notes  []string `json:"notes"`
	known  []service.PortName
}

// New returns a Difference without any.
func New() *Difference {
	return &Difference{Same: true, Settings: []string{}, Ports: []PortChange{}, Affected: []string{}, Plan: []string{}, Limits: []string{}, Notes: []string{}}
}

// The exit codes of a comparison, which are those of kubectl diff.
const (
	ExitDiffers = 1
	ExitFailed  = 2
)

// ExitCode returns 0 if nothing differs.
func (d *Difference) ExitCode() int {
	if d.Same {
		return 0
	}
	return ExitDiffers
}
