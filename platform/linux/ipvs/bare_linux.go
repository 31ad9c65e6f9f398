// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"

	"kubeproxy/common/service"
)

// Bare makes virtual servers and nothing around them: no rules, no addresses, no
// comparison. It exists to be measured beside the library and a whole Backend,
// which knows nothing of what it makes.
type Bare struct {
	kernel kernel
	ops    []op
}

// NewBare prepares the requests for the virtual servers that want has for a
// family, in the network namespace of the calling thread.
func NewBare(f service.Family, want *service.Snapshot) (*Bare, error) {
	b := &Bare{kernel: kernel{family: f}}
	if err := b.kernel.open(); err != nil {
		return nil, fmt.Errorf("IPVS for %s: %w", f, err)
	}
	for p := range want.Ports(f) {
		for _, w := range (Options{}).servers(p, want.Node) {
			b.ops = append(b.ops, op{verb: addServer, key: w.key, server: w.server})
			for _, e := range w.endpoints {
				b.ops = append(b.ops, op{verb: addDest, key: w.key, dest: dest{addr: e.Addr, weight: 1}})
			}
		}
	}
	return b, nil
}

// Push hands the kernel the requests, so many at once, AtOnce at most. It can be
// called once.
func (b *Bare) Push(atOnce int) error {
	defer b.kernel.close()
	atOnce = max(1, min(atOnce, AtOnce))
	var err error
	for from := 0; from < len(b.ops) && err == nil; from += atOnce {
		part := b.ops[from:min(from+atOnce, len(b.ops))]
		b.kernel.batch.do(part, func(i int, e error) { err = fmt.Errorf("%s: %w", part[i].text(), e) })
	}
	return err
}
