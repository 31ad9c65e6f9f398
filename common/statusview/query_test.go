// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// closedAddr returns an address without a listener. Only this process uses it, so it
// stays closed.
func closedAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.77.%d.%d:0", byte(os.Getpid()>>8), byte(os.Getpid())))
	kit.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// cannedServer accepts connections and writes text, or with an empty text waits until the
// client closes.
func cannedServer(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	t.Cleanup(func() { l.Close() })
	go netlab.Serve(l, func(c net.Conn) {
		if text == "" {
			_, _ = io.Copy(io.Discard, c)
			return
		}
		_, _ = c.Read(make([]byte, 1<<12))
		_, _ = c.Write([]byte(text))
	})
	return l.Addr().String()
}

// truncatedResponse promises more bytes than it writes, so the server closes the
// connection.
func truncatedResponse(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "10")
	_, _ = w.Write([]byte("x"))
}

// TestHTTPS checks that a proxy that serves by HTTPS is asked that way, on loopback
// without regard to who signed its certificate.
func TestHTTPS(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) }))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.StartTLS()
	defer s.Close()
	if got := ask(t, s.Listener.Addr().String()); !strings.Contains(got.err, "answers something else") {
		t.Errorf("%+v, want the answer of HTTPS", got)
	}
}

// handle serves f at the address it returns.
func handle(t *testing.T, f http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestNoAnswer asks servers that cannot answer.
func TestNoAnswer(t *testing.T) {
	monitor := health.New(health.Options{Families: []service.Family{service.IPv4}})
	known := serveStore(t, populatedStore(), failingReport())
	for name, tt := range map[string]struct {
		server string
		args   []string
		code   int
		want   string
	}{
		"not running":        {closedAddr(t), nil, ExitUnreachable, "is the proxy running on this node?"},
		"hangs":              {cannedServer(t, ""), []string{"--timeout=3s"}, ExitUnreachable, "accepts connections but does not answer in time"},
		"no HTTP":            {cannedServer(t, "SSH-2.0-x\r\n\r\n"), nil, ExitUnreachable, "does not speak HTTP"},
		"breaks off":         {handle(t, truncatedResponse), nil, ExitUnreachable, "the connection broke"},
		"unknown host":       {"no-such-host.invalid:1", nil, ExitUnreachable, "want the name or address of the node in --server"},
		"the health server":  {handle(t, monitor.Handler(health.Observer{}).ServeHTTP), nil, ExitUnreachable, "is the health server of a kube-proxy"},
		"another kube-proxy": {handle(t, health.Admin{Mode: "iptables"}.Handler().ServeHTTP), nil, ExitUnreachable, "a kube-proxy in mode iptables answers"},
		"a web server":       {handle(t, http.NotFound), nil, ExitUnreachable, "is not this proxy (HTTP status 404)"},
		"for its node only": {handle(t, func(w http.ResponseWriter, q *http.Request) {
			q.RemoteAddr = "192.0.2.1:40000"
			health.Admin{Services: http.NotFoundHandler()}.Handler().ServeHTTP(w, q)
		}), nil, ExitUnreachable, "to its own node only"},
		"knows no status": {handle(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) }), nil, ExitUnreachable, "answers something else"},
		"login wanted":    {handle(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }), nil, ExitUnreachable, "(HTTP status 401)"},
		"no such Service": {known, []string{"shop/none"}, ExitUnknown, "service shop/none is not known here"},
		"no such name":    {known, []string{"none"}, ExitUnknown, "no Service named none is known to the proxy in any namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			got := ask(t, tt.server, tt.args...)
			if got.code != tt.code || got.out != "" || !strings.Contains(got.err, tt.want) || strings.Contains(got.err, "\n") {
				t.Errorf("%+v, want exit %d and %q", got, tt.code, tt.want)
			}
		})
	}
}

// TestRedirects asks a program that sends its clients elsewhere, which nobody follows.
func TestRedirects(t *testing.T) {
	followed := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed = true }))
	defer elsewhere.Close()
	server := httptest.NewServer(http.RedirectHandler(elsewhere.URL+"/secret", http.StatusFound))
	defer server.Close()
	q := Query{Server: server.Listener.Addr().String()}
	_, askErr := q.Ask(t.Context())
	_, pageErr := q.Page(t.Context(), "/metrics")
	_, _, fetchErr := q.Fetch(t.Context(), "/explain")
	for _, err := range []error{askErr, pageErr, fetchErr} {
		kit.Check(t, err != nil && !followed && strings.Contains(err.Error(), "302"), "%v, followed: %t", err, followed)
	}
}
