// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// dropping does what it should, but a rule of others drops what goes to some Services. A second
// one has seen the rule go.
type dropping struct{ drops func(route.Conn) bool }

func (d dropping) Trace(_ context.Context, want *service.Snapshot, c route.Conn) (*Walk, error) {
	v := route.Decide(want, c)
	w := &Walk{Action: v.Action, Targets: map[netip.AddrPort]bool{}}
	for _, e := range v.Endpoints {
		w.Targets[e.Addr] = v.Masquerades(e)
	}
	if d.drops(c) {
		w.Others = []Other{{Hook: "forward", Table: "inet corp", Chain: "guard", Does: Drops, Rule: "rule 7", Look: "nft list table inet corp", To: []string{c.To.String()}}}
	}
	return w, nil
}

func (dropping) Close() error            { return nil }
func (dropping) Local(a netip.Addr) bool { return isNode(a) }
func isNode(a netip.Addr) bool           { return a.String() == "192.0.2.1" }

// surveyed has n Services with an endpoint each.
func surveyed(n int) *track.Tracker {
	tracker := track.New(track.Options{NodeName: "a", NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}})
	node, port := "a", int32(80)
	for i := 1; i <= n; i++ {
		name := fmt.Sprintf("s%d", i)
		tracker.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
			Spec: corev1.ServiceSpec{ClusterIP: fmt.Sprintf("10.96.%d.%d", i>>8, i&255), Ports: []corev1.ServicePort{{Port: 80}}}})
		tracker.SetSlice(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{fmt.Sprintf("10.1.%d.%d", i>>8, i&255)}, NodeName: &node}},
		})
	}
	tracker.Synced()
	return tracker
}

// TestSurveyOfMany checks that several followers share many Services, and that an error of one
// ends the survey.
func TestSurveyOfMany(t *testing.T) {
	const many = SampledFrom + 100
	together := make(chan bool)
	var followers atomic.Int32
	s := &Server{Tracker: surveyed(many), Local: isNode, Follower: func() Follower {
		followers.Add(1)
		met := runtime.GOMAXPROCS(0) == 1
		return dropping{func(route.Conn) bool {
			for !met {
				select {
				case together <- true:
				case <-together:
				}
				met = true
			}
			return false
		}}
	}}
	x, err := s.Survey(t.Context())
	kit.Must(t, err)
	if n := followers.Load(); n != int32(min(2, runtime.GOMAXPROCS(0))) || x.Followed != many || x.Connections != 2*many-1 {
		t.Errorf("%d followers followed %d Services by %d connections; want %d and %d", n, x.Followed, x.Connections, many, 2*many-1)
	}
	s.Follower = func() Follower { return failing{} }
	_, err = s.Survey(t.Context())
	kit.Check(t, err != nil, "no error of a follower that fails")
}

// failing follows nothing.
type failing struct{ dropping }

func (failing) Trace(context.Context, *service.Snapshot, route.Conn) (*Walk, error) {
	return nil, errors.New("failed")
}

// TestSurvey checks that equal causes are one, and that one which is gone is none.
func TestSurvey(t *testing.T) {
	tracker := surveyed(5)
	survey := func(drops func(followers int, c route.Conn) bool) *Survey {
		followers := 0
		s := &Server{Tracker: tracker, Local: isNode, Follower: func() Follower {
			followers++
			n := followers
			return dropping{func(c route.Conn) bool { return drops(n, c) }}
		}}
		x, err := s.Survey(t.Context())
		kit.Must(t, err)
		return x
	}
	x := survey(func(_ int, c route.Conn) bool { return c.To.Addr().String() != "10.96.0.2" })
	want := []Cause{{What: "rule 7 drops packets to %s", Look: "nft list table inet corp", Affected: 4, Services: []string{"shop/s1", "shop/s3", "shop/s4"},
		Clients: []string{"a pod", "the node"}, Command: "kube-proxy explain node 10.96.0.1:80"}}
	kit.Same(t, "causes", want, x.Causes)
	if x.Services != 5 || x.Followed != 5 || x.Connections != 9 { // a pod is no client of itself
		t.Errorf("%d Services, %d followed by %d connections; want 5, 5 and 9", x.Services, x.Followed, x.Connections)
	}
	if x := survey(func(followers int, _ route.Conn) bool { return followers == 1 }); len(x.Causes) > 0 {
		t.Errorf("a rule that is gone is a cause: %+v", x.Causes)
	}
}

// TestSurveyUnanswered counts connections that wait before and after a pause. Without any before,
// there is no pause.
func TestSurveyUnanswered(t *testing.T) {
	wait := func(client uint16, service string) map[Wait]string {
		return map[Wait]string{{netip.AddrPortFrom(netip.MustParseAddr("10.1.0.9"), client), netip.MustParseAddrPort("10.96.0.1:80")}: service}
	}
	of := func(all ...map[Wait]string) map[Wait]string {
		one := map[Wait]string{}
		for _, m := range all {
			maps.Copy(one, m)
		}
		return one
	}
	for name, c := range map[string]struct {
		looks [2]map[Wait]string
		want  string
		took  time.Duration
	}{
		"none waits":   {want: "[]"},
		"answered":     {looks: [2]map[Wait]string{wait(1, "shop/s1"), wait(2, "shop/s1")}, want: "[]", took: patience},
		"two of three": {looks: [2]map[Wait]string{of(wait(1, "shop/s1"), wait(2, "shop/s1")), of(wait(2, "shop/s1"), wait(1, "shop/s1"), wait(3, "shop/s1"))}, want: "[{shop/s1 2 kube-proxy explain 10.1.0.9 10.96.0.1:80 --probe}]", took: patience},
		"the busiest first": {looks: [2]map[Wait]string{of(wait(1, "shop/s1"), wait(2, "shop/s2"), wait(3, "shop/s2")), of(wait(1, "shop/s1"), wait(2, "shop/s2"), wait(3, "shop/s2"))},
			want: "[{shop/s2 2 kube-proxy explain 10.1.0.9 10.96.0.1:80 --probe} {shop/s1 1 kube-proxy explain 10.1.0.9 10.96.0.1:80 --probe}]", took: patience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				look := 0
				s := &Server{Tracker: surveyed(1), Local: isNode, Follower: func() Follower { return dropping{func(route.Conn) bool { return false }} },
					Waiting: func(context.Context, *service.Snapshot) (map[Wait]string, error) {
						look++
						return c.looks[look-1], nil
					}}
				began := time.Now()
				x, err := s.Survey(t.Context())
				kit.Must(t, err)
				if got := fmt.Sprint(x.Unanswered); got != c.want || time.Since(began) != c.took {
					t.Errorf("%s after %s, want %s after %s", got, time.Since(began), c.want, c.took)
				}
			})
		})
	}
	s := &Server{Tracker: surveyed(1), Local: isNode, Follower: func() Follower { return dropping{func(route.Conn) bool { return false }} },
		Waiting: func(context.Context, *service.Snapshot) (map[Wait]string, error) {
			return nil, errors.New("not permitted")
		}}
	if x, err := s.Survey(t.Context()); err != nil || !strings.Contains(strings.Join(x.Lacking, "; "), "not known: not permitted") {
		t.Errorf("without rights: %+v, %v", x, err)
	}
}
