// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftmonitor

import (
	"bytes"
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/nftables"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m.Run)) }

// TestListen makes a table by hand and hears of each part of it.
func TestListen(t *testing.T) {
	lab := netlab.Start(t, netlab.Config{})
	address := []byte{10, 1, 2, 3}
	var heard atomic.Int32
	l, err := Listen(lab.Node, func(n Event) {
		if n.Kind == NewElement && bytes.Contains(n.Data, address) && !n.At.IsZero() {
			heard.Add(1)
		}
	})
	kit.Must(t, err)
	table := &nftables.Table{Family: nftables.TableFamilyIPv4, Name: "t"}
	set := &nftables.Set{Table: table, Name: "s", KeyType: nftables.TypeIPAddr}
	element := []nftables.SetElement{{Key: address}}
	write(t, lab.Node, func(c *nftables.Conn) error {
		c.AddTable(table)
		return c.AddSet(set, element)
	})
	before := counts(t, l)
	want := Counts{"new table": 1, "new set": 1, NewElement: 1, Commit: 1}
	kit.Same(t, "tally (-want +got)", want, before)
	write(t, lab.Node, func(c *nftables.Conn) error { return c.SetDeleteElements(set, element) })
	more := counts(t, l).Since(before)
	kit.Same(t, "tally since (-want +got)", Counts{DeletedElement: 1, Commit: 1}, more)
	kit.Equal(t, more.String(), "commit 1, gone element 1", "String()")
	kit.Check(t, heard.Load() == 1, "heard %d times of the element with the address, want once", heard.Load())
	err = l.Close()
	kit.Check(t, err == nil, "Close: %v", err)
}

func write(t *testing.T, h *netlab.Host, change func(*nftables.Conn) error) {
	t.Helper()
	kit.Must(t, h.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		if err := change(c); err != nil {
			return err
		}
		return c.Flush()
	}))
}

func counts(t *testing.T, l *Listener) Counts {
	t.Helper()
	tally, err := l.Counts()
	kit.Must(t, err)
	return tally
}

// TestCountsWaitForLatestCommit has the listener fall behind: who just changed the rules finds
// that in the tally all the same.
func TestCountsWaitForLatestCommit(t *testing.T) {
	lab := netlab.Start(t, netlab.Config{})
	l, err := Listen(lab.Node, func(Event) { time.Sleep(50 * time.Millisecond) })
	kit.Must(t, err)
	t.Cleanup(func() { l.Close() })
	for _, name := range []string{"one", "two"} {
		before := counts(t, l)
		write(t, lab.Node, func(c *nftables.Conn) error {
			c.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: name})
			return nil
		})
		kit.Same(t, fmt.Sprintf("%s: tally since (-want +got)", name), Counts{"new table": 1, Commit: 1}, counts(t, l).Since(before))
	}
}
