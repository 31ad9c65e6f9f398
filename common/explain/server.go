// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"sync"

	"k8s.io/apimachinery/pkg/types"

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
	// Pod looks a pod up, as for Query. It is nil where pods cannot be looked up.
	Pod func(context.Context, types.NamespacedName) (addrs []netip.Addr, node string, err error)

	one sync.Mutex // one request at a time, because reading a dataplane takes long
}

// Refusal is the answer to a question that cannot be answered.
type Refusal struct {
	Error string `json:"error"`
	// UnknownPod means that the question can be asked again with addresses of the pod.
	UnknownPod bool `json:"unknownPod,omitempty"`
}

// Handler serves GET /explain?source=S&destination=D&interface=I. A client that knows the
// pod in the source adds podAddress=A, which may be repeated, and podNode=N. The answer
// is an Explanation, or status 400 with a Refusal.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		v := q.URL.Query()
		x, err := s.answer(q.Context(), Query{
			Source: v.Get("source"), Destination: v.Get("destination"), Interface: v.Get("interface"), Local: s.Local, Pod: s.pods(q.Context(), v),
		})
		if err != nil {
			_, unknown := errors.AsType[*UnknownPodError](err)
			health.ReplyJSON(w, http.StatusBadRequest, Refusal{err.Error(), unknown})
			return
		}
		health.ReplyJSON(w, http.StatusOK, x)
	})
}

// pods returns the function that looks pods up: in the question, or on the server.
func (s *Server) pods(ctx context.Context, v url.Values) func(types.NamespacedName) ([]netip.Addr, string, error) {
	if given := v["podAddress"]; len(given) > 0 {
		return func(types.NamespacedName) (addrs []netip.Addr, node string, err error) {
			for _, text := range given {
				a, err := service.ParseAddr(text)
				if err != nil {
					return nil, "", fmt.Errorf("podAddress: %w", err)
				}
				addrs = append(addrs, a)
			}
			return addrs, v.Get("podNode"), nil
		}
	}
	if s.Pod == nil {
		return nil
	}
	return func(id types.NamespacedName) ([]netip.Addr, string, error) { return s.Pod(ctx, id) }
}

func (s *Server) answer(ctx context.Context, q Query) (*Explanation, error) {
	s.one.Lock()
	defer s.one.Unlock()
	m := Model{s.Tracker, s.Tracker.Latest(), s.Relays}
	if m.Snapshot == nil {
		return nil, errNotRead
	}
	x, c, err := m.Answer(q)
	if err != nil || !c.To.IsValid() {
		return x, err
	}
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
