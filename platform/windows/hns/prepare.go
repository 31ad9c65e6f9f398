// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"

	"kubeproxy/common/service"
)

// Prepare creates what the proxy needs before it programs anything: it chooses the
// network and reserves the source VIP. It does not wait for missing objects.
func (b *Backend) Prepare(ctx context.Context, node *service.Node) error {
	p, err := b.planAll(ctx, service.New(0, node, nil))
	if err != nil {
		return err
	}
	if p.reserve != nil {
		err = p.reserveVIP(ctx)
	}
	b.host.save()
	return err
}

// Pending lists what Prepare would create, one a line. It creates nothing.
func (b *Backend) Pending(ctx context.Context, node *service.Node) ([]string, error) {
	p, err := b.planAll(ctx, service.New(0, node, nil))
	if err != nil || p.reserve == nil {
		return nil, err
	}
	return []string{p.reserveChange().Text}, nil
}
