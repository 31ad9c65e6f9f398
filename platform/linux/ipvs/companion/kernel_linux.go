// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/sysctl"
)

// New returns the Backend for one family in the network namespace of the calling thread.
// It changes nothing yet. The error describes what the node lacks.
func New(f service.Family, o Options) (*Backend, error) {
	chains, err := iptables.New(f, o.Chains(f))
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
	return iptables.Leftovers{Variant: other, Family: f, Role: Options{}.Chains(f).Role}, nil
}

// Probe checks whether the node can do what Backend needs for f. It changes nothing. The
// error is one sentence that describes what is missing. Probe tries sets and rules in a
// network namespace of its own. If it cannot create one, it checks only the command
// iptables.
func Probe(f service.Family, o Options) error {
	return iptables.ProbeWith(f, o.Chains(f), func() error { return probe(f) })
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
			err = fmt.Errorf("there are no ipsets of type %s (kernel modules ip_set and %s): %w", s.Type, module(s.Type), err)
			return sysctl.Missing(err, "ip_set", module(s.Type))
		}
	}
	return nil
}

// module returns the kernel module of type t.
func module(t ipset.Type) string {
	return "ip_set_" + strings.NewReplacer(":", "_", ",", "").Replace(string(t))
}

// Leftovers are our sets and chains in the network namespace of the calling thread, in
// both variants of iptables.
type Leftovers struct{ Family service.Family }

// String returns a name for the leftovers.
func (l Leftovers) String() string { return "sets and chains of mode ipvs for " + l.Family.String() }

func (l Leftovers) chains() []iptables.Leftovers {
	var all []iptables.Leftovers
	for _, v := range iptables.Variants {
		all = append(all, iptables.Leftovers{Variant: v, Family: l.Family, Role: Options{}.Chains(l.Family).Role})
	}
	return all
}

// Find describes the leftovers, "" if there are none.
func (l Leftovers) Find(ctx context.Context) (string, error) {
	var found []string
	for _, c := range l.chains() {
		what, err := c.Find(ctx)
		if err != nil {
			return "", err
		}
		if what != "" {
			found = append(found, c.String()+": "+what)
		}
	}
	n := 0
	err := withSets(func(k *ipset.Kernel) error {
		heads, err := k.Headers()
		for _, h := range heads {
			if isOwned(l.Family, h) {
				n++
			}
		}
		return err
	})
	if err != nil {
		return "", fmt.Errorf("look for ipsets: %w", err)
	}
	if n > 0 {
		found = append(found, fmt.Sprintf("%d ipsets", n))
	}
	return strings.Join(found, ", "), nil
}

// Disarm makes the chains stop marking, dropping and redirecting, and stop rejecting
// connections to Services that had no endpoints. Other packets to addresses of Services
// are treated as before. It succeeds if there are no leftovers.
func (l Leftovers) Disarm(ctx context.Context) error {
	if err := l.eachVariant(ctx, iptables.Leftovers.Disarm); err != nil {
		return err
	}
	return withSets(func(k *ipset.Kernel) error {
		s := setOf(l.Family, refusedSet)
		entries, err := k.List(s)
		if err == nil {
			err = k.Del(s, entries)
		}
		if errors.Is(err, ipset.ErrMissing) {
			return nil
		}
		return err
	})
}

// Remove removes the chains and then the sets. It succeeds if there are none.
func (l Leftovers) Remove(ctx context.Context) error {
	if err := l.eachVariant(ctx, iptables.Leftovers.Remove); err != nil {
		return err
	}
	return withSets(func(k *ipset.Kernel) error { return destroy(l.Family, k) })
}

// eachVariant calls do with the chains of each variant that has any.
func (l Leftovers) eachVariant(ctx context.Context, do func(iptables.Leftovers, context.Context) error) error {
	var errs []error
	for _, c := range l.chains() {
		what, err := c.Find(ctx)
		if err == nil && what != "" {
			err = do(c, ctx)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// withSets calls do if the kernel has ipsets. A request for them would load the module.
func withSets(do func(*ipset.Kernel) error) error {
	if !ipset.Present() {
		return nil
	}
	k, err := ipset.Open()
	if err != nil {
		return err
	}
	defer k.Close()
	return do(k)
}
