// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

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
