// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package servicecheck

import (
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
)

// weightHeader tells a load balancer how much of the traffic this node can take.
const weightHeader = "X-Load-Balancing-Endpoint-Weight"

// answer is the body.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// handler answers every path and method, as load balancers may be set up to
// ask for any: 200 if this node has ready endpoints and the proxy is healthy,
// else 503.
func (s *Servers) handler(port uint16) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		s.mu.Lock()
		c, ok := s.desired.Checks[port]
		s.mu.Unlock()
		if !ok { // it has just gone
			http.NotFound(w, q)
			return
		}
		a := answer{LocalEndpoints: c.LocalEndpoints, ServiceProxyHealthy: s.healthy(c, q)}
		a.Service.Namespace, a.Service.Name = c.Namespace, c.Name
		status := http.StatusServiceUnavailable
		if a.LocalEndpoints > 0 && a.ServiceProxyHealthy {
			status = http.StatusOK
		}
		w.Header().Set(weightHeader, strconv.Itoa(c.LocalEndpoints))
		health.ReplyJSON(w, status, a)
	})
}

func (s *Servers) healthy(c Check, q *http.Request) bool {
	return !c.Unprogrammed && (s.Serving == nil || s.Serving(c.families(q)...))
}

// families returns those to ask about health: the one that q came in by if
// the Service has it, else the Service's.
func (c Check) families(q *http.Request) []service.Family {
	family, ok := arrival(q)
	if ok && slices.Contains(c.Families, family) {
		return []service.Family{family}
	}
	return c.Families
}

// arrival returns the family of the connection.
func arrival(q *http.Request) (service.Family, bool) {
	to, ok := q.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok {
		return 0, false
	}
	at, err := netip.ParseAddrPort(to.String())
	if err != nil {
		return 0, false
	}
	return service.FamilyOf(at.Addr().Unmap()), true
}
