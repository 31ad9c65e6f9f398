// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// New returns the Backend for one family in the network namespace of the calling thread.
// It changes nothing yet. The error describes what the node lacks.
func New(f service.Family, o Options) (*Backend, error) {
	chains, err := iptables.New(f, o.chains())
	if err != nil {
		return nil, err
	}
	sets, err := ipset.Open()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a socket for ipsets: %w", err), chains.Close())
	}
	b := NewWith(f, chains, sets, time.Now)
	if b.otherVariant, err = otherVariantLeftovers(f); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// otherVariantLeftovers returns the leftovers in the variant of iptables that the node
// does not use.
func otherVariantLeftovers(f service.Family) (leftoverChains, error) {
	used, err := iptables.NodeVariant(f)
	if err != nil {
		return nil, err
	}
	other := iptables.Legacy
	if used == iptables.Legacy {
		other = iptables.NFT
	}
	return iptables.Leftovers{Variant: other, Family: f, Role: iptables.IPVSCompanion}, nil
}

// Probe checks whether the node can do what Backend needs for f. It changes nothing. The
// error is one sentence that describes what is missing. Probe tries sets and rules in a
// network namespace of its own. If it cannot create one, it checks only the command
// iptables.
func Probe(f service.Family, o Options) error {
	return iptables.ProbeWith(f, o.chains(), func() error { return probe(f) })
}

// probe creates all sets in the network namespace of the calling thread.
func probe(f service.Family) error {
	k, err := ipset.Open()
	if err != nil {
		return fmt.Errorf("open a socket for ipsets: %w", err)
	}
	defer k.Close()
	for _, name := range allNames() {
		s := setOf(f, name)
		if err := k.Create(s); err != nil {
			return fmt.Errorf("there are no ipsets of type %s (kernel modules ip_set and %s): %w", s.Type, module(s.Type), err)
		}
	}
	return nil
}

// module returns the kernel module of type t.
func module(t ipset.Type) string {
	return "ip_set_" + strings.NewReplacer(":", "_", ",", "").Replace(string(t))
}
