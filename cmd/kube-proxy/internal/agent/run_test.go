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
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/lease"
	"kubeproxy/common/logging"
	"kubeproxy/common/metrics"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
	"kubeproxy/test/poll"
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
		Tracked:        func() *metrics.Tracked { return nil },
	}
}

const testShop = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\nspec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}\n"

// freeAddress returns an address of this machine on which nobody listens.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestRun starts a proxy, changes a manifest, and has it reload two configurations: one
// that it can apply and one that needs a new process.
func TestRun(t *testing.T) {
	dir := t.TempDir()
	manifest, file := filepath.Join(dir, "shop.yaml"), filepath.Join(t.TempDir(), "c.yaml")
	server := freeAddress(t)
	quiet := confHead + "healthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: " + server + "\nhostnameOverride: node-a\n"
	write(t, manifest, testShop)
	write(t, file, quiet)
	var log program.Log
	toy, other := toymode.New("toy"), toymode.New("other")
	o := NewOptions(mode.Table{toy.Mode(), other.Mode()})
	o.Flags.Config, o.Manifests, o.FlagSet = file, []string{dir}, pflag.NewFlagSet("", pflag.ContinueOnError)
	c, err := o.Load(config.Linux)
	if err != nil {
		t.Fatal(err)
	}
	logs, err := logging.Start(&c.Logging, &log)
	defer klog.StopFlushDaemon()
	if err != nil {
		t.Fatal(err)
	}
	ctx := klog.NewContext(t.Context(), logs.Logger)
	started, ended := make(chan bool, 1), make(chan error, 1)
	process := Process{Build: metrics.Build{GitVersion: "v1"}, Logs: logs, Started: func() { started <- true }, StopBegan: func(context.Context) time.Time { return time.Now() }}
	go func() { ended <- testSystem().Run(ctx, o, process, c) }()
	<-started
	awaitPorts := func(ports int) {
		t.Helper()
		for {
			select {
			case s := <-toy.Programmed:
				if s.Len(service.IPv4) == ports {
					return
				}
			case <-time.After(time.Minute):
				t.Fatalf("no round for %d ports:\n%s", ports, log.String())
			}
		}
	}
	awaitPorts(1)
	poll.Until(t, "status knows the mode and the Service", func() bool {
		answer, err := (&statusview.Query{Server: server}).Ask(t.Context())
		return err == nil && answer.Mode == "toy" && len(answer.Services) == 1 && answer.Services[0].State == servicestate.Programmed
	})
	write(t, manifest, testShop+"---\n"+strings.NewReplacer("web", "api", "10.96.0.10", "10.96.0.11").Replace(testShop))
	awaitPorts(2)
	write(t, file, quiet+"clusterCIDR: 10.244.0.0/16\n")
	poll.Until(t, "the file is in force", func() bool { return strings.Contains(log.String(), "The configuration file changed and is in force") })
	write(t, file, quiet+"mode: other\n")
	select {
	case err := <-ended:
		if !errors.Is(err, ErrRestart) || !strings.Contains(log.String(), "Stopped; the rules stay in force") {
			t.Errorf("ended with %v, want %v:\n%s", err, ErrRestart, log.String())
		}
	case <-time.After(time.Minute):
		t.Fatalf("goes on with a configuration that needs a new process:\n%s", log.String())
	}
}
