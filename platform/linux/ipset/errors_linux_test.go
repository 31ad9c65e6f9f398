// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipset

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// wantError checks the text of an error, and its kind unless that is nil.
func wantError(t *testing.T, err error, text string, kind error) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) || kind != nil && !errors.Is(err, kind) {
		t.Errorf("error %v\nwant %s, of kind %v", err, text, kind)
	}
}

// TestOtherSet checks that every operation on a set of another type or family reports
// that, and leaves the set as it is.
func TestOtherSet(t *testing.T) {
	there := Set{"A", HashIPPort, service.IPv4}
	for _, s := range []Set{{"A", HashIP, service.IPv4}, {"A", HashIPPortNet, service.IPv4}, {"A", HashIPPort, service.IPv6}} {
		t.Run(fmt.Sprint(s.Type, s.Family), func(t *testing.T) {
			alone(t, func(k *Kernel) {
				kit.Must(t, k.Create(there), k.Add(there, members(there)))
				text := fmt.Sprintf("it is hash:ip,port for IPv4, want %s for %s", s.Type, s.Family)
				_, err := k.List(s)
				wantError(t, err, "list ipset A: ", ErrTypeMismatch)
				wantError(t, err, text, ErrTypeMismatch)
				wantError(t, k.Create(s), "create ipset A: ", ErrTypeMismatch)
				wantError(t, k.Create(s), text, ErrTypeMismatch)
				wantError(t, k.Add(s, members(s)), "add to ipset A: ", ErrTypeMismatch)
				wantError(t, k.Del(s, entries(members(s))), "delete from ipset A: ", ErrTypeMismatch)
				wantList(t, k, there, entries(members(there))...)
			})
		})
	}
}

func TestMissingSet(t *testing.T) {
	alone(t, func(k *Kernel) {
		s := Set{"A", HashIP, service.IPv4}
		_, err := k.List(s)
		wantError(t, err, "list ipset A: no such ipset", ErrMissing)
		wantError(t, k.Add(s, members(s)), "add to ipset A: no such ipset", ErrMissing)
		wantError(t, k.Del(s, entries(members(s))), "delete from ipset A: no such ipset", ErrMissing)
	})
}

func TestSetThatCannotBe(t *testing.T) {
	alone(t, func(k *Kernel) {
		wantError(t, k.Create(Set{"A", "bitmap:port", service.IPv4}), "create ipset A: type bitmap:port", errors.ErrUnsupported)
		longest := strings.Repeat("x", 31)
		wantError(t, k.Create(Set{longest + "x", HashIP, service.IPv4}), "32 bytes", nil)
		wantError(t, k.Create(Set{"", HashIP, service.IPv4}), "0 bytes", nil)
		kit.Must(t, k.Create(Set{longest, HashIP, service.IPv4}), k.Destroy(longest))
	})
}

// TestElementThatCannotBe checks that the error of a batch names the element, and that
// the elements before it are in the set.
func TestElementThatCannotBe(t *testing.T) {
	good := Entry{netip.MustParseAddr("192.0.2.1"), service.TCP, 80, netip.MustParsePrefix("192.0.2.0/24")}
	for name, tt := range map[string]struct {
		spoil func(e *Entry)
		want  string
	}{
		"family of address":  {func(e *Entry) { e.Addr = netip.IPv6Loopback() }, "::1,tcp:80,192.0.2.0/24: it does not fit the type or family of the set"},
		"family of prefix":   {func(e *Entry) { e.Net = netip.MustParsePrefix("::1/128") }, "192.0.2.1,tcp:80,::1: it does not fit the type or family of the set"},
		"no address":         {func(e *Entry) { e.Addr = netip.Addr{} }, "does not fit"},
		"no prefix":          {func(e *Entry) { e.Net = netip.Prefix{} }, "does not fit"},
		"impossible prefix":  {func(e *Entry) { e.Net = netip.PrefixFrom(e.Addr, 33) }, "length of the prefix"},
		"no protocol at all": {func(e *Entry) { e.Protocol = 0 }, "the protocol is not possible"},
	} {
		t.Run(name, func(t *testing.T) {
			alone(t, func(k *Kernel) {
				s := Set{"A", HashIPPortNet, service.IPv4}
				bad := good
				tt.spoil(&bad)
				kit.Must(t, k.Create(s))
				wantError(t, k.Add(s, []Member{{Entry: good}, {Entry: bad}}), "add to ipset A: ", nil)
				wantError(t, k.Add(s, []Member{{Entry: good}, {Entry: bad}}), tt.want, nil)
				wantList(t, k, s, good)
			})
		})
	}
}

func TestZeroAddress(t *testing.T) {
	alone(t, func(k *Kernel) {
		s := Set{"A", HashIP, service.IPv4}
		kit.Must(t, k.Create(s))
		err := k.Add(s, []Member{{Entry: Entry{Addr: netip.IPv4Unspecified()}}})
		wantError(t, err, "add to ipset A: 0.0.0.0: no set takes the zero address", nil)
	})
}

func TestFullSet(t *testing.T) {
	alone(t, func(k *Kernel) {
		s := Set{"A", HashIP, service.IPv4}
		run(t, "", "ipset", "create", "A", "hash:ip", "comment", "maxelem", "1500")
		all := many(s, 1600)
		err := k.Add(s, all)
		wantError(t, err, "add to ipset A: ", nil)
		wantError(t, err, ": the set is full", nil)
		got, err := k.List(s)
		kit.Must(t, err)
		// How many more than maxelem fit depends on the kernel.
		if len(got) == len(all) || !slices.Equal(got, entries(all[:len(got)])) {
			t.Errorf("the set has %d elements of %d, and these in order: %v", len(got), len(all), slices.Equal(got, entries(all[:len(got)])))
		}
	})
}

// setRule changes an iptables rule that refers to set A.
func setRule(t *testing.T, how string) {
	t.Helper()
	run(t, "", "iptables", "-w", how, "OUTPUT", "-m", "set", "--match-set", "A", "dst")
}

func TestSetInUse(t *testing.T) {
	alone(t, func(k *Kernel) {
		s := Set{"A", HashIP, service.IPv4}
		kit.Must(t, k.Create(s))
		setRule(t, "-A")
		heads, err := k.Headers()
		kit.Must(t, err)
		if len(heads) != 1 || heads[0].References == 0 {
			t.Errorf("heads of the set = %v, want references", heads)
		}
		k.destroyTimeout = time.Millisecond
		wantError(t, k.Destroy("A"), "destroy ipset A: a rule refers to it", nil)
		wantList(t, k, s)
		// Destroy waits for one that is about to be removed.
		k.destroyTimeout = time.Minute
		done := make(chan error, 1)
		go func() { done <- k.Destroy("A") }()
		setRule(t, "-D")
		kit.Must(t, <-done)
		_, err = k.List(s)
		wantError(t, err, "", ErrMissing)
	})
}
