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
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/ipvs/companion"
)

// Leftovers are our virtual servers in the network namespace of the calling thread, with
// their routes, sets and chains. Foreign virtual servers are not among them.
type Leftovers struct {
	Family service.Family
	// Exclude are prefixes in which virtual servers stay.
	Exclude []netip.Prefix
	list    string // of virtual servers, listPath if it is empty
}

// String returns a name for the leftovers.
func (r Leftovers) String() string { return "virtual servers of IPVS for " + r.Family.String() }

func (r Leftovers) rules() companion.Leftovers { return companion.Leftovers{Family: r.Family} }

// Find describes the leftovers, "" if there are none.
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

// Remove removes the leftovers. It succeeds if there are none.
func (r Leftovers) Remove(ctx context.Context) error {
	err := r.with(func(k *kernel) error { return r.remove(ctx, k) })
	if err := errors.Join(err, r.rules().Remove(ctx)); err != nil {
		return fmt.Errorf("remove %s: %w", r, err)
	}
	return nil
}

// Drain stops new connections and removes what no connection needs any more. Call it
// after another backend serves in their place. It describes what remains and for how
// long at most, "" if nothing does. since is when draining began, zero if it begins now.
// After DrainTimeout Drain removes everything.
func (r Leftovers) Drain(ctx context.Context, since time.Time) (string, error) {
	remaining, err := r.drain(ctx, since)
	if err != nil {
		return "", fmt.Errorf("drain %s: %w", r, err)
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

// deleteCutFlows deletes the conntrack entries of cut flows of connectionless protocols.
// Otherwise these flows would continue to a server that no longer exists.
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

// remove deletes routes first, so that no route leads to a deleted server.
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

// with calls do with a kernel. Without IPVS there are no virtual servers, but routes and
// addresses may remain.
func (r Leftovers) with(do func(*kernel) error) error {
	k := &kernel{family: r.Family}
	open := k.open
	// A request for IPVS would load the module.
	if _, err := os.Stat(cmp.Or(r.list, listPath)); errors.Is(err, fs.ErrNotExist) {
		open = k.openLinks
	}
	if err := open(); err != nil {
		return err
	}
	defer k.close()
	return do(k)
}
