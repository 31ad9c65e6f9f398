// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// TestRemains finds and deletes one table, and no other of a similar name.
func TestRemains(t *testing.T) {
	inNamespace(t, func() {
		const others = "table ip kube-proxy-2 {\n}\ntable inet kube-proxy {\n}\n"
		runNft(t, others+"table ip kube-proxy {\n\tchain a {\n\t}\n}\ntable ip6 kube-proxy {\n}\n", "-f", "-")
		for _, f := range service.Families {
			for _, name := range []string{UpstreamTable, TableName} {
				r := Remains{f, name}
				if name == TableName {
					apply(t, newKernel(t, f), simple(0))
				}
				finds(t, r, "the table")
				remove(t, r)
				remove(t, r)
				finds(t, r, "")
			}
		}
		if got := strings.ReplaceAll(runNft(t, "", "list", "ruleset"), "\n\n", "\n"); got != others {
			t.Errorf("what is left: %s, want %s", got, others)
		}
	})
}

// TestRemainsWhileOthersWrite looks for a table while others change theirs all
// the time.
func TestRemainsWhileOthersWrite(t *testing.T) {
	inNamespace(t, func() {
		r := Remains{service.IPv4, TableName}
		apply(t, newKernel(t, r.Family), simple(0))
		end := busy(t, Remains{service.IPv6, "others"})
		defer end()
		for range 2000 {
			if finds(t, r, "the table"); t.Failed() {
				return
			}
		}
		for range 20 {
			apply(t, newKernel(t, r.Family), simple(0))
			remove(t, r)
			finds(t, r, "")
		}
	})
}

// busy makes and deletes a table until the returned func is called.
func busy(t *testing.T, r Remains) (end func()) {
	t.Helper()
	s, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	e := newEncoder(r.Family)
	e.name = r.Table
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer s.close()
		for {
			for _, verb := range []verb{addTable, delTable} {
				if err := transact(s, e, []op{{verb: verb}}); err != nil {
					t.Errorf("somebody else's table: %v", err)
					return
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Microsecond):
			}
		}
	}()
	return func() {
		close(stop)
		<-ended
	}
}

func finds(t *testing.T, r Remains, want string) {
	t.Helper()
	if got, err := r.Find(t.Context()); got != want || err != nil {
		t.Errorf("%s: Find = %q, %v; want %q", r, got, err, want)
	}
}

func remove(t *testing.T, r Remains) {
	t.Helper()
	if err := r.Remove(t.Context()); err != nil {
		t.Errorf("%s: Remove: %v", r, err)
	}
}
