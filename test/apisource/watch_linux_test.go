// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"

	"kubeproxy/common/source"
	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// sink records the objects of a source.
type sink struct {
	mu        sync.Mutex
	synced    bool
	have      map[string]bool
	gone      []string
	silentFor map[string]int
	errs      []string
}

func newSink() *sink { return &sink{have: map[string]bool{}, silentFor: map[string]int{}} }

func (s *sink) set(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.have[what] = true
	return true
}

func (s *sink) drop(what string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.have, what)
	s.gone = append(s.gone, what)
	return true
}

func (s *sink) SetService(o *corev1.Service) bool          { return s.set("service " + o.Name) }
func (s *sink) DeleteService(n types.NamespacedName) bool  { return s.drop("service " + n.Name) }
func (s *sink) SetSlice(o *discoveryv1.EndpointSlice) bool { return s.set("slice " + o.Name) }
func (s *sink) DeleteSlice(n types.NamespacedName) bool    { return s.drop("slice " + n.Name) }
func (s *sink) SetNode(o *corev1.Node)                     { s.set("node " + o.Name) }
func (s *sink) DeleteNode()                                { s.drop("node") }
func (s *sink) SetServiceCIDR(o *networkingv1.ServiceCIDR) { s.set("range " + o.Name) }
func (s *sink) DeleteServiceCIDR(name string)              { s.drop("range " + name) }
func (s *sink) Unread(int)                                 {}
func (s *sink) Batch(deliver func())                       { deliver() }

func (s *sink) Synced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.synced = true
}

// hasAll reports that s has synced and has heard of all of these.
func (s *sink) hasAll(all ...string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, what := range all {
		if !s.have[what] {
			return false
		}
	}
	return s.synced
}

// follow starts a source that trusts a silence of a second.
func (w fixture) follow(t *testing.T, l cluster.Login) *sink {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig(t, l))
	if err != nil {
		t.Fatal(err)
	}
	config.Dial, config.ContentType = w.lab.Node.Dial, "application/vnd.kubernetes.protobuf"
	s := newSink()
	a := &source.APIServer{
		Config: config, NodeName: netlab.NodeName, WatchTimeout: time.Second,
		WatchTimedOut: func(kind string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.silentFor[kind]++
		},
		Report: func(err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.errs = append(s.errs, err.Error())
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- a.Run(ctx, s) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return s
}

// reportedFailure reports that a failure with these words was reported for a kind.
func (s *sink) reportedFailure(kind, words string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.errs {
		if strings.Contains(e, kind+" ") && strings.Contains(e, words) {
			return true
		}
	}
	return false
}

var kinds = []string{"services", "endpointslices", "nodes", "servicecidrs"}

// An API server that keeps its connections and says nothing is noticed, asked
// again, and followed as soon as it speaks. Nothing is forgotten meanwhile.
func TestSilentAPIServer(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	w.set(t, newNode(), newService("before"))
	front, err := w.NewFaultProxy(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = front.Close() })
	for name, fault := range map[string]struct {
		server      string
		begin, over func() error
	}{
		"server paused": {w.Server, w.APIServer.Pause, w.APIServer.Resume},
		"answers are lost": {front.URL,
			func() error { front.SetFault(cluster.Fault{Silent: true}); return nil },
			func() error { front.SetFault(cluster.Fault{}); return nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := w.follow(t, cluster.Login{Server: fault.server})
			kit.Until(t, "all that exists", func() bool { return s.hasAll("service before", "node "+netlab.NodeName, "range kubernetes") })
			kit.Until(t, "watches that are quiet are asked for again", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.silentFor["nodes"] > 1 && s.silentFor["servicecidrs"] > 1
			})
			if err := fault.begin(); err != nil {
				t.Fatal(err)
			}
			for _, kind := range kinds {
				kit.Until(t, "a complaint about "+kind, func() bool { return s.reportedFailure(kind, "no answer in 1s") })
			}
			if err := fault.over(); err != nil {
				t.Fatal(err)
			}
			after := strings.ReplaceAll("after "+name, " ", "-")
			w.set(t, newService(after))
			kit.Until(t, "what comes later", func() bool { return s.hasAll("service "+after, "service before") })
			if len(s.gone) > 0 {
				t.Errorf("forgotten meanwhile: %q", s.gone)
			}
		})
	}
}

// A peer that does not answer at all is noticed by the connection itself, with
// pings, before any watch is silent for too long. The times are shortened as
// the library allows.
func TestDeadConnection(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	cmd := kubeProxy.Command("--kubeconfig="+w.kubeconfig(t, cluster.Login{}), "--cluster-cidr="+netlab.ClusterCIDR)
	cmd.Env = append(cmd.Environ(), "HTTP2_READ_IDLE_TIMEOUT_SECONDS=1", "HTTP2_PING_TIMEOUT_SECONDS=1")
	p := program.Start(t, w.lab.Node, cmd)
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	p.AwaitLog(t, `"Programmed"`, "IPv6")
	before := program.Generation(t, w.lab.Node)
	if err := w.APIServer.Pause(); err != nil {
		t.Fatal(err)
	}
	awaitSlowLog(t, p, "The API server cannot be read")
	if err := w.APIServer.Resume(); err != nil {
		t.Fatal(err)
	}
	awaitSlowLog(t, p, "The API server can be read again")
	if now := program.Generation(t, w.lab.Node); now != before {
		t.Errorf("the rules were written %d times, want none", now-before)
	}
	w.set(t, newService("later"))
	p.AwaitLog(t, `"Programmed a change"`, "IPv4")
}

// awaitSlowLog is for what waits for the API client, which rests for up to half
// a minute after some failures and gives a handshake ten seconds.
func awaitSlowLog(t *testing.T, p *program.Proxy, words ...string) {
	t.Helper()
	for deadline := time.Now().Add(90 * time.Second); !p.Log.Has(words...); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for a line of the log with %q", words)
		}
	}
}

// After a restart of the API server that has forgotten all versions everything
// is listed again, and nothing is written.
func TestRelist(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	w.set(t, newNode(), newService("web"))
	p := w.start(t, cluster.Login{})
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	p.AwaitLog(t, `"Programmed"`, "IPv6")
	before := program.Generation(t, w.lab.Node)
	w.APIServer.Kill()
	p.AwaitLog(t, "The API server cannot be read", "remedy")
	if err := w.Compact(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.Etcd.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitSlowLog(t, p, "The API server can be read again")
	if now := program.Generation(t, w.lab.Node); now != before {
		t.Errorf("the rules were written %d times, want none", now-before)
	}
}
