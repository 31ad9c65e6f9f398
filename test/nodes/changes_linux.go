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
	// Tolerated says what may be lost, and Userspace what in mode userspace, if it is more:
	// there a process relays connections, and may end.
	Tolerated, Userspace Tolerated
	// OnlyN3 says that no other node is changed. Clients whose endpoints are on one of those
	// lose nothing.
	OnlyN3 bool
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
// take a port again; or what no proxy can route, as the API server names no endpoint; or
// anything that has begun before the calm.
const (
	Nothing Tolerated = iota
	Held
	Unreachable
	Anything
)

// Judge returns an error if the change lost what it must not, or if clients did too little
// for that to say anything.
func (t Trial) Judge(c Change) error {
	for _, f := range c.Flows {
		if err := f.tried(); err != nil {
			return fmt.Errorf("%s: %w", t.About, err)
		}
		if n := f.intolerable(t.tolerates(c.Mode, f)); n > 0 {
			return fmt.Errorf("%s: %s lost %d new and %d held connections, %d of them without an excuse", t.About, f.Name, f.NewLost, f.HeldLost, n)
		}
	}
	return nil
}

// tolerates returns what a flow may lose.
func (t Trial) tolerates(mode string, f Flow) Tolerated {
	switch {
	case t.OnlyN3 && f.Node != "" && f.Node != node(3):
		return Nothing
	case mode == "userspace":
		return max(t.Tolerated, t.Userspace)
	}
	return t.Tolerated
}

// tried returns an error if a client did less than half of what it was meant to.
func (f Flow) tried() error {
	switch {
	case f.New == f.NewLost:
		return fmt.Errorf("no connection of %s succeeded", f.Name)
	case f.Held == 0:
		return fmt.Errorf("no request of %s on a held connection succeeded", f.Name)
	case f.New < f.Due/2:
		return fmt.Errorf("%s opened only %d of %d connections: the machine is too busy; a lower -rate helps", f.Name, f.New, f.Due)
	}
	return nil
}

// intolerable returns how much of what a flow lost it must not lose.
func (f Flow) intolerable(t Tolerated) int {
	switch t {
	case Nothing:
		return f.Lost()
	case Held:
		return f.NewLost - f.ReusedLost
	case Unreachable:
		return max(0, f.Lost()-f.LostUnready-f.ReusedLost)
	}
	return f.LostInCalm
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
		{Name: "upgrade", About: "an earlier version upgraded to this one", Userspace: Held, Note: relayNote, prepare: installEarlier, change: upgrade},
		{Name: "rollback", About: "helm rollback to the earlier version", Userspace: Held, Note: relayNote, change: rollback, finish: upgrade},
		{Name: "roll", About: "the DaemonSet rolled", Userspace: Held, Note: relayNote, change: roll},
		{Name: "drain", About: "a node drained, and back", Tolerated: Held, OnlyN3: true, Note: endsNote, change: drain, finish: rollApplication},
		{Name: "application", About: "all pods of the application replaced", Tolerated: Held, Note: endsNote, change: rollApplication},
		{
			Name: "reboot", About: "a node without power, and booted again", Tolerated: Anything, OnlyN3: true, change: reboot,
			Note: "until kubelet is back, or the API server misses it, the API server calls the pods of the node ready",
		},
		{
			Name: "api", About: "an API server that does not answer, and a proxy started anew meanwhile", Tolerated: Unreachable, Userspace: Anything, change: silence,
			Note: "when it is back, its controllers call nodes and their pods not ready for some seconds, because the leases are old: " +
				"a Service may have no ready endpoint then, or with policy Local none on the node; " +
				"in mode userspace, what leads to the killed process is refused until the next one has read the Services",
		},
		{
			Name: "cleanup", About: "uninstalled, cleaned up on each node, and installed again", Tolerated: Anything, change: reinstall,
			Note: "nothing serves between the cleanup and the installation",
		},
		{Name: "back", About: "back to kubeadm's kube-proxy, as docs/install.md says", Userspace: Held, Drains: true, Note: relayNote, change: goBack},
	}},
	{Embedded: true, Trials: []Trial{
		{Name: "embedded-install", About: "a kube-proxy within another process switched off, and this one installed, as docs/distributions.md says for k3s", change: installEmbedded},
		{Name: "embedded-back", About: "back to the kube-proxy within another process", Userspace: Held, Drains: true, Note: relayNote, change: goBackEmbedded},
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
	result := Change{
		Name: t.Name, Mode: s.Chart.Mode, SocketAcceleration: s.Chart.SocketAcceleration, About: t.About,
		On: time.Now().UTC(), Version: s.Chart.Tag, Kernel: Kernel(),
	}
	switch t.Name {
	case "upgrade", "rollback":
		if s.Earlier.Tag == "" {
			return result, errors.New("no earlier version is named")
		}
		result.About += ", " + s.Earlier.Tag
	case "api":
		result.About += ", for " + s.Silence.String()
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
