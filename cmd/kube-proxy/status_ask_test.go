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

// closed returns an address where nobody listens, and nobody else will: only
// this process uses it.
func closed(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", fmt.Sprintf("127.77.%d.%d:0", byte(os.Getpid()>>8), byte(os.Getpid())))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// talker hears who calls and says something, or says nothing until they go.
func talker(t *testing.T, says string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go netlab.Serve(l, func(c net.Conn) {
		if says == "" {
			_, _ = io.Copy(io.Discard, c)
			return
		}
		_, _ = c.Read(make([]byte, 1<<12))
		_, _ = c.Write([]byte(says))
	})
	return l.Addr().String()
}

// breakOff promises more than it says, for which the server ends the
// connection.
func breakOff(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Length", "10")
	_, _ = w.Write([]byte("x"))
}

// TestNoStatus asks whoever cannot answer.
func TestNoStatus(t *testing.T) {
	monitor := health.New(health.Options{Families: []service.Family{service.IPv4}})
	known := serveBook(t, busy(), troubled())
	for name, tt := range map[string]struct {
		server string
		args   []string
		code   int
		want   string
	}{
		"not running":        {closed(t), nil, exitMute, "is the proxy running on this node?"},
		"hangs":              {talker(t, ""), []string{"--timeout=3s"}, exitMute, "accepts connections but does not answer in time"},
		"no HTTP":            {talker(t, "SSH-2.0-x\r\n\r\n"), nil, exitMute, "does not speak HTTP"},
		"breaks off":         {handle(t, breakOff), nil, exitMute, "the connection broke"},
		"unknown host":       {"no-such-host.invalid:1", nil, exitMute, "want the name or address of the node in --server"},
		"the health server":  {handle(t, monitor.Handler(health.Listener{}).ServeHTTP), nil, exitMute, "is the health server of a kube-proxy"},
		"another kube-proxy": {handle(t, health.Admin{Mode: "iptables"}.Handler().ServeHTTP), nil, exitMute, "a kube-proxy in mode iptables answers"},
		"a web server":       {handle(t, http.NotFound), nil, exitMute, "is not this proxy (HTTP status 404)"},
		"knows no status":    {handle(t, func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) }), nil, exitMute, "answers something else"},
		"login wanted":       {handle(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }), nil, exitMute, "(HTTP status 401)"},
		"no such Service":    {known, []string{"shop/none"}, exitWrong, "service shop/none is not known here"},
		"no such name":       {known, []string{"none"}, exitWrong, "no Service named none is known to the proxy in any namespace"},
	} {
		t.Run(name, func(t *testing.T) {
			got := asked(t, append(tt.args, "--server="+tt.server)...)
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
