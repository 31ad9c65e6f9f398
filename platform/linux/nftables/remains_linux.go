// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// UpstreamTable is the name that kube-proxy itself gives to its tables.
const UpstreamTable = "kube-proxy"

// Remains is a table that some service proxy left in the network namespace of
// the calling thread. It may well not be there.
type Remains struct {
	Family service.Family
	Table  string // its name
}

// String returns what nft calls the table.
func (r Remains) String() string { return "nftables table " + tableFamily(r.Family) + " " + r.Table }

// Find says what there is, nothing if the table does not exist.
func (r Remains) Find(context.Context) (string, error) {
	found := false
	err := r.with(func(s *socket, e *encoder) error {
		e.open(nft(unix.NFT_MSG_GETTABLE), unix.NLM_F_DUMP, e.nf, 0)
		e.close()
		return s.dump(e.buf, func(m reply) error {
			found = found || m.family == e.nf && stringOf(attribute(m.body, unix.NFTA_TABLE_NAME)) == r.Table
			return nil
		})
	})
	switch {
	case lacksTables(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("look for %s: %w", r, explain(err))
	case !found:
		return "", nil
	}
	return "the table", nil
}

// lacksTables reports that the kernel has no tables of nftables at all.
func lacksTables(err error) bool {
	return errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EINVAL)
}

// Remove deletes the table with all that is in it, in one step. That there is
// none is success.
func (r Remains) Remove(context.Context) error {
	err := r.with(func(s *socket, e *encoder) error {
		batch, err := e.batch([]op{{verb: delTable}})
		if err != nil {
			return err
		}
		return s.transact(batch)
	})
	if err != nil && !errors.Is(err, unix.ENOENT) && !lacksTables(err) {
		return fmt.Errorf("delete %s: %w", r, explain(err))
	}
	return nil
}

func (r Remains) with(do func(*socket, *encoder) error) error {
	s, err := dial()
	if err != nil {
		return err
	}
	defer s.close()
	e := newEncoder(r.Family)
	e.name = r.Table
	return do(s, e)
}

// Close gives back what a Backend holds of the kernel's. The table stays.
func (b *Backend) Close() error {
	if k, ok := b.driver.(*kernel); ok {
		k.close()
	}
	return nil
}
