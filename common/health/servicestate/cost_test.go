// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicestate

import (
	"fmt"
	"net/http/httptest"
	"testing"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
)

// many returns a Store with 10,000 ports of 10 endpoints in force.
func many() (*Store, *service.Snapshot) {
	var ports []*service.Port
	for i := range 10000 {
		ports = append(ports, port(fmt.Sprintf("s%05d", i), service.IPv4, 10))
	}
	b, s := &Store{}, service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
	b.Result(service.IPv4, reconcile.Result{Snapshot: s, Generation: 1})
	return b, s
}

// BenchmarkOneChange records a round for one port of 10,000.
func BenchmarkOneChange(b *testing.B) {
	store, s := many()
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		name := service.PortName{Namespace: "shop", Name: fmt.Sprintf("s%05d", i*7919%10000), Protocol: service.TCP}
		next := port(name.Name, service.IPv4, 9)
		s = s.With(s.Generation+1, s.Node, []service.Change{{Old: s.Port(service.IPv4, name), New: next}})
		store.Result(service.IPv4, reconcile.Result{Snapshot: s, Generation: s.Generation})
	}
}

// BenchmarkAll answers /services with 10,000 Services.
func BenchmarkAll(b *testing.B) {
	store, _ := many()
	h := store.Handler(func() ProxyInfo { return ProxyInfo{} })
	b.ReportAllocs()
	for b.Loop() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/services", nil))
		b.SetBytes(int64(w.Body.Len()))
	}
}

// BenchmarkOne answers for one Service of 10,000.
func BenchmarkOne(b *testing.B) {
	store, _ := many()
	h := store.Handler(func() ProxyInfo { return ProxyInfo{} })
	b.ReportAllocs()
	for b.Loop() {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/services/shop/s05000", nil))
	}
}
