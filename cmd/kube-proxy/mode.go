// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/common/nodemode"
	"kubeproxy/config"
)

// builtModes lists the modes of each system that are built in.
var builtModes = map[config.OS][]v1alpha1.ProxyMode{
	config.Linux:   {config.NFTables, config.IPTables, config.IPVS, config.Userspace},
	config.Windows: {config.Kernelspace},
}

// The orders in which modes are tried. bestModes applies if no mode is configured, best
// first. fallbackModes applies with --proxy-mode-fallback after a mode that cannot work.
var (
	bestModes     = []v1alpha1.ProxyMode{config.NFTables, config.IPTables, config.Userspace, config.Kernelspace}
	fallbackModes = []v1alpha1.ProxyMode{config.IPVS, config.IPTables, config.Userspace}
)

// modeOf returns the mode that c configures. If it configures none, and the node is
// unknown, that is the best mode that is built in.
func modeOf(c *config.Config) v1alpha1.ProxyMode {
	if c.Mode != "" {
		return c.Mode
	}
	for _, m := range bestModes {
		if slices.Contains(builtModes[c.OS], m) {
			return m
		}
	}
	return ""
}

// checkMode returns an error for modes that are not built in.
func checkMode(c *config.Config) error { return checkBuilt(modeOf(c), c.OS) }

func checkBuilt(mode v1alpha1.ProxyMode, os config.OS) error {
	if slices.Contains(builtModes[os], mode) {
		return nil
	}
	var names []string
	for _, m := range builtModes[os] {
		names = append(names, string(m))
	}
	last := len(names) - 1
	available := strings.Join(names[:last], ", ") + " and " + names[last]
	if last == 0 {
		available = names[0]
	}
	return fmt.Errorf("mode %s is not built in yet; the modes so far are %s", mode, available)
}

// checkNamed refuses a mode for a proxy that serves labelled Services if what the
// mode makes has the same names whoever makes it. The first round would remove what
// another service proxy serves on the node.
func checkNamed(c *config.Config, mode v1alpha1.ProxyMode) error {
	if c.ProxyName == "" || mode == config.NFTables {
		return nil
	}
	return fmt.Errorf("mode %s cannot work with --service-proxy-name %s: its rules have the names that every service proxy uses, so those of the proxy that serves the other Services would be removed; take mode nftables on Linux, where the table has the name in its own, or leave the name out", mode, c.ProxyName)
}

// candidate is a mode that may be selected.
type candidate struct {
	mode     v1alpha1.ProxyMode
	origin   string // who requests it
	disabled bool   // a feature gate forbids it
}

// candidates lists the modes to try, in order. annotated is the mode in the annotation of
// the Node. It counts only if no mode is configured.
func candidates(c *config.Config, o *agent.Options, annotated v1alpha1.ProxyMode) []candidate {
	if c.Mode != "" {
		all := []candidate{{mode: c.Mode, origin: modeOrigin(o)}}
		if at := slices.Index(fallbackModes, c.Mode); o.Fallback && at >= 0 {
			for _, m := range fallbackModes[at+1:] {
				all = append(all, candidate{mode: m, origin: fmt.Sprintf("--proxy-mode-fallback, since %s cannot work here", c.Mode)})
			}
		}
		return all
	}
	var all []candidate
	if annotated != "" {
		all = append(all, candidate{annotated, "the Node's annotation " + nodemode.Annotation, c.SwitchedOff(annotated)})
	}
	for _, m := range bestModes {
		if m != annotated && slices.Contains(builtModes[c.OS], m) {
			all = append(all, candidate{mode: m, origin: "the best that works here"})
		}
	}
	return all
}

// modeOrigin returns where the mode is configured.
func modeOrigin(o *agent.Options) string {
	if o.FlagSet != nil && o.FlagSet.Changed("proxy-mode") {
		return "--proxy-mode"
	}
	return o.Flags.Config
}

// selectMode opens the candidates in order and returns the first that works. It logs why
// earlier ones do not. If none works, the error lists the reason of each.
func selectMode(log klog.Logger, all []candidate, open func(candidate) (*agent.Selected, error)) (*agent.Selected, error) {
	var errs []error
	for i, w := range all {
		x, err := w.open(open)
		if err == nil {
			return x, nil
		}
		errs = append(errs, err)
		if i+1 < len(all) {
			log.Info("Warning: a mode cannot work here; trying the next", "mode", w.mode, "next", all[i+1].mode, "err", err.Error(), "nextFrom", all[i+1].origin)
		}
	}
	return nil, errors.Join(errs...)
}

func (w candidate) open(open func(candidate) (*agent.Selected, error)) (*agent.Selected, error) {
	if w.disabled {
		return nil, fmt.Errorf("mode %s is switched off by a feature gate", w.mode)
	}
	return open(w)
}

// configFor returns c with the mode of w.
func (w candidate) configFor(c *config.Config) *config.Config {
	now := *c
	now.Mode = w.mode
	return &now
}
