// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
)

// selectCase is a case of TestSelectMode.
type selectCase struct {
	args      []string
	file      v1alpha1.ProxyMode
	annotated v1alpha1.ProxyMode
	broken    []string // modes that cannot work
	want      string   // mode and origin
	logged    string   // in the first line of the log
	err       string   // its beginning
}

var selectCases = map[string]selectCase{
	"nothing asked for": {want: "nftables, the best that works here"},
	"no nftables": {
		broken: []string{"nftables"}, want: "iptables, the best that works here",
		logged: "nftables lacks something",
	},
	"nothing works": {
		broken: []string{"nftables", "iptables", "userspace"}, logged: "nftables lacks something",
		err: "nftables lacks something\niptables lacks something",
	},
	"a flag":                   {args: []string{"--proxy-mode=iptables"}, want: "iptables, --proxy-mode"},
	"a flag that cannot":       {args: []string{"--proxy-mode=iptables"}, broken: []string{"iptables"}, err: "iptables lacks something"},
	"a file":                   {file: "iptables", want: "iptables, kube-proxy.yaml"},
	"a file and an annotation": {file: "iptables", annotated: "nftables", want: "iptables, kube-proxy.yaml"},
	"an annotation":            {annotated: "iptables", want: "iptables, the Node's annotation " + modeAnnotation},
	"an annotation that cannot": {
		annotated: "iptables", broken: []string{"iptables"}, want: "nftables, the best that works here",
		logged: "iptables lacks something",
	},
	"an annotation that a gate forbids": {
		args: []string{"--feature-gates=KubeProxyIPVS=false"}, annotated: "ipvs", want: "nftables, the best that works here",
		logged: "mode ipvs is switched off by a feature gate",
	},
	"fallback": {
		args: []string{"--proxy-mode=ipvs", "--proxy-mode-fallback"}, broken: []string{"ipvs"},
		want: "iptables, --proxy-mode-fallback, since ipvs cannot work here", logged: "ipvs lacks something",
	},
	"fallback not needed": {args: []string{"--proxy-mode=iptables", "--proxy-mode-fallback"}, want: "iptables, --proxy-mode"},
	"fallback leads nowhere": {
		args: []string{"--proxy-mode=iptables", "--proxy-mode-fallback"}, broken: []string{"iptables", "userspace"},
		logged: "iptables lacks something",
		err:    "iptables lacks something\nuserspace lacks something",
	},
	"fallback is for old modes": {
		args: []string{"--proxy-mode=nftables", "--proxy-mode-fallback"}, broken: []string{"nftables"}, err: "nftables lacks something",
	},
}

// TestSelectMode checks the order in which modes are tried for each origin, and the
// reasons for modes that cannot work.
func TestSelectMode(t *testing.T) {
	for situation, tt := range selectCases {
		t.Run(situation, func(t *testing.T) {
			o := NewOptions(modes.All())
			o.FlagSet = pflag.NewFlagSet("", pflag.ContinueOnError)
			o.Flags.Register(o.FlagSet)
			o.FlagSet.BoolVar(&o.Fallback, "proxy-mode-fallback", false, "")
			kit.Must(t, o.FlagSet.Parse(tt.args))
			c, err := config.Load(&o.Flags, config.Linux)
			kit.Must(t, err)
			if tt.file != "" {
				c.Mode, o.Flags.Config = tt.file, "kube-proxy.yaml"
			}
			logger, log := kit.NewLog(0)
			x, err := selectMode(logger, o.Candidates(c, tt.annotated), func(w Candidate) (*Selected, error) {
				if slices.Contains(tt.broken, string(w.Name)) {
					return nil, fmt.Errorf("%s lacks something", w.Name)
				}
				return &Selected{Config: w.configFor(c), Origin: w.origin}, nil
			})
			got, text := "", ""
			if x != nil {
				got = string(x.Config.Mode) + ", " + x.Origin
			}
			if err != nil {
				text = err.Error()
			}
			kit.Check(t, got == tt.want && strings.HasPrefix(text, tt.err) && (tt.err != "" || text == ""),
				"mode %q, error %q; want %q, %q", got, text, tt.want, tt.err)
			first, _, _ := strings.Cut(log.String(), "\n")
			if (tt.logged == "") != (log.Len() == 0) || !strings.Contains(first, tt.logged) {
				t.Errorf("log:\n%swant %q first", log.String(), tt.logged)
			}
		})
	}
}

// Modes whose rules have the names that every service proxy uses refuse to serve
// labelled Services alone.
func TestCheckNamed(t *testing.T) {
	table := modes.All()
	for _, d := range table {
		if err := table.CheckNamed(&config.Config{}, d); err != nil {
			t.Errorf("mode %s without a name: %v", d.Name, err)
		}
		err := table.CheckNamed(&config.Config{ProxyName: "mesh"}, d)
		if d.Name == config.NFTables {
			kit.Check(t, err == nil, "%v", err)
			continue
		}
		want := fmt.Sprintf("mode %s cannot work with --service-proxy-name mesh: its rules have the names that every service proxy uses, so those of the proxy that serves the other Services would be removed; take mode nftables on Linux, where the table has the name in its own, or leave the name out", d.Name)
		kit.Check(t, err != nil && err.Error() == want, "mode %s with a name: %v\nwant %s", d.Name, err, want)
	}
}

// TestSelectOfNone checks that a table without a mode for the system is an error.
func TestSelectOfNone(t *testing.T) {
	x, err := selectMode(klog.Background(), nil, nil)
	kit.Check(t, x == nil && errors.Is(err, mode.ErrNoSystem), "selectMode = %v, %v", x, err)
}

// deafBackend has rules in order, and a watch that ends once.
type deafBackend struct {
	auditor
	watches atomic.Int32
}

func (d *deafBackend) Watch(ctx context.Context, _ func()) error {
	if d.watches.Add(1) == 1 {
		return errors.New("messages were lost")
	}
	<-ctx.Done()
	return nil
}

// TestWatchEnds checks that a watch begins again, and that the rules are looked at then:
// nobody saw what changed meanwhile.
func TestWatchEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &deafBackend{}
		d.good.Store(true)
		m := &member{Backend: &mode.Backend{Backend: d}, loop: reconcile.NewLoop(d)}
		m.loop.Resync = time.Hour
		want := service.New(1, &service.Node{}, nil)
		m.loop.Latest, m.loop.Report = func() *service.Snapshot { return want }, func(reconcile.Result) {}
		ctx, end := context.WithCancel(t.Context())
		go func() { _ = m.loop.Run(ctx) }()
		go func() { _ = m.watch(ctx) }()
		time.Sleep(time.Minute)
		watches, rounds := d.watches.Load(), d.asked.Load()
		kit.Check(t, watches == 2 && rounds == 2, "%d watches and %d rounds in a minute, want two of each", watches, rounds)
		end()
		synctest.Wait()
	})
}

// TestModeRequest reads the annotation of the Node if no mode is configured.
func TestModeRequest(t *testing.T) {
	node := func(mode string) string {
		return fmt.Sprintf(`{"kind": "NodeList", "apiVersion": "v1", "items": [{"metadata": {"name": "node-a", "annotations": {%q: %q}}}]}`, modeAnnotation, mode)
	}
	for situation, tt := range map[string]struct {
		mode      v1alpha1.ProxyMode // that is configured
		os        config.OS
		answer    string // empty: the API server fails
		annotated v1alpha1.ProxyMode
		logged    string
	}{
		"a mode":              {os: config.Linux, answer: node("iptables"), annotated: "iptables", logged: "The Node asks for a mode"},
		"a mode to come":      {os: config.Linux, answer: node("ipvs"), annotated: "ipvs", logged: "The Node asks for a mode"},
		"no such mode":        {os: config.Linux, answer: node("magic"), logged: "does not exist, which is ignored"},
		"one of Windows":      {os: config.Linux, answer: node("kernelspace"), logged: "does not exist, which is ignored"},
		"no annotation":       {os: config.Linux, answer: node("")},
		"no Node":             {os: config.Linux, answer: `{"kind": "NodeList", "apiVersion": "v1", "items": []}`},
		"no answer":           {os: config.Linux, logged: "cannot be read now"},
		"something is chosen": {mode: "nftables", os: config.Linux, answer: node("iptables")},
		"on Windows":          {os: config.Windows, answer: node("iptables")},
	} {
		t.Run(situation, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				got := r.URL.Query().Get("fieldSelector")
				kit.Check(t, got == "metadata.name=node-a", "asked for %q", got)
				if tt.answer == "" {
					http.Error(w, "not now", http.StatusServiceUnavailable)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, tt.answer)
			}))
			defer server.Close()
			c := &config.Config{OS: tt.os}
			c.Mode = tt.mode
			logger, log := kit.NewLog(0)
			ctx := klog.NewContext(t.Context(), logger)
			got := newModeRequest(ctx, c, NewOptions(modes.All()), &source.APIServer{Config: &rest.Config{Host: server.URL}, NodeName: "node-a"})
			if want := (modeRequest{tt.mode, tt.annotated}); got != want || !strings.Contains(log.String(), tt.logged) || tt.logged == "" && log.Len() > 0 {
				t.Errorf("request %v, log %q; want %v, %q", got, log.String(), want, tt.logged)
			}
		})
	}
	c := &config.Config{OS: config.Linux}
	got := newModeRequest(t.Context(), c, NewOptions(modes.All()), &source.Manifests{})
	kit.Check(t, got == (modeRequest{}), "with manifests, request %v", got)
}

// TestModeRequestOfManifests finds the Node among other files, some of them unreadable.
func TestModeRequestOfManifests(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml": "kind: Node: no",
		"b.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: node-b, annotations: {net.experimental.kubernetes.io/proxy-mode: ipvs}}\n",
		"c.yaml": "apiVersion: v1\nkind: Node\nmetadata: {name: node-a, annotations: {net.experimental.kubernetes.io/proxy-mode: userspace}}\n",
	} {
		kit.WriteFile(t, filepath.Join(dir, name), text)
	}
	c := &config.Config{OS: config.Linux}
	from := &source.Manifests{Paths: []string{filepath.Join(dir, "missing"), dir}, NodeName: "Node-A"}
	got := newModeRequest(t.Context(), c, NewOptions(modes.All()), from)
	kit.Check(t, got == (modeRequest{annotated: "userspace"}), "request %v", got)
	c.Mode = "iptables"
	if got := newModeRequest(t.Context(), c, NewOptions(modes.All()), from); got.annotated != "" {
		t.Errorf("with a configured mode, request %v", got)
	}
}
