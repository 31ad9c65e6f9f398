// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/generate"
	"kubeproxy/test/kit"
)

// TestPollingFindsExternalChanges checks that foreign changes of virtual servers are
// found long before the sync period is over, and that polling stays within its limit.
func TestPollingFindsExternalChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake(service.IPv4)
		b := newBackend(service.IPv4, k, Options{})
		s := snapshot(web(0, 2, service.TCP))
		apply(t, b, s)
		delete(k.servers, first)
		if p := planOf(t, b, s); !p.Empty() {
			t.Fatalf("at once: %s", p.Changes())
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var touches atomic.Int32
		go func() { _ = b.Watch(ctx, func() { touches.Add(1) }) }()
		time.Sleep(2*pollInterval + time.Millisecond)
		kit.Need(t, touches.Load() != 0, "nobody looks")
		p := planOf(t, b, s)
		if len(p.Outcome().Drift) == 0 {
			t.Errorf("a virtual server that is gone is no drift: %s", p.Changes())
		}
		if err := p.Apply(ctx).Err; err != nil || k.servers[first] == nil {
			t.Errorf("Apply: %v; virtual servers: %v", err, k.servers)
		}
		b.poller.polled(time.Now().Add(-time.Second)) // simulates a read of this duration
		touches.Store(0)
		time.Sleep(pollShare*time.Second - pollInterval)
		if n := touches.Load(); n > 0 {
			t.Errorf("after a look that took a second, %d more within %s", n, pollShare*time.Second)
		}
	})
}

// TestServiceDeletedDuringPoll deletes a Service in a sync that reads the kernel state.
// Its server must be gone, also where leftovers of an earlier process have to stay.
func TestServiceDeletedDuringPoll(t *testing.T) {
	for name, c := range map[string]struct {
		exclude []netip.Prefix
		partial bool
	}{
		"in an excluded prefix":          {[]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}, false},
		"while something cannot be read": {nil, true},
	} {
		k := newFake(service.IPv4)
		apply(t, newBackend(service.IPv4, k, Options{}), snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP)))
		b, one := newBackend(service.IPv4, k, Options{Exclude: c.exclude}), web(0, 1, service.TCP)
		s := snapshot(one)
		s.Incomplete = c.partial
		apply(t, b, s)
		b.poller.requested.Store(true)
		_, p := applyChanges(t, b, s, service.Change{Old: one})
		_, routed := k.routes[first.Addr]
		if len(p.Outcome().Drift) > 0 || routed || k.servers[first] != nil || len(k.servers) != 1 {
			t.Errorf("%s: the drift is %q, the addresses are %v and the virtual servers %v", name, p.Outcome().Drift, k.routes, k.servers)
		}
	}
}

// TestListLeavesOut checks that a server missing in a list is not taken for deleted.
func TestListLeavesOut(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	s := snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP))
	apply(t, b, s)
	for range 2 {
		k.omitted = []service.Address{first}
		b.poller.requested.Store(true)
		if p := planOf(t, b, s); !p.Empty() || len(p.Outcome().Drift) > 0 {
			t.Errorf("the drift is %q, and to do:\n%s", p.Outcome().Drift, p.Changes())
		}
	}
	delete(k.servers, first)
	b.poller.requested.Store(true)
	if p := apply(t, b, s); len(p.Outcome().Drift) != 2 || k.servers[first] == nil {
		t.Errorf("the drift is %q, and there are %v", p.Outcome().Drift, k.servers)
	}
}

// slow delays reads of single virtual servers.
type slow struct{ *fake }

func (s slow) Server(ctx context.Context, at service.Address) (*observedServer, error) {
	time.Sleep(time.Second)
	return s.fake.Server(ctx, at)
}

// TestMuchIsGoneAtOnce checks that after many servers were deleted at once, the next
// poll is not delayed: it has less to read.
func TestMuchIsGoneAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake(service.IPv4)
		b := newBackend(service.IPv4, k, Options{})
		s := snapshot(web(0, 1, service.TCP), web(1, 1, service.TCP))
		apply(t, b, s)
		clear(k.servers)
		b.driver = slow{k}
		b.poller.requested.Store(true)
		apply(t, b, s)
		if wait := time.Until(time.Unix(0, b.poller.nextPoll.Load())); wait > pollInterval {
			t.Errorf("nobody looks for %s, want %s", wait, pollInterval)
		}
	})
}

// TestOtherSourceIsNoDrift checks that the node's own connections get another source
// when the API names another node address first, and that this is not reported as drift.
func TestOtherSourceIsNoDrift(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	s := snapshot(web(0, 1, service.TCP))
	apply(t, b, s)
	p := apply(t, b, s.With(2, &service.Node{NodePorts: service.AnyAddress(), Addrs: []netip.Addr{generate.OtherNodeAddr[0]}}, nil))
	wantLines(t, p, "+ address 10.96.0.0, reached from 198.51.100.1")
	if drift := p.Outcome().Drift; len(drift) > 0 {
		t.Errorf("the drift is %q", drift)
	}
}

// TestSettingsAreCompared checks that each read of the kernel state compares settings,
// too, and that a change does not. At the start all settings count, later those of IPVS.
func TestSettingsAreCompared(t *testing.T) {
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	s := snapshot(web(0, 2, service.TCP))
	if p := apply(t, b, s); len(p.Outcome().Drift) > 0 {
		t.Errorf("at the start, drift is %q", p.Outcome().Drift)
	}
	kit.Check(t, slices.Equal(k.scopes, []settingsScope{scopeStartup}) && len(k.missingSettings) == 0,
		"looked at %v, which leaves %q", k.scopes, k.missingSettings)
	k.missingSettings = []string{"net.ipv4.vs.conntrack = 1"}
	if p := planOf(t, b, s); !p.Empty() {
		t.Errorf("a round that compares nothing: %s", p.Changes())
	}
	b.poller.requested.Store(true)
	p := apply(t, b, s)
	if drift := p.Outcome().Drift; !slices.Equal(drift, []string{"altered: setting net.ipv4.vs.conntrack = 1"}) || len(k.missingSettings) > 0 {
		t.Errorf("the drift is %q, and %q is left", drift, k.missingSettings)
	}
	kit.Check(t, slices.Equal(k.scopes, []settingsScope{scopeStartup, scopeRunning}), "looked at %v", k.scopes)
}

// TestLoadingDoesNotSlowPolling checks that the time for loading IPVS does not delay
// later polls.
func TestLoadingDoesNotSlowPolling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newFake(service.IPv4)
		b := newBackend(service.IPv4, k, Options{})
		k.loadTime = time.Second
		apply(t, b, snapshot(web(0, 2, service.TCP)))
		if next := time.Until(time.Unix(0, b.poller.nextPoll.Load())); next > pollInterval {
			t.Errorf("the next look is in %s, want %s", next, pollInterval)
		}
	})
}
