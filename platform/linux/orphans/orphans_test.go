// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package orphans

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/test/kit"
)

// node is a node with three Services, whose rules are in force at once.
type node struct {
	*track.Tracker
	orphans    *Orphans
	ended      int
	rebalanced int

	mu        sync.Mutex
	flows     []conntrack.Flow
	failure   error  // of a dump
	during    func() // called in the next dump
	silent    map[string]bool
	filtered  bool            // hosts but those in refuses answer at the port of the endpoint only
	refuses   map[string]bool // at other ports than the endpoint's, as a live host does
	dialled   []string
	table     []string
	rebalance string               // the annotation of web
	reset     func(conntrack.Flow) // called for each of the table
	begun     []track.Ending
	forgot    int
	standby   bool
	held      bool // the rules of the latest snapshot are not in force
}

// web and db have the endpoints .1 and .2, and db asks for the end of connections to those
// that left. other has .3.
var members = map[string][]string{"web": {"10.244.0.1", "10.244.0.2"}, "db": {"10.244.0.1", "10.244.0.2"}, "other": {"10.244.0.3"}}

var frontends = map[string]string{"web": "10.96.0.1:80", "db": "10.96.0.2:80", "other": "10.96.0.3:80"}

func withNode(t *testing.T, test func(*testing.T, *node)) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{Tracker: track.New(track.Options{NodeName: "a"}), silent: map[string]bool{}, refuses: map[string]bool{}}
		n.orphans = New(Options{
			Family: service.IPv4, Dump: n.dump, Table: n, CPUTime: func() time.Duration { return 0 }, Answers: n.answers, Log: klog.Background(),
			TCPTimeout: func(state string) uint32 { return map[string]uint32{"established": 86400, "max_retrans": 200}[state] },
			Filter:     conntrack.Filter{Family: service.IPv4, Protocol: service.TCP, Translated: true},
		})
		n.Subscribe(track.Listener{Changed: n.round})
		for name, endpoints := range members {
			n.service(name)
			n.slice(name, "", endpoints...)
		}
		n.Synced()
		n.flows = []conntrack.Flow{
			flowTo("web", "10.244.0.1", 1), flowTo("web", "10.244.0.2", 2), flowTo("db", "10.244.0.1", 3), flowTo("db", "10.244.0.2", 4),
			flowTo("other", "10.244.0.3", 5), closed(flowTo("web", "10.244.0.2", 6)), direct("10.244.0.1", 7),
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			n.orphans.Run(ctx, n.Tracker, n.enter, func(begun []track.Ending, k, rebalanced int) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.begun = append(n.begun, begun...)
				n.ended += k
				n.rebalanced += rebalanced
			})
		}()
		n.after(time.Second)
		test(t, n)
		stop()
		<-done
		kit.Check(t, n.standby || len(n.table) == 0, "at the end, the table holds %v", n.table)
	})
}

func (n *node) service(name string) {
	at := netip.MustParseAddrPort(frontends[name])
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	s.Spec.ClusterIP, s.Spec.ClusterIPs = at.Addr().String(), []string{at.Addr().String()}
	s.Spec.Ports = []corev1.ServicePort{{Port: int32(at.Port())}}
	if name == "db" {
		s.Annotations = map[string]string{track.AnnotationClose: track.CloseLeft}
	}
	if name == "web" && n.rebalance != "" {
		s.Annotations = map[string]string{track.AnnotationRebalance: n.rebalance}
	}
	n.SetService(s)
}

// slice sets a slice of a Service. Of its endpoints, terminating is terminating, and serves
// unless the name has a "!" before it.
func (n *node) slice(name, terminating string, endpoints ...string) {
	port, yes, no := int32(8080), true, false
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
	}
	for _, a := range endpoints {
		e := discoveryv1.Endpoint{Addresses: []string{a}}
		if a != "10.244.0.1" {
			e.NodeName = new("b")
		}
		if a == strings.TrimPrefix(terminating, "!") {
			e.Conditions.Terminating = &yes
		}
		if "!"+a == terminating {
			e.Conditions.Ready, e.Conditions.Serving = &no, &no
		}
		s.Endpoints = append(s.Endpoints, e)
	}
	n.SetSlice(s)
}

// dead has an endpoint of web and db on a node that is dead, and clients that wait.
func (n *node) dead(endpoint string) {
	n.silent[endpoint] = true
	for i, f := range n.flows {
		if f.State == conntrack.TCPEstablished && f.Dst != f.ReplySrc && f.ReplySrc.Addr().String() == endpoint {
			n.flows[i].Owed, n.flows[i].Expires = true, 200-overdue
		}
	}
	n.slice("web", "!"+endpoint, members["web"]...)
	n.slice("db", "!"+endpoint, members["db"]...)
}

// idle has no client wait.
func (n *node) idle() {
	for i := range n.flows {
		n.flows[i].Owed = false
	}
}

func flowTo(name, endpoint string, client uint16) conntrack.Flow {
	from := netip.AddrPortFrom(netip.MustParseAddr("10.244.9.9"), client)
	return conntrack.Flow{
		Protocol: service.TCP, Src: from, Dst: netip.MustParseAddrPort(frontends[name]),
		ReplySrc: netip.MustParseAddrPort(endpoint + ":8080"), ReplyDst: from, Answered: true, State: conntrack.TCPEstablished, Expires: 80000,
	}
}

func closed(f conntrack.Flow) conntrack.Flow {
	f.State = 8
	return f
}

func direct(endpoint string, client uint16) conntrack.Flow {
	f := flowTo("web", endpoint, client)
	f.Dst = f.ReplySrc
	return f
}

// round puts the latest snapshot in force.
func (n *node) round() {
	if !n.held {
		n.orphans.InForce(n.Latest())
	}
}

// after waits until the rest of a duration was done.
func (n *node) after(d time.Duration) {
	n.seen()
	time.Sleep(d) // of synctest
	synctest.Wait()
}

// seen makes what the test wrote visible to whoever takes the lock next.
func (n *node) seen() {
	n.mu.Lock()
	defer n.mu.Unlock()
}

func (n *node) dump(_ context.Context, f conntrack.Filter, each func(conntrack.Flow)) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if f := n.during; f != nil {
		n.during = nil
		f()
	}
	for _, x := range n.flows {
		each(x)
	}
	return n.failure
}

func (n *node) answers(_ context.Context, e netip.AddrPort) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	a := e.Addr().String()
	if e.Port() != 8080 {
		return n.refuses[a] || !n.silent[a] && !n.filtered
	}
	n.dialled = append(n.dialled, a)
	return !n.silent[a]
}

// Set implements Table. It keeps the ports of the clients.
func (n *node) Set(flows []conntrack.Flow) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.table = nil
	for _, f := range flows {
		n.table = append(n.table, f.Dst.Addr().String()+" "+f.ReplySrc.Addr().String())
		if n.reset != nil {
			n.reset(f)
		}
	}
	slices.Sort(n.table)
	return nil
}

func (n *node) Forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgot++
}

func (n *node) enter(context.Context) (func(), bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return func() {}, !n.standby
}

const (
	webDead = "10.96.0.1 10.244.0.2"
	dbDead  = "10.96.0.2 10.244.0.2"
)

var lookCases = map[string]struct {
	change func(*node)
	want   []string
}{
	"nothing left": {func(n *node) { n.silent["10.244.0.2"] = true }, nil},
	"left all and silent": {func(n *node) {
		n.silent["10.244.0.2"] = true
		n.slice("web", "", "10.244.0.1")
		n.slice("db", "", "10.244.0.1")
	}, []string{webDead, dbDead}},
	"left all and answers": {func(n *node) {
		n.slice("web", "", "10.244.0.1")
		n.slice("db", "", "10.244.0.1")
	}, []string{dbDead}},
	"left one of two Services":           {func(n *node) { n.slice("web", "", "10.244.0.1"); n.silent["10.244.0.2"] = true }, nil},
	"left the Service that asks":         {func(n *node) { n.slice("db", "", "10.244.0.1") }, []string{dbDead}},
	"terminates":                         {func(n *node) { n.slice("db", "10.244.0.2", "10.244.0.1", "10.244.0.2") }, nil},
	"terminates for good on a dead node": {func(n *node) { n.dead("10.244.0.2") }, []string{webDead, dbDead}},
	"one of its clients waits":           {func(n *node) { n.dead("10.244.0.2"); n.flows[1].Owed = false }, []string{webDead, dbDead}},
	"one of its clients gets answers":    {func(n *node) { n.dead("10.244.0.2"); n.flows[1].Owed, n.flows[1].Expires = false, 86399 }, nil},
	"its clients have just sent":         {func(n *node) { n.dead("10.244.0.2"); n.flows[1].Expires, n.flows[3].Expires = 199, 199 }, []string{webDead, dbDead}},
	"its clients wait for nothing":       {func(n *node) { n.dead("10.244.0.2"); n.idle() }, []string{webDead, dbDead}},
	"its host lives, its clients have just sent": {func(n *node) {
		n.dead("10.244.0.2")
		n.flows[1].Expires, n.flows[3].Expires, n.refuses["10.244.0.2"] = 199, 199, true
	}, nil},
	"its host lives, its clients wait for nothing": {func(n *node) { n.dead("10.244.0.2"); n.idle(); n.refuses["10.244.0.2"] = true }, nil},
	"no other host refuses":                        {func(n *node) { n.dead("10.244.0.2"); n.idle(); n.filtered = true }, nil},
	"silent for a moment": {func(n *node) {
		n.dead("10.244.0.2")
		n.idle()
		n.after(pace / 2)
		n.silent["10.244.0.2"] = false
	}, nil},
	"another endpoint of its node answers": {func(n *node) { n.dead("10.244.0.2"); n.idle(); n.slice("other", "!10.244.0.3", "10.244.0.3") }, nil},
	"the only endpoint of a Service, on a node that is dead": {func(n *node) {
		n.dead("10.244.0.2")
		n.silent["10.244.0.3"] = true
		n.idle()
		n.slice("other", "!10.244.0.3", "10.244.0.3")
	}, []string{webDead, dbDead, "10.96.0.3 10.244.0.3"}},
	"the only endpoint of a Service": {func(n *node) {
		n.silent["10.244.0.3"] = true
		n.idle()
		n.slice("other", "!10.244.0.3", "10.244.0.3")
	}, nil},
	"does not serve, and answers":              {func(n *node) { n.dead("10.244.0.2"); n.silent["10.244.0.2"] = false }, nil},
	"does not serve, nobody answers this node": {func(n *node) { n.dead("10.244.0.2"); n.silent["10.244.0.1"] = true }, nil},
	"moves to another slice in two steps": {func(n *node) {
		n.slice("db", "", "10.244.0.1")
		time.Sleep(moving / 2)
		n.slice("db", "", members["db"]...)
	}, nil},
	"both Services deleted, silent": {func(n *node) {
		n.silent["10.244.0.2"], n.silent["10.244.0.1"] = true, true
		n.flows[1].Owed, n.flows[1].Expires = true, 200-overdue // its client waits
		for _, s := range []string{"web", "db"} {
			n.DeleteService(types.NamespacedName{Namespace: "ns", Name: s})
			n.DeleteSlice(types.NamespacedName{Namespace: "ns", Name: s + "-1"})
		}
	}, []string{webDead}},
	"nobody answers this node": {func(n *node) {
		n.silent["10.244.0.2"], n.silent["10.244.0.1"] = true, true
		n.slice("web", "", "10.244.0.1")
		n.slice("db", "", "10.244.0.1")
	}, []string{dbDead}},
	"rules not in force": {func(n *node) { n.held = true; n.slice("db", "", "10.244.0.1") }, nil},
	"leaves during a look, rules not in force": {func(n *node) {
		n.during = func() { n.held = true; n.slice("db", "", "10.244.0.1") }
		n.slice("other", "")
	}, nil},
	"another process has the node": {func(n *node) { n.standby = true; n.slice("db", "", "10.244.0.1") }, nil},
	"slices are being read":        {func(n *node) { n.Unread(1); n.slice("db", "", "10.244.0.1") }, nil},
	"the table cannot be read":     {func(n *node) { n.failure = errors.New("no"); n.slice("db", "", "10.244.0.1") }, nil},
}

// TestLook checks which connections are ended a second after a change.
func TestLook(t *testing.T) {
	for name, tt := range lookCases {
		t.Run(name, func(t *testing.T) {
			withNode(t, func(t *testing.T, n *node) {
				tt.change(n)
				n.after(time.Second)
				kit.Check(t, slices.Equal(n.table, tt.want) && n.ended <= 0,
					"ending %q, want %q; %d ended", n.table, tt.want, n.ended)
			})
		})
	}
}

// TestEndpointReturns checks that an endpoint that is back keeps its connections, and that
// one that dies later than it leaves is found.
func TestEndpointReturns(t *testing.T) {
	withNode(t, func(t *testing.T, n *node) {
		both := func(endpoints ...string) {
			n.slice("web", "", endpoints...)
			n.slice("db", "", endpoints...)
		}
		both("10.244.0.1")
		n.after(10 * time.Second)
		n.silent["10.244.0.2"] = true
		n.after(maxPause)
		want := []string{webDead, dbDead}
		kit.Need(t, slices.Equal(n.table, want), "ending %q, want %q", n.table, want)
		both(members["web"]...)
		n.after(3 * pace) // a look may come between the two changes
		kit.Check(t, len(n.table) == 0 && n.ended <= 0,
			"ending %q of an endpoint that is back; %d ended", n.table, n.ended)
	})
}

// TestEnd checks that connections are counted when they end, and that the kernel does not
// wait for ever for a client that sends nothing.
func TestEnd(t *testing.T) {
	withNode(t, func(t *testing.T, n *node) {
		n.silent["10.244.0.2"] = true
		n.slice("db", "", "10.244.0.1")
		n.slice("web", "", "10.244.0.1")
		n.after(time.Second)
		n.flows = slices.Delete(n.flows, 1, 2)
		n.after(2 * time.Second)
		begun := map[string]int{}
		for _, e := range n.begun {
			begun[fmt.Sprint(e.Port.Name, " ", e.Endpoint.Addr, " ", e.Why)] += e.Count
		}
		kit.Same(t, "begun (-want +got)", map[string]int{"web 10.244.0.2 it does not answer": 1, "db 10.244.0.2 the Service asks for it": 1}, begun)
		if want := []string{dbDead}; !slices.Equal(n.table, want) || n.ended != 1 {
			t.Errorf("ending %q, %d ended; want %q and 1", n.table, n.ended, want)
		}
		n.after(patience + maxPause)
		kit.Check(t, len(n.table) == 0 && n.ended == 1, "after %s, ending %q, %d ended", patience, n.table, n.ended)
	})
}

// TestRest checks that nothing is asked without a need, and how often with one.
func TestRest(t *testing.T) {
	withNode(t, func(t *testing.T, n *node) {
		n.failure = errors.New("not now") // a look would want another one
		n.slice("web", "", append(members["web"], "10.244.0.4")...)
		n.after(time.Hour)
		kit.Check(t, n.orphans.pause == 0, "a new endpoint leads to a look")
		n.failure = nil
		n.slice("web", "", "10.244.0.1")
		n.slice("db", "", "10.244.0.1")
		n.after(time.Hour)
		dials := 0
		for _, a := range n.dialled {
			if a == "10.244.0.2" {
				dials++
			}
		}
		kit.Check(t, dials >= 60 && dials <= 120, "an endpoint that answers was asked %d times in an hour", dials)
	})
}
