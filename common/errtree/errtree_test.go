// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package errtree

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"syscall"
	"testing"
)

// leaf is an error with a name.
type leaf string

func (l leaf) Error() string { return string(l) }

// wrapped is an error of a type of its own that wraps one.
type wrapped struct{ error }

func (w wrapped) Unwrap() error { return w.error }

// none is an error that joins none.
type none struct{}

func (none) Error() string   { return "" }
func (none) Unwrap() []error { return nil }

const a, b, c = leaf("a"), leaf("b"), leaf("c")

func TestTrees(t *testing.T) {
	for name, tt := range map[string]struct {
		err     error
		leaves  []leaf
		every   bool // branch has a or b
		only    bool // ends with a
		wrapped int
	}{
		"nothing":         {err: nil},
		"one":             {err: a, leaves: []leaf{a}, every: true, only: true},
		"another":         {err: c, leaves: []leaf{c}},
		"in words":        {err: fmt.Errorf("x: %w", a), leaves: []leaf{a}, every: true, only: true},
		"joined":          {err: errors.Join(b, a), leaves: []leaf{b, a}, every: true},
		"joined once":     {err: errors.Join(a), leaves: []leaf{a}, every: true, only: true},
		"with another":    {err: errors.Join(a, c), leaves: []leaf{a, c}},
		"in one format":   {err: fmt.Errorf("%w, %w", a, a), leaves: []leaf{a, a}, every: true, only: true},
		"deep":            {err: fmt.Errorf("x: %w", errors.Join(a, fmt.Errorf("y: %w", errors.Join(b, c)))), leaves: []leaf{a, b, c}},
		"of a type":       {err: wrapped{errors.Join(a, wrapped{b})}, leaves: []leaf{a, b}, every: true, wrapped: 1},
		"of a type twice": {err: errors.Join(wrapped{a}, wrapped{a}), leaves: []leaf{a, a}, every: true, only: true, wrapped: 2},
		"a list of none":  {err: none{}},
		"with such a one": {err: errors.Join(a, none{}), leaves: []leaf{a}},
	} {
		if got := Find[leaf](tt.err); !slices.Equal(got, tt.leaves) {
			t.Errorf("%s: leaves %v, want %v", name, got, tt.leaves)
		}
		if got := Every(tt.err, func(err error) bool { return err == a || err == b }); got != tt.every {
			t.Errorf("%s: every branch %t, want %t", name, got, tt.every)
		}
		if got := Only(tt.err, a); got != tt.only {
			t.Errorf("%s: only %t, want %t", name, got, tt.only)
		}
		if got := len(Find[wrapped](tt.err)); got != tt.wrapped {
			t.Errorf("%s: %d of the type, want %d", name, got, tt.wrapped)
		}
	}
}

// Only asks the last error of a branch, by its method Is.
func TestOnlyOfErrno(t *testing.T) {
	denied := &fs.PathError{Op: "open", Path: "x", Err: syscall.EACCES}
	for name, tt := range map[string]struct {
		err  error
		want bool
	}{
		"in words":     {fmt.Errorf("look: %w: as root", syscall.EPERM), true},
		"of a file":    {denied, true},
		"several":      {fmt.Errorf("look: %w", errors.Join(syscall.EPERM, denied)), true},
		"another":      {syscall.ENOENT, false},
		"with another": {fmt.Errorf("look: %w", errors.Join(syscall.EPERM, syscall.ENOENT)), false},
	} {
		if got := Only(tt.err, fs.ErrPermission); got != tt.want {
			t.Errorf("%s: %t, want %t", name, got, tt.want)
		}
	}
}

// Walk calls visit for an error before its causes, and for no cause of one that it is to
// leave out.
func TestWalkLeavesOut(t *testing.T) {
	var seen []string
	Walk(errors.Join(wrapped{a}, b), func(err error) bool {
		_, out := err.(wrapped)
		if !Joins(err) {
			seen = append(seen, err.Error())
		}
		return !out
	})
	if !slices.Equal(seen, []string{"a", "b"}) {
		t.Errorf("seen %q", seen)
	}
}

// TestInUse listens twice at one address, over TCP and UDP.
func TestInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, err := net.Listen("tcp", l.Addr().String()); !InUse(err) {
		t.Errorf("TCP: %v is not in use", err)
	}
	u, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if _, err := net.ListenPacket("udp", u.LocalAddr().String()); !InUse(err) {
		t.Errorf("UDP: %v is not in use", err)
	}
	if InUse(nil) || InUse(errors.New("other")) {
		t.Error("another error is in use")
	}
}
