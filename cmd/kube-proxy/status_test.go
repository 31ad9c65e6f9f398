// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/cmd/kube-proxy/internal/reading"
	"kubeproxy/common/document"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/common/terminal"
	"kubeproxy/test/kit"
)

// shopPort returns a port of a Service with a ClusterIP.
func shopPort(name, addr string, cluster ...service.Endpoint) *service.Port {
	return &service.Port{
		Family: service.IPv4, Cluster: cluster,
		Name:      service.PortName{Namespace: "shop", Name: name, Port: "http", Protocol: service.TCP},
		Frontends: []service.Frontend{{Kind: service.ClusterIP, Addr: netip.MustParseAddr(addr), Port: 80}},
	}
}

var healthy = health.Report{Healthy: true, Status: map[string]health.FamilyReport{"IPv4": {Healthy: true, LastUpdated: time.Now(), Generation: 3}}}

// serving returns the address of a proxy with these ports in force. Each request is passed
// to asked.
func serving(t *testing.T, r health.Report, asked func(*http.Request), ports ...*service.Port) string {
	t.Helper()
	want := service.New(3, &service.Node{NodePorts: service.AnyAddress()}, ports)
	labels := func(name types.NamespacedName) map[string]string { return map[string]string{"app": name.Name} }
	store := &servicestate.Store{Latest: func() *service.Snapshot { return want }, Labels: labels}
	store.Result(service.IPv4, reconcile.Result{Snapshot: want, Generation: 3, Start: time.Now()})
	handler := health.Admin{Services: store.Handler(func() servicestate.ProxyInfo { return servicestate.ProxyInfo{Health: r} })}.Handler()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked(r)
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// TestStatusFlags checks that each flag reaches what is asked and printed, and the exit
// codes.
func TestStatusFlags(t *testing.T) {
	var agent atomic.Value
	serve := func(r health.Report) string {
		return serving(t, r, func(r *http.Request) { agent.Store(r.UserAgent()) },
			shopPort("web", "10.96.0.1", service.Endpoint{Addr: netip.MustParseAddrPort("10.244.1.1:8080"), Local: true}), shopPort("empty", "10.96.0.2"))
	}
	well, ill := serve(healthy), serve(health.Report{Status: healthy.Status})
	for _, tt := range []struct {
		server, args string
		code         int
		out, err     string // parts of what is printed
	}{
		{well, "", 0, "2 Services: 1 with a port that serves no client\n", ""},
		{well, "--failing", 0, "; 1 listed\n", ""},
		{well, "-n shop", 0, "2 Services", ""},
		{well, "--namespace other", 0, "No Services\n", ""},
		{well, "-n shop web", 0, "shop/web: programmed\n", ""},
		{well, "shop/web", 0, "shop/web: programmed\n", ""},
		{well, "web -o json", 0, `"notProgrammed": 0`, ""},
		{well, "-o wide", 0, "  GENERATION", ""},
		{ill, "--timeout 30s", exitNotOK, ": not healthy\n", ""},
		{well, "none", statusview.ExitUnknown, "", "kube-proxy: no Service named none is known"},
		{well, "none --watch", statusview.ExitUnknown, "", "kube-proxy: no Service named none is known"},
		{well, "shop/none --watch", statusview.ExitUnknown, "", "kube-proxy: service shop/none is not known here"},
		{well, "svc/web:http -n shop", 0, "shop/web: programmed\n", ""},
		{well, "svc/shop/web:80/tcp", 0, "shop/web: programmed\n", ""},
		{well, "web:81", statusview.ExitUnknown, "", "kube-proxy: port 81: the Service has the ports http/tcp: want one of them"},
		{well, "-o name --sort endpoints", 0, "svc/shop/empty\nsvc/shop/web\n", ""},
		{well, "-o name -l app!=empty", 0, "svc/shop/web\n", ""},
		{well, "-o yaml web", 0, "\nsummary:\n  notProgrammed: 0\n", ""},
		{well, "-o jsonpath={.services[?(@.name==\"web\")].ports[0].endpoints}", 0, "1", ""},
		{well, "-o jsonpath=summary.services", 0, "2", ""},
		{well, "--wait", 0, "2 Services: ", ""},
		{well, "--wait=programmed web", 0, "shop/web: programmed\n", ""},
		{ill, "--wait --timeout 2s", exitNotOK, ": not healthy\n", "kube-proxy: --wait: the condition ok is not true after 2s\n"},
		{ill, "--wait=programmed", 0, ": not healthy\n", ""},
		{"127.0.0.1:1", "--wait=answers --timeout 10ms", exitUnreachable, "", "kube-proxy: "},
		{well, "none -o json", statusview.ExitUnknown, "{\n  \"ok\": false,\n  \"error\": \"no Service named none is known", "kube-proxy: no Service named none is known"},
		{well, "none -oyaml", statusview.ExitUnknown, "\n  \"exitCode\": 3\n}\n", "kube-proxy: no Service named none is known"},
		{well, "--fail --output json", exitUnreachable, "unknown flag --fail; did you mean --failing?\",\n  \"exitCode\": 2", "kube-proxy: unknown flag --fail"},
		{well, "shop/wed", statusview.ExitUnknown, "", "; did you mean shop/web?"},
		{well, "web -n other", statusview.ExitUnknown, "", "; did you mean shop/web?"},
		{"127.0.0.1", "--watch --timeout 1ns", exitUnreachable, "", "kube-proxy: no connection to 127.0.0.1:10249 in time: the address is wrong, or"},
		{"127.0.0.1", "--timeout 1ns", exitUnreachable, "", "kube-proxy: no connection to 127.0.0.1:10249 in time: the address is wrong, or"},
	} {
		args := append([]string{"status", "--server=" + tt.server}, strings.Fields(tt.args)...)
		got := call(t, "", args...)
		// A busy machine may delay the response, which prints a line more.
		if got.Code != tt.code || !strings.Contains(got.Out, tt.out) || (tt.out == "") != (got.Out == "") || !strings.Contains(got.Err, tt.err) {
			t.Errorf("%q: %+v, want exit %d, %q and %q", args, got, tt.code, tt.out, tt.err)
		}
	}
	if want := "kube-proxy-status/" + buildInfo().Version; agent.Load() != want {
		t.Errorf("asked as %q, want %q", agent.Load(), want)
	}
}

func TestColoured(t *testing.T) {
	kit.Check(t, !terminal.Coloured(&strings.Builder{}), "a buffer gets colours")
	null, err := os.Open(os.DevNull)
	kit.Must(t, err)
	defer null.Close()
	kit.Check(t, !terminal.Coloured(null), "a file gets colours")
}

// TestColumns checks that a table has one line a row where a program reads it, and fits
// into as many columns as the environment says.
func TestColumns(t *testing.T) {
	long := shopPort("a-name-of-a-service-that-has-as-many-letters-as-one-may-have-00", "10.96.0.1")
	server := serving(t, healthy, func(*http.Request) {}, long, shopPort("web", "10.96.0.2"))
	for columns, most := range map[string]int{"": document.Unlimited, "0": document.Unlimited, "80": 80, "300": 300} {
		t.Setenv("COLUMNS", columns)
		got := call(t, "", "status", "--server="+server)
		whole := strings.Contains(got.Out, "shop/"+long.Name.Name+" ")
		kit.Check(t, whole == (most > 100) && got.Code == 0, "COLUMNS=%s: %+v", columns, got)
		for line := range strings.Lines(got.Out) {
			kit.Check(t, utf8.RuneCountInString(line) <= most+1, "COLUMNS=%s: %q", columns, line)
		}
	}
}

func TestStatusMistakes(t *testing.T) {
	dir := files(t, map[string]string{
		"none.yaml": configHead + "metricsBindAddress: 127.0.0.1:0\n",
		"bad.yaml":  configHead + "mode: magic\n",
	})
	for args, want := range map[string]string{
		"-o xml":                           `--output: "xml" is unknown: want table, wide, name, json, yaml or jsonpath=TEMPLATE`,
		"a b":                              "status wants one Service, not 2",
		"a/b/c":                            `service "a/b/c": want ` + service.ReferenceForms,
		"/web":                             `service "/web": want ` + service.ReferenceForms,
		"shop/":                            `service "shop/": want ` + service.ReferenceForms,
		"shop/web -n other":                `service "shop/web" is not in the namespace of --namespace, "other"`,
		"--server http://x":                `--server: "http://x" is no address: want HOST or HOST:PORT, such as 127.0.0.1:10249 or [::1]:10249`,
		"--timeout soon":                   `--timeout: "soon" is not accepted: want a time above 0, such as 30s or 1h30m`,
		"--sort size":                      `--sort: "size" is unknown: want name, state, endpoints or since`,
		"--wait=rest":                      `--wait: "rest" is unknown: want ok, programmed or answers`,
		"--wait -w":                        "--wait ends by itself, and --watch does not: want one of them",
		"-l a,,b":                          `--selector: "a,,b" is no selector: found ',', expected: identifier after ','`,
		"-o jsonpath={.a[}":                `--output: template "{.a[}": unterminated array: want one such as {.ok} or {.services[*].name}`,
		"--timeout 0":                      `--timeout: "0" is not accepted: want a time above 0, such as 30s or 1h30m`,
		"--timeout -1s":                    `--timeout: "-1s" is not accepted: want a time above 0, such as 30s or 1h30m`,
		"--failin":                         "unknown flag --failin; did you mean --failing?",
		"--config DIR/none.yaml":           "DIR/none.yaml: metricsBindAddress has port 0, so the proxy serves no metrics and cannot be asked",
		"--config DIR/absent.yaml":         "read configuration: stat DIR/absent.yaml: no such file or directory",
		"--config DIR/bad.yaml --outptu x": "unknown flag --outptu; did you mean --output?",
	} {
		got := call(t, dir, append([]string{"status"}, strings.Fields(args)...)...)
		got.Err = strings.Replace(got.Err, "kube-proxy status wants", "status wants", 1)
		kit.Same(t, fmt.Sprintf("%q (-want +got)", args), outcome{2, "", "kube-proxy: " + want + "\n"}, got)
	}
}

func TestStatusAddress(t *testing.T) {
	dir := files(t, map[string]string{"any.yaml": configHead + "metricsBindAddress: '[::]:9999'\n", "plain.yaml": configHead})
	for _, tt := range []struct{ config, server, want string }{
		{"", "", "127.0.0.1:10249"},
		{"plain.yaml", "", "127.0.0.1:10249"},
		{"any.yaml", "", "[::1]:9999"},
		{"any.yaml", "node-b", "node-b:10249"},
		{"", "0.0.0.0:7", "127.0.0.1:7"},
		{"", ":7", "127.0.0.1:7"},
		{"", "fd00::1", "[fd00::1]:10249"},
		{"", "[fd00::1]", "[fd00::1]:10249"},
		{"", "::", "[::1]:10249"},
	} {
		q := &reading.Server{Addr: tt.server}
		if tt.config != "" {
			q.Config = filepath.Join(dir, tt.config)
		}
		got, err := q.Address()
		kit.Check(t, got == tt.want && err == nil, "address of %+v = %q, %v", tt, got, err)
	}
}

func TestTopMistakes(t *testing.T) {
	for args, want := range map[string]string{
		"-o xml":                   `--output: "xml" is unknown: want table, json, yaml or jsonpath=TEMPLATE`,
		"--sort size":              `--sort: "size" is unknown: want rate, connections, bytes or name`,
		"--interval -1s":           "--interval: -1s is too short: want a time such as 2s",
		"--watch --interval 0":     "--interval: 0s is too short: want a time such as 2s",
		"--limit -1":               "--limit: -1 is too small: want 0 or more",
		"a b":                      "top wants one Service, not 2",
		"--server http://x":        `--server: "http://x" is no address: want HOST or HOST:PORT, such as 127.0.0.1:10249 or [::1]:10249`,
		"shop/web --namespace dns": `service "shop/web" is not in the namespace of --namespace, "dns"`,
	} {
		got := call(t, "", append([]string{"top"}, strings.Fields(args)...)...)
		kit.Same(t, fmt.Sprintf("%q (-want +got)", args), outcome{2, "", "kube-proxy: " + want + "\n"}, got)
	}
}
