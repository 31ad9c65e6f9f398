// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package trafficview

import (
	"net/http"

	"kubeproxy/common/health"
	"kubeproxy/common/traffic"
)

// Server serves the traffic of Services.
type Server struct {
	Mode, Node string
	// Collector counts. It is nil if nothing is counted; then Lack is the reason, for people.
	Collector *traffic.Collector
	Lack      string
}

type refusal struct {
	Error string `json:"error"`
}

// Handler serves GET /traffic?namespace=N&name=N&endpoints=true. The answer is a Response,
// or status 400 with an error for people.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if s.Collector == nil {
			health.ReplyJSON(w, http.StatusBadRequest, refusal{s.Lack})
			return
		}
		v := q.URL.Query()
		if namespace, name := v.Get("namespace"), v.Get("name"); name != "" && !s.Collector.Knows(namespace, name) {
			where := "in any namespace"
			if namespace != "" {
				where = "in namespace " + namespace
			}
			health.ReplyJSON(w, http.StatusBadRequest, refusal{"no Service named " + name + " is known to the proxy " + where})
			return
		}
		r := s.Collector.Read(q.Context(), traffic.Selection{
			Namespace: v.Get("namespace"), Name: v.Get("name"), Endpoints: v.Get("endpoints") == "true",
		})
		health.ReplyJSON(w, http.StatusOK, Response{s.Mode, s.Node, *r})
	})
}
