// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/klog/v2"

	"kubeproxy/common/condition"
	"kubeproxy/common/metrics"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
)

const confHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// newTestProxy returns a proxy in mode nftables that programs nothing.
func newTestProxy(o *Options, c *config.Config, log klog.Logger) *proxy {
	s := System{OS: config.Linux, Tracked: func() *metrics.Tracked { return nil }, Processes: func() string { return "" }}
	d, _ := o.Modes.Find("nftables", config.Linux)
	x := &Selected{Descriptor: d, Config: c, conditions: &report.DataplaneConditions{}, Backends: []*mode.Backend{{Mode: "nftables", Family: service.IPv4}}}
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
	if err != nil {
		t.Fatal(err)
	}
	r := &reloader{proxy: newTestProxy(o, c, klog.Logger{})}
	kit.WriteFile(t, path, confHead+"clientConnection: {kubeconfig: "+filepath.Join(t.TempDir(), "nothing")+"}\n")
	if err := r.newFollower().CheckNow(t.Context()); err != nil {
		t.Errorf("look = %v, want the process to go on", err)
	}
	why := r.reports.Health.Report().Conditions[string(condition.Configuration)]
	if !strings.Contains(why, "clientConnection.kubeconfig") || !strings.Contains(why, "could not start") {
		t.Errorf("condition %q, want the field that needs a process which could not start", why)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	c.Mode = config.NFTables // as mode selection does
	log, logText := kit.NewLog(2)
	r := &reloader{proxy: newTestProxy(o, c, log), servers: newTestServers(t, "127.0.0.1:0").servers}
	f := r.newFollower()
	check := func() {
		t.Helper()
		logText.Reset()
		if err := f.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
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
		if err := r.apply(t.Context(), c, []config.Change{{Path: "clusterCIDR", Effect: effect}}); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(text.String(), "Pods cannot be distinguished") != warns {
			t.Errorf("effect %v, log:\n%s", effect, text)
		}
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
	s.start(ctx, s.config)
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
		s.start(ctx, c)
		if first, second := <-results, <-results; first != "health true" || second != "metrics false" {
			t.Errorf("%s, %s, want that the health server serves", first, second)
		}
		if !answers(addr) {
			t.Error("no answer of the health server")
		}
	}
}

// moveTo waits for the first attempt at another address.
func (s *testServers) moveTo(t *testing.T, addr string) error {
	t.Helper()
	for len(s.failed) > 0 {
		<-s.failed
	}
	s.config.HealthzBindAddress = addr
	s.reconfigure(t.Context(), s.config)
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
	if err != nil {
		t.Fatal(err)
	}
	if err := s.moveTo(t, second); err == nil {
		t.Error("no error about an address that somebody else has")
	}
	if !answers(first) {
		t.Error("the old address was given up for one that cannot be had")
	}
	other.Close()
	kit.Until(t, "the second address", func() bool { return answers(second) && !answers(first) })

	all := "0.0.0.0:" + portOf(second) // which includes the second
	if err := s.moveTo(t, all); err != nil {
		t.Errorf("to every address: %v", err)
	}
	kit.Until(t, "every address", func() bool { return answers("127.0.0.2:" + portOf(second)) })
	if err := s.moveTo(t, "127.0.0.1:0"); err != nil || answers(second) {
		t.Errorf("switched off: %v, it answers: %v", err, answers(second))
	}
}
