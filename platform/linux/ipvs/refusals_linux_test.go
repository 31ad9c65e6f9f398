// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
)

// codes are what a kernel refuses with.
var codes = [...]unix.Errno{unix.EBUSY, unix.ENOENT, unix.EEXIST, unix.ENOBUFS, unix.ESRCH, unix.EINTR, unix.ENOMEM}

// unreliable is a kernel that fails: it refuses some requests, and executes others but
// reports that it refused them.
type unreliable struct {
	Driver
	fails func(what string) bool
	code  func() unix.Errno
}

func (u *unreliable) refusal() error { return fmt.Errorf("injected: %w", driverError(u.code())) }

func (u *unreliable) Commit(ctx context.Context, ops []op) map[int]error {
	var pass []op
	var index []int
	failed := map[int]error{}
	broken := false
	for i, o := range ops {
		broken = broken || u.fails("the rest of a batch")
		deletes := o.verb == delServer || o.verb == delDest || o.verb == delRoute
		if broken || u.fails("an op") {
			failed[i] = u.refusal()
			if deletes { // a kernel that reports an object as missing is right
				failed[i] = fmt.Errorf("injected: %w", unix.EBUSY)
			}
		}
		if failed[i] == nil || u.fails("only an answer") {
			pass, index = append(pass, o), append(index, i)
		}
	}
	for j, err := range u.Driver.Commit(ctx, pass) {
		failed[index[j]] = err
	}
	return failed
}

func (u *unreliable) Read(ctx context.Context) (*state, error) {
	if u.fails("a list") {
		return nil, u.refusal()
	}
	return u.Driver.Read(ctx)
}

func (u *unreliable) Dests(ctx context.Context, k service.Address) ([]dest, error) {
	if u.fails("a list") {
		return nil, u.refusal()
	}
	return u.Driver.Dests(ctx, k)
}

// TestKernelConvergesAfterRefusals refuses ops at random in some syncs. The first sync
// without refusals must reach the desired state.
func TestKernelConvergesAfterRefusals(t *testing.T) {
	inNamespace(t, func() {
		someDraws(t, func(t *rapid.T) {
			w := generate.Cluster{T: t, Family: service.Family(rapid.IntRange(0, 1).Draw(t, "family"))}
			b := newKernel(t, w.Family, Options{MasqueradeBit: 14, SyncPeriod: time.Hour})
			u := &unreliable{
				Driver: b.driver, fails: func(what string) bool { return w.DrawInt(what, 12) == 0 },
				code: func() unix.Errno { return codes[w.DrawInt("code", len(codes))] },
			}
			var want *service.Snapshot
			node := w.Node() // another node would cause a full comparison
			for n := range 3 {
				want = service.New(uint64(n), node, w.Ports())
				b.driver = u
				if p, err := b.Plan(t.Context(), want); err == nil && !p.Empty() {
					_ = p.Apply(t.Context()).Err
				}
				b.driver = u.Driver
			}
			wantConverged(t, b, want)
			if err := b.Cleanup(t.Context()); err != nil {
				t.Fatalf("Cleanup: %v", err)
			}
			_ = b.Close()
		})
	})
}
