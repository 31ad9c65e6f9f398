// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package examine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/common/document"
	"kubeproxy/common/explain"
	"kubeproxy/common/peers"
	"kubeproxy/common/plandiff"
	"kubeproxy/common/printable"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
)

// The sources beside the paths of manifests.
const (
	FromAPI  = "api"  // the API server
	FromNode = "node" // what the node has installed
)

// Diff compares a node of manifests or an API server with what is installed, and changes nothing.
type Diff struct {
	Proxy   *agent.Options // as the proxy gets them; Manifests are the state to come
	Version string         // of this program
	From    []string       // paths of manifests, API or Node
	Server  string         // of the running proxy; empty for the one in the configuration
	Timeout time.Duration  // to read from the API server
	// Settings adds the system settings that the proxy would change, if the old state is Node.
	Settings bool
	// Report receives the faults of objects, a line each.
	Report func(line string)
	Assign []netip.Prefix // see reading.Reader
	// Unusable is set if an object of the manifests cannot be used.
	Unusable bool
}

// comparison is one run.
type comparison struct {
	*Diff
	config   *config.Config
	contents map[string][]byte // those of an Examination, which has read them
	mode     mode.Descriptor
	node     string
	// families are those that the node can serve, if what it has installed is compared.
	families []service.Family
	out      *plandiff.Difference
	nodes    map[*service.Snapshot]peers.Fixed // as in reading.Reader
	// wrap is as in reading.Reader.
	wrap func(*track.Tracker) source.Sink
}

// Run compares the two states.
func (o *Diff) Run(ctx context.Context, c *config.Config) (*plandiff.Difference, error) {
	x := &comparison{Diff: o, config: c, mode: o.Proxy.Modes.Of(c), out: plandiff.New()}
	installed := len(o.From) == 1 && o.From[0] == FromNode
	find := x.findOffline
	if installed {
		find = x.findLocal
	}
	if len(o.From) > 1 && (slices.Contains(o.From, FromNode) || slices.Contains(o.From, FromAPI)) {
		return nil, fmt.Errorf("--from: %s stand alone: want --from node, --from api, or paths of manifests, of which there may be several", strings.Join(o.From, " and "))
	}
	if slices.Contains(o.From, "-") && slices.Contains(o.Proxy.Manifests, "-") {
		return nil, errors.New("standard input can be one of both states only")
	}
	if err := find(ctx); err != nil {
		return nil, err
	}
	x.out.Node, x.out.Mode = x.node, string(x.mode.Name)
	x.out.From, x.out.To = nameOf(o.From), nameOf(o.Proxy.Manifests)
	want, err := x.read(ctx, o.Proxy.Manifests, installed)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", x.out.To, err)
	}
	if installed {
		return x.out, x.compareNode(ctx, want)
	}
	have, err := x.read(ctx, o.From, installed)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", x.out.From, err)
	}
	return x.out, x.compareSnapshots(have, want)
}

// Installed returns what the node has installed. A snapshot adds what rules are for.
func (o *Diff) Installed(ctx context.Context, c *config.Config) (string, error) {
	x := &comparison{Diff: o, config: c, out: plandiff.New()}
	if err := x.findLocal(ctx); err != nil {
		return "", err
	}
	want, err := x.read(ctx, o.Proxy.Manifests, true)
	if err != nil {
		want = service.New(0, &service.Node{Name: x.node}, nil)
	}
	held, _, err := x.readBack(ctx, want)
	return held.String(), err
}

// Answer answers q from m alone, and notes what the mode does otherwise.
func Answer(m explain.Model, q explain.Query, c *config.Config, d mode.Descriptor) (*explain.Explanation, error) {
	answer, conn, err := m.Answer(q)
	if err != nil || d.Differences == nil || !conn.To.IsValid() {
		return answer, err
	}
	differences, err := d.Differences(m.Snapshot, conn, mode.Rendering{Config: c})
	for _, text := range differences {
		answer.Notes = append(answer.Notes, fmt.Sprintf("mode %s does otherwise: %s", d.Name, text))
	}
	return answer, err
}

// Explain answers q without a proxy, from manifests or an API server and what is installed.
func (o *Diff) Explain(ctx context.Context, q explain.Query) (*explain.Explanation, error) {
	c, err := config.Load(&o.Proxy.Flags, host.OS)
	if err != nil {
		return nil, err
	}
	x := &comparison{Diff: o, config: c, out: plandiff.New()}
	var tracker *track.Tracker
	var pods *explain.Pods
	x.wrap = func(t *track.Tracker) source.Sink {
		tracker, pods = t, explain.NewPods(t)
		return pods
	}
	if err := x.findLocal(ctx); err != nil {
		return nil, err
	}
	want, err := x.read(ctx, o.Proxy.Manifests, true)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", nameOf(o.Proxy.Manifests), err)
	}
	s, end, err := explainer(ctx, setup(x.config, x.nodes[want]), x.mode, x.families, tracker)
	if err != nil {
		return nil, err
	}
	defer end()
	q.Local, q.Pod = s.Local, pods.Find
	answer, err := s.Answer(ctx, q)
	if err == nil {
		answer.ReadFrom = fmt.Sprintf("%s, and what the node has in mode %s", nameOf(o.Proxy.Manifests), x.mode.Name)
		answer.Notes = append(answer.Notes, x.out.Notes...)
	}
	return answer, err
}

// explainer answers questions about what a mode has installed, until the caller calls end.
func explainer(ctx context.Context, of mode.Setup, d mode.Descriptor, families []service.Family, t *track.Tracker) (s *explain.Server, end func(), err error) {
	now := *of.Config
	now.Mode, of.Config = d.Name, &now
	ctx = klog.NewContext(ctx, klog.Logger{}) // an answer is no log
	backends, err := modes.OpenFamilies(ctx, d, of, families)
	end = func() {
		for _, b := range backends {
			_ = b.Close()
		}
	}
	return agent.Explainer(t, &now, d, backends), end, err
}

// setup is agent.Setup with nodes as peers.
func setup(c *config.Config, nodes peers.Fixed) mode.Setup {
	s := agent.Setup(c)
	s.Peers = func() mode.Peers { return nodes }
	return s
}

func (c *comparison) findOffline(context.Context) error {
	var err error
	c.node, err = agent.NodeName(c.config)
	return err
}

// findLocal finds the mode of this node.
func (c *comparison) findLocal(ctx context.Context) error {
	e, err := Find(ctx, Options{Proxy: c.Proxy, Version: c.Version, Server: c.Server, Timeout: c.Timeout, BeforeStart: c.Settings}, c.config)
	if err != nil {
		return err
	}
	if differ := e.differing(ctx); len(differ) > 0 {
		c.note("the running proxy has other settings than this command, so that what it programmed may differ: " + strings.Join(differ, "; ") + "; give this command the --config and flags of the proxy")
	}
	if e.settings != "" {
		c.note(strings.TrimPrefix(e.settings, "; "))
	}
	return c.use(e)
}

// use compares what the node of e has installed.
func (c *comparison) use(e *Examination) error {
	c.mode, c.node, c.contents, c.Proxy = e.Mode(), e.Node(), e.contents, e.options.Proxy
	now := *e.config
	now.Mode = c.mode.Name
	c.config = &now
	if c.mode.System == nil {
		return mode.ErrNoSystem
	}
	families, lacking := e.Families()
	for _, l := range lacking {
		c.note(l)
	}
	if c.families = families; len(families) == 0 {
		return fmt.Errorf("mode %s cannot be looked at here: %s", c.mode.Name, strings.Join(lacking, "; "))
	}
	return nil
}

// nameOf names the sources in one line.
func nameOf(sources []string) string {
	switch all := strings.Join(sources, ", "); all {
	case "", FromAPI:
		return "the API server"
	case FromNode:
		return "what the node has"
	default:
		return all
	}
}

// read returns the content of sources, paths or API, on this node if local.
func (c *comparison) read(ctx context.Context, sources []string, local bool) (*service.Snapshot, error) {
	r := reading.Reader{Config: c.config, Mode: c.mode, Node: c.node, Version: c.Version, Local: local, Report: c.Report, Assign: c.Assign, Contents: c.contents, Wrap: c.wrap}
	if c.nodes == nil {
		c.nodes = map[*service.Snapshot]peers.Fixed{}
	}
	if len(sources) == 0 || len(sources) == 1 && sources[0] == FromAPI {
		s, err := r.API(ctx, c.Timeout)
		c.nodes[s] = r.Nodes
		return s, err
	}
	if r.Report == nil {
		r.Report = func(string) {}
	}
	t, err := r.Manifests(ctx, sources)
	if err != nil && (t.Latest() == nil || !source.OnlyObjects(err)) { // a difference because of an unreadable file does not count
		return nil, err
	}
	if err != nil {
		c.Unusable = true
		r.Report("warning: " + printable.Error(err) + "; what cannot be used counts as missing")
	}
	c.nodes[t.Latest()] = r.Nodes
	return t.Latest(), nil
}

// compareSnapshots compares two states of which none is installed.
func (c *comparison) compareSnapshots(from, to *service.Snapshot) error {
	c.out.Snapshots(from, to)
	var rules [2]reconcile.Objects
	for i, s := range []*service.Snapshot{from, to} {
		objects, _, err := modes.Render(c.mode, s, mode.Rendering{Config: c.config, Format: document.Text, Note: c.note})
		if err != nil {
			return fmt.Errorf("render: %w", err)
		}
		rules[i].Add("%s", objects) // those that are affected follow from the snapshots
	}
	return errors.Join(c.out.AddObjects(rules[0], rules[1]), c.limits(to))
}

// limits adds what the mode cannot do for Services, as far as that does not depend on the node.
func (c *comparison) limits(want *service.Snapshot) error {
	lines, err := modes.Limits(c.mode, want, mode.Rendering{Config: c.config, Note: c.note})
	c.out.Limits = append(c.out.Limits, lines...)
	return err
}

// note adds a note unless there is one like it.
func (c *comparison) note(text string) {
	for _, n := range c.out.Notes {
		if n == text {
			return
		}
	}
	c.out.Notes = append(c.out.Notes, text)
}

// compareNode compares what the node has with what it should have.
func (c *comparison) compareNode(ctx context.Context, want *service.Snapshot) error {
	if c.Settings {
		c.out.AddSettings(append(host.PendingSettings(c.config), host.PendingScore(c.config)...))
	}
	if err := c.plan(ctx, want); err != nil {
		return err
	}
	if c.mode.OS == config.Linux { // what HNS can do depends on its version and network, so its plan says it
		if err := c.limits(want); err != nil {
			return err
		}
	}
	held, wanted, err := c.readBack(ctx, want)
	var absent NotReadable
	if errors.As(err, &absent) {
		c.note(absent.Error())
		return nil
	}
	if err != nil {
		return err
	}
	return c.out.AddObjects(held, wanted)
}

// NotReadable names a mode that cannot read back what it has installed.
type NotReadable struct{ mode string }

func (n NotReadable) Error() string {
	return "what mode " + n.mode + " has installed cannot be read back as text"
}

// readBack returns what the node has, and what it would have for want.
func (c *comparison) readBack(ctx context.Context, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	if c.mode.System.ReadBack == nil {
		return nil, nil, NotReadable{string(c.mode.Name)}
	}
	ctx = klog.NewContext(ctx, klog.Logger{}) // a comparison is no log
	for _, f := range c.families {
		h, w, err := modes.ReadBack(ctx, c.mode, setup(c.config, c.nodes[want]), f, want)
		if err != nil {
			return nil, nil, fmt.Errorf("read back what the node has for %s: %w", f, err)
		}
		held, wanted = append(held, h...), append(wanted, w...)
	}
	return held, wanted, nil
}

// plan adds what a starting proxy would change.
func (c *comparison) plan(ctx context.Context, want *service.Snapshot) error {
	ctx = klog.NewContext(ctx, klog.Logger{}) // a comparison is no log
	all, err := c.mode.System.Open(ctx, setup(c.config, c.nodes[want]), c.families)
	if err != nil {
		return err
	}
	for _, b := range all {
		b.Mode = string(c.mode.Name)
	}
	var errs []error
	for _, b := range append(all, modes.Layers(c.config, c.families)...) {
		errs = append(errs, c.planOne(ctx, b, want), b.Close())
	}
	return errors.Join(errs...)
}

// planOne plans with a backend without memory. In a mode that relays, only the process
// with the listeners can plan these, so an audit plans the rules only.
func (c *comparison) planOne(ctx context.Context, b *mode.Backend, want *service.Snapshot) error {
	planner := b.Backend
	if b.Audit != nil {
		var err error
		if planner, err = b.Audit(); err != nil {
			return fmt.Errorf("%s: %w", b, err)
		}
		defer planner.Close()
	}
	p, err := planner.Plan(ctx, want)
	if err != nil {
		return fmt.Errorf("%s: %w", b, err)
	}
	c.out.AddPlan(b.Family, p.Changes())
	out := p.Outcome()
	if text := cmp.Or(out.Unavailable, out.Degraded); text != "" {
		c.note(fmt.Sprintf("%s: %s", b, text))
	}
	if !reconcile.OnlyPortErrors(out.Err) {
		return fmt.Errorf("%s: %w", b, out.Err)
	}
	out.Unavailable = "" // it is a note
	unsupported, notes := out.Limits(want, b.Family)
	c.out.Limits = slices.Concat(c.out.Limits, unsupported, notes)
	return nil
}
