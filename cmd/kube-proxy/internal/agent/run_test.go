// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/lease"
	"kubeproxy/common/logging"
	"kubeproxy/common/metrics"
	"kubeproxy/common/report"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
	"kubeproxy/test/toymode"
)

// testSystem is a system on which nothing is watched.
func testSystem() System {
	return System{
		OS:             config.Linux,
		LeaseTransport: func(string) (lease.Transport, lease.Identity) { return nil, lease.Identity{} },
		Processes:      func() string { return "" },
		KeepPrepared:   func(ctx context.Context, _ host.Preparation) { <-ctx.Done() },
		KeepSettings:   func(context.Context, *config.Config, []byte) error { return nil },
		Tracked:        func() *metrics.Tracked { return nil },
	}
}

const testShop = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}\n"

// freeAddress returns an address of this machine on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	defer l.Close()
	return l.Addr().String()
}

// runningProxy is a proxy that runs in this process.
type runningProxy struct {
	dir    string // its manifests
	file   string // its configuration, which is
	config string
	server string // the address of its metrics
	log    program.Log
	ended  chan error
}

// startProxy starts a proxy, with the first mode of modes, on s.
func startProxy(t *testing.T, s System, modes mode.Table) *runningProxy {
	t.Helper()
	return startProxyOf(t, s, modes, func(*Options, *config.Config) {})
}

// startProxyOf is startProxy after change.
func startProxyOf(t *testing.T, s System, modes mode.Table, change func(*Options, *config.Config)) *runningProxy {
	t.Helper()
	p := &runningProxy{dir: t.TempDir(), file: filepath.Join(t.TempDir(), "c.yaml"), server: freeAddress(t), ended: make(chan error, 1)}
	p.config = confHead + "healthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: " + p.server + "\nhostnameOverride: node-a\n"
	kit.WriteFile(t, filepath.Join(p.dir, "shop.yaml"), testShop)
	kit.WriteFile(t, p.file, p.config)
	o := NewOptions(modes)
	o.Flags.Config, o.Manifests, o.FlagSet = p.file, []string{p.dir}, pflag.NewFlagSet("", pflag.ContinueOnError)
	c, err := o.Load(config.Linux)
	kit.Must(t, err)
	change(o, c)
	logs, err := logging.Start(&c.Logging, &p.log)
	kit.Must(t, err)
	ctx, end := context.WithCancel(klog.NewContext(context.Background(), logs.Logger))
	started := make(chan bool, 1)
	process := Process{Build: metrics.Build{GitVersion: "v1"}, Logs: logs, Started: func() { started <- true }, StopBegan: func(context.Context) time.Time { return time.Now() }}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.ended <- s.Run(ctx, o, process, c)
	}()
	t.Cleanup(func() {
		end()
		<-done
		klog.StopFlushDaemon()
	})
	select {
	case <-started:
	case err := <-p.ended:
		t.Fatal(err)
	}
	return p
}

// TestRun starts a proxy, changes a manifest, adds one that cannot be read at first, and has
// it reload two configurations: one that it can apply and one that needs a new process.
func TestRun(t *testing.T) {
	toy, other := toymode.New("toy"), toymode.New("other")
	p := startProxy(t, testSystem(), mode.Table{toy.Mode(), other.Mode()})
	await := func(ports int, incomplete bool) {
		t.Helper()
		for {
			select {
			case s := <-toy.Programmed:
				if s.Len(service.IPv4) == ports && s.Incomplete == incomplete {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("no round for %d ports, incomplete %t:\n%s", ports, incomplete, p.log.String())
			}
		}
	}
	await(1, false)
	kit.Until(t, "status knows the mode and the Service", func() bool {
		answer, err := (&statusview.Query{Server: p.server}).Ask(t.Context())
		return err == nil && answer.Mode == "toy" && len(answer.Services) == 1 && answer.Services[0].State == servicestate.Programmed &&
			len(answer.Health.Sources) == 1 && answer.Health.Sources[0].Name == report.ManifestSource
	})
	for _, page := range []string{"/metrics", "/metrics/slis", "/configz", "/statusz", "/flagz"} {
		_, err := (&statusview.Query{Server: p.server}).Page(t.Context(), page)
		kit.Check(t, err == nil, "%v", err)
	}
	kit.WriteFile(t, filepath.Join(p.dir, "shop.yaml"), testShop+"---\n"+strings.NewReplacer("web", "api", "10.96.0.10", "10.96.0.11").Replace(testShop))
	await(2, false)
	third := filepath.Join(p.dir, "third.yaml")
	kit.WriteFile(t, third, "kind: Service\nmetadata: {name: [")
	await(2, true) // so no backend takes away what the file may have held before
	kit.WriteFile(t, third, strings.NewReplacer("web", "third", "10.96.0.10", "10.96.0.12").Replace(testShop))
	await(3, false)
	kit.WriteFile(t, p.file, p.config+"clusterCIDR: 10.244.0.0/16\n")
	kit.Until(t, "the file is in force", func() bool { return strings.Contains(p.log.String(), "The configuration file changed and is in force") })
	kit.WriteFile(t, p.file, p.config+"mode: other\n")
	select {
	case err := <-p.ended:
		kit.Check(t, errors.Is(err, ErrRestart) && strings.Contains(p.log.String(), "Stopped; the rules stay in force"),
			"ended with %v, want %v:\n%s", err, ErrRestart, p.log.String())
	case <-time.After(time.Minute):
		t.Fatalf("goes on with a configuration that needs a new process:\n%s", p.log.String())
	}
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, b := kit.NewLog(0)
		p := newProgress(log, report.NewSources().Unsynced)
		p.expect("x")
		p.expect("y")
		ended := make(chan bool)
		go func() { ended <- p.wait(t.Context()) }()
		time.Sleep(3 * time.Second)
		p.done("x")
		p.done("x")
		time.Sleep(4 * time.Second)
		p.done("y")
		kit.Check(t, <-ended, "done, but wait says that the context ended")
		want := []string{
			`I "Still reading and programming for the first time" waitingFor="services, endpointslices, nodes, x, y" elapsed="2s"`,
			`I "Still reading and programming for the first time" waitingFor="services, endpointslices, nodes, y" elapsed="6s"`,
		}
		kit.Same(t, "log (-want +got)", want, kit.LogLines(b))
	})
}

// TestWhereSettingsComeFrom checks that the first log line names the origin of settings.
// A setting without a default comes from the file unless a flag gives it.
func TestWhereSettingsComeFrom(t *testing.T) {
	c := &config.Config{}
	c.HostnameOverride, c.ClusterCIDR = "node-a", "10.0.0.0/8"
	for situation, tt := range map[string]struct {
		file       string
		args       []string
		name, pods string
	}{
		"a file":   {"f.yaml", nil, "f.yaml", "f.yaml"},
		"flags":    {"", []string{"--hostname-override=node-a", "--cluster-cidr=10.0.0.0/8"}, "--hostname-override", "--cluster-cidr"},
		"one each": {"f.yaml", []string{"--cluster-cidr=10.0.0.0/8"}, "f.yaml", "--cluster-cidr"},
		"nothing":  {"", nil, "the default", "the default"},
	} {
		o := NewOptions(modes.All())
		o.FlagSet = pflag.NewFlagSet("", pflag.ContinueOnError)
		o.Flags.Register(o.FlagSet)
		kit.Must(t, o.FlagSet.Parse(tt.args))
		o.Flags.Config = tt.file
		name, pods := o.nameOrigin(c), o.podsOrigin(c)
		kit.Check(t, name == tt.name && pods == tt.pods, "%s: %q, %q; want %q, %q", situation, name, pods, tt.name, tt.pods)
	}
}

// TestWherePodsComeFrom checks which setting tells pods from others, and where it comes from.
func TestWherePodsComeFrom(t *testing.T) {
	const of = "f.yaml or the default"
	for _, tt := range []struct {
		mode       v1alpha1.LocalMode
		cidr       string
		args       []string
		text, from string
	}{
		{"", "", nil, "not distinguished, because no cluster CIDR is configured", of},
		{"", "10.0.0.0/8", nil, "sources in clusterCIDR 10.0.0.0/8", "f.yaml"},
		{config.ClusterCIDR, "10.0.0.0/8", []string{"--cluster-cidr=10.0.0.0/8", "--detect-local-mode=ClusterCIDR"}, "sources in clusterCIDR 10.0.0.0/8", "--cluster-cidr"},
		{config.NodeCIDR, "10.0.0.0/8", []string{"--cluster-cidr=10.0.0.0/8"}, "sources in the Node's podCIDRs", of},
		{config.NodeCIDR, "", []string{"--detect-local-mode=NodeCIDR"}, "sources in the Node's podCIDRs", "--detect-local-mode"},
	} {
		o, c := NewOptions(modes.All()), &config.Config{}
		c.DetectLocalMode, c.ClusterCIDR = tt.mode, tt.cidr
		o.FlagSet = pflag.NewFlagSet("", pflag.ContinueOnError)
		o.Flags.Register(o.FlagSet)
		kit.Must(t, o.FlagSet.Parse(tt.args))
		o.Flags.Config = "f.yaml"
		text, from := podsText(c), o.podsOrigin(c)
		kit.Check(t, text == tt.text && from == tt.from, "%+v: %q, %q", tt, text, from)
	}
}

// TestMaxConnections checks the bound where the limit of open files is low, high and unknown.
func TestMaxConnections(t *testing.T) {
	for _, tt := range []struct {
		files uint64
		known bool
		want  int
	}{{256, true, 16}, {2047, true, 127}, {2048, true, 128}, {1 << 20, true, 128}, {1<<64 - 1, true, 128}, {0, false, 128}} {
		kit.Equal(t, maxConnections(tt.files, tt.known), tt.want, "%+v", tt)
	}
}
