// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
)

// TestLeftoverTables finds and deletes one table, and leaves tables with similar names.
func TestLeftoverTables(t *testing.T) {
	inNamespace(t, func() {
		const others = "table ip kube-proxy-2 {\n}\ntable inet kube-proxy {\n}\n"
		runNft(t, others+"table ip kube-proxy {\n\tchain a {\n\t}\n}\ntable ip6 kube-proxy {\n}\n", "-f", "-")
		for _, f := range service.Families {
			for _, name := range []string{UpstreamTable, TableName} {
				r := Leftovers{f, name}
				if name == TableName {
					apply(t, newKernel(t, f), simple(0))
				}
				wantFound(t, r, "the table")
				remove(t, r)
				remove(t, r)
				wantFound(t, r, "")
			}
		}
		if got := strings.ReplaceAll(runNft(t, "", "list", "ruleset"), "\n\n", "\n"); got != others {
			t.Errorf("what is left: %s, want %s", got, others)
		}
	})
}

// TestLeftoverTablesWhileOthersWrite searches a table while another process keeps
// changing its own.
func TestLeftoverTablesWhileOthersWrite(t *testing.T) {
	inNamespace(t, func() {
		r := Leftovers{service.IPv4, TableName}
		apply(t, newKernel(t, r.Family), simple(0))
		end := churnTable(t, Leftovers{service.IPv6, "others"})
		defer end()
		for range 2000 {
			if wantFound(t, r, "the table"); t.Failed() {
				return
			}
		}
		for range 20 {
			apply(t, newKernel(t, r.Family), simple(0))
			remove(t, r)
			wantFound(t, r, "")
		}
	})
}

// churnTable creates and deletes a table until the returned function is called.
func churnTable(t *testing.T, r Leftovers) (end func()) {
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
		defer s.Close()
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

func wantFound(t *testing.T, r Leftovers, want string) {
	t.Helper()
	if got, err := r.Find(t.Context()); got != want || err != nil {
		t.Errorf("%s: Find = %q, %v; want %q", r, got, err, want)
	}
}

func remove(t *testing.T, r Leftovers) {
	t.Helper()
	if err := r.Remove(t.Context()); err != nil {
		t.Errorf("%s: Remove: %v", r, err)
	}
}
