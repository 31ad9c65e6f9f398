// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package modes lists the proxy modes of every system. Only this package and the command
// import both the Linux and the Windows backends.
package modes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/document"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/socketlb"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/windows/hns"
)

// All returns every mode that is built in. Leftovers are removed in this order: chains
// of iptables lead to the listeners of mode userspace and to the objects of mode ipvs.
func All() mode.Table {
	return mode.Table{iptables.Mode(), userspace.Mode(), ipvs.Mode(), nftables.Mode(), hns.Mode()}
}

// Open returns the backends of d for each family that this node can have, with what the
// system needs in every mode, and why other families are missing. It fails if the primary
// family is missing.
func Open(ctx context.Context, d mode.Descriptor, s mode.Setup) ([]*mode.Backend, map[service.Family]string, error) {
	all, unavailable, err := withHints(d).Open(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	for _, b := range all {
		if !d.Consistent {
			b.Backend = reconcile.Both(b.Backend, &inconsistent{mode: d.Name, family: b.Family})
		}
	}
	accompany(ctx, d, s, all)
	return all, unavailable, nil
}

// OpenFamilies is Open for families that the node can have.
func OpenFamilies(ctx context.Context, d mode.Descriptor, s mode.Setup, families []service.Family) ([]*mode.Backend, error) {
	all, err := d.System.Open(ctx, s, families)
	if err == nil {
		accompany(ctx, d, s, all)
	}
	return all, err
}

// Prepare does what --init-only does for d, and for what accompanies it.
func Prepare(ctx context.Context, d mode.Descriptor, s mode.Setup) error {
	err := removeAcceleration(ctx, s.Config)
	if d.System != nil && d.System.Prepare != nil {
		err = errors.Join(err, d.System.Prepare(ctx, s))
	}
	return err
}

// Pending lists what Prepare would change, one a line. It changes nothing.
func Pending(ctx context.Context, d mode.Descriptor, s mode.Setup) ([]string, error) {
	lines, err := pendingAcceleration(ctx, s.Config)
	if d.System != nil && d.System.Pending != nil {
		more, pendingErr := d.System.Pending(ctx, s)
		lines, err = append(lines, more...), errors.Join(err, pendingErr)
	}
	return lines, err
}

// Targets lists where any mode of t, or what accompanies it, may have left something on this
// node, by family.
func Targets(ctx context.Context, t mode.Table, s mode.Setup) ([]takeover.Target, error) {
	of, err := t.Targets(ctx, s)
	all := append(companionTargets(s.Config), of...)
	slices.SortStableFunc(all, func(a, b takeover.Target) int { return cmp.Compare(a.Family, b.Family) })
	return all, err
}

// Render returns what a node would install in mode d, with what accompanies the mode, see
// mode.Descriptor.
func Render(d mode.Descriptor, want *service.Snapshot, r mode.Rendering) (reconcile.Objects, any, error) {
	all, doc, err := d.Render(want, r)
	switch {
	case err != nil || d.OS != config.Linux || r.Config.SocketAcceleration == config.AccelerateNone:
		return all, doc, err
	case r.Format != document.Text:
		r.Note("socket acceleration is part of the text only")
	}
	for _, f := range service.Families {
		all = append(all, socketlb.Objects(want, f)...)
	}
	return all, doc, nil
}

// Limits lists what mode d, with what accompanies it, would do otherwise than the Services of want ask, a line each.
func Limits(d mode.Descriptor, want *service.Snapshot, r mode.Rendering) ([]string, error) {
	var lines []string
	for _, f := range service.Families {
		var out reconcile.Outcome
		if d.Limits != nil {
			var err error
			if out, err = d.Limits(want, f, r); err != nil {
				return nil, err
			}
		}
		if !d.Consistent {
			p, _ := (&inconsistent{mode: d.Name, family: f}).Plan(context.Background(), want)
			out.Err = errors.Join(out.Err, p.Outcome().Err)
		}
		if d.ListensOnLocalhost(f) {
			out.Notes = userspace.LocalhostNotes(want, f)
		}
		unsupported, notes := out.Limits(want, f)
		lines = slices.Concat(lines, unsupported, notes)
	}
	return lines, nil
}

// ReadBack returns what the node holds in mode d, and what it would hold for want, with
// what accompanies the mode, see mode.System.
func ReadBack(ctx context.Context, d mode.Descriptor, s mode.Setup, f service.Family, want *service.Snapshot) (held, wanted reconcile.Objects, err error) {
	if held, wanted, err = d.System.ReadBack(ctx, s, f, want); err != nil || d.OS != config.Linux {
		return held, wanted, err
	}
	h, w, err := readBackAcceleration(s.Config, f, want)
	return append(held, h...), append(wanted, w...), err
}

// inconsistent stands beside the Backend of a mode that selects endpoints without regard to other
// nodes. It names the ports that ask for more, and changes nothing.
type inconsistent struct {
	reconcile.Base
	mode   v1alpha1.ProxyMode
	family service.Family
	seen   *service.Snapshot
	ports  map[service.PortName]error
}

func (x *inconsistent) Plan(_ context.Context, want *service.Snapshot) (reconcile.Plan, error) {
	if x.ports == nil {
		x.ports = map[service.PortName]error{}
	}
	for c := range service.Diff(x.seen, want, x.family) {
		delete(x.ports, c.Name())
		if c.New != nil && c.New.AsksForConsistent() {
			err := &reconcile.UnsupportedError{Text: fmt.Sprintf("mode %s has no consistent selection: each node selects endpoints for itself", x.mode)}
			x.ports[c.Name()] = &reconcile.PortError{Family: x.family, Name: c.Name(), Err: err}
		}
	}
	x.seen = want
	names := slices.SortedFunc(maps.Keys(x.ports), service.PortName.Compare)
	var all []error
	for _, n := range names {
		all = append(all, x.ports[n])
	}
	return limited{errors.Join(all...)}, nil
}

func (*inconsistent) Cleanup(context.Context) error { return nil }

// limited is a plan that changes nothing.
type limited struct{ err error }

func (limited) Changes() reconcile.Changes                { return nil }
func (limited) Empty() bool                               { return true }
func (l limited) Outcome() reconcile.Outcome              { return reconcile.Outcome{Err: l.err} }
func (l limited) Apply(context.Context) reconcile.Outcome { return l.Outcome() }
