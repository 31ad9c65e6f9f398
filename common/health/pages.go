// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/printable"
	"kubeproxy/common/service"
)

// Admin lists what the metrics server serves. A part that is nil or empty is not served.
type Admin struct {
	Mode     string       // /proxyMode
	Metrics  http.Handler // /metrics
	SLIs     http.Handler // /metrics/slis
	Services http.Handler // /services and below
	Explain  http.Handler // /explain
	Survey   http.Handler // /survey
	Traffic  http.Handler // /traffic
	View     http.Handler // /view/ and below, a page for browsers
	// Config returns what /configz serves, under the name of the API group.
	Config func() any
	// Status is the content of /statusz.
	Status *Status
	// Flags returns the content of /flagz, by name of the flag.
	Flags func() map[string]string
	// Profiling serves /debug/pprof/, and with a Verbosity /debug/flags/v, which accepts PUT.
	Profiling bool
	Verbosity flag.Value
	// Exposed serves every part to everybody. Otherwise what has names of Services, the
	// configuration or internals is for clients on loopback that ask an address or localhost.
	Exposed bool
}

// Handler returns the handler for all parts of a.
func (a Admin) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, "text/plain; charset=utf-8", []byte("ok"))
	})
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, q *http.Request) {
		if a.View != nil && strings.Contains(q.Header.Get("Accept"), "text/html") {
			http.Redirect(w, q, "/view/", http.StatusFound)
			return
		}
		replyText(w, http.StatusOK, "kube-proxy serves here:\n"+strings.Join(a.paths(), "\n"))
	})
	mux.HandleFunc("GET /proxyMode", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, "text/plain; charset=utf-8", []byte(a.Mode))
	})
	for path, h := range map[string]http.Handler{
		"GET /metrics":      a.Metrics,
		"GET /metrics/slis": a.SLIs,
	} {
		if h != nil {
			mux.Handle(path, cached(h))
		}
	}
	if a.Services != nil {
		for _, path := range []string{"GET /services", "GET /services/"} {
			mux.Handle(path, a.internal(cached(a.Services))) // a cache outside would answer everybody
		}
	}
	for path, h := range map[string]http.Handler{"GET /explain": a.Explain, "GET /survey": a.Survey, "GET /traffic": a.Traffic, "GET /view/": a.View} {
		if h != nil {
			mux.Handle(path, a.internal(h))
		}
	}
	pages := http.NewServeMux()
	a.zpages(pages)
	if a.Profiling {
		a.debug(pages)
	}
	for _, path := range []string{"/configz", "/flagz", "/statusz", "/debug/"} {
		mux.Handle(path, a.internal(pages))
	}
	return mux
}

// zpages adds those of https://kep.k8s.io/4827 and https://kep.k8s.io/4828, and /configz.
func (a Admin) zpages(mux *http.ServeMux) {
	if a.Config != nil {
		mux.HandleFunc("GET /configz", func(w http.ResponseWriter, _ *http.Request) {
			ReplyJSON(w, http.StatusOK, map[string]any{"kubeproxy.config.k8s.io": a.Config()})
		})
	}
	if a.Flags != nil {
		mux.HandleFunc("GET /flagz", func(w http.ResponseWriter, _ *http.Request) { replyText(w, http.StatusOK, flagz(a.Flags())) })
	}
	if a.Status != nil {
		mux.HandleFunc("GET /statusz", func(w http.ResponseWriter, _ *http.Request) {
			replyText(w, http.StatusOK, a.Status.text(a.paths()))
		})
	}
}

// internal returns h for clients on loopback, or for all if a is exposed.
func (a Admin) internal(h http.Handler) http.Handler {
	if a.Exposed {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		from, err := netip.ParseAddrPort(q.RemoteAddr)
		if err != nil || !from.Addr().Unmap().IsLoopback() {
			replyText(w, http.StatusForbidden, q.URL.Path+" is for clients on loopback: ask 127.0.0.1 on the node, or in the pod by kubectl exec or port-forward; --expose-admin-pages serves it to all")
			return
		}
		if !namesNobody(q.Host) {
			refuseHost(w, q)
			return
		}
		h.ServeHTTP(w, q)
	})
}

// namesNobody returns whether host, from the header of a request, is an address, localhost or
// empty. Another name may be one that somebody else resolves to a loopback address, so that a
// web page of theirs reads the answer in a browser on this machine ("DNS rebinding").
func namesNobody(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "" || strings.EqualFold(host, "localhost")
}

func refuseHost(w http.ResponseWriter, q *http.Request) {
	replyText(w, http.StatusForbidden, fmt.Sprintf(
		"%s is not served under the name in Host, %q: ask an address, such as 127.0.0.1, or localhost; --expose-admin-pages serves reading it under every name", q.URL.Path, q.Host))
}

// debug adds endpoints with internals of the process that not every client should see.
func (a Admin) debug(mux *http.ServeMux) {
	mux.HandleFunc("/debug/pprof/", withLongDeadline(pprof.Index))
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", withLongDeadline(pprof.Profile))
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", withLongDeadline(pprof.Trace))
	if a.Verbosity == nil {
		return
	}
	mux.HandleFunc("GET /debug/flags/v", func(w http.ResponseWriter, _ *http.Request) {
		replyText(w, http.StatusOK, a.Verbosity.String())
	})
	mux.HandleFunc("PUT /debug/flags/v", func(w http.ResponseWriter, q *http.Request) { setVerbosity(w, q, a.Verbosity) })
}

// withLongDeadline is for answers that take long, such as a profile. It extends the read
// deadline too, because that would also cut off the answer.
func withLongDeadline(h http.HandlerFunc) http.HandlerFunc {
	const longest = 5 * time.Minute
	return func(w http.ResponseWriter, q *http.Request) {
		c, end := http.NewResponseController(w), time.Now().Add(longest)
		_ = c.SetReadDeadline(end) // unsupported by the writer of a test
		_ = c.SetWriteDeadline(end)
		h(w, q)
	}
}

// setVerbosity sets v for a client that is no web page of somebody else.
func setVerbosity(w http.ResponseWriter, q *http.Request, v flag.Value) {
	if !namesNobody(q.Host) {
		refuseHost(w, q)
		return
	}
	if err := http.NewCrossOriginProtection().Check(q); err != nil {
		replyText(w, http.StatusForbidden, "set verbosity: "+err.Error())
		return
	}
	const most = 20 // bytes, enough for any sensible number
	body, err := io.ReadAll(http.MaxBytesReader(w, q.Body, most))
	level := strings.TrimSpace(string(body))
	if err == nil {
		err = v.Set(level)
	}
	if err != nil {
		replyText(w, http.StatusBadRequest, fmt.Sprintf("set verbosity to %q: %v: want a whole number such as 4", level, err))
		return
	}
	replyText(w, http.StatusOK, "verbosity is now "+v.String())
}

// paths lists the paths that are served.
func (a Admin) paths() []string {
	paths := []string{"/healthz", "/proxyMode"}
	for _, p := range []struct {
		path string
		is   bool
	}{
		{"/configz", a.Config != nil},
		{"/debug/flags/v", a.Profiling && a.Verbosity != nil},
		{"/debug/pprof/", a.Profiling},
		{"/explain", a.Explain != nil},
		{"/flagz", a.Flags != nil},
		{"/metrics", a.Metrics != nil},
		{"/metrics/slis", a.SLIs != nil},
		{"/services", a.Services != nil},
		{"/statusz", a.Status != nil},
		{"/survey", a.Survey != nil},
		{"/traffic", a.Traffic != nil},
		{"/view/", a.View != nil},
	} {
		if p.is {
			paths = append(paths, p.path)
		}
	}
	return paths
}

// Observer is called for each answer. Its fields may be nil.
type Observer struct {
	// Answered gets the path, without its query, and the status code.
	Answered func(path string, status int)
	// Checked gets the result for each family that the answer covers.
	Checked func(path string, f service.Family, healthy bool)
}

// Handler serves /healthz, which depends on the node's eligibility for load balancers, too, and
// /livez. Both answer with a Report and 200 or 503, for all families or the one in ?family=. It is
// 503 until the first round has succeeded, so a startup probe should precede a liveness probe. A
// family counts as alive that waits for other components, is in a long round that progresses, or is
// blocked for a reason outside of the process.
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

// narrowTo reduces r to the family with a name, in any case, and reports whether there is one.
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

// Status is the content of /statusz.
type Status struct {
	Started            time.Time
	Version, GoVersion string
	// More, if set, returns additional lines by title.
	More func() map[string]string
	Now  func() time.Time // nil for time.Now
}

const formatNotice = "This page is for people and may look different in the next version."

func (s *Status) text(paths []string) string {
	now := time.Now
	if s.Now != nil {
		now = s.Now
	}
	var b strings.Builder
	fmt.Fprintf(&b, "kube-proxy statusz\n%s\n\n", formatNotice)
	fmt.Fprintf(&b, "Started: %s\n", s.Started.UTC().Format(time.UnixDate))
	fmt.Fprintf(&b, "Up: %s\n", now().Sub(s.Started).Round(time.Second))
	fmt.Fprintf(&b, "Go version: %s\nBinary version: %s\n", s.GoVersion, s.Version)
	if s.More != nil {
		more := s.More()
		for _, title := range slices.Sorted(maps.Keys(more)) {
			fmt.Fprintf(&b, "%s: %s\n", title, more[title])
		}
	}
	fmt.Fprintf(&b, "Paths: %s", strings.Join(paths, " "))
	return b.String()
}

func flagz(flags map[string]string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "kube-proxy flagz\n%s\n", formatNotice)
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		fmt.Fprintf(&b, "\n%s=%s", name, flags[name])
	}
	return b.String()
}
