// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/test/world"
)

// retiredNumber is a number of generic netlink that nothing has, as that of IPVS is
// after its module was loaded anew.
const retiredNumber = 0x3ff

// outdated is a library that has an old number of IPVS.
type outdated struct{}

func (outdated) list() (map[key]*listed, error) { return nil, unix.ENOENT }
func (outdated) one(key) (server, error)        { return server{}, unix.ENOENT }
func (outdated) dests(key) ([]dest, error)      { return nil, unix.ENOENT }
func (outdated) times() (timeouts, error)       { return timeouts{}, unix.ENOENT }
func (outdated) setTimes(timeouts) error        { return unix.ENOENT }
func (outdated) Close()                         {}

// Whatever is asked for after the module of IPVS was loaded anew finds it.
func TestKernelLoadedAnew(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f, always())
			k := b.driver.(*kernel)
			at := key{world.Nth([]string{"10.96.0.0", "fd00:10:96::"}[f], 1), 80, service.TCP}
			asked := map[string]func() error{
				"Commit": func() error {
					return k.Commit(t.Context(), []op{{verb: addServer, key: at, server: server{scheduler: "rr", flags: flagOurs}}})[0]
				},
				"Read": func() error {
					s, err := k.Read(t.Context())
					if err == nil && s.servers[at] == nil {
						return errMissing
					}
					return err
				},
				"Server": func() error { _, err := k.Server(t.Context(), at); return err },
				"Dests":  func() error { _, err := k.Dests(t.Context(), at); return err },
				"times":  func() error { _, err := ask(k, asker.times); return err },
				"setTimes": func() error {
					_, err := ask(k, func(a asker) (int, error) { return 0, a.setTimes(timeouts{udp: 99 * time.Second}) })
					return err
				},
				"try": func() error { return k.try("rr") },
			}
			k.library.Close()
			for _, name := range []string{"Commit", "Read", "Server", "Dests", "times", "setTimes", "try"} {
				k.ipvs.ipvs, k.ipvs.search = retiredNumber, 0
				k.library, k.reloaded = outdated{}, false
				if err := asked[name](); err != nil || k.ipvs.ipvs == retiredNumber || (name != "Read") != (k.ipvs.search > 0) {
					t.Errorf("%s, %s: %v, by the number %#x, found in %s", f, name, err, k.ipvs.ipvs, k.ipvs.search)
				}
			}
			// An answer about something else stays what it is.
			err := k.ipvs.do(&op{verb: setServer, key: at, server: server{scheduler: "magic"}})
			if !errors.Is(err, unix.ENOENT) {
				t.Errorf("%s: %v for a scheduler that the kernel has not", f, err)
			}
			_ = b.Close()
		}
	})
}

// What the kernel tells is what the library hears.
func TestKernelTells(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f, always())
			apply(t, b, rounds(f, 0))
			k := b.driver.(*kernel)
			k.reloaded = true // so that it asks by itself
			s, err := k.Read(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for at, l := range s.servers {
				asked, err := k.Dests(t.Context(), at)
				if err != nil || !slices.Equal(asked, l.dests) {
					t.Errorf("%s: %v, %v by netlink, %v in the list", at, asked, err, l.dests)
				}
			}
			wantHeard(t, k, s)
			_ = b.Close()
		}
	})
}

// wantHeard wants the library to hear of the virtual servers in s.
func wantHeard(t *testing.T, k *kernel, s *state) {
	t.Helper()
	all, err := library(t).GetServices()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		found := slices.ContainsFunc(sortedKeys(s.servers), func(at key) bool {
			have := server{x.SchedName, x.Flags, x.Timeout}
			return x.Address.Equal(at.addr.AsSlice()) && x.Port == at.port && x.Protocol == uint16(at.proto) && s.servers[at].server == have
		})
		if !found && x.AddressFamily == af(k.family) {
			t.Errorf("the library hears of %+v, and we of %v", x, sortedKeys(s.servers))
		}
	}
	if len(s.servers) == 0 {
		t.Error("there is no virtual server")
	}
}

// Answers that are cut short, or have nothing in them, do no harm.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x0c\x00\x01\x80\x05\x00\x04\x00P\x00\x00\x00"))
	f.Add([]byte(strings.Repeat("\x08\x00\x01\x80\x04\x00\x03\x00", 3)))
	f.Fuzz(func(_ *testing.T, text []byte) {
		_, _ = parseServer(text)
		_, _ = parseDestination(text, service.IPv6)
	})
}
