// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	logsapi "k8s.io/component-base/logs/api/v1"

	"kubeproxy/common/events"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/logging"
	"kubeproxy/common/metrics"
	"kubeproxy/common/printable"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// forged is the beginning of a line that foreign text tries to insert into an output.
const forged = "FORGED"

// FuzzOutputs inserts hostile text at every external input, and checks everything that is
// printed.
func FuzzOutputs(f *testing.F) {
	for _, s := range []string{
		"\x1b[2J\x1b[31m", "\r", "\u009b31m", "\x7f\b\b", "\u202egnp.exe\u2066", "a\u2028b\u0085", "\xff\xfe", "\x00", "%s%d%n", `"\`, "<script>", "x: y\n---\n", "plain",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if len(s) > 200 {
			t.Skip()
		}
		s = "x" + s + "\n" + forged
		hostileObjects(t, s)
		hostileFile(t, s)
		hostileArguments(t, s)
		hostileAnswer(t, s)
		hostileLog(t, s)
		hostileServers(t, s)
		hostileMetrics(t, s)
		hostileEvents(t, s)
	})
}

// checkPrinted fails on text that must not be printed.
func checkPrinted(t *testing.T, where, out string) {
	t.Helper()
	kit.Check(t, utf8.ValidString(out), "%s: not UTF-8: %q", where, out)
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		plain := strings.ReplaceAll(line, "\t", "")
		kit.Check(t, printable.Text(plain) == plain, "%s: control characters: %q", where, line)
		kit.Check(t, !strings.HasPrefix(line, forged), "%s: a forged line in %q", where, out)
	}
}

// runPrinted is call for hostile arguments, in a directory of its own.
func runPrinted(t *testing.T, args ...string) {
	t.Helper()
	// Some of it is good for a proxy that waits for its API server.
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	got := callUntil(ctx, t, "", args...)
	checkPrinted(t, strings.Join(args, " ")+": out", got.Out)
	checkPrinted(t, strings.Join(args, " ")+": err", got.Err)
}

// hostileObjects inserts s into all fields of manifests, and into the name of a file.
func hostileObjects(t *testing.T, s string) {
	t.Helper()
	meta := map[string]any{"name": "web", "namespace": "shop", "annotations": map[string]string{s: s}, "labels": map[string]string{s: s}}
	bad := map[string]any{"name": s, "namespace": s}
	spec := map[string]any{
		"clusterIP": "10.96.0.1", "type": "LoadBalancer", "externalIPs": []string{s, "192.0.2.1"}, "loadBalancerSourceRanges": []string{s},
		"loadBalancerClass": s, "sessionAffinity": s, "externalName": s, "trafficDistribution": s, "internalTrafficPolicy": s,
		"ports": []map[string]any{{"name": s, "port": 80, "appProtocol": s}, {"name": "http", "port": 81, "protocol": s}, {"name": "x", "port": 82, "appProtocol": s}},
	}
	objects := []map[string]any{
		{"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec},
		{"apiVersion": "v1", "kind": "Service", "metadata": bad, "spec": spec},
		{"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": map[string]any{s: 1}},
		{"apiVersion": s, "kind": s, "metadata": meta}, {"apiVersion": s, "kind": "Service"}, {"kind": s}, {"apiVersion": "v1", "kind": s},
		{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": map[string]any{"name": "web-1", "namespace": "shop", "labels": map[string]string{"kubernetes.io/service-name": "web"}},
			"addressType": "IPv4", "ports": []map[string]any{{"name": s, "port": 8080}, {"name": "x", "port": 8080}},
			"endpoints": []map[string]any{{"addresses": []string{s}}, {"addresses": []string{"10.244.0.1"}, "nodeName": s, "zone": s, "hostname": s}}},
		{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node-a", "labels": map[string]string{"topology.kubernetes.io/zone": s}},
			"spec": map[string]any{"podCIDRs": []string{s}}, "status": map[string]any{"addresses": []map[string]string{{"type": "InternalIP", "address": s}}}},
		{"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": map[string]any{"name": "x"}, "spec": map[string]any{"cidrs": []string{s}}},
	}
	dir := t.TempDir()
	for i, o := range objects {
		text, err := json.Marshal(o)
		kit.Must(t, err)
		kit.WriteFile(t, filepath.Join(dir, string(rune('a'+i))+".json"), string(text))
	}
	kit.WriteFile(t, filepath.Join(dir, "y.yaml"), "kind: \""+s+"\nmetadata: {"+s)
	name := filepath.Join(dir, strings.NewReplacer("/", "_", "\x00", "_").Replace(s)+".yaml")
	if err := os.WriteFile(name, []byte("kind: ["), 0o600); err != nil {
		t.Log(err) // some systems reject the name
	}
	for _, mode := range []string{"nftables", "iptables", "ipvs", "userspace", "kernelspace"} {
		for _, format := range []string{"text", "json"} {
			runPrinted(t, "render", "--manifests="+dir, "--hostname-override=node-a", "--proxy-mode="+mode, "-o", format)
		}
	}
	runPrinted(t, "render", "--manifests="+name, "--hostname-override="+s)
}

// hostileFile inserts s into a configuration file.
func hostileFile(t *testing.T, s string) {
	t.Helper()
	text, err := json.Marshal(map[string]any{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		s: s, "mode": s, "bindAddress": s, "healthzBindAddress": s, "metricsBindAddress": s, "clusterCIDR": s, "hostnameOverride": s, "portRange": s,
		"detectLocalMode": s, "nodePortAddresses": []string{s, s}, "featureGates": map[string]any{s: true, s + "x": s}, "showHiddenMetricsForVersion": s,
		"clientConnection": map[string]any{"contentType": s, "kubeconfig": s, s: s}, "logging": map[string]any{"format": s, "vmodule": []any{map[string]any{"filePattern": s, "verbosity": 1}}},
		"detectLocal": map[string]any{"bridgeInterface": s}, "ipvs": map[string]any{"excludeCIDRs": []string{s}, "syncPeriod": s}, "oomScoreAdj": s,
	})
	kit.Must(t, err)
	dir := t.TempDir()
	file, other := filepath.Join(dir, "a.yaml"), filepath.Join(dir, "b.yaml")
	kit.WriteFile(t, file, string(text))
	kit.WriteFile(t, other, configHead+s)
	for _, f := range []string{file, other} {
		runPrinted(t, "config", "validate", f)
		runPrinted(t, "config", "migrate", f)
		runPrinted(t, "config", "migrate", "--values", f)
		runPrinted(t, "--config", f, "--write-config-to=-")
		runPrinted(t, "status", "--config", f)
	}
}

// hostileArguments inserts s into a command line.
func hostileArguments(t *testing.T, s string) {
	t.Helper()
	if strings.Contains(s, "\x00") { // which no system passes on
		return
	}
	for _, args := range [][]string{
		{s}, {"--" + s}, {"-" + s}, {"-=" + s}, {"config", s}, {"config", "validate", s}, {"config", "validate", s, s}, {"config", "migrate", s}, {"config", "validate", "--os", s, "x"},
		{"render", "--manifests", s}, {"render", "--manifests", ".", "-o", s}, {"render", "--manifests", ".", "--hns-state", s}, {"version", s}, {"help", s}, {"completion", s},
		{"--config", s}, {"--proxy-mode", s}, {"--feature-gates", s}, {"--feature-gates", s + "=true"}, {"--v", s}, {"--vmodule", s}, {"--oom-score-adj", s}, {"--cluster-cidr", s},
		{"--kubeconfig", s}, {"--master", s}, {"--version=" + s}, {"--log-flush-frequency=0", "--write-config-to=-"}, {"--write-config-to", "/nothing/" + s}, {"--nodeport-addresses", s}, {"status", "a", s}, {"status", "--output", s}, {"service", s},
	} {
		runPrinted(t, args...)
	}
}

// hostileAnswer inserts s into all fields of a proxy's response.
func hostileAnswer(t *testing.T, s string) {
	t.Helper()
	d := &statusview.Answer{}
	poison(reflect.ValueOf(d).Elem(), s, 0)
	for _, format := range []string{"table", "wide", "json"} {
		for _, full := range []bool{false, true} {
			var out bytes.Buffer
			v := &statusview.View{Format: statusview.Format(format), Full: full, Now: time.Unix(1e9, 0)}
			kit.Must(t, v.Print(&out, d))
			checkPrinted(t, "status -o "+format, out.String())
		}
	}
}

// poison fills v with s.
func poison(v reflect.Value, s string, depth int) {
	if depth > 12 || !v.CanSet() {
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(s)
	case reflect.Struct:
		for i := range v.NumField() {
			poison(v.Field(i), s, depth+1)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		for i := range 2 {
			poison(v.Index(i), s, depth+1)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		poison(v.Elem(), s, depth+1)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		poison(key, s, depth+1)
		poison(value, s, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	}
}

// hostileLog has s in what is logged.
func hostileLog(t *testing.T, s string) {
	t.Helper()
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		log, err := logging.Start(&logsapi.LoggingConfiguration{Format: format}, &out)
		kit.Must(t, err)
		log.Error(errors.Join(errors.New(s), &fs.PathError{Op: "open", Path: s, Err: fs.ErrNotExist}), "Text "+s, "key", s, "list", []string{s})
		log.Info(s, "err", errors.New(s))
		checkPrinted(t, "log in "+format, out.String())
		if format != "json" {
			continue
		}
		for line := range strings.Lines(out.String()) {
			kit.Check(t, json.Valid([]byte(line)), "no JSON: %q", line)
		}
	}
}

// hostileServers has s in what the servers for health and Services answer.
func hostileServers(t *testing.T, s string) {
	t.Helper()
	m := health.New(health.Options{Families: []service.Family{service.IPv4}})
	m.SetCondition("x", s)
	m.Result(service.IPv4, reconcile.Result{Outcome: reconcile.Outcome{Err: errors.New(s)}})
	b := &servicestate.Store{Problems: func() []track.Problem {
		return []track.Problem{{Service: types.NamespacedName{Namespace: "shop", Name: s}, Field: s, Message: s}}
	}}
	about := func() servicestate.ProxyInfo { return servicestate.ProxyInfo{Mode: s, Node: s, Health: m.Report()} }
	for path, h := range map[string]http.Handler{"/healthz": m.Handler(health.Observer{}), "/services": b.Handler(about)} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		checkPrinted(t, path, w.Body.String())
		kit.Check(t, json.Valid(w.Body.Bytes()), "%s: no JSON: %q", path, w.Body)
	}
}

// hostileMetrics has s in every label that is not a constant.
func hostileMetrics(t *testing.T, s string) {
	t.Helper()
	var build metrics.Build
	var seen metrics.Observation
	poison(reflect.ValueOf(&build).Elem(), s, 0)
	poison(reflect.ValueOf(&seen).Elem(), s, 0)
	// Two equal ones would be one series.
	seen.Sources, seen.Conditions = seen.Sources[:1], seen.Conditions[:1]
	m := metrics.New(metrics.Options{
		Backends: []metrics.Backend{{Mode: "nftables", Family: service.IPv4}}, Build: build,
		Features: []metrics.Feature{{Name: s, Stage: s}},
	})
	m.Observe(func() metrics.Observation { return seen })
	c, to := m.Client(), url.URL{Host: s}
	c.Requests.Increment(t.Context(), s, s, s)
	c.Retries.IncrementRetry(t.Context(), s, s, s)
	c.Duration.Observe(t.Context(), s, to, time.Second)
	c.RateLimiter.Observe(t.Context(), s, to, time.Second)
	c.RequestSize.Observe(t.Context(), s, s, 1)
	c.ResponseSize.Observe(t.Context(), s, s, 1)
	c.Resolver.Observe(t.Context(), s, time.Second)
	w := httptest.NewRecorder()
	m.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	text := w.Body.String()
	checkPrinted(t, "/metrics", text)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	kit.Check(t, err == nil, "/metrics: %v in %q", err, text)
	for _, name := range []string{"kubernetes_build_info", "kubernetes_feature_enabled", "kubeproxy_condition", "kubeproxy_source_synced", "kubeproxy_relay_refused_total", "rest_client_requests_total"} {
		kit.Check(t, families[name] != nil && len(families[name].Metric) == 1, "/metrics: want one series of %s, have %v", name, families[name])
	}
}

// hostileEvents has s in messages of Events. The names are those of the API server, which
// are valid.
func hostileEvents(t *testing.T, s string) {
	t.Helper()
	sink := &kit.EventSink{}
	node := strings.Repeat("node-a.", 35) + "example"
	web := events.Object{Kind: "Service", Namespace: "shop", Name: "web", UID: "1"}
	messages := []string{s, errors.Join(errors.New(s), errors.New(s)).Error(), strings.Repeat(s, 100), strings.Repeat("x", 990) + s}
	synctest.Test(t, func(t *testing.T) {
		h, err := events.New(events.Options{Config: &rest.Config{Host: "http://127.0.0.1:1", Transport: sink}, Node: node})
		kit.Must(t, err)
		for i, m := range messages {
			h.Failed(events.Object{Kind: "Node", Name: node}, events.Topic{Reason: fmt.Sprint("RulesNotProgrammed", i)}, m)
			h.Failed(web, events.Topic{Reason: fmt.Sprint("ServiceSkipped", i), Scope: events.Cluster}, m)
		}
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			h.Run(ctx)
			close(done)
		}()
		time.Sleep(time.Minute) // of the bubble
		stop()
		<-done
	})
	written := sink.Written()
	kit.Check(t, len(written) == 2*len(messages), "%d Events, want %d", len(written), 2*len(messages))
	for _, q := range written {
		e := q.Event
		checkPrinted(t, "Event", q.Body)
		checkPrinted(t, "message of an Event", e.Message)
		n := len(e.Message)
		kit.Check(t, n != 0 && n <= 1024 && !strings.Contains(e.Message, "\n"), "a message of %d bytes: %q", n, e.Message)
		wrong := validation.IsDNS1123Subdomain(e.Name)
		kit.Check(t, len(wrong) == 0, "Event %q: %v", e.Name, wrong)
	}
}
