// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package notices

import (
	"bytes"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables"

	"kubeproxy/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m.Run)) }

// TestListen makes a table by hand and hears of each part of it.
func TestListen(t *testing.T) {
	lab := netlab.Start(t, netlab.Config{})
	address := []byte{10, 1, 2, 3}
	var heard atomic.Int32
	l, err := Listen(lab.Node, func(n Notice) {
		if n.Kind == NewElement && bytes.Contains(n.Data, address) && !n.At.IsZero() {
			heard.Add(1)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "t"}
	set := &nftables.Set{Table: table, Name: "s", KeyType: nftables.TypeIPAddr}
	element := []nftables.SetElement{{Key: address}}
	write(t, lab.Node, func(c *nftables.Conn) error {
		c.AddTable(table)
		return c.AddSet(set, element)
	})
	before := tally(t, l)
	want := Tally{"new table": 1, "new set": 1, NewElement: 1, Commit: 1}
	if diff := cmp.Diff(want, before); diff != "" {
		t.Errorf("tally (-want +got):\n%s", diff)
	}
	write(t, lab.Node, func(c *nftables.Conn) error { return c.SetDeleteElements(set, element) })
	more := tally(t, l).Since(before)
	if diff := cmp.Diff(Tally{GoneElement: 1, Commit: 1}, more); diff != "" {
		t.Errorf("tally since (-want +got):\n%s", diff)
	}
	if got, want := more.String(), "commit 1, gone element 1"; got != want {
		t.Errorf("String() = %q, want %q", got, want)
	}
	if heard.Load() != 1 {
		t.Errorf("heard %d times of the element with the address, want once", heard.Load())
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

func write(t *testing.T, h *netlab.Host, change func(*nftables.Conn) error) {
	t.Helper()
	err := h.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		if err := change(c); err != nil {
			return err
		}
		return c.Flush()
	})
	if err != nil {
		t.Fatal(err)
	}
}

func tally(t *testing.T, l *Listener) Tally {
	t.Helper()
	tally, err := l.Tally()
	if err != nil {
		t.Fatal(err)
	}
	return tally
}

// TestTallyWaits has the listener fall behind: who just changed the rules finds
// that in the tally all the same.
func TestTallyWaits(t *testing.T) {
	lab := netlab.Start(t, netlab.Config{})
	l, err := Listen(lab.Node, func(Notice) { time.Sleep(50 * time.Millisecond) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	for _, name := range []string{"one", "two"} {
		before := tally(t, l)
		write(t, lab.Node, func(c *nftables.Conn) error {
			c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: name})
			return nil
		})
		if diff := cmp.Diff(Tally{"new table": 1, Commit: 1}, tally(t, l).Since(before)); diff != "" {
			t.Errorf("%s: tally since (-want +got):\n%s", name, diff)
		}
	}
}
