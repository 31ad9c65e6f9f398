// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/nodemode"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/common/traffic"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
)

// Selected is a mode that works here, with its backends.
type Selected struct {
	mode.Descriptor
	Config   *config.Config  // with the mode
	Origin   string          // what selected it
	Backends []*mode.Backend // at least one
	// Unavailable holds why a family has no backend.
	Unavailable map[service.Family]string
	// conditions carries what the dataplane reports to the Reports that are made later.
	conditions *report.DataplaneConditions
	traffic    *traffic.Collector // nil if nothing is counted
}

// Candidate is a mode that may be selected.
type Candidate struct {
	mode.Descriptor
	origin   string // what requests it
	disabled bool   // a feature gate forbids it
}

// Candidates lists the modes to try, in order. annotated is the mode in the annotation of
// the Node. It is used only if no mode is configured.
func (o *Options) Candidates(c *config.Config, annotated v1alpha1.ProxyMode) []Candidate {
	var all []Candidate
	if d, ok := o.Modes.Find(string(c.Mode), c.OS); ok {
		all = append(all, Candidate{Descriptor: d, origin: o.modeOrigin()})
		if !o.Fallback || d.FallbackRank == 0 {
			return all
		}
		for _, next := range o.Modes.Fallbacks(c.OS) {
			if next.FallbackRank > d.FallbackRank {
				all = append(all, Candidate{Descriptor: next, origin: fmt.Sprintf("--proxy-mode-fallback, since %s cannot work here", c.Mode)})
			}
		}
		return all
	}
	if d, ok := o.Modes.Find(string(annotated), c.OS); ok {
		all = append(all, Candidate{d, "the Node's annotation " + nodemode.Annotation, c.SwitchedOff(annotated)})
	}
	for _, d := range o.Modes.Defaults(c.OS) {
		if d.Name != annotated {
			all = append(all, Candidate{Descriptor: d, origin: "the best that works here"})
		}
	}
	return all
}

// modeOrigin returns where the mode is configured.
func (o *Options) modeOrigin() string {
	if o.FlagSet != nil && o.FlagSet.Changed("proxy-mode") {
		return "--proxy-mode"
	}
	return o.Flags.Config
}

// selectMode opens the candidates in order and returns the first that works. It logs why
// earlier ones do not. If none works, the error lists the reason of each.
func selectMode(log klog.Logger, all []Candidate, open func(Candidate) (*Selected, error)) (*Selected, error) {
	if len(all) == 0 {
		return nil, mode.ErrNoSystem
	}
	var errs []error
	for i, w := range all {
		x, err := w.open(open)
		if err == nil {
			return x, nil
		}
		errs = append(errs, err)
		if i+1 < len(all) {
			log.Info("Warning: a mode cannot work here; trying the next", "mode", w.Name, "next", all[i+1].Name, "err", err.Error(), "nextFrom", all[i+1].origin)
		}
	}
	return nil, errors.Join(errs...)
}

func (w Candidate) open(open func(Candidate) (*Selected, error)) (*Selected, error) {
	if w.disabled {
		return nil, fmt.Errorf("mode %s is switched off by a feature gate", w.Name)
	}
	return open(w)
}

// configFor returns c with the mode of w.
func (w Candidate) configFor(c *config.Config) *config.Config {
	now := *c
	now.Mode = w.Name
	return &now
}

// newBackends selects a mode and returns its backends. c decides; if c names no mode, the
// annotation of the Node decides.
func (o *Options) newBackends(ctx context.Context, c *config.Config, annotated v1alpha1.ProxyMode) (*Selected, error) {
	return selectMode(klog.FromContext(ctx), o.Candidates(c, annotated), func(w Candidate) (*Selected, error) { return o.open(ctx, c, w) })
}

// open returns the backends of candidate w, or an error of one sentence if the mode
// cannot work on this node.
func (o *Options) open(ctx context.Context, c *config.Config, w Candidate) (*Selected, error) {
	if err := o.Modes.CheckNamed(c, w.Descriptor); err != nil {
		return nil, err
	}
	x := &Selected{Descriptor: w.Descriptor, Config: w.configFor(c), Origin: w.origin, conditions: &report.DataplaneConditions{}}
	var err error
	x.Backends, x.Unavailable, err = modes.Open(ctx, w.Descriptor, x.setup(klog.FromContext(ctx)))
	if errors.Is(err, mode.ErrNoSystem) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("mode %s cannot work here: %w", w.Name, err)
	}
	return x, nil
}

// setup returns what the mode of x gets from the process.
func (x *Selected) setup(log klog.Logger) mode.Setup {
	s := Setup(x.Config)
	s.Condition, s.DetailedCondition, s.Progress = x.conditions.Setter, x.conditions.DetailedSetter, x.conditions.ReportProgress
	s.Unreached = logUnreached(log)
	return s
}

// Setup returns what modes get from a command that opens no backend.
func Setup(c *config.Config) mode.Setup {
	return mode.Setup{Config: c, NodeName: func() (string, error) { return NodeName(c) }}
}

// Targets lists the places where any mode of ours, or kube-proxy, may have left something.
func (o *Options) Targets(ctx context.Context, c *config.Config) ([]takeover.Target, error) {
	return modes.Targets(ctx, o.Modes, Setup(c))
}
