// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package beside

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
)

// Leftovers are our sets and chains in the network namespace of the calling
// thread, in whichever variant of iptables.
type Leftovers struct{ Family service.Family }

// String names the place.
func (r Leftovers) String() string { return "rules beside IPVS for " + r.Family.String() }

func (r Leftovers) chains() []iptables.Leftovers {
	var all []iptables.Leftovers
	for _, v := range iptables.Variants {
		all = append(all, iptables.Leftovers{Variant: v, Family: r.Family, Role: iptables.IPVSCompanion})
	}
	return all
}

// Find says what there is, nothing if there is nothing of ours.
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

// Disarm has the chains mark, drop and lead nothing any more, nor refuse what
// nobody served. What else arrives at addresses of Services they judge as before.
// That there are none is success.
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

// Remove removes the chains and then the sets. That there are none is success.
func (r Leftovers) Remove(ctx context.Context) error {
	if err := r.eachVariant(ctx, iptables.Leftovers.Remove); err != nil {
		return err
	}
	return withSets(func(k *ipset.Kernel) error { return destroy(r.Family, k) })
}

// eachVariant does something with the chains of each variant that has any.
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

// withSets calls do if the kernel has ipsets. Asking for them would load them.
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
