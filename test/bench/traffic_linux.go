// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"kubeproxy/common/service"
	own "kubeproxy/platform/linux/nftables"
)

// measureCounting measures connections through rules that count them, beside the same
// connections through rules that do not.
func (b *bench) measureCounting(ctx context.Context, s *section) error {
	s.how = howCounting
	t := table{services: 10, base: "not counted", rows: countingRows()}
	f, err := b.child(ctx, task{Role: roleCounting, Services: t.services})
	if err != nil {
		return err
	}
	t.add(roleOurs, f)
	s.add(b.out, t)
	return nil
}

// measureCounted compares two networks with the same Services.
func measureCounted(ctx context.Context, t task) (*figures, error) {
	plain, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer plain.close()
	counting, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer counting.close()
	err = errors.Join(t.program(ctx, plain, own.Options{MasqueradeBit: masqueradeBy}),
		t.program(ctx, counting, own.Options{MasqueradeBit: masqueradeBy, CountConnections: true}))
	if err != nil {
		return nil, err
	}
	t.logf("connections")
	to := netip.AddrPortFrom(clusterIP(0), servicePort)
	f := newFigures()
	return f, t.compare(f, []target{{name: directName, from: plain, to: to}, {name: "counted", from: counting, to: to}, {name: "again", from: plain, to: to}})
}

// program programs the Services of t in n, and starts a server there.
func (t task) program(ctx context.Context, n *network, o own.Options) error {
	r, err := newPipeline(n)
	if err != nil {
		return err
	}
	err = n.node.Do(func() (err error) {
		r.backend, err = own.New(service.IPv4, o)
		return err
	})
	if err != nil {
		return err
	}
	r.feed(t.Services)
	r.tracker.Synced()
	if _, err := r.apply(ctx); err != nil {
		return fmt.Errorf("program Services: %w", err)
	}
	return errors.Join(n.shortenConntrackTimeouts(), n.echo())
}

func countingRows() []row {
	const why = "Each first packet of a connection makes one more lookup, and adds to a counter."
	all := []row{}
	for _, r := range []struct{ label, name string }{{"counted", "counted"}, {"not counted, a second time", "again"}} {
		a := aim{}
		if r.name == "counted" {
			a = aim{times: 1.03}
		}
		all = append(all, row{label: "connection " + r.label + ", p50", metric: "connect." + r.name, unit: inSeconds, aim: a,
			floor: "connect.direct", ratio: "connect." + r.name + ".ratio", cited: true, why: why})
	}
	return all
}

const howCounting = `
Two networks in mode nftables: the rules of one count connections (` + "`--count-traffic`" + `). A second turn without counting
shows what is chance.
`
