// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/condition"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
	"kubeproxy/test/toymode"
)

const confHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// newTestProxy returns a proxy in mode nftables that programs nothing.
func newTestProxy(o *Options, c *config.Config, log klog.Logger) *proxy {
	s := testSystem()
	d, _ := o.Modes.Find("nftables", config.Linux)
	x := &Selected{Descriptor: d, Config: c, Backends: []*mode.Backend{{Mode: "nftables", Family: service.IPv4}}}
	sources, tracker := report.NewSources(), track.New(TrackOptions(d, c, "node-a"))
	return &proxy{
		options: o, system: s, node: "node-a", active: newActiveConfig(o.Flags.Config, c), selected: x, tracker: tracker,
		reports: s.newReports(x, report.Options{Node: "node-a", Sources: sources, Tracker: tracker, Log: log}), progress: newProgress(log, sources.Unsynced), log: log,
	}
}

// TestReloadNeedsProcessThatStarts checks that a file with which no process could start
// does not end the running one.
func TestReloadNeedsProcessThatStarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	kit.WriteFile(t, path, confHead)
	o := NewOptions(modes.All())
	o.Flags.Config = path
	c, err := config.Load(&o.Flags, config.Linux)
	kit.Must(t, err)
	r := &reloader{proxy: newTestProxy(o, c, klog.Logger{})}
	kit.WriteFile(t, path, confHead+"clientConnection: {kubeconfig: "+filepath.Join(t.TempDir(), "nothing")+"}\n")
	err = r.newFollower().CheckNow(t.Context())
	kit.Check(t, err == nil, "look = %v, want the process to go on", err)
	why := r.reports.Health.Report().Conditions[string(condition.Configuration)]
	kit.Check(t, strings.Contains(why, "clientConnection.kubeconfig") && strings.Contains(why, "could not start"),
		"condition %q, want the field that needs a process which could not start", why)
	if r.active.config() != c || r.active.status()["Configuration file cannot be used"] != why {
		t.Errorf("status %v, want the old configuration and why the new one is none", r.active.status())
	}
}

// TestReloadKnowsWhatWasRead checks that a change between the start and the first check
// is reported like any other, even if it has the same meaning.
func TestReloadKnowsWhatWasRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	const quiet = confHead + "healthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: 127.0.0.1:0\n"
	kit.WriteFile(t, path, quiet)
	o := NewOptions(modes.All())
	o.Flags.Config = path
	c, err := o.Load(config.Linux)
	kit.Must(t, err)
	c.Mode = config.NFTables // as mode selection does
	log, logText := kit.NewLog(2)
	r := &reloader{proxy: newTestProxy(o, c, log), servers: newTestServers(t, "127.0.0.1:0").servers}
	f := r.newFollower()
	check := func() {
		t.Helper()
		logText.Reset()
		kit.Must(t, f.Check(t.Context()))
	}
	if check(); logText.Len() > 0 {
		t.Errorf("nothing has changed, and the log says:\n%s", logText)
	}
	kit.WriteFile(t, path, quiet+"mode: nftables\n")
	if check(); !strings.Contains(logText.String(), "means the same") {
		t.Errorf("the log says %q, want a word of the change", logText)
	}
}

// TestUnusedSettingsCauseNothing applies a file that differs in settings that are not in use.
func TestUnusedSettingsCauseNothing(t *testing.T) {
	o, c := NewOptions(modes.All()), &config.Config{}
	c.Mode, c.HealthzBindAddress, c.MetricsBindAddress = config.NFTables, "127.0.0.1:0", "127.0.0.1:0"
	log, text := kit.NewLog(2)
	for effect, warns := range map[config.Effect]bool{config.Unused: false, config.Hot: true} {
		text.Reset()
		r := &reloader{proxy: newTestProxy(o, c, log), servers: newTestServers(t, "127.0.0.1:0").servers}
		kit.Must(t, r.apply(t.Context(), c, []config.Change{{Path: "clusterCIDR", Effect: effect}}))
		kit.Check(t, strings.Contains(text.String(), "Pods cannot be distinguished") == warns,
			"effect %v, log:\n%s", effect, text)
	}
}

// testServers is a pair of servers on loopback addresses.
type testServers struct {
	*servers
	config *config.Config
	failed chan error
}

func newTestServers(t *testing.T, health string) *testServers {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	s := &testServers{config: &config.Config{}, failed: make(chan error, 100)}
	s.servers = &servers{
		group: group, running: map[string][]*runningServer{},
		reportListen: func(name string, err error) {
			if name == healthServer {
				s.failed <- err
			}
		},
		health: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
	}
	s.config.HealthzBindAddress, s.config.MetricsBindAddress = health, "127.0.0.1:0"
	s.moveBoth(ctx, s.config, s.config.BindAddressHardFail)
	return s
}

// TestServersOnOneAddress checks that the health server always has an address for both.
func TestServersOnOneAddress(t *testing.T) {
	for range 20 {
		addr := freeAddress(t)
		group, ctx := errgroup.WithContext(t.Context())
		results := make(chan string, 100)
		s := &servers{
			group: group, running: map[string][]*runningServer{},
			reportListen: func(name string, err error) { results <- fmt.Sprint(name, " ", err == nil) },
			health:       http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }),
		}
		c := &config.Config{}
		c.HealthzBindAddress, c.MetricsBindAddress = addr, addr
		s.moveBoth(ctx, c, c.BindAddressHardFail)
		first, second := <-results, <-results
		kit.Check(t, first == "health true" && second == "metrics false", "%s, %s, want that the health server serves", first, second)
		kit.Check(t, answers(addr), "no answer of the health server")
	}
}

// moveTo waits for the first attempt at another address.
func (s *testServers) moveTo(t *testing.T, addr string) error {
	t.Helper()
	for len(s.failed) > 0 {
		<-s.failed
	}
	s.config.HealthzBindAddress = addr
	s.moveBoth(t.Context(), s.config, false)
	select {
	case err := <-s.failed:
		return err
	case <-time.After(time.Minute):
		t.Fatalf("nobody tried %s", addr)
		return nil
	}
}

func answers(addr string) bool {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute}
	a, err := client.Get("http://" + addr + "/")
	if err != nil {
		return false
	}
	a.Body.Close()
	return a.StatusCode == http.StatusNoContent
}

// freeAddrs returns unused loopback addresses. Their ports are outside the range that the
// system assigns.
func freeAddrs(t *testing.T, n int) []string {
	t.Helper()
	var free []string
	for range 100 {
		l, err := net.Listen("tcp", "127.0.0.1:"+strconv.Itoa(20000+rand.IntN(10000)))
		if err != nil {
			continue
		}
		defer l.Close() // only after the others are drawn, so that none is drawn twice
		if free = append(free, l.Addr().String()); len(free) == n {
			return free
		}
	}
	t.Fatalf("%d ports are free, want %d", len(free), n)
	return nil
}

// TestServersMove checks that a server stays at its address until the new one is
// available.
func TestServersMove(t *testing.T) {
	addrs := freeAddrs(t, 2)
	first, second := addrs[0], addrs[1]
	s := newTestServers(t, first)
	kit.Until(t, "the first address", func() bool { return answers(first) })

	other, err := net.Listen("tcp", second)
	kit.Must(t, err)
	err = s.moveTo(t, second)
	kit.Check(t, err != nil, "no error about an address that somebody else has")
	kit.Check(t, answers(first), "the old address was given up for one that cannot be had")
	other.Close()
	kit.Until(t, "the second address", func() bool { return answers(second) && !answers(first) })

	all := "0.0.0.0:" + portOf(second) // which includes the second
	err = s.moveTo(t, all)
	kit.Check(t, err == nil, "to every address: %v", err)
	kit.Until(t, "every address", func() bool { return answers("127.0.0.2:" + portOf(second)) })
	if err := s.moveTo(t, "127.0.0.1:0"); err != nil || answers(second) {
		t.Errorf("switched off: %v, it answers: %v", err, answers(second))
	}
}

// lineFunc is called with each line that is logged.
type lineFunc func(line string)

func (l lineFunc) Write(line []byte) (int, error) {
	l(string(line))
	return len(line), nil
}

func (l lineFunc) logger() klog.Logger {
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(l)))
}

// TestReloadIsReportedBeforeItIsLogged checks that a log line about the configuration
// follows the condition in the health report.
func TestReloadIsReportedBeforeItIsLogged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "c.yaml")
	kit.WriteFile(t, path, confHead+"healthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: 127.0.0.1:0\n")
	o := NewOptions(modes.All())
	o.Flags.Config = path
	c, err := config.Load(&o.Flags, config.Linux)
	kit.Must(t, err)
	p := newTestProxy(o, c, klog.Logger{})
	var shown []string
	p.log = lineFunc(func(string) {
		shown = append(shown, p.reports.Health.Report().Conditions[string(condition.Configuration)])
	}).logger()
	r := &reloader{proxy: p, servers: newTestServers(t, "127.0.0.1:0").servers}
	r.reject(errors.New("no such field"))
	kit.Must(t, r.adopt(t.Context(), c, nil))
	kit.Check(t, len(shown) == 2 && shown[0] == "no such field" && shown[1] == "",
		"shown when the file was said to be bad, and then good: %q", shown)
}

func TestTrackOptions(t *testing.T) {
	prefix := netip.MustParsePrefix
	tests := map[string]struct {
		change func(*config.Config)
		want   track.Options
	}{
		"defaults":           {func(*config.Config) {}, track.Options{NodePortsPrimary: true}},
		"masquerade all":     {func(c *config.Config) { c.NFTables.MasqueradeAll = true }, track.Options{NodePortsPrimary: true, MasqueradeAll: true}},
		"for iptables only":  {func(c *config.Config) { c.IPTables.MasqueradeAll = true }, track.Options{NodePortsPrimary: true}},
		"silent endpoints":   {func(c *config.Config) { c.SilentEndpoints = config.SilentObserved }, track.Options{NodePortsPrimary: true, SilentEndpoints: track.SilentObserve}},
		"selection":          {func(c *config.Config) { c.Selection, c.SelectionSlots = config.SelectConsistent, 2039 }, track.Options{NodePortsPrimary: true, Selection: track.SelectConsistent, SelectionSlots: 2039}},
		"direct return":      {func(c *config.Config) { c.DirectReturn = true }, track.Options{NodePortsPrimary: true, DirectReturn: true}},
		"iptables":           {func(c *config.Config) { c.Mode, c.IPTables.MasqueradeAll = config.IPTables, true }, track.Options{NodePorts: service.AnyAddress(), MasqueradeAll: true}},
		"node IP":            {func(c *config.Config) { c.BindAddress = "192.0.2.1" }, track.Options{NodePortsPrimary: true, NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")}}},
		"no external IPs":    {func(c *config.Config) { c.FeatureGates = map[string]bool{"AllowServiceExternalIPs": false} }, track.Options{NodePortsPrimary: true, IgnoreExternalIPs: true}},
		"node port prefixes": {func(c *config.Config) { c.NodePortAddresses = []string{"10.0.0.0/8"} }, track.Options{NodePorts: []netip.Prefix{prefix("10.0.0.0/8"), prefix("::/0")}}},
		"Windows": {
			func(c *config.Config) { c.OS, c.NodePortAddresses = config.Windows, []string{"10.0.0.0/8"} },
			track.Options{NodePorts: []netip.Prefix{prefix("10.0.0.0/8"), prefix("::/0")}, NodePortsEverywhere: true, Listed: true},
		},
		"cluster CIDRs": {
			func(c *config.Config) { c.DetectLocalMode, c.ClusterCIDR = config.ClusterCIDR, "10.0.0.0/8,fd00::/48" },
			track.Options{NodePortsPrimary: true, Pods: service.LocalPods{Prefixes: []netip.Prefix{prefix("10.0.0.0/8"), prefix("fd00::/48")}}},
		},
		"node CIDRs": {func(c *config.Config) { c.DetectLocalMode = config.NodeCIDR }, track.Options{NodePortsPrimary: true, PodsFromNode: true}},
		"bridge": {
			func(c *config.Config) {
				c.DetectLocalMode, c.DetectLocal.BridgeInterface = config.BridgeInterface, "cni0"
			},
			track.Options{NodePortsPrimary: true, Pods: service.LocalPods{Interface: "cni0"}},
		},
		"interface prefix": {
			func(c *config.Config) {
				c.DetectLocalMode, c.DetectLocal.InterfaceNamePrefix = config.InterfaceNamePrefix, "veth"
			},
			track.Options{NodePortsPrimary: true, Pods: service.LocalPods{InterfacePrefix: "veth"}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := &config.Config{OS: config.Linux}
			c.BindAddress = "0.0.0.0"
			tt.change(c)
			tt.want.NodeName = "n"
			if c.OS == config.Linux && tt.want.SilentEndpoints == "" {
				tt.want.SilentEndpoints = track.SilentOn
			}
			if c.OS == config.Linux && tt.want.SelectionSlots == 0 {
				tt.want.Selection, tt.want.SelectionSlots = track.SelectRandom, service.DefaultSlots
			}
			ips := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
			prefixes := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
			kit.Same(t, "options (-want +got)", tt.want, TrackOptions(modes.All().Of(c), c, "n"), ips, prefixes)
		})
	}
}

func TestSyncPeriods(t *testing.T) {
	c := &config.Config{OS: config.Linux}
	of := func(d time.Duration) metav1.Duration { return metav1.Duration{Duration: d} }
	c.NFTables.MinSyncPeriod, c.NFTables.SyncPeriod = of(1), of(2)
	c.IPVS.MinSyncPeriod, c.IPVS.SyncPeriod = of(3), of(4)
	c.IPTables.MinSyncPeriod, c.IPTables.SyncPeriod = of(5), of(6)
	for name, want := range map[v1alpha1.ProxyMode][2]time.Duration{"": {1, 2}, "nftables": {1, 2}, "ipvs": {3, 4}, "iptables": {5, 6}, "userspace": {5, 6}, "kernelspace": {5, 6}} {
		if c.Mode, c.OS = name, config.Linux; name == config.Kernelspace {
			c.OS = config.Windows
		}
		s := modes.All().Of(c).Section(c)
		kit.Check(t, s.MinSyncPeriod == want[0] && s.SyncPeriod == want[1], "mode %q: %v, %v, want %v", name, s.MinSyncPeriod, s.SyncPeriod, want)
	}
}

// fakeCluster is an API server that has Services and nothing else, and knows one token.
type fakeCluster struct {
	*httptest.Server
	token    string
	services int
	watches  atomic.Int32
}

func newFakeCluster(t *testing.T, token string, services int) *fakeCluster {
	t.Helper()
	c := &fakeCluster{token: token, services: services}
	c.Server = httptest.NewTLSServer(c)
	t.Cleanup(func() {
		c.CloseClientConnections()
		c.Close()
	})
	return c
}

// ServeHTTP implements http.Handler. Watches say nothing.
func (c *fakeCluster) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	refuse := func(code int, reason string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q}`, code, reason)
	}
	kind, version := map[string]string{"services": "ServiceList", "endpointslices": "EndpointSliceList", "nodes": "NodeList"}[path.Base(q.URL.Path)], "v1"
	if strings.Contains(q.URL.Path, "discovery") {
		version = "discovery.k8s.io/v1"
	}
	switch {
	case q.Header.Get("Authorization") != "Bearer "+c.token:
		refuse(http.StatusUnauthorized, "Unauthorized")
	case kind == "":
		refuse(http.StatusNotFound, "NotFound")
	case q.URL.Query().Get("sendInitialEvents") != "":
		refuse(http.StatusUnprocessableEntity, "Invalid")
	case q.URL.Query().Get("watch") != "":
		c.watches.Add(1)
		defer c.watches.Add(-1)
		w.(http.Flusher).Flush()
		<-q.Context().Done()
	default:
		items := []any{}
		for i := range c.services {
			items = append(items, map[string]any{
				"metadata": map[string]any{"namespace": "shop", "name": fmt.Sprint("web-", i), "resourceVersion": "7"},
				"spec":     map[string]any{"clusterIP": fmt.Sprint("10.96.0.", i+1), "ports": []any{map[string]any{"port": 80}}},
			})
		}
		if kind != "ServiceList" {
			items = items[:0]
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": kind, "apiVersion": version, "metadata": map[string]any{"resourceVersion": "7"}, "items": items})
	}
}

// kubeconfig returns a kubeconfig for c.
func (c *fakeCluster) kubeconfig(token string) string {
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})
	text, _ := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "a",
		"clusters": []any{map[string]any{"name": "a", "cluster": map[string]any{"server": c.URL, "certificate-authority-data": ca}}},
		"users":    []any{map[string]any{"name": "a", "user": map[string]any{"token": token}}},
		"contexts": []any{map[string]any{"name": "a", "context": map[string]any{"cluster": "a", "user": "a"}}},
	})
	return string(text)
}

// TestKubeconfigFollowed moves a running proxy from one API server to another one by its kubeconfig, which is
// in a volume of a pod. Files that cannot be used are a condition, and change nothing.
func TestKubeconfigFollowed(t *testing.T) {
	first, second := newFakeCluster(t, "one", 1), newFakeCluster(t, "two", 2)
	volume := t.TempDir()
	file := filepath.Join(volume, "kubeconfig.conf")
	swap := 0
	put := func(text string) { // as kubelet does
		t.Helper()
		swap++
		data := fmt.Sprint("..data-", swap)
		err := os.Mkdir(filepath.Join(volume, data), 0o700)
		kit.WriteFile(t, filepath.Join(volume, data, "kubeconfig.conf"), text)
		next := filepath.Join(volume, "..next")
		kit.Must(t, errors.Join(err, os.Symlink(data, next), os.Rename(next, filepath.Join(volume, "..data"))))
	}
	if runtime.GOOS == "windows" { // Wine renames no symbolic links
		put = func(text string) { kit.WriteFile(t, file, text) }
	} else if err := os.Symlink(filepath.Join("..data", "kubeconfig.conf"), file); err != nil {
		t.Fatal(err)
	}
	put(first.kubeconfig("one"))
	toy := toymode.New("toy")
	p := startProxyOf(t, testSystem(), mode.Table{toy.Mode()}, func(o *Options, c *config.Config) { o.Manifests, c.ClientConnection.Kubeconfig = nil, file })
	latest := 0
	awaitPorts := func(n int) {
		t.Helper()
		kit.Until(t, fmt.Sprint(n, " ports"), func() bool {
			for len(toy.Programmed) > 0 {
				latest = (<-toy.Programmed).Len(service.IPv4)
			}
			return latest == n
		})
	}
	condition := func() string {
		answer, err := (&statusview.Query{Server: p.server}).Ask(t.Context())
		if err != nil {
			return err.Error()
		}
		return answer.Health.Conditions[string(condition.Kubeconfig)]
	}
	awaitPorts(1)
	for _, bad := range []struct{ text, want string }{
		{strings.Replace(first.kubeconfig("one"), first.URL, "", 1), "clusters[a].cluster.server is missing"},
		{"kind: [", "kubeconfig.conf: "},
		{second.kubeconfig("three"), second.URL + " does not work"},
	} {
		put(bad.text)
		kit.Until(t, "a condition with "+bad.want, func() bool { return strings.Contains(condition(), bad.want) })
	}
	if awaitPorts(1); first.watches.Load() != 3 || second.watches.Load() != 0 {
		t.Errorf("%d watches of the API server in use, %d of the other one", first.watches.Load(), second.watches.Load())
	}
	put(first.kubeconfig("one"))
	kit.Until(t, "no condition", func() bool { return condition() == "" })
	put(second.kubeconfig("two"))
	awaitPorts(2)
	kit.Until(t, "watches of the other API server alone", func() bool { return first.watches.Load() == 0 && second.watches.Load() == 3 })
	text := condition()
	kit.Check(t, text == "" && strings.Contains(p.log.String(), "The kubeconfig changed and is in force"), "condition %q, log:\n%s", text, p.log.String())
}
