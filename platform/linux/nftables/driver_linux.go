// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/netlink/nft"
	"kubeproxy/platform/linux/sysctl"
)

// New returns the Backend for one family, in the network namespace of the calling thread.
// It changes nothing. The error names what the kernel lacks. The caller must call Close.
func New(f service.Family, o Options) (*Backend, error) {
	d := &kernel{family: f, table: o.table()}
	if err := d.open(); err != nil {
		d.close()
		return nil, fmt.Errorf("nftables for %s: %w", f, nft.WithHint(err))
	}
	return &Backend{family: f, options: o, driver: d}, nil
}

// kernel implements Driver with the running kernel.
type kernel struct {
	family                  service.Family
	table                   string // its name
	readSocket, writeSocket *netlink.Socket
	encoder                 *encoder
	monitor                 *monitor
}

func (k *kernel) open() (err error) {
	if k.readSocket, err = dial(); err != nil {
		return err
	}
	if k.writeSocket, err = dial(); err != nil {
		return err
	}
	if k.monitor, err = newMonitor(nft.Family(k.family), k.table, k.writeSocket.PortID()); err != nil {
		return err
	}
	k.encoder = newEncoder(k.family)
	k.encoder.name = k.table
	_, err = k.reader().generation()
	return err
}

func (k *kernel) reader() *reader {
	return &reader{Socket: k.readSocket, nf: nft.Family(k.family), name: k.table}
}

// Commit implements Driver.
func (k *kernel) Commit(_ context.Context, ops []op) error {
	batch, err := k.encoder.batch(ops)
	if err != nil {
		return err
	}
	err = k.writeSocket.Transact(batch)
	k.encoder.release()
	// Notifications about other processes' large transactions would fill the monitor's
	// buffer if it were read only once per sync.
	k.monitor.notifyIfDirty()
	return err
}

// Suspect implements Driver.
func (k *kernel) Suspect() string { return k.monitor.suspect() }

// maxReadTries bounds how often a read is restarted because other processes keep changing
// the ruleset.
const maxReadTries = 10

// Read implements Driver.
func (k *kernel) Read(context.Context) (*table, error) {
	var t *table
	err := retryRead(func() (err error) {
		t, err = k.readOnce()
		return err
	})
	return t, err
}

// retryRead repeats a read that was interrupted, or that missed a set which others deleted
// after it was listed. The pauses let the kernel finish resizing a set.
func retryRead(list func() error) error {
	err := list()
	for try := 1; try < maxReadTries && (errors.Is(err, netlink.ErrInterrupted) || errors.Is(err, unix.ENOENT)); try++ {
		time.Sleep(time.Duration(try) * time.Millisecond)
		err = list()
	}
	return err
}

func (k *kernel) readOnce() (*table, error) {
	r := k.reader()
	before, err := r.generation()
	if err != nil {
		return nil, err
	}
	k.monitor.reset()
	if err := r.find(); err != nil {
		return nil, err
	}
	if r.table != nil {
		err = r.read()
	}
	if err != nil {
		return nil, err
	}
	after, err := r.generation()
	if err == nil && before != after {
		err = netlink.ErrInterrupted
	}
	if err != nil {
		return nil, err
	}
	return r.table, nil
}

// Touched implements Driver.
func (k *kernel) Touched(context.Context) (bool, error) { return k.monitor.isDirty(), nil }

// Liberal implements Driver.
func (k *kernel) Liberal() bool { return sysctl.TCPBeLiberal(sysctl.Host()) }

// Watch implements Driver.
func (k *kernel) Watch(ctx context.Context, touched func()) error {
	return k.monitor.watch(ctx, touched)
}

// PruneClients implements Driver. It ignores a client that expired meanwhile.
func (k *kernel) PruneClients(ctx context.Context, clients *set, keep map[string]bool) error {
	var observed *observedSet
	err := retryRead(func() error {
		observed = newObservedSet(setSpec{})
		return k.reader().elements(clients.name, observed)
	})
	if err != nil {
		return err
	}
	for key := range observed.elements {
		e, _ := observed.get(key)
		if keep[string(e.value)] {
			continue
		}
		e.in = clients
		err := k.Commit(ctx, []op{{verb: delElement, element: e}})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func (k *kernel) close() {
	sockets := []*netlink.Socket{k.readSocket, k.writeSocket}
	if k.monitor != nil {
		sockets = append(sockets, k.monitor.sock)
	}
	for _, s := range sockets {
		if s != nil {
			s.Close()
		}
	}
}
