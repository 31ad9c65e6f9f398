// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"errors"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/socketlb"
	"kubeproxy/platform/mode"
)

// accelerate puts socket acceleration above the rules of b. Where it is off, the first
// round removes what an earlier process left of it.
func accelerate(c *config.Config, b *mode.Backend) {
	o := accelerationOptions(c)
	layer := socketlb.New(b.Family, socketlb.NewDriver(b.Family, o), o)
	b.Backend = reconcile.Both(b.Backend, layer)
	if len(b.Owned) > 0 { // else nothing is taken over
		b.Owned = append(b.Owned, socketlb.Leftovers{Family: b.Family, Options: o}.String())
	}
	if c.SocketAcceleration {
		b.Accelerated = layer.Taken
	}
}

func accelerationOptions(c *config.Config) socketlb.Options {
	return socketlb.Options{Off: !c.SocketAcceleration, Name: socketlb.NameOf(c.ProxyName)}
}

// accelerationTargets lists where socket acceleration may have left something.
func accelerationTargets(c *config.Config) []takeover.Target {
	var all []takeover.Target
	for _, f := range service.Families {
		all = append(all, takeover.Target{Leftovers: socketlb.Leftovers{Family: f, Options: accelerationOptions(c)}, Family: f})
	}
	return all
}

// removeAcceleration removes socket acceleration that is switched off. The container that
// runs may have neither the rights for that nor the BPF file system of the node.
func removeAcceleration(ctx context.Context, c *config.Config) error {
	if c.SocketAcceleration {
		return nil
	}
	var errs []error
	for _, t := range accelerationTargets(c) {
		errs = append(errs, t.Remove(ctx))
	}
	return errors.Join(errs...)
}
