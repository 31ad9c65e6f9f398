// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/source"
	"kubeproxy/test/kit"
)

// TestRedirectsAreRefused asks a server that sends its clients elsewhere.
func TestRedirectsAreRefused(t *testing.T) {
	followed := false
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { followed = true }))
	defer elsewhere.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		server := httptest.NewServer(http.RedirectHandler(elsewhere.URL+"/secret", status))
		defer server.Close()
		to, err := (&Options{Master: server.URL}).Config()
		kit.Must(t, err)
		client, err := rest.HTTPClientFor(to)
		kit.Must(t, err)
		q, _ := http.NewRequestWithContext(context.Background(), "GET", server.URL, nil)
		if _, err := client.Do(q); err == nil || followed || !strings.Contains(err.Error(), "a redirect to") {
			t.Errorf("status %d: %v, followed: %t", status, err, followed)
		}
	}
}

// TestMaster checks that --master is validated with a kubeconfig and without, and that
// the error names the flag, not the field that it replaces.
func TestMaster(t *testing.T) {
	for master, good := range map[string]bool{
		"192.0.2.1:6443": true, "https://192.0.2.1:6443": true, "http://localhost:8080": true, "https://[2001:db8::1]": true, "api.example": true,
		":::bad": false, "ftp://192.0.2.1": false, "http://192.0.2.1:port": false, "192.0.2.1:66666": false, "https://": false, "https://:6443": false,
	} {
		_, err := (&Options{Master: master}).Config()
		switch {
		case good && err != nil:
			t.Errorf("--master %s: %v", master, err)
		case !good && (err == nil || !strings.Contains(err.Error(), "--master: ") || !strings.Contains(err.Error(), "want one like https://")):
			t.Errorf("--master %s: %v, want an error that names the flag and the form", master, err)
		}
	}
}

const goodKubeconfig = `apiVersion: v1
kind: Config
clusters:
- {name: shop, cluster: {server: "https://192.0.2.1:6443"}}
users:
- {name: proxy, user: {token: secret}}
contexts:
- {name: here, context: {cluster: shop, user: proxy}}
current-context: here
`

// TestKubeconfigs checks that the error for each faulty kubeconfig names the file, the
// field and the expected value.
func TestKubeconfigs(t *testing.T) {
	for name, tc := range map[string]struct {
		old, now string // of the good one; all of it if old is empty
		master   string
		want     []string // nil if it is good
	}{
		"good":                        {},
		"no cluster, but --master":    {old: "clusters:\n- {name: shop, cluster: {server: \"https://192.0.2.1:6443\"}}\n", master: "https://192.0.2.2"},
		"empty":                       {now: "\n", want: []string{"names no cluster", "want clusters, users"}},
		"not YAML":                    {now: "kind: [", want: []string{"want YAML of kind Config"}},
		"of another kind":             {old: "kind: Config", now: "kind: Pod", want: []string{"Pod", "want YAML of kind Config"}},
		"no current-context":          {old: "current-context: here", want: []string{"current-context is missing", "one of here"}},
		"another current-context":     {old: "current-context: here", now: "current-context: there", want: []string{"current-context", `no context "there"`, "one of here"}},
		"no such cluster":             {old: "cluster: shop,", now: "cluster: club,", want: []string{"contexts[here].context.cluster", `no cluster "club"`, "one of shop"}},
		"no such user":                {old: "user: proxy", now: "user: nobody", want: []string{"contexts[here].context.user", `no user "nobody"`, "one of proxy"}},
		"no user":                     {old: ", user: proxy", want: []string{"contexts[here].context.user is missing", "one of proxy"}},
		"no server":                   {old: `server: "https://192.0.2.1:6443"`, want: []string{"clusters[shop].cluster.server is missing", "https://"}},
		"server of no known protocol": {old: "https://192", now: "ftp://192", want: []string{"clusters[shop].cluster.server", "ftp://192.0.2.1:6443", "want one like"}},
		"no such authority":           {old: "{server:", now: "{certificate-authority: no/ca.crt, server:", want: []string{"clusters[shop].cluster.certificate-authority", "no/ca.crt", "no such file"}},
		"authority that is none":      {old: "{server:", now: "{certificate-authority-data: aGVsbG8=, server:", want: []string{"clusters[shop].cluster.certificate-authority", "want PEM"}},
		"no such token file":          {old: "token: secret", now: "tokenFile: no/token", want: []string{"users[proxy].user.tokenFile", "no/token"}},
		"certificate that is none":    {old: "token: secret", now: "client-certificate-data: aGVsbG8=, client-key-data: aGVsbG8=", want: []string{"users[proxy].user.client-certificate-data", "want PEM"}},
	} {
		t.Run(name, func(t *testing.T) {
			text := tc.now
			if tc.old != "" || tc.now == "" {
				text = strings.Replace(goodKubeconfig, tc.old, tc.now, 1)
			}
			file := filepath.Join(t.TempDir(), "kubeconfig")
			kit.WriteFile(t, file, text)
			checkRefusal(t, file, tc.master, tc.want)
		})
	}
	t.Run("missing", func(t *testing.T) {
		checkRefusal(t, filepath.Join(t.TempDir(), "none"), "", []string{"no such file", "--kubeconfig"})
	})
	t.Run("directory", func(t *testing.T) {
		checkRefusal(t, t.TempDir(), "", []string{"is a directory", "want a file"})
	})
}

func checkRefusal(t *testing.T, file, master string, want []string) {
	t.Helper()
	to, err := readKubeconfig(file, master)
	if len(want) == 0 {
		kit.Check(t, err == nil && to.Host != "" && (master == "" || to.Host == master), "server %v, %v", to, err)
		return
	}
	kit.Need(t, err != nil, "no error, want one with %q", want)
	text := kit.Normalize(err.Error(), filepath.Dir(file))
	for _, words := range append(want, "DIR/"+filepath.Base(file)) {
		kit.Check(t, strings.Contains(text, words), "error %q, want %q in it", text, words)
	}
}

// TestRootedPaths reads files whose paths begin with a slash: on Windows, where these have no drive, those of the
// kubeconfig's drive, or those below the folder of a HostProcess pod that has them nowhere else.
func TestRootedPaths(t *testing.T) {
	dir, pod := t.TempDir(), t.TempDir()
	rooted := filepath.ToSlash(strings.TrimPrefix(dir, filepath.VolumeName(dir)))
	t.Setenv("CONTAINER_SANDBOX_MOUNT_POINT", pod)
	for path, text := range map[string]string{
		filepath.Join(dir, "token"):               "a",
		filepath.Join(pod, rooted, "token"):       "b",
		filepath.Join(pod, "run-of-pod", "token"): "c",
	} {
		kit.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)))
	}
	want := map[string]string{rooted + "/token": "a"}
	if !filepath.IsAbs("/run-of-pod") {
		want["/run-of-pod/token"] = "c"
	}
	for path, text := range want {
		file := filepath.Join(t.TempDir(), "kubeconfig")
		kit.WriteFile(t, file, strings.Replace(goodKubeconfig, "token: secret", "tokenFile: "+path, 1))
		to, err := readKubeconfig(file, "")
		if err != nil {
			t.Errorf("%s: %v", path, err)
			continue
		}
		if got, err := os.ReadFile(to.BearerTokenFile); err != nil || string(got) != text {
			t.Errorf("%s: %q of %s, %v, want %q", path, got, to.BearerTokenFile, err, text)
		}
	}
}

// TestRemedies checks that the remedy is for the component at fault: an HTTP proxy on the
// way may be the one that refuses a connection.
func TestRemedies(t *testing.T) {
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	o := &Options{Master: "192.0.2.1:6443"}
	for name, tc := range map[string]struct {
		err  error
		want string // empty for no remedy
	}{
		"nobody listens":       {refused, "nobody listens there: check --master"},
		"no proxy":             {fmt.Errorf("get: %w", &net.OpError{Op: "proxyconnect", Net: "tcp", Err: refused}), "HTTPS_PROXY"},
		"HTTP instead of TLS":  {apierrors.NewGenericServerResponse(400, "get", schema.GroupResource{}, "", "", 0, true), "--master begins with https://"},
		"login":                {apierrors.NewUnauthorized("no"), "credentials in the service account"},
		"HTML for a watch":     {runtime.NegotiateError{ContentType: "text/html", Stream: true}, "and of no API server: check --master"},
		"HTML for a list":      {errors.New("serializer for text/html doesn't exist"), "and of no API server: check --master"},
		"another server":       {&source.ReadError{Kind: "nodes", Err: apierrors.NewGenericServerResponse(404, "get", schema.GroupResource{}, "", "", 0, true)}, "it is no API server, or older"},
		"silence":              {fmt.Errorf("%w in 30s", source.ErrNoAnswer), "check --master, that its name is resolved"},
		"an end":               {&source.ReadError{Kind: "nodes", Err: source.ErrCutOff}, "speaks TLS"},
		"nothing can be known": {errors.New("a fault"), ""},
	} {
		got := o.Remedy(tc.err)
		kit.Check(t, (got == "") == (tc.want == "") && strings.Contains(got, tc.want),
			"%s: remedy %q, want %q in it", name, got, tc.want)
	}
}

// testOutages is Outages with a clock and a log of its own.
type testOutages struct {
	*Outages
	clock time.Time
	log   bytes.Buffer
}

func newTestOutages() *testOutages {
	x := &testOutages{clock: time.Unix(1e9, 0)}
	x.Outages = NewOutages(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&x.log))), func(error) string { return "" })
	x.now = func() time.Time { return x.clock }
	return x
}

func (t *testOutages) lines() []string {
	var all []string
	for line := range strings.Lines(t.log.String()) {
		_, text, _ := strings.Cut(line, "] ")
		all = append(all, text)
	}
	return all
}

func refused(kind string, port int) error {
	return &source.ReadError{Kind: kind, Err: fmt.Errorf("Get \"https://192.0.2.1/%s?v=%d\": read tcp 192.0.2.7:%d: connection reset", kind, port, port)}
}

// TestLongOutageIsAFewLines checks that an hour of failures, lasting or intermittent,
// takes a dozen lines.
func TestLongOutageIsAFewLines(t *testing.T) {
	for name, flaps := range map[string]bool{"lasts": false, "comes and goes": true} {
		t.Run(name, func(t *testing.T) {
			x := newTestOutages()
			kinds := []string{"services", "endpointslices", "nodes"}
			for i := range 720 {
				x.clock = x.clock.Add(5 * time.Second)
				kind := kinds[i%len(kinds)]
				x.RecordError(refused(kind, 30000+i))
				if flaps {
					x.Recovered(kind)
				}
			}
			for _, kind := range kinds {
				x.Recovered(kind)
			}
			lines := x.lines()
			n := len(lines)
			kit.Check(t, n >= 4 && n <= 16, "%d lines, want a dozen:\n%s", n, &x.log)
			kit.Check(t, strings.Contains(lines[0], "cannot be read") && strings.Contains(x.log.String(), "repeated="),
				"the log begins with %q, or does not report repeats:\n%s", lines[0], &x.log)
			last := lines[len(lines)-1]
			kit.Check(t, strings.Contains(last, "again"), "last line %q, want that it is over", last)
		})
	}
}

func TestEachReasonIsLogged(t *testing.T) {
	x := newTestOutages()
	x.RecordError(refused("services", 1))
	x.RecordError(&source.ReadError{Kind: "services", Err: apierrors.NewUnauthorized("who are you")})
	x.RecordError(&source.ReadError{Kind: "nodes", Err: apierrors.NewUnauthorized("who are you")})
	x.RecordError(&source.ReadError{Kind: "servicecidrs", Optional: true, Err: errors.New("not found")})
	x.RecordError(&source.ReadError{Kind: "servicecidrs", Optional: true, Err: errors.New("not found")})
	n := len(x.lines())
	kit.Check(t, n == 3, "%d lines, want one for each sort:\n%s", n, &x.log)
	x.Recovered("services")
	kit.Check(t, !strings.Contains(x.log.String(), "again"), "said to be over while nodes fail:\n%s", &x.log)
	x.Recovered("nodes")
	x.Recovered("nodes")
	if n := strings.Count(x.log.String(), "again"); n != 1 {
		t.Errorf("said to be over %d times:\n%s", n, &x.log)
	}
}
