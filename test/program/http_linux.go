// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"kubeproxy/test/netlab"
)

// The default addresses of the proxy's servers, as dialled on its own host.
const (
	HealthAddr  = "127.0.0.1:10256"
	MetricsAddr = "127.0.0.1:10249"
)

// Response is a response over HTTP.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Fetch requests a page from h. An error means that there was no response.
func Fetch(ctx context.Context, h *netlab.Host, addr, path string) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, ReplyTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return Response{}, err
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return h.Dial(ctx, network, addr)
	}}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return Response{}, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return Response{answer.StatusCode, answer.Header, body}, err
}

// Fetch requests a page from the proxy, on its own host. A missing response fails the
// test.
func (r *Proxy) Fetch(t testing.TB, addr, path string) Response {
	t.Helper()
	page, err := Fetch(t.Context(), r.host, addr, path)
	if err != nil {
		t.Fatalf("GET %s%s: %v", addr, path, err)
	}
	return page
}

// Status returns the HTTP status of a page, 0 without a response. Tests poll it.
func (r *Proxy) Status(t testing.TB, addr, path string) int {
	t.Helper()
	page, err := Fetch(t.Context(), r.host, addr, path)
	if err != nil {
		return 0
	}
	return page.Status
}

// JSON reads a page of the metrics server into to.
func (r *Proxy) JSON(t testing.TB, path string, to any) {
	t.Helper()
	page := r.Fetch(t, MetricsAddr, path)
	if page.Status != http.StatusOK {
		t.Fatalf("GET %s: status %d\n%s", path, page.Status, page.Body)
	}
	if err := json.Unmarshal(page.Body, to); err != nil {
		t.Fatalf("GET %s: %v\n%s", path, err, page.Body)
	}
}

// Metric returns the sum of all samples of a metric with these labels, given as
// alternating names and values, and whether there is one. For a histogram or a summary it
// sums the counts.
func (r *Proxy) Metric(t testing.TB, name string, labels ...string) (sum float64, found bool) {
	t.Helper()
	page := r.Fetch(t, MetricsAddr, "/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(bytes.NewReader(page.Body))
	if err != nil {
		t.Fatalf("metrics: %v", err)
	}
	for _, m := range all[name].GetMetric() {
		if !hasLabels(m, labels) {
			continue
		}
		found = true
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue() +
			float64(m.GetHistogram().GetSampleCount()) + float64(m.GetSummary().GetSampleCount())
	}
	return sum, found
}

func hasLabels(m *dto.Metric, labels []string) bool {
	has := map[string]string{}
	for _, l := range m.GetLabel() {
		has[l.GetName()] = l.GetValue()
	}
	for i := 0; i+1 < len(labels); i += 2 {
		if has[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// Memory returns the resident set of the proxy in bytes, and its peak.
func (r *Proxy) Memory(t testing.TB) (now, peak int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Pid()))
	if err != nil {
		t.Fatalf("memory of the proxy: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) != 3 || words[2] != "kB" {
			continue
		}
		kilobytes, err := strconv.ParseInt(words[1], 10, 64)
		if err != nil {
			t.Fatalf("memory of the proxy: %q: %v", line, err)
		}
		switch words[0] {
		case "VmRSS:":
			now = kilobytes << 10
		case "VmHWM:":
			peak = kilobytes << 10
		}
	}
	if now == 0 {
		t.Fatal("memory of the proxy: it has ended")
	}
	return now, peak
}

// CPU returns the CPU time of the proxy, to a hundredth of a second.
func (r *Proxy) CPU(t testing.TB) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.Pid()))
	if err != nil {
		t.Fatalf("CPU time of the proxy: %v", err)
	}
	// The name in parentheses may contain any character, see proc_pid_stat(5).
	words := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const user, system, tick = 11, 12, 10 * time.Millisecond // USER_HZ, the unit of times in /proc
	var ticks int64
	for _, i := range []int{user, system} {
		n, err := strconv.ParseInt(words[i], 10, 64)
		if err != nil {
			t.Fatalf("CPU time of the proxy: %v", err)
		}
		ticks += n
	}
	return time.Duration(ticks) * tick
}

// Pid is its process number.
func (r *Proxy) Pid() int { return r.cmd.Process.Pid }
