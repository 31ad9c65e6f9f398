// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"net/http"
	"net/netip"
	"sync"

	"kubeproxy/common/health"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// Server answers questions about the node on which it runs.
type Server struct {
	Tracker *track.Tracker
	// Trace follows c through the dataplane of the node. It returns nil where the mode
	// cannot do that.
	Trace func(ctx context.Context, want *service.Snapshot, c route.Conn) (*Walk, error)
	// Local reports whether an address belongs to the node.
	Local func(netip.Addr) bool
	// Relays is as in Model.
	Relays bool

	one sync.Mutex // reading a dataplane costs time, so questions wait for each other
}

type refusal struct {
	Error string `json:"error"`
}

// Handler serves GET /explain?source=S&destination=D&interface=I. The answer is an
// Explanation, or status 400 with an error for people.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		v := q.URL.Query()
		x, err := s.answer(q.Context(), Query{Source: v.Get("source"), Destination: v.Get("destination"), Interface: v.Get("interface"), Local: s.Local})
		if err != nil {
			health.ReplyJSON(w, http.StatusBadRequest, refusal{err.Error()})
			return
		}
		health.ReplyJSON(w, http.StatusOK, x)
	})
}

func (s *Server) answer(ctx context.Context, q Query) (*Explanation, error) {
	s.one.Lock()
	defer s.one.Unlock()
	m := Model{s.Tracker, s.Tracker.Latest(), s.Relays}
	if m.Snapshot == nil {
		return nil, errNotRead
	}
	c, notes, err := m.Connection(q)
	if err != nil {
		return nil, err
	}
	x := m.Explain(c)
	x.Notes = append(notes, x.Notes...)
	walk, err := s.Trace(ctx, m.Snapshot, c)
	switch {
	case err != nil:
		x.Notes = append(x.Notes, "what is installed could not be read: "+err.Error())
	case walk == nil:
		x.Notes = append(x.Notes, "this mode cannot say yet what is installed for one connection; kube-proxy status says whether all of it is in force")
	default:
		x.Compare(walk.Path())
		x.Notes = append(x.Notes, walk.Notes...)
	}
	return x, nil
}
