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
	"kubeproxy/test/generate"
)

// staleFamilyID is an unused generic netlink family ID, as that of IPVS after a reload
// of its module.
const staleFamilyID = 0x3ff

// staleClient is a library with an old family ID of IPVS.
type staleClient struct{}

func (staleClient) listServers() (map[service.Address]*observedServer, error) {
	return nil, unix.ENOENT
}
func (staleClient) getServer(service.Address) (server, error) { return server{}, unix.ENOENT }
func (staleClient) listDests(service.Address) ([]dest, error) { return nil, unix.ENOENT }
func (staleClient) getTimeouts() (timeouts, error)            { return timeouts{}, unix.ENOENT }
func (staleClient) setTimeouts(timeouts) error                { return unix.ENOENT }
func (staleClient) Close()                                    {}

// TestKernelModuleReloaded checks that every request finds IPVS after a reload of its
// module.
func TestKernelModuleReloaded(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f, alwaysResync())
			k := b.driver.(*kernel)
			at := addressAt(generate.NthAddr([]string{"10.96.0.0", "fd00:10:96::"}[f], 1), 80, service.TCP)
			asked := map[string]func() error{
				"Commit": func() error {
					return k.Commit(t.Context(), []op{{verb: addServer, key: at, server: server{scheduler: "rr", flags: flagOwned}}})[0]
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
				"times":  func() error { _, err := callClient(k, client.getTimeouts); return err },
				"setTimes": func() error {
					_, err := callClient(k, func(a client) (int, error) { return 0, a.setTimeouts(timeouts{udp: 99 * time.Second}) })
					return err
				},
				"try": func() error { return k.probeScheduler("rr") },
			}
			k.moby.Close()
			for _, name := range []string{"Commit", "Read", "Server", "Dests", "times", "setTimes", "try"} {
				k.requests.familyID, k.requests.lookupTime = staleFamilyID, 0
				k.moby, k.reloaded = staleClient{}, false
				if err := asked[name](); err != nil || k.requests.familyID == staleFamilyID || (name != "Read") != (k.requests.lookupTime > 0) {
					t.Errorf("%s, %s: %v, by the number %#x, found in %s", f, name, err, k.requests.familyID, k.requests.lookupTime)
				}
			}
			// ENOENT with another cause is returned unchanged.
			err := k.requests.do(&op{verb: setServer, key: at, server: server{scheduler: "magic"}})
			if !errors.Is(err, unix.ENOENT) {
				t.Errorf("%s: %v for a scheduler that the kernel has not", f, err)
			}
			_ = b.Close()
		}
	})
}

// TestNetlinkMatchesLibrary checks that our queries and the library return the same.
func TestNetlinkMatchesLibrary(t *testing.T) {
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f, alwaysResync())
			apply(t, b, changingSnapshot(f, 0))
			k := b.driver.(*kernel)
			k.reloaded = true // uses the requester
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
			wantLibrarySees(t, k, s)
			_ = b.Close()
		}
	})
}

// wantLibrarySees checks that the library returns the virtual servers in s.
func wantLibrarySees(t *testing.T, k *kernel, s *state) {
	t.Helper()
	all, err := newMobyHandle(t).GetServices()
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range all {
		found := slices.ContainsFunc(sortedKeys(s.servers), func(at service.Address) bool {
			have := server{x.SchedName, x.Flags, x.Timeout}
			return x.Address.Equal(at.Addr.AsSlice()) && x.Port == at.Port && x.Protocol == uint16(at.Protocol) && s.servers[at].server == have
		})
		if !found && x.AddressFamily == af(k.family) {
			t.Errorf("the library hears of %+v, and we of %v", x, sortedKeys(s.servers))
		}
	}
	if len(s.servers) == 0 {
		t.Error("there is no virtual server")
	}
}

// FuzzAnswers checks that truncated or empty replies do no harm.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x0c\x00\x01\x80\x05\x00\x04\x00P\x00\x00\x00"))
	f.Add([]byte(strings.Repeat("\x08\x00\x01\x80\x04\x00\x03\x00", 3)))
	f.Fuzz(func(_ *testing.T, text []byte) {
		_, _ = parseServer(text)
		_, _ = parseDestination(text, service.IPv6)
	})
}
