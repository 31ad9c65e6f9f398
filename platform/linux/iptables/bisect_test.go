// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

// TestHalfProgrammed lets table nat accept a change that table filter refuses, once or
// twice. Ports that are not at fault must not suffer from the part that was applied.
func TestHalfProgrammed(t *testing.T) {
	for refusals := range 3 {
		k := newFake()
		b := newBackend(service.IPv4, k)
		one, two, three := simplePort(1), simplePort(2), simplePort(3)
		node := &service.Node{NodePorts: service.AnyAddress()}
		apply(t, b, service.New(1, node, []*service.Port{two, three}))
		want := service.New(2, node, []*service.Port{one, two})
		p, err := b.Plan(t.Context(), want)
		if err != nil {
			t.Fatal(err)
		}
		left := refusals
		k.Refuse = func(text string) error {
			if left == 0 || !strings.HasPrefix(text, "*"+filter) {
				return nil
			}
			left--
			return errors.New("not now")
		}
		if err := p.Apply(t.Context()).Err; err != nil {
			t.Errorf("%d refusals: %v", refusals, err)
		}
		fresh := newFake()
		apply(t, newBackend(service.IPv4, fresh), want)
		if diff := cmp.Diff(parse(fresh.Text(), nil).chains, parse(k.Text(), nil).chains, cmp.AllowUnexported(id{})); diff != "" {
			t.Errorf("%d refusals: chains (-fresh +now):\n%s", refusals, diff)
		}
	}
}
