// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"kubeproxy/common/lease"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/common/takeover"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/test/kit"
	"kubeproxy/test/toymode"
)

// name is a lease.Transport in memory, whose processes trust each other.
type name struct {
	mu     sync.Mutex
	holder *holder
}

// holder implements lease.Listener.
type holder struct {
	name  *name
	conns chan net.Conn
	gone  chan struct{}
	close sync.Once
}

func (n *name) Listen() (lease.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.holder != nil {
		return nil, lease.ErrHeld
	}
	n.holder = &holder{name: n, conns: make(chan net.Conn), gone: make(chan struct{})}
	return n.holder, nil
}

func (n *name) Dial(ctx context.Context) (*lease.Conn, error) {
	n.mu.Lock()
	h := n.holder
	n.mu.Unlock()
	if h == nil {
		return nil, net.ErrClosed
	}
	a, b := net.Pipe()
	select {
	case h.conns <- a:
		return &lease.Conn{Conn: b}, nil
	case <-h.gone:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (n *name) Authenticate(c *lease.Conn) error {
	c.Trusted = true
	return nil
}

func (h *holder) Accept() (*lease.Conn, error) {
	select {
	case c := <-h.conns:
		return &lease.Conn{Conn: c}, nil
	case <-h.gone:
		return nil, net.ErrClosed
	}
}

func (h *holder) Close() error {
	h.close.Do(func() {
		close(h.gone)
		h.name.mu.Lock()
		defer h.name.mu.Unlock()
		h.name.holder = nil
	})
	return nil
}

// place is Leftovers in memory.
type place struct {
	filled atomic.Bool
	remove func() // runs during a removal
}

func (p *place) String() string { return "a place" }

func (p *place) Find(context.Context) (string, error) {
	if p.filled.Load() {
		return "rules", nil
	}
	return "", nil
}

func (p *place) Remove(context.Context) error {
	p.remove()
	p.filled.Store(false)
	return nil
}

// auditor is a backend that finds something missing until good.
type auditor struct {
	reconcile.Base
	good  atomic.Bool
	asked atomic.Int32
}

func (a *auditor) Cleanup(context.Context) error { return nil }

func (a *auditor) Plan(context.Context, *service.Snapshot) (reconcile.Plan, error) {
	a.asked.Add(1)
	return audit{empty: a.good.Load()}, nil
}

// audit is the plan of an auditor.
type audit struct {
	reconcile.Plan
	empty bool
}

func (a audit) Empty() bool                { return a.empty }
func (a audit) Changes() reconcile.Changes { return reconcile.Changes{{Text: "+ a rule"}} }
func (a audit) Outcome() reconcile.Outcome { return reconcile.Outcome{} }

// withLeftovers adds a place to take over to the mode, and who audits its rules before.
func withLeftovers(d mode.Descriptor, left *place, a *auditor) mode.Descriptor {
	toy, s := d.System, *d.System
	s.Owned = func(*config.Config, service.Family) ([]string, error) { return []string{"its own"}, nil }
	s.Targets = func(context.Context, mode.Setup) ([]takeover.Target, error) {
		return []takeover.Target{{Leftovers: left, Family: service.IPv4}}, nil
	}
	s.Open = func(ctx context.Context, setup mode.Setup, families []service.Family) ([]*mode.Backend, error) {
		all, err := toy.Open(ctx, setup, families)
		for _, b := range all {
			b.Audit = func() (reconcile.Backend, error) { return a, nil }
		}
		return all, err
	}
	d.System = &s
	return d
}

const (
	balancedShop = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.10, externalTrafficPolicy: Local, healthCheckNodePort: %d, ports: [{port: 80}]}
`
	shopEndpoint = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [10.244.1.1], nodeName: node-a}]
`
)

// TestHandover has a proxy take over from an earlier one, hand the node over to a later
// one, and get it back. It removes what another proxy left only when its own rules are in
// force, again after the second time, and answers health checks of Services all the time.
// While it removes something, nobody else gets the node.
func TestHandover(t *testing.T) {
	check := netip.MustParseAddrPort(freeAddress(t))
	left, a, toy, lock := &place{}, &auditor{}, toymode.New("toy"), &name{}
	left.filled.Store(true)
	ctx, end := context.WithCancel(t.Context())
	later, ended := lease.New(lock, lease.Identity{Mode: "later"}), make(chan struct{})
	left.remove = sync.OnceFunc(func() {
		go func() {
			defer close(ended)
			later.Run(ctx, nil)
		}()
		soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		_, ok := later.Enter(soon)
		kit.Check(t, !ok, "the later proxy gets the node during a removal")
	})
	system := testSystem()
	system.LeaseTransport = func(string) (lease.Transport, lease.Identity) { return lock, lease.Identity{} }
	p := startProxy(t, system, mode.Table{withLeftovers(toy.Mode(), left, a)})
	shop := fmt.Sprintf(balancedShop, check.Port())
	kit.WriteFile(t, filepath.Join(p.dir, "shop.yaml"), shop)

	kit.Until(t, "audits after rounds", func() bool { return a.asked.Load() > 1 || !left.filled.Load() })
	kit.Check(t, left.filled.Load(), "the old rules go before the new ones are in force")
	a.good.Store(true)
	kit.Until(t, "the old rules go", func() bool { return !left.filled.Load() })

	leave, ok := later.Enter(ctx)
	kit.Need(t, ok, "the later proxy does not get the node")
	leave()
	kit.Until(t, "stands by", func() bool {
		answer, err := (&statusview.Query{Server: p.server}).Ask(t.Context())
		return err == nil && answer.Health.Standby != ""
	})
	left.filled.Store(true)
	kit.WriteFile(t, filepath.Join(p.dir, "shop.yaml"), shop+shopEndpoint)
	kit.Until(t, "a health check counts the new endpoint", func() bool {
		answer, err := http.Get("http://" + check.String())
		if err != nil {
			return false
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK
	})
	kit.Check(t, left.filled.Load(), "a standby removes the rules of the holder")
	for len(toy.Programmed) > 0 {
		for p := range (<-toy.Programmed).Ports(service.IPv4) {
			kit.Check(t, len(p.Cluster) == 0, "a standby programs the node")
		}
	}
	end()
	<-ended
	kit.Until(t, "the rules of the later proxy go", func() bool { return !left.filled.Load() })
	kit.Check(t, p.log.Has("Found what another service proxy left meanwhile"), "the rules of the later proxy are somebody's:\n%s", &p.log)
}
