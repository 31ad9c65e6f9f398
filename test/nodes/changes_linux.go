// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Setting is what trials are made with.
type Setting struct {
	Chart Chart
	// Earlier is an earlier version of this proxy, for upgrades.
	Earlier Chart
	// Silence is how long the API server does not answer.
	Silence time.Duration
}

// Trial is a change that is made under load, in a cluster in which a proxy runs already.
type Trial struct {
	Name, About string
	// Tolerated says what may be lost.
	Tolerated Tolerated
	// Relay says that the process of the proxy ends, and what it relays in mode userspace.
	Relay bool
	// Drains says that virtual servers of mode ipvs go first, once no connection needs them.
	Drains bool
	// Note explains for the page what is lost.
	Note string

	// change is made under load; prepare comes before it, and finish after it.
	prepare, change, finish step
}

type step func(context.Context, *Cluster, Setting) error

// Tolerated is what a trial may lose.
type Tolerated int

// Nothing may be lost; or what pods that end had: connections, and flows of clients that
// take a port again; or anything.
const (
	Nothing Tolerated = iota
	Held
	Anything
)

// Judge returns an error if the change lost what it must not.
func (t Trial) Judge(c Change) error {
	if t.Relay && c.Mode == "userspace" {
		t.Tolerated = max(t.Tolerated, Held)
	}
	for _, f := range c.Flows {
		if f.New == f.NewLost {
			return fmt.Errorf("%s: no connection of %s succeeded", t.About, f.Name)
		}
		if f.NewLost > f.ReusedLost && t.Tolerated < Anything || f.NewLost > 0 && t.Tolerated < Held || f.HeldLost > 0 && t.Tolerated < Held {
			return fmt.Errorf("%s: %d new and %d held connections were lost by %s", t.About, f.NewLost, f.HeldLost, f.Name)
		}
	}
	return nil
}

// Sequence is what one cluster is for.
type Sequence struct {
	// Embedded clusters have the other proxy as a part of what runs on each node. Others
	// have kubeadm's.
	Embedded bool
	Trials   []Trial
}

// Sequences find the cluster with another proxy. Their first trials replace it, and their
// last ones give it back.
var Sequences = []Sequence{
	{Trials: []Trial{
		{Name: "install", About: "installed beside kubeadm's kube-proxy, as docs/install.md says", change: install},
		{Name: "upgrade", About: "an earlier version upgraded to this one", Relay: true, Note: relayNote, prepare: installEarlier, change: upgrade},
		{Name: "rollback", About: "helm rollback to the earlier version", Relay: true, Note: relayNote, change: rollback, finish: upgrade},
		{Name: "roll", About: "the DaemonSet rolled", Relay: true, Note: relayNote, change: roll},
		{Name: "drain", About: "a node drained, and back", Tolerated: Held, Note: endsNote, change: drain, finish: rollApplication},
		{Name: "application", About: "all pods of the application replaced", Tolerated: Held, Note: endsNote, change: rollApplication},
		{
			Name: "reboot", About: "a node without power, and booted again", Tolerated: Anything, change: reboot,
			Note: "until kubelet is back, or the API server misses it, the API server calls the pods of the node ready",
		},
		{
			Name: "api", About: "an API server that does not answer, and a proxy started anew meanwhile", Tolerated: Anything, change: silence,
			Note: "when it is back, its controllers call nodes and their pods not ready for some seconds, because the leases are old: " +
				"a Service may have no ready endpoint then, or with policy Local none on the node; " +
				"in mode userspace, what leads to the killed process is refused until the next one has read the Services",
		},
		{
			Name: "cleanup", About: "uninstalled, cleaned up on each node, and installed again", Tolerated: Anything, change: reinstall,
			Note: "nothing serves between the cleanup and the installation",
		},
		{Name: "back", About: "back to kubeadm's kube-proxy, as docs/install.md says", Relay: true, Drains: true, Note: relayNote, change: goBack},
	}},
	{Embedded: true, Trials: []Trial{
		{Name: "embedded-install", About: "a kube-proxy within another process switched off, and this one installed, as docs/install.md says for k3s", change: installEmbedded},
		{Name: "embedded-back", About: "back to the kube-proxy within another process", Relay: true, Drains: true, Note: relayNote, change: goBackEmbedded},
	}},
}

const relayNote = "in mode userspace, a process of the proxy relays what is held, and it ends"

const endsNote = "a client that holds a connection to a pod loses it when the pod ends"

// drainingLife is how long clients hold a connection that virtual servers wait for.
const drainingLife = 30 * time.Second

// Names returns the names of all trials, in order.
func Names() []string {
	var all []string
	for _, s := range Sequences {
		for _, t := range s.Trials {
			all = append(all, t.Name)
		}
	}
	return all
}

// Select returns the sequence with those trials that are wanted. A proxy that is to be
// given back must have been replaced.
func (s Sequence) Select(want func(name string) bool) (Sequence, error) {
	first, last := s.Trials[0].Name, s.Trials[len(s.Trials)-1].Name
	s.Trials = slices.DeleteFunc(slices.Clone(s.Trials), func(t Trial) bool { return !want(t.Name) })
	switch {
	case want(last) && !want(first):
		return s, fmt.Errorf("%s goes back to what %s finds; add that", last, first)
	case s.Embedded && len(s.Trials) > 0 && !want(first):
		return s, fmt.Errorf("add %s, which the others of its cluster need", first)
	}
	return s, nil
}

// Try makes the change under load.
func (c *Cluster) Try(ctx context.Context, t Trial, s Setting) (Change, error) {
	result := Change{Name: t.Name, Mode: s.Chart.Mode, About: t.About, On: time.Now().UTC(), Version: s.Chart.Tag, Kernel: Kernel()}
	if t.Name == "upgrade" || t.Name == "rollback" {
		if s.Earlier.Tag == "" {
			return result, errors.New("no earlier version is named")
		}
		result.About += ", " + s.Earlier.Tag
	}
	c.progress("== %s", t.About)
	if t.prepare != nil {
		if err := t.prepare(ctx, c, s); err != nil {
			return result, fmt.Errorf("prepare %s: %w", t.Name, err)
		}
	}
	life := time.Duration(0)
	if t.Drains && s.Chart.Mode == "ipvs" {
		life = drainingLife
	}
	var err error
	result.Flows, result.Took, err = c.Under(ctx, life, func(ctx context.Context) error { return t.change(ctx, c, s) })
	if err == nil && t.finish != nil {
		err = t.finish(ctx, c, s)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", t.Name, err)
	}
	return result, err
}
