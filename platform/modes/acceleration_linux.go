// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"k8s.io/klog/v2"

	"kubeproxy/common/explain"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/socketlb"
	"kubeproxy/platform/mode"
)

// accelerate puts socket acceleration above the rules of b. Where it is off, the first
// round removes what an earlier process left of it.
func accelerate(c *config.Config, b *mode.Backend) {
	o := accelerationOptions(c)
	o.Connections = trackedConnections
	layer := socketlb.New(b.Family, socketlb.NewDriver(b.Family, o), o)
	b.Backend = reconcile.Both(b.Backend, layer)
	if len(b.Owned) > 0 { // else nothing is taken over
		b.Owned = append(b.Owned, socketlb.Leftovers{Family: b.Family, Options: accelerationOptions(c)}.String())
	}
	if !accelerates(c) {
		return
	}
	b.Accelerated = layer.Taken
	if open := b.Tracer; open != nil {
		b.Tracer = func() (mode.Tracer, error) {
			t, err := open()
			if err != nil {
				return nil, err
			}
			return &acceleratedTracer{t, newLayer(c, b.Family)}, nil
		}
	}
}

func accelerates(c *config.Config) bool { return c.SocketAcceleration != config.AccelerateNone }

func accelerationOptions(c *config.Config) socketlb.Options {
	return socketlb.Options{Off: !accelerates(c), NodeOnly: c.SocketAcceleration == config.AccelerateNode, Name: socketlb.NameOf(c.ProxyName)}
}

// accelerationTargets lists where socket acceleration may have left something.
func accelerationTargets(c *config.Config) []takeover.Target {
	o := accelerationOptions(c)
	o.Off = false // its pins may not be mounted here
	var all []takeover.Target
	for _, f := range service.Families {
		all = append(all, takeover.Target{Leftovers: socketlb.Leftovers{Family: f, Options: o, Wanted: accelerates(c)}, Family: f})
	}
	return all
}

// unwantedAcceleration lists where socket acceleration may be that is switched off. The
// container that runs may have neither the rights to remove it nor the BPF file system of
// the node.
func unwantedAcceleration(c *config.Config) []takeover.Target {
	if accelerates(c) {
		return nil
	}
	return accelerationTargets(c)
}

func removeAcceleration(ctx context.Context, c *config.Config) error {
	var errs []error
	if accelerates(c) { // what is hidden here would stay in force
		for _, f := range service.Families {
			errs = append(errs, socketlb.Leftovers{Family: f, Options: accelerationOptions(c)}.Evict())
		}
	}
	for _, t := range unwantedAcceleration(c) {
		err := t.Remove(ctx)
		if takeover.AsUnchecked(err) != nil { // the proxy can start without an answer
			klog.FromContext(ctx).Info("Warning: not checked whether "+t.String()+", which is off, is in the kernel", "reason", err.Error())
			continue
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// pendingAcceleration lists what removeAcceleration would remove, one a line.
func pendingAcceleration(ctx context.Context, c *config.Config) ([]string, error) {
	var lines []string
	var errs []error
	for _, t := range unwantedAcceleration(c) {
		switch found, err := t.Find(ctx); {
		case takeover.AsUnchecked(err) != nil:
			lines = append(lines, fmt.Sprintf("? %s: %v", t, err))
		case found != "":
			lines = append(lines, fmt.Sprintf("- %s: %s", t, found))
		default:
			errs = append(errs, err)
		}
	}
	return lines, errors.Join(errs...)
}

// Layers returns backends that plan what accompanies any mode. They are not for Apply.
func Layers(c *config.Config, families []service.Family) []*mode.Backend {
	var all []*mode.Backend
	for _, f := range families {
		all = append(all, &mode.Backend{Mode: "socket acceleration", Family: f, Backend: newLayer(c, f)})
	}
	return all
}

// trackedConnections is a socketlb.Connections.
func trackedConnections(ctx context.Context, f service.Family, each func(from, to netip.AddrPort)) error {
	return conntrack.Netlink{}.Dump(ctx, conntrack.Filter{Family: f, Protocol: service.TCP}, func(x conntrack.Flow) {
		if x.Protocol == service.TCP { // a kernel that cannot filter has others, too
			each(x.Src, x.Dst)
		}
	})
}

func newLayer(c *config.Config, f service.Family) *socketlb.Backend {
	o := accelerationOptions(c)
	return socketlb.New(f, socketlb.NewDriver(f, o), o)
}

func readBackAcceleration(c *config.Config, f service.Family, want *service.Snapshot) (held, wanted string, err error) {
	l := newLayer(c, f)
	defer l.Close()
	return l.ReadBack(want)
}

// acceleratedTracer follows a connection from connect(2) on.
type acceleratedTracer struct {
	mode.Tracer
	layer *socketlb.Backend
}

// Trace implements mode.Tracer.
func (t *acceleratedTracer) Trace(ctx context.Context, want *service.Snapshot, c route.Conn, local func(netip.Addr) bool) (*explain.Walk, error) {
	w, err := t.Tracer.Trace(ctx, want, c, local)
	if err != nil || w == nil {
		return w, err
	}
	if err := t.layer.Trace(want, c, w); err != nil {
		w.Notes = append(w.Notes, err.Error())
	}
	return w, nil
}

// Close implements mode.Tracer.
func (t *acceleratedTracer) Close() error { return errors.Join(t.layer.Close(), t.Tracer.Close()) }
