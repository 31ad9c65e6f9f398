// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"strings"
	"time"
)

// Admin lists what the metrics server serves. A part that is nil or empty is not served.
type Admin struct {
	Mode     string       // /proxyMode
	Metrics  http.Handler // /metrics
	SLIs     http.Handler // /metrics/slis
	Services http.Handler // /services and below
	Explain  http.Handler // /explain
	Traffic  http.Handler // /traffic
	// Config returns what /configz serves, under the name of the API group.
	Config func() any
	// Status is the content of /statusz.
	Status *Status
	// Flags returns the content of /flagz, by name of the flag.
	Flags func() map[string]string
	// Profiling serves /debug/pprof/. With a Verbosity it also serves /debug/flags/v,
	// which accepts PUT.
	Profiling bool
	Verbosity flag.Value
	// Exposed serves every part to everybody who reaches the server. Otherwise what has
	// names of Services, the configuration or internals is for clients on loopback that ask
	// an address or localhost.
	Exposed bool
}

// Handler returns the handler for all parts of a.
func (a Admin) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, "text/plain; charset=utf-8", []byte("ok"))
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
	for path, h := range map[string]http.Handler{"GET /explain": a.Explain, "GET /traffic": a.Traffic} {
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

// zpages adds the pages of https://kep.k8s.io/4827 and https://kep.k8s.io/4828, and
// /configz.
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
		{"/traffic", a.Traffic != nil},
	} {
		if p.is {
			paths = append(paths, p.path)
		}
	}
	return paths
}
