// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// fakeKernel has what a test says.
type fakeKernel struct {
	links  []Link
	chains []Chain
	names  []string
}

func (k *fakeKernel) Links() ([]Link, error)                          { return k.links, nil }
func (k *fakeKernel) FirewallNames(context.Context) ([]string, error) { return k.names, nil }
func noHolder(context.Context) (lease.Identity, error)                { return lease.Identity{}, errors.New("nobody") }
func noServices(context.Context) (s *service.Snapshot, err error)     { return nil, nil }
func both(v4, v6 bool) [2]bool                                        { return [2]bool{service.IPv4: v4, service.IPv6: v6} }

func mode(name string) []Mode {
	return []Mode{{Name: name, Relays: name == "userspace", XTables: name != "nftables", Routes: name == "ipvs"}}
}

func link(name, master string) Link {
	return Link{Name: name, Master: master, Global: both(master == "", false), Subnet: master == ""}
}

func (k *fakeKernel) FilterChains(_ context.Context, each func(*Chain) error) error {
	for i := range k.chains {
		if err := each(&k.chains[i]); err != nil {
			return err
		}
	}
	return nil
}

// newNode returns a node with these files, which nobody may write.
func newNode(files map[string]string) *Node {
	root := fstest.MapFS{}
	for name, text := range files {
		root[name] = &fstest.MapFile{Data: []byte(text + "\n")}
	}
	return &Node{
		Files: root, Proc: fstest.MapFS{}, Writable: func(string) bool { return false }, Modes: mode("nftables"), Services: noServices, Holder: noHolder, IPTables: func() (Variants, error) { return Variants{Used: "nft"}, nil },
		Kernel: &fakeKernel{links: []Link{link("eth0", "")}},
	}
}

// expect runs look and compares what it found, a line for each Finding: its topic, its
// subject and its fix. words must be in what the first one says or advises. No fix may
// harm.
func expect(t *testing.T, look func(context.Context) (doctor.Seen, error), want []string, words ...string) {
	t.Helper()
	seen, err := look(t.Context())
	kit.Must(t, err)
	var got []string
	for _, f := range seen.Findings {
		got = append(got, strings.Join([]string{string(f.Topic), f.Subject, f.Fix}, " | "))
		kit.Check(t, f.What != "" && f.Topic.Why() != "" && f.Fix+f.Advice != "", "says nothing: %+v", f)
		kit.Check(t, !kit.MayHarm(f.Fix), "a command that may harm is a fix: %+v", f)
	}
	kit.Check(t, strings.Join(got, "\n") == strings.Join(want, "\n"),
		"found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	for _, w := range words {
		kit.Check(t, len(seen.Findings) != 0 && strings.Contains(seen.Findings[0].What+" "+seen.Findings[0].Advice, w),
			"%+v does not say %q", seen.Findings, w)
	}
	kit.Check(t, len(want) != 0 || seen.Note != "", "does not say what it looked at")
}
