// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/beside"
	"kubeproxy/platform/linux/conntrack"
)

// Leftovers are the virtual servers of ours in the network namespace of the
// calling thread, with the addresses that lead there and the rules beside
// them. Those of others are none.
type Leftovers struct {
	Family service.Family
	// Exclude are prefixes in which virtual servers are left alone.
	Exclude []netip.Prefix
	list    string // of virtual servers, listPath if it is empty
}

// String names the place.
func (r Leftovers) String() string { return "virtual servers of IPVS for " + r.Family.String() }

func (r Leftovers) rules() beside.Leftovers { return beside.Leftovers{Family: r.Family} }

// Find says what there is, nothing if there is nothing of ours.
func (r Leftovers) Find(ctx context.Context) (string, error) {
	var found []string
	err := r.with(func(k *kernel) error {
		s, err := k.Read(ctx)
		if err != nil {
			return err
		}
		for _, x := range []struct {
			n    int
			what string
		}{{len(r.ownedKeys(s)), "virtual servers"}, {len(s.routes), "addresses of Services"}} {
			if x.n > 0 {
				found = append(found, fmt.Sprintf("%d %s", x.n, x.what))
			}
		}
		return nil
	})
	table, tableErr := r.rules().Find(ctx)
	if table != "" {
		found = append(found, table)
	}
	if err := errors.Join(err, tableErr); err != nil {
		return "", fmt.Errorf("look for %s: %w", r, err)
	}
	return strings.Join(found, ", "), nil
}

// Remove removes them. That there is none is success.
func (r Leftovers) Remove(ctx context.Context) error {
	err := r.with(func(k *kernel) error { return r.remove(ctx, k) })
	if err := errors.Join(err, r.rules().Remove(ctx)); err != nil {
		return fmt.Errorf("remove %s: %w", r, err)
	}
	return nil
}

// Drain has them take no new connections, which is safe once something else
// serves in their place, and removes what no connection needs any more. It says
// what stays and until when, nothing if all is gone. since is when it began, and
// the zero time if it begins now. After DrainTimeout all goes.
func (r Leftovers) Drain(ctx context.Context, since time.Time) (string, error) {
	remaining, err := r.drain(ctx, since)
	if err != nil {
		return "", fmt.Errorf("retire %s: %w", r, err)
	}
	if remaining.servers > 0 {
		return fmt.Sprintf("%s, for %s at most", remaining, DrainTimeout), nil
	}
	return "", r.Remove(ctx)
}

func (r Leftovers) drain(ctx context.Context, since time.Time) (remaining drainResult, err error) {
	var elapsed time.Duration
	if !since.IsZero() {
		elapsed = time.Since(since)
	} else if err := r.rules().Disarm(ctx); err != nil {
		return drainResult{}, err
	}
	err = r.with(func(k *kernel) error {
		remaining, err = drainOwned(ctx, k, Options{Exclude: r.Exclude}.ownedServers, elapsed)
		return err
	})
	return remaining, errors.Join(err, deleteCutFlows(ctx, r.Family, remaining.cut))
}

// deleteCutFlows has connection tracking forget the flows that were cut and have no end
// of their own. Otherwise they would go on to where nobody is.
func deleteCutFlows(ctx context.Context, f service.Family, cut []key) error {
	var errs []error
	for _, k := range cut {
		if !k.connectionless() {
			continue
		}
		var flows []conntrack.Flow
		err := conntrack.Netlink{}.Dump(ctx, conntrack.Filter{Family: f, Protocol: k.proto, Port: k.port}, func(x conntrack.Flow) {
			if x.Dst == netip.AddrPortFrom(k.addr, k.port) {
				flows = append(flows, x)
			}
		})
		if err == nil && len(flows) > 0 {
			_, err = conntrack.Netlink{}.Delete(ctx, flows)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// remove takes addresses first, so that nothing leads to what goes.
func (r Leftovers) remove(ctx context.Context, k *kernel) error {
	s, err := k.Read(ctx)
	if err != nil {
		return err
	}
	return errors.Join(removeAll(ctx, k, s, r.ownedKeys(s)), k.RemoveDevice(ctx))
}

func (r Leftovers) ownedKeys(s *state) []key {
	return Options{Exclude: r.Exclude}.ownedKeys(s)
}

// with calls do with what there is of the kernel. Without IPVS there are no
// virtual servers, but what leads to the node may be left.
func (r Leftovers) with(do func(*kernel) error) error {
	k := &kernel{family: r.Family}
	open := k.open
	// Asking for IPVS would load it.
	if _, err := os.Stat(cmp.Or(r.list, listPath)); errors.Is(err, fs.ErrNotExist) {
		open = k.openLinks
	}
	if err := open(); err != nil {
		return err
	}
	defer k.close()
	return do(k)
}

// Close gives back what a Backend holds of the kernel's. Virtual servers stay.
func (b *Backend) Close() error {
	if k, ok := b.driver.(*kernel); ok {
		k.close()
	}
	if rules, ok := b.rules.(*beside.Backend); ok {
		return rules.Close()
	}
	return nil
}
