// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"

	"kubeproxy/common/printable"
	"kubeproxy/common/service"
)

// Observer is called for each answer. Its fields may be nil.
type Observer struct {
	// Answered gets the path, without its query, and the status code.
	Answered func(path string, status int)
	// Checked gets the result for each family that the answer covers.
	Checked func(path string, f service.Family, healthy bool)
}

// Handler serves /healthz, which also depends on the node's eligibility for load
// balancers, and /livez, which does not. Both answer with a Report and 200 or 503, for
// all families or for the one in ?family=, IPv4 or IPv6. The answer is 503 until the
// first round has succeeded, so a startup probe should precede a liveness probe. A family
// that waits for other components counts as alive, and so does one in a long round that
// progresses.
func (m *Monitor) Handler(l Observer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, q *http.Request) { m.answer(w, q, l) })
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, q *http.Request) { m.answer(w, q, l) })
	return mux
}

const livez = "/livez"

func (m *Monitor) answer(w http.ResponseWriter, q *http.Request, l Observer) {
	r := m.Report()
	r.redact()
	m.notify(l, q.URL.Path, r)
	if name := q.URL.Query().Get("family"); name != "" && !r.narrowTo(name) {
		replyText(w, http.StatusNotFound, fmt.Sprintf("family %q is not programmed: want IPv4 or IPv6", name))
		return
	}
	status, good := http.StatusOK, r.Healthy && *r.NodeEligible
	if q.URL.Path == livez {
		r.NodeEligible, r.NodeReason = nil, ""
		good = r.alive()
	}
	if !good {
		status = http.StatusServiceUnavailable
	}
	if l.Answered != nil {
		l.Answered(q.URL.Path, status)
	}
	ReplyJSON(w, status, r)
}

func (m *Monitor) notify(l Observer, path string, r Report) {
	if l.Checked == nil {
		return
	}
	for _, f := range m.options.Families {
		s := r.Status[f.String()]
		l.Checked(path, f, s.Healthy || path == livez && s.alive())
	}
}

// narrowTo reduces r to the family with the given name, in any case. It returns false if
// there is none.
func (r *Report) narrowTo(name string) bool {
	for f, s := range r.Status {
		if strings.EqualFold(f, name) {
			r.LastUpdated, r.Healthy = s.LastUpdated, s.Healthy
			r.Status = map[string]FamilyReport{f: s}
			return true
		}
	}
	return false
}

// ReplyJSON answers with body as JSON.
func ReplyJSON(w http.ResponseWriter, status int, body any) {
	var text bytes.Buffer
	e := json.NewEncoder(printable.Writer(&text)) // curl writes it to a terminal
	e.SetEscapeHTML(false)
	if err := e.Encode(body); err != nil {
		replyText(w, http.StatusInternalServerError, "encode the answer: "+err.Error())
		return
	}
	reply(w, status, "application/json", text.Bytes())
}

func replyText(w http.ResponseWriter, status int, text string) {
	reply(w, status, "text/plain; charset=utf-8", []byte(text+"\n"))
}

func reply(w http.ResponseWriter, status int, kind string, body []byte) {
	w.Header().Set("Content-Type", kind)
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	w.Write(body)
}
