// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
)

// Table lists modes. Their order is the order in which leftovers are removed: a mode
// comes before the modes whose objects its rules lead to.
type Table []Descriptor

// ErrNoSystem is why only commands that need no node work here.
var ErrNoSystem = errors.New("the proxy runs on Linux and Windows only; render and config work here too")

// Config returns what the configuration needs to know of the modes.
func (t Table) Config() []config.Mode {
	var all []config.Mode
	for _, d := range t {
		all = append(all, d.Mode)
	}
	return all
}

// Find returns the mode of a name on os.
func (t Table) Find(name string, os config.OS) (Descriptor, bool) {
	for _, d := range t {
		if string(d.Name) == name && d.OS == os {
			return d, true
		}
	}
	return Descriptor{}, false
}

// Of returns the mode that c configures. If it configures none, and the node is unknown,
// that is the first of Defaults.
func (t Table) Of(c *config.Config) Descriptor {
	if d, ok := t.Find(string(c.Mode), c.OS); ok {
		return d
	}
	if all := t.Defaults(c.OS); len(all) > 0 {
		return all[0]
	}
	return Descriptor{}
}

// Defaults lists the modes of os to try if none is configured, best first.
func (t Table) Defaults(os config.OS) Table {
	return t.ranked(func(d Descriptor) int { return d.DefaultRank }, os)
}

// On lists the modes of os: those of Defaults first.
func (t Table) On(os config.OS) Table {
	all := t.Defaults(os)
	for _, d := range t {
		if d.OS == os && d.DefaultRank == 0 {
			all = append(all, d)
		}
	}
	return all
}

// Fallbacks lists the modes of os to try after a configured one that cannot work.
func (t Table) Fallbacks(os config.OS) Table {
	return t.ranked(func(d Descriptor) int { return d.FallbackRank }, os)
}

func (t Table) ranked(rank func(Descriptor) int, os config.OS) Table {
	all := slices.DeleteFunc(slices.Clone(t), func(d Descriptor) bool { return d.OS != os || rank(d) == 0 })
	slices.SortStableFunc(all, func(a, b Descriptor) int { return cmp.Compare(rank(a), rank(b)) })
	return all
}

// Names lists the names of the modes, in the order of the table.
func (t Table) Names() []string {
	var all []string
	for _, d := range t {
		all = append(all, string(d.Name))
	}
	return all
}

// CheckNamed refuses d for a proxy of labelled Services if objects of the mode have the
// same names for every service proxy. The first round would remove the rules of another
// proxy on the node.
func (t Table) CheckNamed(c *config.Config, d Descriptor) error {
	if c.ProxyName == "" || d.Named != "" {
		return nil
	}
	remedy := ""
	for _, other := range t {
		if other.Named != "" {
			remedy += fmt.Sprintf("take mode %s on %s, where %s, or ", other.Name, systemName(other.OS), other.Named)
		}
	}
	return fmt.Errorf("mode %s cannot work with --service-proxy-name %s: its rules have the names that every service proxy uses, so those of the proxy that serves the other Services would be removed; %sleave the name out", d.Name, c.ProxyName, remedy)
}

// systemName spells a system as a sentence does.
func systemName(os config.OS) string { return strings.ToUpper(string(os[:1])) + string(os[1:]) }

// Targets lists where any mode may have left something on this node, by family. A proxy
// of labelled Services has only targets of its own name, because another proxy uses the
// others.
func (t Table) Targets(ctx context.Context, s Setup) ([]takeover.Target, error) {
	var all []takeover.Target
	var errs []error
	asked, refused := false, error(nil)
	for _, d := range t {
		if d.System == nil || d.System.Targets == nil || d.OS != s.Config.OS {
			continue
		}
		if err := t.CheckNamed(s.Config, d); err != nil {
			refused = err
			continue
		}
		asked = true
		targets, err := d.System.Targets(ctx, s)
		all, errs = append(all, targets...), append(errs, err)
	}
	if !asked {
		return nil, cmp.Or(refused, ErrNoSystem)
	}
	slices.SortStableFunc(all, func(a, b takeover.Target) int { return cmp.Compare(a.Family, b.Family) })
	return all, errors.Join(errs...)
}

// Open returns the backends of d for each family that the node can have, and why others
// are missing. It fails if the primary family is missing.
func (d Descriptor) Open(ctx context.Context, s Setup) (all []*Backend, unavailable map[service.Family]string, err error) {
	if d.System == nil {
		return nil, nil, ErrNoSystem
	}
	families, unavailable, err := familiesOf(s.Config, func(f service.Family) error {
		if d.System.Probe == nil {
			return nil
		}
		return d.System.Probe(s.Config, f)
	})
	if err != nil {
		return nil, nil, err
	}
	all, err = d.System.Open(ctx, s, families)
	for _, b := range all {
		b.Mode = string(d.Name)
		if d.System.Owned != nil && err == nil {
			b.Owned, err = d.System.Owned(s.Config, b.Family)
		}
	}
	return all, unavailable, err
}

// ListensOnLocalhost returns whether listeners of this process answer NodePorts on the
// loopback address of f, if nodePortAddresses includes it.
func (d Descriptor) ListensOnLocalhost(f service.Family) bool {
	return d.Localhost == config.LocalhostListeners || d.Localhost == config.LocalhostRules && f == service.IPv6
}
