// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package companion

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// Leftovers are our sets and chains in the network namespace of the calling thread, in
// both variants of iptables.
type Leftovers struct{ Family service.Family }

// String returns a name for the leftovers.
func (r Leftovers) String() string { return "sets and chains of mode ipvs for " + r.Family.String() }

func (r Leftovers) chains() []iptables.Leftovers {
	var all []iptables.Leftovers
	for _, v := range iptables.Variants {
		all = append(all, iptables.Leftovers{Variant: v, Family: r.Family, Role: iptables.IPVSCompanion})
	}
	return all
}

// Find describes the leftovers, "" if there are none.
func (r Leftovers) Find(ctx context.Context) (string, error) {
	var found []string
	for _, c := range r.chains() {
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
			if isOwned(r.Family, h) {
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
func (r Leftovers) Disarm(ctx context.Context) error {
	if err := r.eachVariant(ctx, iptables.Leftovers.Disarm); err != nil {
		return err
	}
	return withSets(func(k *ipset.Kernel) error {
		s := setOf(r.Family, iptables.SetRefused)
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
func (r Leftovers) Remove(ctx context.Context) error {
	if err := r.eachVariant(ctx, iptables.Leftovers.Remove); err != nil {
		return err
	}
	return withSets(func(k *ipset.Kernel) error { return destroy(r.Family, k) })
}

// eachVariant calls do with the chains of each variant that has any.
func (r Leftovers) eachVariant(ctx context.Context, do func(iptables.Leftovers, context.Context) error) error {
	var errs []error
	for _, c := range r.chains() {
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
