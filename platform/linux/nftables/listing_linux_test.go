// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// listed returns our IPv4 table as nft lists it, see blocks.
func listed(t *testing.T) map[string]string {
	t.Helper()
	return blocks(runNft(t, "", "-s", "list", "table", "ip", TableName))
}

// The changes need more elements than fit into one message, both to add and, after a
// restart, to delete.
func TestLargeChanges(t *testing.T) {
	inNamespace(t, func() {
		for _, want := range []*service.Snapshot{servicesWith(100, 60), servicesWith(100, 3), servicesWith(200, 30), servicesWith(0, 0)} {
			b := newKernel(t, service.IPv4)
			apply(t, b, want)
			wantConverged(t, b, want)
			b.driver.(*kernel).close()
		}
	})
}

// Lists come in messages of the largest size that the kernel has. For each message the
// kernel walks from the first element again, see README.md.
func TestListsAreLargeMessages(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		apply(t, b, servicesWith(100, 60))
		s, err := dial()
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r := &reader{Socket: s, nf: unix.NFPROTO_IPV4, name: TableName}
		largest := 0
		fill := func() { r.Text(unix.NFTA_SET_ELEM_LIST_SET, endpoints.name) }
		err = r.request(unix.NFT_MSG_GETSETELEM, unix.NFTA_SET_ELEM_LIST_TABLE, fill, func(body []byte) error {
			largest = max(largest, len(body))
			return nil
		})
		if err != nil || largest < 31<<10 {
			t.Errorf("the largest message has %d bytes, %v, want almost 32 KiB", largest, err)
		}
	})
}

// A transaction that the kernel rejects in part changes nothing. The error is the
// kernel's.
func TestCommitIsAllOrNothing(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		want := simple(1)
		apply(t, b, want)
		element := func(v verb, last byte) op {
			return op{verb: v, element: element{in: clusterIPs, key: []byte{10, 96, 9, last}}}
		}
		for name, tt := range map[string]struct {
			ops  []op
			want error
		}{
			"a bad one first":  {[]op{element(delElement, 1), element(addElement, 2)}, unix.ENOENT},
			"a bad one last":   {[]op{element(addElement, 1), element(delElement, 2)}, unix.ENOENT},
			"two bad ones":     {[]op{element(delElement, 1), {verb: addSet, set: clusterIPs}}, unix.ENOENT},
			"a set there is":   {[]op{{verb: addSet, set: clusterIPs}}, unix.EEXIST},
			"a chain in use":   {[]op{{verb: flushChain, chain: &chain{name: dispatchChain}}, {verb: delChain, chain: &chain{name: dispatchChain}}}, unix.EBUSY},
			"a way to nowhere": {[]op{element(addElement, 1), {verb: addRules, chain: &chain{name: dispatchChain, rules: []rule{{gotoVerdict("nowhere")}}}}}, unix.ENOENT},
		} {
			if err := b.driver.Commit(context.Background(), tt.ops); !errors.Is(err, tt.want) {
				t.Errorf("%s: Commit = %v, want %v", name, err, tt.want)
			}
		}
		wantConverged(t, b, want)
	})
}

// Lost notifications count as a change of our table.
func TestTouchedWhenMessagesAreLost(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		apply(t, b, simple(1))
		small, err := netlink.Dial(unix.NETLINK_NETFILTER, netlink.Options{Buffer: 1})
		if err == nil {
			err = small.Join(unix.NFNLGRP_NFTABLES)
		}
		if err != nil {
			t.Fatal(err)
		}
		m := b.driver.(*kernel).monitor
		m.sock.Close()
		m.sock = small
		for range 20 {
			runNft(t, strings.Repeat("add table ip x\ndelete table ip x\n", 100), "-f", "-")
		}
		if !wasTouched(t, b) {
			t.Error("not touched, though messages were lost")
		}
		apply(t, b, simple(1))
		if wasTouched(t, b) {
			t.Error("still touched after a look at the table")
		}
	})
}

// The table is replaced if another process changed a base chain.
func TestForeignBaseChains(t *testing.T) {
	for name, script := range map[string]string{
		"a policy":   "add chain ip kube-services prerouting { policy drop; }",
		"a type":     "delete chain ip kube-services output\nadd chain ip kube-services output { type filter hook output priority -100; }",
		"a priority": "delete chain ip kube-services output\nadd chain ip kube-services output { type nat hook output priority 5; }",
		"a hook":     "delete chain ip kube-services output\nadd chain ip kube-services output { type nat hook prerouting priority -100; }",
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func() {
				b := newKernel(t, service.IPv4)
				defer b.driver.(*kernel).close()
				want := simple(1)
				apply(t, b, want)
				before := listed(t)
				runNft(t, "flush chain ip kube-services output\n"+script, "-f", "-")
				apply(t, b, want)
				if diff := cmp.Diff(before, listed(t)); diff != "" {
					t.Errorf("after the repair (-before +after):\n%s", diff)
				}
				wantConverged(t, b, want)
			})
		})
	}
}
