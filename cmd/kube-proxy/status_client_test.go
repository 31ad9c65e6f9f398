// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"kubeproxy/common/health"
	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
)

// closedAddr returns an address without a listener. Only this process uses it, so it
// stays closed.
func closedAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.77.%d.%d:0", byte(os.Getpid()>>8), byte(os.Getpid())))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// cannedServer accepts connections and writes text, or with an empty text waits until the
// client closes.
func cannedServer(t *testing.T, text string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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

// TestNoStatus runs status against servers that cannot answer.
func TestNoStatus(t *testing.T) {
	monitor := health.New(health.Options{Families: []service.Family{service.IPv4}})
	known := serveStore(t, populatedStore(), failingReport())
	for name, tt := range map[string]struct {
		server string
		args   []string
		code   int
		want   string
	}{
		"not running":        {closedAddr(t), nil, exitUnreachable, "is the proxy running on this node?"},
		"hangs":              {cannedServer(t, ""), []string{"--timeout=3s"}, exitUnreachable, "accepts connections but does not answer in time"},
		"no HTTP":            {cannedServer(t, "SSH-2.0-x\r\n\r\n"), nil, exitUnreachable, "does not speak HTTP"},
		"breaks off":         {handle(t, truncatedResponse), nil, exitUnreachable, "the connection broke"},
		"unknown host":       {"no-such-host.invalid:1", nil, exitUnreachable, "want the name or address of the node in --server"},
		"the health server":  {handle(t, monitor.Handler(health.Observer{}).ServeHTTP), nil, exitUnreachable, "is the health server of a kube-proxy"},
		"another kube-proxy": {handle(t, health.Admin{Mode: "iptables"}.Handler().ServeHTTP), nil, exitUnreachable, "a kube-proxy in mode iptables answers"},
		"a web server":       {handle(t, http.NotFound), nil, exitUnreachable, "is not this proxy (HTTP status 404)"},
		"knows no status":    {handle(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) }), nil, exitUnreachable, "answers something else"},
		"login wanted":       {handle(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }), nil, exitUnreachable, "(HTTP status 401)"},
		"no such Service":    {known, []string{"shop/none"}, exitNotOK, "service shop/none is not known here"},
		"no such name":       {known, []string{"none"}, exitNotOK, "no Service named none is known to the proxy in any namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			got := runStatus(t, append(tt.args, "--server="+tt.server)...)
			if got.Code != tt.code || got.Out != "" || !strings.Contains(got.Err, tt.want) || strings.Count(got.Err, "\n") != 1 {
				t.Errorf("%+v, want exit %d and %q", got, tt.code, tt.want)
			}
		})
	}
}

func TestColour(t *testing.T) {
	if coloured(&strings.Builder{}) {
		t.Error("a buffer gets colours")
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if coloured(null) {
		t.Error("a file gets colours")
	}
	// Colours must not change where columns are.
	rows := [][]cell{{{"a", red}, plain("b")}, {{"long", green}, plain("c")}}
	p, c := &printer{}, &printer{colour: true}
	p.table("", "X|Y", rows)
	c.table("", "X|Y", rows)
	bare := strings.NewReplacer(string(red), "", string(green), "", string(bold), "", reset, "").Replace(c.text.String())
	if want := "X     Y\na     b\nlong  c\n"; p.text.String() != want || bare != want || !strings.Contains(c.text.String(), string(red)+"a"+reset) {
		t.Errorf("plain:\n%s\ncoloured:\n%q", p.text.String(), c.text.String())
	}
}
