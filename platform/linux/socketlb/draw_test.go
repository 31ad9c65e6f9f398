// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package socketlb

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"kubeproxy/common/service"
	"kubeproxy/common/silence"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/test/kit"
)

// kernelOf is what a Watcher has of the kernel: the entry of one connection, and where it is
// led.
type kernelOf struct {
	flow  conntrack.Flow
	found bool
	full  bool // the table
	led   netip.AddrPort
	// deleted counts entries.
	deleted int
}

func (k *kernelOf) Find(_ context.Context, _ service.Protocol, from, to netip.AddrPort) (conntrack.Flow, bool, error) {
	return k.flow, k.found && k.flow.Src == from && k.flow.Dst == to, nil
}

func (k *kernelOf) Delete(_ context.Context, flows []conntrack.Flow) (int, error) {
	k.deleted += len(flows)
	return len(flows), nil
}

func (k *kernelOf) Lead(_, _, endpoint netip.AddrPort) error {
	if k.full {
		return errors.New("full")
	}
	k.led = endpoint
	return nil
}

func (k *kernelOf) Remove(context.Context) error { return nil }

const (
	drawFrontend = "10.96.0.1:80"
	drawFrom     = "10.244.1.9:40000"
	drawA        = "10.244.1.11:8080"
	drawB        = "10.244.1.12:8080"
	drawC        = "10.244.1.13:8080"
	drawSelf     = "10.244.1.9:8080"
)

// drawCase is a connection to endpoint A that repeats its first packet.
type drawCase struct {
	endpoints []string
	at        string // where the first packets go now, A if it is empty
	frontend  string // drawFrontend if it is empty
	silent    []string
	accused   []string // by other clients
	answered  bool
	untracked bool
	once      bool
	late      bool
	full      bool
	want      string // where it is led, nowhere if it is empty
	told      bool
}

// TestSecondDraw looks at what becomes of such a connection.
func TestSecondDraw(t *testing.T) {
	for situation, test := range map[string]drawCase{
		"another one":                     {endpoints: []string{drawA, drawB}, want: drawB, told: true},
		"there is no other":               {endpoints: []string{drawA}, told: true},
		"the other is the client":         {endpoints: []string{drawSelf, drawA}, told: true},
		"one is silent":                   {endpoints: []string{drawA, drawB, drawC}, silent: []string{drawB}, want: drawC, told: true},
		"one did not answer others":       {endpoints: []string{drawA, drawB, drawC}, accused: []string{drawB}, want: drawC, told: true},
		"silent is worse than accused":    {endpoints: []string{drawA, drawB, drawC}, silent: []string{drawC}, accused: []string{drawB}, want: drawB, told: true},
		"the other is silent":             {endpoints: []string{drawA, drawB}, silent: []string{drawB}, want: drawB, told: true},
		"it was led to one that is quiet": {endpoints: []string{drawA, drawB, drawC}, at: drawB, accused: []string{drawA}, want: drawC, told: true},
		"it has left its Service":         {endpoints: []string{drawB}, want: drawB, told: true},
		"it was answered":                 {endpoints: []string{drawA, drawB}, answered: true},
		"it is not tracked":               {endpoints: []string{drawA, drawB}, untracked: true},
		"the frontend is gone":            {endpoints: []string{drawA, drawB}, frontend: "10.96.0.2:80"},
		"it is off":                       {endpoints: []string{drawA, drawB}, once: true, told: true},
		"the table is full":               {endpoints: []string{drawA, drawB}, full: true, told: true},
		"its answers are late":            {endpoints: []string{drawA, drawB}, late: true, want: drawB, told: true},
	} {
		t.Run(situation, func(t *testing.T) { synctest.Test(t, test.run) })
	}
}

func (test drawCase) run(t *testing.T) {
	at := netip.MustParseAddrPort
	r := repeat{at(drawFrom), at(drawA), at(drawFrontend)}
	now := at(drawA)
	if test.at != "" {
		now = at(test.at)
	}
	if test.frontend != "" {
		r.frontend = at(test.frontend)
	}
	k := &kernelOf{found: !test.untracked, full: test.full, flow: conntrack.Flow{
		Protocol: service.TCP, Src: r.from, Dst: r.to, ReplySrc: now, ReplyDst: r.from, State: 1, Answered: test.answered,
	}}
	var told []silence.Evidence
	var drawn []service.Address
	w := &Watcher{
		Observe: func(e silence.Evidence) { told = append(told, e) },
		Silent: func() map[service.Address]silence.Record {
			all := map[service.Address]silence.Record{}
			for _, e := range test.silent {
				all[service.AddressOf(service.TCP, at(e))] = silence.Record{}
			}
			return all
		},
		Draws: func() bool { return !test.once }, Drawn: func(a service.Address) { drawn = append(drawn, a) },
		Late: func(service.Address) bool { return test.late }, Flows: k, Table: k, Log: klog.Background(),
	}
	w.forget()
	for _, e := range test.accused {
		w.accused[at(e)] = time.Now()
	}
	s := snapshot(append([]string{drawFrontend}, test.endpoints...))
	var after []int // entries that were deleted
	for range 2 {   // the connection repeats it again
		w.repeated(t.Context(), s, service.IPv4, r)
		w.mu.Lock()
		after = append(after, k.deleted) // no dial can have told of it yet
		w.mu.Unlock()
		time.Sleep(dialled)
		synctest.Wait()
	}
	var want []silence.Evidence
	endpoint := service.AddressOf(service.TCP, now)
	if test.told {
		want = []silence.Evidence{{Endpoint: endpoint, Port: w.portOf(s, service.IPv4, r.frontend).Name, Client: r.from.Addr()}}
	}
	for i := range told {
		told[i].At = time.Time{}
	}
	kit.Same(t, "evidence (-want +got)", want, told, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
	if test.want == "" {
		kit.Check(t, !k.led.IsValid() && k.deleted <= 0 && len(drawn) == 0,
			"led to %s, %d entries deleted, %v counted", k.led, k.deleted, drawn)
		return
	}
	first := 1
	if test.late {
		first = 0
	}
	kit.Check(t, k.led.String() == test.want && slices.Equal(append(after, k.deleted), []int{0, first, first + 1}) && slices.Equal(drawn, slices.Repeat([]service.Address{endpoint}, first+1)),
		"led to %s, want %s; %d and then %d entries deleted, %v counted", k.led, test.want, after, k.deleted, drawn)
}

// TestAccusedForAWhile has an endpoint that did not answer once be as good as others later, and
// many of them bounded.
func TestAccusedForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		at := netip.MustParseAddrPort
		w := &Watcher{Silent: func() map[service.Address]silence.Record { return nil }}
		w.forget()
		w.accused[at(drawB)] = time.Now()
		all := []service.Endpoint{{Addr: at(drawA)}, {Addr: at(drawB)}, {Addr: at(drawC)}}
		chosen := func() map[netip.AddrPort]bool {
			got := map[netip.AddrPort]bool{}
			for range 100 {
				e, _ := w.choose(all, attempt{at(drawFrom), at(drawA)})
				got[e] = true
			}
			return got
		}
		if got := chosen(); len(got) != 1 || !got[at(drawC)] {
			t.Errorf("chosen: %v", got)
		}
		time.Sleep(fresh)
		if got := chosen(); len(got) != 2 {
			t.Errorf("chosen later: %v", got)
		}
	})
}

// TestKernelShowsNoSockets has a kernel that lacks what shows sockets: the log says so once, and
// the programs are watched all the same.
func TestKernelShowsNoSockets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged []string
		log := funcr.New(func(_, args string) { logged = append(logged, args) }, funcr.Options{})
		k := &fake{family: service.IPv4, unseen: errInjected, detached: errInjected}
		b := New(service.IPv4, k, Options{Watcher: &Watcher{Table: &kernelOf{}, Log: log}})
		ctx, end := context.WithTimeout(t.Context(), 10*watchPeriod)
		defer end()
		touched := 0
		err := b.Watch(ctx, func() { touched++ })
		kit.Check(t, err == nil && ctx.Err() != nil && touched >= 5, "%v after %d looks at the programs", err, touched)
		kit.Check(t, len(logged) == 1 && strings.Contains(logged[0], errInjected.Error()), "logged %q", logged)
	})
}
