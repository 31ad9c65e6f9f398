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

// weightHeader is the header that carries the number of local endpoints, as a weight for
// load balancers.
const weightHeader = "X-Load-Balancing-Endpoint-Weight"

// answer is the body of a response.
type answer struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// handler answers every path and method, because load balancers may be configured with
// any. The status is 200 if this node has ready endpoints and the proxy is healthy, and
// 503 otherwise.
func (s *Servers) handler(port uint16) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		s.mu.Lock()
		c, ok := s.desired.Checks[port]
		s.mu.Unlock()
		if !ok { // the check was just removed
			http.NotFound(w, q)
			return
		}
		a := answer{LocalEndpoints: c.localEndpoints(q), ServiceProxyHealthy: s.healthy(c, q)}
		a.Service.Namespace, a.Service.Name = c.Namespace, c.Name
		status := http.StatusServiceUnavailable
		if a.LocalEndpoints > 0 && a.ServiceProxyHealthy {
			status = http.StatusOK
		}
		w.Header().Set(weightHeader, strconv.Itoa(a.LocalEndpoints))
		health.ReplyJSON(w, status, a)
	})
}

func (s *Servers) healthy(c Check, q *http.Request) bool {
	return !c.Unprogrammed && (s.Serving == nil || s.Serving(c.families(q)...))
}

// localEndpoints returns the count of the family that matters for q, and the largest one
// where more than one does.
func (c Check) localEndpoints(q *http.Request) int {
	families := c.families(q)
	if len(families) == 0 {
		families = service.Families[:]
	}
	n := 0
	for _, f := range families {
		n = max(n, c.LocalEndpoints[f])
	}
	return n
}

// families returns the families that matter: the one of q's connection if the
// Service has it, and otherwise all of the Service.
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
