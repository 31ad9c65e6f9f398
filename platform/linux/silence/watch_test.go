// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package silence

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/common/silence"
	"kubeproxy/platform/linux/conntrack"
)

// table is a connection tracking table. A dump of it takes cost of the processor.
type table struct {
	conntrack.Driver
	mu    sync.Mutex // of each look
	flows []conntrack.Flow
	cost  time.Duration
	churn bool // each look finds other clients
	once  bool // no connection draws again
	err   error
	// answered means that connections are when somebody wants to delete them.
	answered bool

	used    time.Duration
	dumps   []time.Time
	deleted []deletion
}

// seen makes what the test wrote visible to whoever takes the lock next.
func (t *table) seen() {
	t.mu.Lock()
	defer t.mu.Unlock()
}

func (x *table) Dump(_ context.Context, f conntrack.Filter, each func(conntrack.Flow)) error {
	x.seen()
	x.used += x.cost
	x.dumps = append(x.dumps, time.Now())
	for _, y := range x.flows {
		if x.churn {
			y.Src = netip.AddrPortFrom(y.Src.Addr(), uint16(len(x.dumps)))
		}
		if f.AllFamilies || f.Port == y.Dst.Port() { // an old kernel does not look at the status
			each(y)
		}
	}
	return x.err
}

func (x *table) Delete(_ context.Context, flows []conntrack.Flow) (int, error) {
	x.seen()
	n := len(x.flows)
	if len(flows) == 0 {
		panic("nothing to delete")
	}
	for _, f := range flows {
		x.deleted = append(x.deleted, deletion{f, time.Now()})
		if x.answered {
			x.flows = nil
			return 0, nil
		}
		x.flows = slices.DeleteFunc(x.flows, func(y conntrack.Flow) bool { return y.Src == f.Src && y.Dst == f.Dst })
	}
	return n - len(x.flows), nil
}

type deletion struct {
	conntrack.Flow
	at time.Time
}

func at(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// syn is an entry of a client that waits.
func syn(client, to, endpoint string) conntrack.Flow {
	return conntrack.Flow{Protocol: service.TCP, Src: at(client), Dst: at(to), ReplySrc: at(endpoint), ReplyDst: at(client), State: 1}
}

func port(name string, p service.Protocol, frontends []service.Frontend, endpoints ...string) *service.Port {
	x := &service.Port{Name: service.PortName{Namespace: "shop", Name: name, Protocol: p}, Frontends: frontends}
	for _, e := range endpoints {
		x.Cluster = append(x.Cluster, service.Endpoint{Addr: at(e)})
	}
	return x
}

func clusterIP(a string) []service.Frontend {
	x := at(a)
	return []service.Frontend{{Kind: service.ClusterIP, Addr: x.Addr(), Port: x.Port()}}
}

func snapshot(ports ...*service.Port) *service.Snapshot {
	slices.SortFunc(ports, func(a, b *service.Port) int { return a.Name.Compare(b.Name) })
	return service.New(1, &service.Node{}, ports)
}

// watching is a Watch that runs in a bubble, and what it has told.
type watching struct {
	*Watch
	table *table
	told  []silence.Evidence
	ended error
	slow  bool // says the Box
	drawn int
	// undecided are endpoints of web.
	undecided []string
}

func watch(t *testing.T, s *service.Snapshot, x *table) *watching {
	t.Helper()
	w := &watching{table: x}
	w.Watch = &Watch{
		Families: service.Families[:], Latest: func() *service.Snapshot {
			x.mu.Lock()
			defer x.mu.Unlock()
			return s
		},
		Wanted: func(n service.PortName) bool { return n.Name != "unwanted" },
		Observe: func(e silence.Evidence) {
			if !e.At.Equal(time.Now()) {
				t.Errorf("%v is not of now", e)
			}
			e.At = time.Time{}
			w.told = append(w.told, e)
		},
		Draws:  func() bool { return !x.once },
		Drawn:  func(service.Address) { w.drawn++ },
		Late:   func(service.Address) bool { return w.slow },
		driver: x, cpuTime: func() time.Duration { return x.used },
	}
	w.Undecided = func() map[service.Address]service.PortName {
		all := map[service.Address]service.PortName{}
		for _, e := range w.undecided {
			all[service.AddressOf(service.TCP, at(e))] = service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}
		}
		return all
	}
	ctx, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.ended = w.run(ctx)
	}()
	t.Cleanup(func() {
		end()
		<-done
	})
	synctest.Wait() // for the first look, so that the test may change the table
	return w
}

// after lets d pass, and a little more. What the test did before is seen by the next look.
func (w *watching) after(d time.Duration) {
	w.table.seen()
	time.Sleep(d + time.Millisecond)
	synctest.Wait()
}

var webs = []string{"10.244.1.2:8080", "10.244.1.3:8080"}

// TestWhatWatchTells has entries of all sorts, twice, and looks at what is told.
func TestWhatWatchTells(t *testing.T) {
	web := port("web", service.TCP, append(clusterIP("10.96.0.10:80"), service.Frontend{Kind: service.NodePort, Port: 30080}), webs...)
	other := port("other", service.TCP, clusterIP("10.96.0.11:80"), webs...)
	answered := syn("10.244.1.9:1007", "10.96.0.10:80", webs[0])
	answered.Answered, answered.State = true, 2
	dns := port("dns", service.UDP, clusterIP("10.96.0.10:53"), webs...)
	datagram := syn("10.244.1.9:1008", "10.96.0.10:80", webs[0])
	datagram.Protocol = service.UDP
	question := datagram
	question.Dst, question.State = at("10.96.0.10:53"), 0
	reply := question
	reply.Answered = true
	for _, tc := range []struct {
		name string
		flow conntrack.Flow
		want string // the Service, empty for nothing
	}{
		{"to a ClusterIP", syn("10.244.1.9:1000", "10.96.0.10:80", webs[0]), "web"},
		{"to another Service", syn("10.244.1.9:1001", "10.96.0.11:80", webs[0]), "other"},
		{"to a NodePort", syn("192.0.2.1:1002", "192.0.2.10:30080", webs[1]), "web"},
		{"directly", syn("10.244.1.9:1003", webs[0], webs[0]), ""},
		{"to no Service", syn("10.244.1.9:1004", "10.96.0.12:80", webs[0]), ""},
		{"to another port of the Service", syn("10.244.1.9:1005", "10.96.0.10:81", webs[0]), ""},
		{"to what others translate", syn("10.244.1.9:1006", "10.96.0.10:80", "10.244.1.4:8080"), ""},
		{"answered", answered, ""},
		{"of another protocol", datagram, ""},
		{"a datagram", question, "dns"},
		{"a datagram with an answer", reply, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch(t, snapshot(web, other, dns), &table{flows: []conntrack.Flow{tc.flow}})
				w.after(time.Second)
				var want []silence.Evidence
				if tc.want != "" {
					want = []silence.Evidence{{
						Endpoint: service.AddressOf(tc.flow.Protocol, tc.flow.ReplySrc), Client: tc.flow.Src.Addr(),
						Port: service.PortName{Namespace: "shop", Name: tc.want, Protocol: tc.flow.Protocol}, Kind: silence.Unanswered,
					}}
				}
				if !slices.Equal(w.told, want) {
					t.Errorf("told %v, want %v", w.told, want)
				}
			})
		})
	}
}

// TestAnswerInTime has an answer come between two looks, and another connection take its
// place.
func TestAnswerInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &table{flows: []conntrack.Flow{syn("10.244.1.9:1000", "10.96.0.10:80", webs[0])}}
		w := watch(t, snapshot(port("web", service.TCP, clusterIP("10.96.0.10:80"), webs...)), x)
		w.after(0)
		x.flows[0].Src = at("10.244.1.9:1001")
		w.after(busyPause)
		x.flows[0].Src = at("10.244.1.9:1002")
		w.after(busyPause)
		x.flows = nil
		w.after(time.Second)
		if len(w.told) > 0 || len(w.waiting) > 0 {
			t.Errorf("told %v, keeps %v", w.told, w.waiting)
		}
	})
}

// TestAnswers has connections of which two get an answer while an endpoint is undecided.
func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &table{}
		connect := func(client, to, endpoint string) {
			f := syn(client, to, endpoint)
			f.Answered, f.State, f.ID = true, 3, uint32(len(x.flows)+1)
			x.flows = append(x.flows, f)
		}
		w := watch(t, snapshot(port("web", service.TCP, append(clusterIP("10.96.0.10:80"), service.Frontend{Kind: service.NodePort, Port: 30080}), webs...)), x)
		connect("10.244.1.9:1000", "10.96.0.10:80", webs[0])
		w.after(time.Second)
		w.undecided = webs[:1]
		w.after(time.Second) // what was there before says nothing
		connect("10.244.1.9:1001", "10.96.0.10:80", webs[1])
		connect("192.0.2.1:1002", "192.0.2.10:30080", webs[0])
		connect("10.244.1.9:1003", "10.96.0.11:80", "10.244.1.4:8080")
		connect("10.244.1.9:1004", "10.96.0.10:81", webs[1])
		connect("10.244.1.10:1000", webs[1], webs[1])
		w.after(time.Second)
		w.undecided = nil
		w.after(time.Second)
		w.Direct, w.undecided = true, webs[:1]
		w.after(time.Second)
		connect("10.244.1.11:1000", webs[1], webs[1])
		connect("10.244.1.12:1000", "10.244.1.99:8080", "10.244.1.99:8080")
		w.after(time.Second)
		w.undecided = nil
		w.after(time.Second)
		connect("10.244.1.9:1005", "10.96.0.10:80", webs[1])
		w.after(time.Second)
		var told []string
		for _, e := range w.told {
			told = append(told, fmt.Sprintf("%d %s to %s", e.Kind, e.Client, e.Endpoint))
		}
		slices.Sort(told)
		if want := []string{"1 10.244.1.11 to tcp 10.244.1.3:8080", "1 10.244.1.9 to tcp 10.244.1.3:8080", "1 192.0.2.1 to tcp 10.244.1.2:8080"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
	})
}

// TestPace looks at the pauses between looks.
func TestPace(t *testing.T) {
	web, unwanted := port("web", service.TCP, clusterIP("10.96.0.10:80"), webs...), port("unwanted", service.TCP, clusterIP("10.96.0.10:80"), webs...)
	waiting := []conntrack.Flow{syn("10.244.1.9:1000", "10.96.0.12:80", webs[0])}
	for _, tc := range []struct {
		name string
		s    *service.Snapshot
		x    *table
		want time.Duration // 0 for no look
	}{
		{"idle", snapshot(web), &table{}, idlePause},
		{"connections wait", snapshot(web), &table{flows: waiting, churn: true}, busyPause},
		{"they are told", snapshot(web), &table{flows: waiting}, idlePause},
		{"looks are expensive", snapshot(web), &table{flows: waiting, churn: true, cost: 20 * time.Millisecond}, 2500 * time.Millisecond},
		{"the table changes", snapshot(web), &table{err: syscall.EINTR}, idlePause},
		{"one endpoint", snapshot(port("web", service.TCP, clusterIP("10.96.0.10:80"), webs[0])), &table{}, 0},
		{"UDP", snapshot(port("web", service.UDP, clusterIP("10.96.0.10:80"), webs...)), &table{}, idlePause},
		{"switched off", snapshot(unwanted), &table{once: true}, 0},
		{"but for a second draw", snapshot(unwanted), &table{}, idlePause},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch(t, tc.s, tc.x)
				w.after(10 * tc.want)
				switch n := len(tc.x.dumps); {
				case tc.want == 0 && n == 0:
				case n < 6 || tc.x.dumps[5].Sub(tc.x.dumps[1]) != 4*tc.want:
					t.Errorf("looks at %v, want one each %s", tc.x.dumps, tc.want)
				}
			})
		})
	}
}

// TestUrgency has expensive looks and one connection without an answer, after which the next looks come
// soon, and then one each second: they do as long as savings last.
func TestUrgency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &table{flows: []conntrack.Flow{syn("10.244.1.9:1000", "10.96.0.10:80", webs[0])}, cost: 30 * time.Millisecond}
		w := watch(t, snapshot(port("web", service.TCP, clusterIP("10.96.0.10:80"), webs...)), x)
		w.after(2 * time.Second)
		if len(x.deleted) != 1 || len(x.dumps) < 6 || x.dumps[5].Sub(x.dumps[1]) != 4*rush*x.cost {
			t.Errorf("deleted %v, looks at %v", x.deleted, x.dumps)
		}
		for n := range 200 {
			x.flows = append(x.flows, syn(fmt.Sprintf("10.244.1.9:%d", n+1), "10.96.0.10:80", webs[0]))
			w.after(time.Second)
		}
		if most := burst + 202*time.Second/hurry; x.used > most || len(x.deleted) < 190 {
			t.Errorf("looks took %s, want %s at most, and saw %d of 201", x.used, most, len(x.deleted))
		}
	})
}

// TestDraws has connections without an answer, and looks at which entries are deleted, and when.
func TestDraws(t *testing.T) {
	web := port("web", service.TCP, clusterIP("10.96.0.10:80"), webs...)
	leaving := port("leaving", service.TCP, clusterIP("10.96.0.12:80"), webs[0])
	leaving.Draining = []service.Endpoint{{Addr: at(webs[1])}}
	s := snapshot(web, leaving, port("dns", service.UDP, clusterIP("10.96.0.15:53"), webs...), port("one", service.TCP, clusterIP("10.96.0.11:80"), webs[0]), port("unwanted", service.TCP, clusterIP("10.96.0.13:80"), webs...))
	for _, tc := range []struct {
		name         string
		to, endpoint string
		once         bool
		draws        int
	}{
		{"to a Service", "10.96.0.10:80", webs[0], false, 1},
		{"got an answer just now", "10.96.0.10:80", webs[0], false, 0},
		{"to one whose silent endpoints are not looked for", "10.96.0.13:80", webs[0], false, 1},
		{"to an endpoint that leaves", "10.96.0.12:80", webs[1], false, 1},
		{"to the only endpoint", "10.96.0.11:80", webs[0], false, 0},
		{"to no endpoint", "10.96.0.10:80", "10.244.1.4:8080", false, 0},
		{"to no Service", "10.96.0.14:80", webs[0], false, 0},
		{"a datagram", "10.96.0.15:53", webs[0], false, 0},
		{"switched off", "10.96.0.10:80", webs[0], true, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := &table{answered: tc.name == "got an answer just now"}
				w := watch(t, s, x)
				x.once = tc.once
				w.after(3*idlePause + 100*time.Millisecond)
				began := time.Now()
				x.flows = []conntrack.Flow{syn("10.244.1.9:1000", tc.to, tc.endpoint)}
				if tc.name == "a datagram" {
					x.flows[0].Protocol, x.flows[0].State = service.UDP, 0
				}
				w.after(2 * time.Second)
				if w.drawn != tc.draws || !x.answered && len(x.deleted) != tc.draws {
					t.Fatalf("%d draws, deleted %v, want %d draws", w.drawn, x.deleted, tc.draws)
				}
				for _, d := range x.deleted {
					if waited := d.at.Sub(began); waited < drawSeen || waited > drawAfter {
						t.Errorf("deleted after %s", waited)
					}
				}
			})
		})
	}
}

// TestSlowEndpoints has a client repeat its packet in vain. Each time the entry is as the one before.
// Session affinity ends with the second draw.
func TestSlowEndpoints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, letGo := &table{}, 0
		web := port("web", service.TCP, clusterIP("10.96.0.10:80"), webs...)
		web.Affinity = time.Hour
		w := watch(t, snapshot(web), x)
		w.LetGo = func(p *service.Port, client netip.Addr, e service.Address) {
			if letGo++; p != web || client != at("10.244.1.9:0").Addr() || e != service.AddressOf(service.TCP, at(webs[0])) {
				t.Errorf("%s lets go of %s, of %s", client, e, p.Name)
			}
		}
		for range 2 * mostDraws {
			x.flows = []conntrack.Flow{syn("10.244.1.9:1000", "10.96.0.10:80", webs[0])}
			w.after(2 * time.Second)
		}
		if w.drawn != mostDraws || letGo != mostDraws-1 {
			t.Errorf("%d draws, want %d, and affinity let go %d times", w.drawn, mostDraws, letGo)
		}
		x.flows = nil
		w.after(drawMemory)
		x.flows = []conntrack.Flow{syn("10.244.1.9:1000", "10.96.0.10:80", webs[0])}
		w.after(time.Second)
		if w.drawn != mostDraws+1 {
			t.Errorf("%d draws after a while, want another one", w.drawn)
		}
	})
}

// TestLateAnswers has 20 clients connect to endpoints that answer late, and repeat their packets as TCP does.
// They wait for no more if the Box knows of late answers, and else only few of them do.
func TestLateAnswers(t *testing.T) {
	for _, tc := range []struct {
		late time.Duration
		slow bool
		most int // draws
	}{
		{700 * time.Millisecond, true, 0}, {1500 * time.Millisecond, true, 0}, {700 * time.Millisecond, false, 2}, {1500 * time.Millisecond, false, 6},
	} {
		t.Run(fmt.Sprint(tc.late, " ", tc.slow), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				x := &table{}
				w := watch(t, snapshot(port("web", service.TCP, clusterIP("10.96.0.10:80"), webs...)), x)
				w.slow = tc.slow
				for c := range 20 {
					x.flows = []conntrack.Flow{syn(fmt.Sprintf("10.244.1.9:%d", c+1), "10.96.0.10:80", webs[c%2])}
					w.after(tc.late)
					for pause := time.Second; len(x.flows) == 0; pause *= 2 {
						w.after(pause)
						x.flows = []conntrack.Flow{syn(fmt.Sprintf("10.244.1.9:%d", c+1), "10.96.0.10:80", webs[(c+1)%2])}
						w.after(tc.late)
					}
					x.flows = nil
					w.after(time.Second)
				}
				if w.drawn > tc.most {
					t.Errorf("%d draws, want %d at most", w.drawn, tc.most)
				}
			})
		})
	}
}

// TestDeadBesideLate has clients draw a dead endpoint first, and then one that answers late. One of
// them waits for longer at the dead one, which may be late as well, and no other one.
func TestDeadBesideLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &table{}
		w := watch(t, snapshot(port("web", service.TCP, clusterIP("10.96.0.10:80"), webs...)), x)
		for c, most := range []time.Duration{drawAgain, drawLate + time.Second, drawAgain, drawAgain} {
			begin := time.Now()
			for _, e := range webs[:2] {
				x.flows = []conntrack.Flow{syn(fmt.Sprintf("10.244.1.9:%d", c+1), "10.96.0.10:80", e)}
				w.after(map[bool]time.Duration{true: 4 * time.Second, false: 1500 * time.Millisecond}[e == webs[0]])
				x.flows = nil
				w.after(time.Second)
			}
			if len(x.deleted) != c+1 || x.deleted[c].at.Sub(begin) > most {
				t.Fatalf("client %d: deleted %+v, want it within %s", c, x.deleted, most)
			}
		}
	})
}

// TestFloodOfDraws has many connections to one endpoint without an answer, and few to another
// one, which come first.
func TestFloodOfDraws(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &table{}
		for c := range moreFlows {
			x.flows = append(x.flows, syn(fmt.Sprintf("10.244.1.9:%d", c+1), "10.96.0.10:80", webs[0]))
		}
		x.flows = append(x.flows, syn("10.244.1.9:1000", "10.96.0.10:80", webs[1]))
		w := watch(t, snapshot(port("web", service.TCP, clusterIP("10.96.0.10:80"), webs...)), x)
		w.after(time.Second)
		if i := slices.IndexFunc(x.deleted, func(d deletion) bool { return d.ReplySrc == at(webs[1]) }); i < 0 || i >= maxDraws {
			t.Errorf("the other one is at place %d of %d", i, len(x.deleted))
		}
		for i, d := range x.deleted {
			if i >= maxDraws && d.at.Sub(x.deleted[i-maxDraws].at) < drawPause {
				t.Fatalf("%d are deleted within %s", maxDraws+1, d.at.Sub(x.deleted[i-maxDraws].at))
			}
		}
		if len(x.flows) > 0 {
			t.Errorf("%d are left", len(x.flows))
		}
	})
}

// datagram is an entry of a client of dns that waits. Its number is its port.
func datagram(client, endpoint string) conntrack.Flow {
	f := syn(client, "10.96.0.10:53", endpoint)
	f.Protocol, f.State, f.ID = service.UDP, 0, uint32(f.Src.Port())
	return f
}

// TestNoise has thousands of datagrams that an endpoint ignores, and then one of a client.
func TestNoise(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := &table{}
		w := watch(t, snapshot(port("dns", service.UDP, clusterIP("10.96.0.10:53"), webs...)), x)
		for c := range 4000 {
			if x.flows = append(x.flows, datagram(fmt.Sprintf("10.244.1.9:%d", c+1), webs[0])); c%100 == 99 {
				w.after(idlePause)
			}
		}
		w.after(2 * idlePause)
		x.flows = append(x.flows, datagram("10.244.1.10:5000", webs[0]))
		w.after(2 * idlePause)
		if n := len(w.told); n != 4001 || w.told[n-1].Client != at("10.244.1.10:0").Addr() {
			t.Errorf("%d are told, the last one %v", n, w.told[n-1])
		}
		x.flows = x.flows[:2]
		w.after(idlePause)
		if len(w.told) != 4001 || len(w.Watch.told) != 2 {
			t.Errorf("%d are told, and %d remembered when there are two", len(w.told), len(w.Watch.told))
		}
	})
}

// TestUrgencyOfDatagrams has expensive looks, and a client of UDP whose datagrams some endpoints
// do not answer: the next looks come soon as long as savings last, if others answer at all.
func TestUrgencyOfDatagrams(t *testing.T) {
	for _, answered := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			x := &table{cost: 20 * time.Millisecond}
			w := watch(t, snapshot(port("dns", service.UDP, clusterIP("10.96.0.10:53"), webs...)), x)
			w.Undecided = func() map[service.Address]service.PortName {
				if len(w.told) == 0 {
					return nil
				}
				return map[service.Address]service.PortName{service.AddressOf(service.UDP, at(webs[0])): {Namespace: "shop", Name: "dns", Protocol: service.UDP}}
			}
			w.after(5 * time.Second)
			began := time.Now()
			for i := range 600 {
				lost, answer := datagram(fmt.Sprintf("10.244.1.9:%d", 2*i+1), webs[0]), datagram(fmt.Sprintf("10.244.1.9:%d", 2*i+2), webs[1])
				answer.Answered = answered
				x.flows = append(x.flows[max(0, len(x.flows)-10):], lost, answer)
				w.after(time.Second)
				if i != 3 {
					continue
				}
				heard := slices.ContainsFunc(w.told, func(e silence.Evidence) bool { return e.Kind == silence.Answered })
				if heard != answered || w.saved == burst == answered {
					t.Errorf("after %s: %v, savings %s; an answer is told: %t, want %t", time.Since(began), w.told, w.saved, heard, answered)
				}
			}
			if most := burst + 605*time.Second/100; x.used > most {
				t.Errorf("looks took %s in ten minutes, want %s at most", x.used, most)
			}
		})
	}
}

// TestFlood bounds what is kept of many connections that wait.
func TestFlood(t *testing.T) {
	w := &Watch{waiting: map[service.Address][]*flow{}, told: map[uint32]int{}}
	for i := range maxAnswers {
		w.told[uint32(i)+1<<16] = 0
	}
	w.see(datagram("10.244.1.9:1000", webs[0]), time.Now(), time.Now())
	if len(w.waiting) > 0 {
		t.Errorf("%v is kept although it cannot be remembered", w.waiting)
	}
	for i := range 2 * maxEndpoints {
		for c := range uint16(maxFlows + 4) {
			x := syn("10.244.1.9:1000", "10.96.0.10:80", webs[0])
			x.Src = netip.AddrPortFrom(x.Src.Addr(), c+1)
			x.ReplySrc = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)
			w.see(x, time.Now(), time.Now())
		}
	}
	kept := 0
	for _, flows := range w.waiting {
		kept += len(flows)
	}
	if len(w.waiting) != maxEndpoints || kept < maxEndpoints*maxFlows || kept > maxEndpoints*maxFlows+maxMore {
		t.Errorf("%d connections to %d endpoints are kept, want %d or up to %d more, to %d", kept, len(w.waiting), maxEndpoints*maxFlows, maxMore, maxEndpoints)
	}
}

// TestKernelWithoutTable ends on a kernel that cannot show its table.
func TestKernelWithoutTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, snapshot(port("web", service.TCP, clusterIP("10.96.0.10:80"), webs...)), &table{err: &conntrack.MissingModuleError{Module: "nf_conntrack_netlink"}})
		w.after(0)
		if !errors.Is(w.ended, errors.ErrUnsupported) {
			t.Errorf("ended with %v, want that this is unsupported", w.ended)
		}
	})
}

// TestOfRelay checks what attempts of listeners say.
func TestOfRelay(t *testing.T) {
	name, e := service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, at(webs[0])
	for _, tc := range []struct {
		err  error
		want silence.Kind
		says bool
	}{
		{nil, silence.Answered, true},
		{syscall.ECONNREFUSED, silence.Answered, true},
		{context.DeadlineExceeded, silence.Unanswered, true},
		{syscall.EHOSTUNREACH, silence.Unreachable, true},
		{syscall.EMFILE, 0, false},
	} {
		x, says := OfRelay(name, e, tc.err)
		if says != tc.says || says && (x.Kind != tc.want || x.Port != name || x.Endpoint != service.AddressOf(service.TCP, e)) {
			t.Errorf("%v: %v, %t", tc.err, x, says)
		}
	}
	if _, says := OfRelay(name, netip.AddrPort{}, context.DeadlineExceeded); says {
		t.Error("an attempt without an endpoint says something")
	}
}
