// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/peers"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/direct"
	"kubeproxy/platform/mode"
	"kubeproxy/test/netlab"
)

// spoutPort is where the server writes as much as it can.
const spoutPort = sinkPort + 1

// externalIP is that of Service i.
func externalIP(i int) netip.Addr { return plus(netip.MustParseAddr("198.18.0.1"), i) }

// measureDirect measures connections through a node without the endpoint.
func (b *bench) measureDirect(ctx context.Context, s *section) error {
	s.how = howDirect
	ours, remove, err := buildProgram(ctx)
	if err != nil {
		return err
	}
	defer remove()
	services := task{Quick: b.quick}.pick(200, 20)
	for _, t := range directTables(services) {
		f, err := b.child(ctx, task{Role: t.role, Services: t.services, Program: ours})
		if err != nil {
			return err
		}
		t.add(roleOurs, f)
		s.add(b.out, t.table)
	}
	return nil
}

// directTable is a table that a child of a role measures.
type directTable struct {
	table
	role role
}

func directTables(services int) []directTable {
	return []directTable{
		{table{services: 3, base: "rules", head: "layer", rows: directPaths(), title: "A client outside, and an endpoint on another node"}, roleIngress},
		{table{services: services, base: "rules", head: "layer", rows: directCosts(),
			title: fmt.Sprintf("What the layer adds to the rules of %d Services of %d endpoints, with tables of 1,009 slots", services, perService)}, roleSlots},
	}
}

// ingress is a network of two nodes, with the program on each. A client outside sends to the
// first one, and the endpoint is on the other one.
func (t task) ingress(ctx context.Context, flags ...string) (n *network, stop func(), err error) {
	var closers []func()
	stop = func() {
		for _, c := range slices.Backward(closers) {
			c()
		}
	}
	lab, err := netlab.New(netlab.Config{Remote: []string{"server"}, Clients: []string{"client"}})
	if err != nil {
		return nil, stop, fmt.Errorf("build network: %w", err)
	}
	closers = append(closers, func() { _ = lab.Close() })
	n = &network{lab: lab, node: lab.Node, client: lab.Host("client"), server: lab.Host("server")}
	if err := errors.Join(n.shortenConntrackTimeouts(), n.echo(), n.sink(ctx), n.spout(ctx)); err != nil {
		return n, stop, err
	}
	for _, h := range []*netlab.Host{lab.Node, lab.Other} {
		dir, err := os.MkdirTemp("", "bench-direct-")
		if err != nil {
			return n, stop, fmt.Errorf("make temporary directory: %w", err)
		}
		closers = append(closers, func() { os.RemoveAll(dir) })
		on := *n
		on.node = h
		p, err := t.run(ctx, &on, dir, ingressObjects(n), append(flags, "--proxy-mode=nftables", "--hostname-override="+h.Name)...)
		if err != nil {
			return n, stop, err
		}
		closers = append(closers, func() { _, _ = p.stop() })
	}
	return n, stop, nil
}

// ingressObjects are the nodes, and a Service for each port of the server.
func ingressObjects(n *network) (all []any) {
	for _, h := range []*netlab.Host{n.lab.Node, n.lab.Other} {
		all = append(all, &corev1.Node{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: h.Name},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: h.IPv4.String()}}},
		})
	}
	for i, port := range []int32{targetPort, sinkPort, spoutPort} {
		s := newSlice(i, numbers(1))
		*s.Ports[0].Port = port
		s.Endpoints[0].Addresses, *s.Endpoints[0].NodeName = []string{n.server.IPv4.String()}, n.lab.Other.Name
		all = append(all, newExternal(i), s)
	}
	return all
}

// newExternal is newService with an address outside.
func newExternal(i int) *corev1.Service {
	s := newService(i)
	s.Spec.ExternalIPs = []string{externalIP(i).String()}
	return s
}

// spout makes the server write as much as it can, until the process ends.
func (n *network) spout(ctx context.Context) error {
	l, err := n.server.Listen(ctx, "tcp", fmt.Sprintf(":%d", spoutPort))
	if err != nil {
		return fmt.Errorf("start spout: %w", err)
	}
	go netlab.Serve(l, func(c net.Conn) {
		block := make([]byte, 1<<18)
		for err := error(nil); err == nil; {
			_, err = c.Write(block)
		}
	})
	return nil
}

// measureIngress compares two networks, of which one has direct return.
func measureIngress(ctx context.Context, t task) (*figures, error) {
	plain, stop, err := t.ingress(ctx)
	defer stop()
	if err != nil {
		return nil, err
	}
	led, stopLed, err := t.ingress(ctx, "--direct-return")
	defer stopLed()
	if err != nil {
		return nil, err
	}
	targets := []target{{name: directName, from: plain}, {name: "on", from: led}, {name: "again", from: plain}}
	for i := range targets {
		targets[i].to, targets[i].among = netip.AddrPortFrom(externalIP(0), servicePort), func(int) netip.Addr { return externalIP(0) }
	}
	if err := targets[1].awaitLead(ctx); err != nil {
		return nil, err
	}
	f := newFigures()
	t.logf("connections")
	turns, err := takeTurns(targets, t.pick(150, 6), time.Duration(t.pick(30, 5))*time.Millisecond)
	if err != nil {
		return nil, err
	}
	for _, x := range targets {
		turns.set(f, x.name, directName)
	}
	return f, t.ingressFlows(ctx, f, targets)
}

// awaitLead waits until the node by which connections come in does not track them.
func (t target) awaitLead(ctx context.Context) error {
	deadline := time.Now().Add(servedLimit)
	for now := range ticks(ctx, 200*time.Millisecond) {
		before, _, err := t.entries(ctx)
		open, holdErr := t.hold(1)
		after, _, afterErr := t.entries(ctx)
		for _, fd := range open {
			unix.Close(fd)
		}
		err = errors.Join(err, holdErr, afterErr)
		if err == nil && after == before {
			return nil
		}
		if now.After(deadline) {
			return errors.Join(fmt.Errorf("the node by which connections come in still translates them: %d entries, then %d", before, after), err)
		}
	}
	return ctx.Err()
}

// ingressFlows measures flows to the server and from it, in turns.
func (t task) ingressFlows(ctx context.Context, f *figures, targets []target) error {
	t.logf("flows")
	long := time.Duration(t.pick(1000, 100)) * time.Millisecond
	for i, move := range []func(net.Conn, []byte) (int, error){net.Conn.Write, net.Conn.Read} {
		p, to := pairs{}, netip.AddrPortFrom(externalIP(i+1), servicePort)
		for n := range t.pick(32, 6) * len(targets) {
			x := targets[n%len(targets)]
			flow, err := x.from.flow(ctx, to, long, move)
			if err != nil {
				return err
			}
			p[x.name] = append(p[x.name], flow.rate())
		}
		for _, x := range targets {
			metric := [...]string{"to.", "from."}[i] + x.name
			f.set(metric, quantile(slices.Clone(p[x.name]), 0.5))
			f.spread(metric+".ratio", p.ratios("", x.name, directName))
		}
	}
	return nil
}

// steadyPeers are nodes that always answer. It implements mode.Peers.
type steadyPeers map[string]netip.Addr

func (p steadyPeers) Want([]string)                              {}
func (p steadyPeers) Settled() bool                              { return true }
func (p steadyPeers) Missing(peers.IPv6) map[string]string       { return nil }
func (p steadyPeers) Known(peers.IPv6) map[string]netip.Addr     { return p }
func (p steadyPeers) Answering(peers.IPv6) map[string]netip.Addr { return p }

// layeredPipeline returns a pipeline to n's node, with or without direct return for all Services.
func layeredPipeline(n *network, layered bool) (*pipeline, error) {
	r, err := newPipeline(n)
	if err != nil || !layered {
		return r, err
	}
	r.tracker = track.New(track.Options{
		NodeName: ownNode, NodePorts: service.AnyAddress(), DirectReturn: true, SelectionSlots: service.DefaultSlots,
		Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix(clusterCIDR)}},
	})
	all := steadyPeers{}
	for i := range 50 { // as newSlice has them
		all[fmt.Sprintf("node-%d", i)] = plus(netip.MustParseAddr("192.0.2.101"), i)
	}
	all[ownNode] = n.node.IPv4
	layer := direct.New(service.IPv4, direct.NewKernel(service.IPv4, ""), func() mode.Peers { return all })
	r.backend, r.do = reconcile.Both(r.backend, layer), n.node.Do
	return r, nil
}

// measureSlots measures what tables of slots take, and a change in one, beside rules that draw.
func measureSlots(ctx context.Context, t task) (*figures, error) {
	f := newFigures()
	for _, layered := range []bool{false, true} {
		name := map[bool]string{false: "rules.", true: "layer."}[layered]
		t.logf("%stables", name)
		n, err := newNetwork()
		if err != nil {
			return nil, err
		}
		defer n.close()
		r, err := layeredPipeline(n, layered)
		if err == nil {
			err = t.slots(ctx, f, n, r, name)
		}
		if err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (t task) slots(ctx context.Context, f *figures, n *network, r *pipeline, name string) error {
	heap := heapInUse()
	kernel, err := t.kernelMemory()
	if err != nil {
		return err
	}
	for i := range t.Services {
		r.tracker.SetService(newExternal(i))
		r.tracker.SetSlice(newSlice(i, numbers(perService)))
	}
	r.tracker.Synced()
	m := start()
	if _, err := r.apply(ctx); err != nil {
		return fmt.Errorf("program Services: %w", err)
	}
	f.usage(name+"start", m)
	after, err := t.kernelMemory()
	if err != nil {
		return err
	}
	f.set(name+"kernel", (after-kernel)/float64(t.Services))
	f.set(name+"heap", (heapInUse()-heap)/float64(t.Services))
	change := func(round int) error {
		c := changes()[0]
		r.tracker.SetSlice(newSlice(serviceOfRound(round, t.Services), [][]int{c.a, c.b}[round%2]))
		_, err := r.apply(ctx)
		return err
	}
	var took []time.Duration
	m = start()
	for round := range t.pick(400, 20) {
		began := time.Now()
		if err := change(round); err != nil {
			return fmt.Errorf("change one Service: %w", err)
		}
		took = append(took, time.Since(began))
	}
	_, cpu := m.stop()
	f.set(name+"replace.cpu", cpu.Seconds()/float64(len(took)))
	f.set(name+"replace.p50", quantile(took, 0.5))
	return t.reports(f, n, name, change)
}

// reports counts what the kernel reports of a change: a message for each element, and one
// for the whole.
func (t task) reports(f *figures, n *network, name string, change func(round int) error) error {
	var conn *netlink.Conn
	err := n.node.Do(func() (err error) {
		conn, err = netlink.Dial(unix.NETLINK_NETFILTER, &netlink.Config{Groups: 1 << (unix.NFNLGRP_NFTABLES - 1)})
		return err
	})
	if err != nil {
		return fmt.Errorf("listen to changes: %w", err)
	}
	defer conn.Close()
	if err := conn.SetReadBuffer(1 << 24); err != nil {
		return err
	}
	count, size, rounds := 0, 0, t.pick(40, 2)
	for round := range rounds {
		if err := change(round); err != nil {
			return err
		}
		// All reports are there before the change returns.
		if err := conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			return err
		}
		for {
			all, err := conn.Receive()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return fmt.Errorf("read reports: %w", err)
			}
			for _, m := range all {
				count, size = count+1, size+int(m.Header.Length)
			}
		}
	}
	f.set(name+"messages", float64(count)/float64(rounds))
	f.set(name+"bytes", float64(size)/float64(rounds))
	return nil
}

func directPaths() []row {
	var all []row
	for _, x := range []struct {
		label, metric string
		unit          unit
	}{
		{"connect", "connect.made.", inSeconds}, {"request", "connect.", inSeconds},
		{"flow to the server", "to.", inGigabytes}, {"flow from the server", "from.", inGigabytes},
	} {
		of := func(name, more string) row {
			metric := x.metric + name
			return row{label: x.label + more, metric: metric, floor: x.metric + directName, ratio: metric + ".ratio", unit: x.unit, spread: true, cited: true}
		}
		all = append(all, of("on", ""), of("again", ", rules a second time"))
	}
	return all
}

func directCosts() []row {
	of := func(label, metric string, u unit) row {
		return row{label: label, metric: "layer." + metric, floor: "rules." + metric, unit: u, cited: true}
	}
	return []row{
		of("first program, CPU", "start.cpu", inSeconds),
		of("kernel's memory for each Service", "kernel", inKilobytes),
		of("Go heap for each Service", "heap", inKilobytes),
		of("one endpoint replaced, p50", "replace.p50", inSeconds),
		of("one endpoint replaced, CPU", "replace.cpu", inSeconds),
		of("what the kernel reports of it, messages", "messages", inWhole),
		of("what the kernel reports of it", "bytes", inKilobytes),
	}
}

const howDirect = `
Two networks of two nodes with the whole program, in turns: **layer** has ` + "`--direct-return`" + `, in **rules** the ingress node
translates. The nodes share the processors. A ratio is the median of 150 rounds, or of 32 flows of a second, and 95 % is
where the true one is with that probability. In the second table, endpoints are on 50 nodes. A change is one of 400, and
writes slots of two tables, the rules' and the layer's. The kernel reports each slot that changes.
`
