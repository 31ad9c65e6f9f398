// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestJudge checks what each kind of trial may lose.
func TestJudge(t *testing.T) {
	all := []Tolerated{Nothing, Held, Unreachable, Anything}
	for name, c := range map[string]struct {
		lost   Flow
		passes []Tolerated
	}{
		"nothing":                     {Flow{}, all},
		"held connections":            {Flow{Counts: Counts{HeldLost: 1}}, []Tolerated{Held, Anything}},
		"a port that was used before": {Flow{Counts: Counts{NewLost: 1, Reused: 2, ReusedLost: 1}}, []Tolerated{Held, Unreachable, Anything}},
		"such a port and a new one":   {Flow{Counts: Counts{NewLost: 2, Reused: 2, ReusedLost: 1}}, []Tolerated{Anything}},
		"without an endpoint":         {Flow{Counts: Counts{NewLost: 2, HeldLost: 1}, LostUnready: 3}, []Tolerated{Unreachable, Anything}},
		"partly without an endpoint":  {Flow{Counts: Counts{NewLost: 2, HeldLost: 1}, LostUnready: 2}, []Tolerated{Anything}},
		"when all was over":           {Flow{Counts: Counts{NewLost: 1}, LostInCalm: 1}, nil},
		"every connection":            {Flow{Counts: Counts{NewLost: 9}}, nil},
	} {
		for _, tolerated := range all {
			f := c.lost
			f.New, f.Due, f.Held = 9, 9, 9
			err := Trial{Tolerated: tolerated}.Judge(Change{Flows: []Flow{{Counts: Counts{New: 1, Held: 1}}, f}})
			if want := slices.Contains(c.passes, tolerated); want != (err == nil) {
				t.Errorf("%s, tolerated %d: %v, want it to pass: %t", name, tolerated, err, want)
			}
		}
	}
}

// TestJudgeEffort checks that a trial shows nothing if clients did not do what they are for.
func TestJudgeEffort(t *testing.T) {
	for name, c := range map[string]struct {
		counts Counts
		passes bool
	}{
		"no connection":           {Counts{}, false},
		"nothing held":            {Counts{New: 9, Due: 9}, false},
		"a third of what was due": {Counts{New: 3, Due: 9, Held: 9}, false},
		"most of what was due":    {Counts{New: 8, Due: 9, Held: 9}, true},
	} {
		if err := (Trial{Tolerated: Anything}).Judge(Change{Flows: []Flow{{Counts: c.counts}}}); c.passes != (err == nil) {
			t.Errorf("%s: %v, want it to pass: %t", name, err, c.passes)
		}
	}
}

// TestJudgeRelay checks that a relay may end with its process, and only in mode userspace.
func TestJudgeRelay(t *testing.T) {
	broken := []Flow{{Counts: Counts{New: 9, Held: 9, HeldLost: 1}}}
	for mode, relay := range map[string]bool{"userspace": true, "nftables": false} {
		if err := (Trial{Userspace: Held}).Judge(Change{Mode: mode, Flows: broken}); relay != (err == nil) {
			t.Errorf("mode %s: %v", mode, err)
		}
	}
	if err := (Trial{}).Judge(Change{Mode: "userspace", Flows: broken}); err == nil {
		t.Error("a trial in which no process ends lost a relay without an error")
	}
}

// TestJudgeOtherNodes checks that a change of n3 excuses nothing elsewhere.
func TestJudgeOtherNodes(t *testing.T) {
	for _, c := range []struct {
		node   string
		passes bool
	}{{"", true}, {"n3", true}, {"n1", false}} {
		f := Flow{Node: c.node, Counts: Counts{New: 9, Held: 9, HeldLost: 1}}
		if err := (Trial{Tolerated: Held, OnlyN3: true}).Judge(Change{Flows: []Flow{f}}); c.passes != (err == nil) {
			t.Errorf("endpoints on %q: %v, want it to pass: %t", c.node, err, c.passes)
		}
	}
}

// TestSelect checks that a proxy is given back only after it was replaced.
func TestSelect(t *testing.T) {
	if all := slices.Sorted(slices.Values(Names())); len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("two trials have the same name: %q", all)
	}
	for only, want := range map[string]string{
		"roll":             "roll",
		"back,roll":        "error",
		"install,back":     "install,back",
		"embedded-back":    "error",
		"embedded-install": "embedded-install",
	} {
		var got []string
		for _, s := range Sequences {
			s, err := s.Select(func(name string) bool { return slices.Contains(strings.Split(only, ","), name) })
			if err != nil {
				got = []string{"error"}
				break
			}
			for _, trial := range s.Trials {
				got = append(got, trial.Name)
			}
		}
		if strings.Join(got, ",") != want {
			t.Errorf("-only %s: %q, want %s", only, got, want)
		}
	}
}

// TestReusedPorts checks that a lost request is recognized if its port was used before.
func TestReusedPorts(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := &load{Load: Load{Network: "udp", Address: server.LocalAddr().String()}, ports: map[int]time.Time{}}
	client, err := net.Dial("udp", l.Address)
	if err != nil {
		t.Fatal(err)
	}
	if l.reusesPort(client) || !l.reusesPort(client) {
		t.Error("want the first use of a port to be new, and the second one not to be")
	}
	l.ports[client.LocalAddr().(*net.UDPAddr).Port] = time.Now().Add(-time.Hour)
	if l.reusesPort(client) {
		t.Error("a port that was used an hour ago counts")
	}
	if err := client.Close(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_, to, err := server.ReadFrom(make([]byte, 512))
		if err == nil {
			_, err = server.WriteTo([]byte("web"), to)
		}
		if err = errors.Join(err, server.Close()); err != nil { // nobody answers now
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	l.Rate = 100
	if got := l.Run(ctx); got.New == 0 || got.Due < got.New-1 || got.NewLost != got.New || got.ReusedLost > got.Reused {
		t.Errorf("with a server that has answered once: %+v", got)
	}
}

// TestUnreachable checks that what was never answered does not count as lost, but as due.
func TestUnreachable(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := Load{Network: "udp", Address: server.LocalAddr().String(), Rate: 100, Held: 1}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if got := l.Run(ctx); got.New > 0 || got.Lost() > 0 || got.Due < 5 {
		t.Errorf("without a server: %+v", got)
	}
}

// TestLife checks that a held connection gives way to another after its life.
func TestLife(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() }) // the test is over
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		defer cancel()
		for range 2 {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	l := &load{Load: Load{Network: "tcp", Address: server.Addr().String(), Life: time.Nanosecond}, counts: Counts{Kinds: map[string]int{}}}
	l.hold(ctx)
	if err := ctx.Err(); !errors.Is(err, context.Canceled) || l.counts.Held == 0 || l.counts.HeldLost > 0 {
		t.Errorf("%v, %+v; want a second connection, and none lost", err, l.counts)
	}
}

// TestRefusedRequest checks that an answer with another status is none.
func TestRefusedRequest(t *testing.T) {
	client, server := net.Pipe()
	go func() {
		_, _ = io.ReadFull(server, make([]byte, len(request))) // the client notices
		_, _ = io.WriteString(server, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
	}()
	l := &load{Load: Load{Network: "tcp"}}
	if err := l.ask(client, bufio.NewReader(client)); err == nil || !strings.Contains(err.Error(), "503") {
		t.Errorf("%v, want an error with status 503", err)
	}
}

// answer answers all requests of a connection as agnhost's netexec does.
func answer(c net.Conn) {
	defer c.Close()
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		if line == "\r\n" {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nweb") // the client notices
		}
	}
}
