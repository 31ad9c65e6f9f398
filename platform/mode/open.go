// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"context"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/config"
)

// Reader is a backend that compares what the system holds with a snapshot.
type Reader interface {
	reconcile.Backend
	// ReadBack is System.ReadBack for the family of the backend.
	ReadBack(ctx context.Context, want *service.Snapshot) (held, wanted string, err error)
}

// OpenEach returns System.Open of a mode that keeps all state in the system, so that one
// more backend of create can audit or trace what the first has installed. complete
// adds what only this mode has.
func OpenEach[B Tracer](create func(*config.Config, service.Family) (B, error), complete func(Setup, *Backend, B) error) func(context.Context, Setup, []service.Family) ([]*Backend, error) {
	return func(_ context.Context, s Setup, families []service.Family) ([]*Backend, error) {
		return Each(families, func(f service.Family) (*Backend, error) {
			b, err := create(s.Config, f)
			if err != nil {
				return nil, err
			}
			x := &Backend{
				Backend: b, Family: f,
				Audit:  func() (reconcile.Backend, error) { return create(s.Config, f) },
				Tracer: func() (Tracer, error) { return create(s.Config, f) },
			}
			return x, complete(s, x, b)
		})
	}
}

// ReadBack returns System.ReadBack of a mode whose backends are those of create.
func ReadBack[B Reader](create func(*config.Config, service.Family) (B, error)) func(context.Context, Setup, service.Family, *service.Snapshot) (held, wanted string, err error) {
	return func(ctx context.Context, s Setup, f service.Family, want *service.Snapshot) (held, wanted string, err error) {
		b, err := create(s.Config, f)
		if err != nil {
			return "", "", err
		}
		defer b.Close()
		return b.ReadBack(ctx, want)
	}
}
