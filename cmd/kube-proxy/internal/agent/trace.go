// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/platform/mode"
)

// trace follows c through the dataplane. It returns nil where the mode cannot do that.
func (p *proxy) trace(ctx context.Context, want *service.Snapshot, c route.Conn) (*explain.Walk, error) {
	i := slices.IndexFunc(p.selected.Backends, func(b *mode.Backend) bool { return b.Family == service.FamilyOf(c.To.Addr()) })
	if i < 0 || p.selected.Backends[i].Tracer == nil {
		return nil, nil
	}
	t, err := p.selected.Backends[i].Tracer()
	if err != nil {
		return nil, err
	}
	defer t.Close()
	local := func(a netip.Addr) bool { return slices.Contains(want.Node.Addrs, a) || isLocal(a) }
	w, err := t.Trace(ctx, want, c, local)
	if err != nil {
		return nil, err
	}
	addRoutes(w, c, local)
	if err := host.AddOthers(ctx, w, c, local, p.marks()); err != nil {
		w.Notes = append(w.Notes, "the rules of others could not be followed: "+err.Error())
	}
	flows, err := host.Flows(ctx, want, c)
	if err != nil {
		w.Notes = append(w.Notes, "whether connection tracking has an entry could not be read: "+err.Error())
	}
	w.SetFlows(flows)
	return w, nil
}

// marks returns the bits of the mark that the modes set.
func (p *proxy) marks() uint32 {
	c := p.active.config()
	return 1<<*c.IPTables.MasqueradeBit | 1<<*c.NFTables.MasqueradeBit
}

// mostRoutes bounds how many routes are looked up.
const mostRoutes = 100

// addRoutes looks up how the node gets to the targets of w. A missing route is a fault. The
// kernel looks for a route to the destination of its own processes, too, before any rule
// translates that (kernel: net/ipv4/tcp_ipv4.c, tcp_v4_connect). What it forwards is
// translated before.
func addRoutes(w *explain.Walk, c route.Conn, local func(netip.Addr) bool) {
	if to := c.To.Addr(); c.Interface == "" && w.Action == route.Forward && !w.Taken && !local(to) {
		if _, err := host.Route(to); err != nil {
			w.Faults = append(w.Faults, fmt.Sprintf("the node has no route to %s: %v; without one its own processes cannot connect, only pods and others can", to, err))
		}
	}
	w.Routes = map[netip.Addr]string{}
	for _, to := range slices.SortedFunc(maps.Keys(w.Targets), netip.AddrPort.Compare) {
		if _, known := w.Routes[to.Addr()]; known || len(w.Routes) == mostRoutes {
			continue
		}
		text, err := host.Route(to.Addr())
		if err != nil {
			w.Faults = append(w.Faults, fmt.Sprintf("the node has no route to %s: %v", to.Addr(), err))
		}
		w.Routes[to.Addr()] = text
	}
}

// pod looks a pod up in the EndpointSlices that refer to it. A service proxy may not read
// pods themselves.
func (p *proxy) pod(ctx context.Context, id types.NamespacedName) ([]netip.Addr, string, error) {
	if len(p.options.Manifests) > 0 {
		pods := explain.NewPods(track.New(TrackOptions(p.selected.Descriptor, p.active.config(), p.node)))
		files := source.Manifests{Paths: p.options.Manifests, NodeName: p.node}
		// What cannot be read is reported by the running source.
		_ = files.Load(ctx, pods)
		return pods.Find(id)
	}
	to, err := KubeClient(p.active.config(), p.process.Build.GitVersion).Config()
	if err != nil {
		return nil, "", err
	}
	all, err := source.Lookup{Config: to}.Slices(ctx, id.Namespace)
	if err != nil {
		return nil, "", fmt.Errorf("list the EndpointSlices of namespace %s: %w", id.Namespace, err)
	}
	pods := explain.NewPods(nil)
	for i := range all {
		pods.SetSlice(&all[i])
	}
	return pods.Find(id)
}

// isLocal reports whether an interface of the node has the address a, or a is a loopback
// address.
func isLocal(a netip.Addr) bool {
	if a.IsLoopback() {
		return true
	}
	all, err := net.InterfaceAddrs()
	if err != nil {
		return false
	}
	return slices.ContainsFunc(all, func(x net.Addr) bool {
		p, err := netip.ParsePrefix(x.String())
		return err == nil && p.Addr().Unmap() == a
	})
}
