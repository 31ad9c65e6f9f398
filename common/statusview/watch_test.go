// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// state returns an answer about shop/web with these endpoints, all used unless their
// state is not "ready".
func state(generation uint64, endpoints ...string) *Answer {
	a := &Answer{}
	a.Mode, a.Started = "nftables", noon
	a.Health = health.Report{Healthy: true, Status: map[string]health.FamilyReport{"IPv4": {Healthy: true, Generation: generation}}}
	p := servicestate.Port{Port: "http", Protocol: "tcp", Family: "IPv4", State: servicestate.Programmed, Endpoints: len(endpoints)}
	for _, e := range endpoints {
		addr, how, _ := strings.Cut(e, " ")
		use := track.Use{Used: how == "ready"}
		if !use.Used {
			use.Why = "is " + how
		}
		p.EndpointList = append(p.EndpointList, track.Candidate{Listed: track.Listed{Address: addr, Node: "node-a", State: how}, Cluster: use})
	}
	a.Services = []servicestate.Service{{Namespace: "shop", Name: "web", State: servicestate.Programmed, Ports: []servicestate.Port{p}}}
	return a
}

func silentOf(addresses ...string) (all []servicestate.SilentEndpoint) {
	for _, a := range addresses {
		all = append(all, servicestate.SilentEndpoint{PortEndpoint: servicestate.PortEndpoint{Namespace: "shop", Name: "web", Protocol: "tcp", Address: a}, LeftOut: true, Since: noon, Why: "no answer"})
	}
	return all
}

// TestChanges compares pairs of answers.
func TestChanges(t *testing.T) {
	some := state(7, "10.244.0.1:8080 ready", "10.244.0.2:8080 ready")
	counted := func(n int) *Answer { a := state(7); a.Services[0].Ports[0].Endpoints = n; return a }
	with := func(change func(*Answer)) *Answer { a := state(7); change(a); return a }
	for name, tt := range map[string]struct {
		a, b *Answer
		want []change
	}{
		"nothing": {some, some, nil},
		"endpoints": {some, state(8, "10.244.0.2:8080 terminating", "10.244.0.3:8080 ready"), []change{
			{"IPv4", "generation 8 is in force"},
			{"shop/web", "port http/tcp IPv4: endpoint 10.244.0.2:8080: terminating, not used on node-a (is terminating); was ready, used on node-a"},
			{"shop/web", "port http/tcp IPv4: endpoint 10.244.0.3:8080 is new: ready, used on node-a"},
			{"shop/web", "port http/tcp IPv4: endpoint 10.244.0.1:8080 is gone"},
		}},
		"their number":  {counted(2), counted(3), []change{{"shop/web", "port http/tcp IPv4: 3 endpoints, 0 of them here; were 2 and 0"}}},
		"a new Service": {with(func(a *Answer) { a.Services = nil }), counted(2), []change{{"shop/web", "new, programmed, 2 endpoints"}}},
		"no Service":    {state(7), with(func(a *Answer) { a.Services = nil }), []change{{"shop/web", "gone"}}},
		"a port":        {state(7), with(func(a *Answer) { a.Services[0].Ports[0].Port = "web" }), []change{{"shop/web", "port web/tcp IPv4 is new"}, {"shop/web", "port http/tcp IPv4 is gone"}}},
		"a failure": {state(7), with(func(a *Answer) {
			s := &a.Services[0]
			s.State, s.Ports[0].State, s.Ports[0].Error = servicestate.Failed, servicestate.Failed, "no\nspace"
			a.Health.Status["IPv4"] = health.FamilyReport{Healthy: true, Generation: 7, LastError: "refused", DriftFound: 2, DriftRepaired: 1}
			a.Health.Conditions = map[string]string{"leftovers": "of another"}
		}), []change{
			{"condition leftovers", "of another"}, {"IPv4", "2 changes by others were found, 1 repaired"}, {"IPv4", "refused"},
			{"shop/web", "failed, was programmed"}, {"shop/web", "no space"},
		}},
		"a recovery": {with(func(a *Answer) {
			s := &a.Services[0]
			s.State, s.Ports[0].Error = servicestate.Failed, "no space"
			a.Health.Healthy = false
			a.Health.Status["IPv4"] = health.FamilyReport{Healthy: true, Generation: 7, LastError: "refused", Failing: true}
			a.Health.Conditions = map[string]string{"leftovers": "of another"}
		}), state(7), []change{
			{"proxy", "healthy, was not healthy"}, {"condition leftovers", "over"}, {"IPv4", "rounds succeed again"},
			{"shop/web", "programmed, was failed"}, {"shop/web", "nothing is wrong any more"},
		}},
		"silence": {
			with(func(a *Answer) { a.Silent = silentOf("10.244.0.1:8080", "10.244.0.2:8080") }),
			with(func(a *Answer) {
				a.Silent = silentOf("10.244.0.2:8080", "10.244.0.3:8080")
				a.Silent[0].Why, a.Silent[1].LeftOut = "again", false
			}),
			[]change{{"shop/web", "endpoint 10.244.0.3:8080 does not answer, and stays in: no answer"}, {"shop/web", "endpoint 10.244.0.1:8080 answers again, or is gone"}},
		},
		"another process": {state(7), with(func(a *Answer) {
			a.Started, a.Health.CurrentTime, a.Mode = noon.Add(time.Hour), noon.Add(2*time.Hour), "ipvs"
		}),
			[]change{{"proxy", "another process runs, since 1h ago"}, {"proxy", "mode ipvs, was nftables"}}},
	} {
		t.Run(name, func(t *testing.T) {
			kit.Same(t, "(-want +got)", tt.want, changes(tt.a, tt.b, "gone"), cmp.AllowUnexported(change{}))
		})
	}
}

// pipe collects what is written, and calls wrote after each part.
type pipe struct {
	mu    sync.Mutex
	text  strings.Builder
	wrote func(all string)
}

func (p *pipe) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text.Write(b)
	p.wrote(p.text.String())
	return len(b), nil
}

// TestWatch follows a proxy that changes, is silent, and answers again, until an
// interrupt, which is no error.
func TestWatch(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	endpoints, silent := []string{"10.244.0.1:8080 ready"}, false
	server := handle(t, func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if silent {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		a := state(7, endpoints...)
		health.ReplyJSON(w, http.StatusOK, servicestate.Response{ProxyInfo: servicestate.ProxyInfo{Mode: a.Mode, Started: a.Started, Health: a.Health}, Services: a.Services})
	})
	ctx, cancel := context.WithCancel(t.Context())
	steps := 0
	out := &pipe{wrote: func(all string) {
		mu.Lock()
		defer mu.Unlock()
		switch last := all[strings.LastIndex(strings.TrimSpace(all), "\n")+1:]; {
		case steps == 0:
			endpoints = nil
		case steps == 1 && strings.Contains(last, "endpoint 10.244.0.1:8080 is gone"):
			silent = true
		case steps == 2 && strings.Contains(all, "is not this proxy (HTTP status 503)"):
			silent = false
		case steps == 3 && strings.Contains(last, "proxy: answers again"):
			cancel()
		default:
			t.Errorf("step %d: unexpected %q", steps, last)
			cancel()
		}
		steps++
	}}
	x := &Watch{Query: &Query{Server: server, Reference: service.Reference{Name: "web"}}, View: View{Format: Table, Full: true, Now: noon}, Timeout: time.Minute}
	err := x.Run(ctx, out)
	kit.Check(t, err == nil && steps == 4, "%v after %d steps, want none after 4", err, steps)
}

// TestWatchFailureJSON writes a failure in place of a state, and the state when the
// proxy answers again, even the same one.
func TestWatchFailureJSON(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var silent atomic.Bool
	server := handle(t, func(w http.ResponseWriter, q *http.Request) {
		if silent.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		a := state(7, "10.244.0.1:8080 ready")
		health.ReplyJSON(w, http.StatusOK, servicestate.Response{ProxyInfo: servicestate.ProxyInfo{Mode: a.Mode, Started: a.Started, Health: a.Health}, Services: a.Services})
	})
	writes := 0
	out := &pipe{wrote: func(string) {
		switch writes++; writes {
		case 1:
			silent.Store(true)
		case 2:
			silent.Store(false)
		case 3:
			cancel()
		}
	}}
	x := &Watch{Query: &Query{Server: server}, View: View{Format: JSON}, Timeout: time.Minute}
	kit.Must(t, x.Run(ctx, out))
	var got []string
	for d := json.NewDecoder(strings.NewReader(out.text.String())); d.More(); {
		var document struct{ Server, Mode, Error string }
		kit.Must(t, d.Decode(&document))
		kit.Check(t, document.Server == server, "server %q, want %q", document.Server, server)
		_, document.Error, _ = strings.Cut(document.Error, "is not this proxy ")
		document.Error, _, _ = strings.Cut(document.Error, ":")
		got = append(got, document.Mode+document.Error)
	}
	if want := []string{"nftables", "(HTTP status 503)", "nftables"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q\n%s", got, want, out.text.String())
	}
}

// TestWatchQuiet writes what stays as it is once: a state, and that nobody answers.
func TestWatchQuiet(t *testing.T) {
	t.Parallel()
	for format, want := range map[Format]int{JSON: 1, Table: 2} {
		ctx, cancel := context.WithCancel(t.Context())
		var asked atomic.Int32
		server := handle(t, func(w http.ResponseWriter, q *http.Request) {
			switch n := asked.Add(1); {
			case n >= 8 || n >= 4 && format == JSON:
				cancel()
			case n >= 2 && format == Table: // each refusal is looked into by a second request
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			a := state(7, "10.244.0.1:8080 ready")
			health.ReplyJSON(w, http.StatusOK, servicestate.Response{ProxyInfo: servicestate.ProxyInfo{Mode: a.Mode, Started: a.Started, Health: a.Health}, Services: a.Services})
		})
		writes := 0
		out := &pipe{wrote: func(string) { writes++ }}
		x := &Watch{Query: &Query{Server: server}, View: View{Format: format}, Timeout: time.Minute}
		if err := x.Run(ctx, out); err != nil || writes != want {
			t.Errorf("as %s: %v, %d writes, want %d:\n%s", format, err, writes, want, out.text.String())
		}
	}
}
