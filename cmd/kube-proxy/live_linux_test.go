// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// inNamespace marks the second process of the test.
const inNamespace = "KUBE_PROXY_TEST_NAMESPACE"

// TestSupervise runs the real command against the real kernel, in a network namespace
// that ends with the process.
func TestSupervise(t *testing.T) {
	if os.Getenv(inNamespace) != "" {
		t.Run("live", live)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestSupervise$", "-test.v")
	cmd.Env = append(os.Environ(), inNamespace+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	netlab.Isolate(cmd)
	out, err := cmd.CombinedOutput()
	kit.Check(t, err == nil, "in the namespace: %v\n%s", err, out)
}

// safeFlags keep a test from changing what the namespace shares with the host.
var safeFlags = []string{
	"--conntrack-max-per-core=0", "--oom-score-adj=0", "--conntrack-tcp-timeout-established=0",
	"--conntrack-tcp-timeout-close-wait=0", "--hostname-override=node-a", "--cluster-cidr=10.244.0.0/16", "-v=2",
}

func live(t *testing.T) {
	dir := files(t, map[string]string{"shop.yaml": shop})
	args := append([]string{"--manifests=" + dir, "--iptables-min-sync-period=10ms"}, safeFlags...)

	first := startProxy(t, args)
	first.await(t, `"Programmed" backend="nftables IPv4"`, `"Programmed" backend="nftables IPv6"`)
	first.end(t)
	in := installed(t, dir)
	kit.Check(t, in, "the rules left with the process")

	second := startProxy(t, args)
	second.await(t, `"Programmed" backend="nftables IPv4" generation=1`, "changed=false", "oom_score_adj is 0 already")
	kit.WriteFile(t, filepath.Join(dir, "bad.yaml"), "kind: [\n")
	second.await(t, "bad.yaml")
	kit.WriteFile(t, filepath.Join(dir, "shop.yaml"), strings.Replace(shop, "10.244.1.11", "10.244.1.12", 1))
	second.await(t, `"Programmed a change" backend="nftables IPv4"`)
	second.end(t)
	if in := installed(t, dir); !in {
		t.Error("the change was not programmed")
	}

	got := call(t, "", append([]string{"--cleanup"}, safeFlags...)...)
	kit.Check(t, got.Code == 0, "cleanup: exit %d, %s", got.Code, got.Err)
	if in := installed(t, dir); in {
		t.Error("rules are there after a cleanup")
	}
	if got := call(t, "", append([]string{"--manifests=/nothing"}, safeFlags...)...); got.Code != 1 || !strings.Contains(got.Err, "/nothing") {
		t.Errorf("without the path: exit %d, %s", got.Code, got.Err)
	}
	if got := call(t, "", append([]string{"--init-only"}, safeFlags...)...); got.Code != 0 {
		t.Errorf("init only: exit %d, %s", got.Code, got.Err)
	}
}

// installed returns whether the kernel holds what the manifests in dir describe.
func installed(t *testing.T, dir string) bool {
	t.Helper()
	c := &config.Config{OS: config.Linux}
	c.ClusterCIDR, c.DetectLocalMode = "10.244.0.0/16", config.ClusterCIDR
	tracker := track.New(agent.TrackOptions(modes.All().Of(c), c, "node-a"))
	m := source.Manifests{Paths: []string{dir}, NodeName: "node-a"}
	_ = m.Load(t.Context(), tracker) // one file may be bad
	all := true
	for _, f := range service.Families {
		b, err := nftables.New(f, nftables.Options{Table: nftables.TableOf(""), MasqueradeBit: 14, DropInvalid: true})
		kit.Must(t, err)
		p, err := b.Plan(t.Context(), tracker.Latest())
		kit.Must(t, err)
		t.Logf("%s needs:\n%s", f, p.Changes())
		all = all && p.Empty()
	}
	return all
}

// process is a running proxy.
type process struct {
	stop context.CancelFunc
	code chan int
	log  *program.Log
}

func startProxy(t *testing.T, args []string) *process {
	ctx, stop := context.WithCancel(t.Context())
	p := &process{stop, make(chan int, 1), &program.Log{}}
	go func() { p.code <- execute(ctx, modes.All(), args, streams{p.log, p.log}) }()
	return p
}

// await polls until the log holds all of wants.
func (p *process) await(t *testing.T, wants ...string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for _, want := range wants {
		for !strings.Contains(p.log.String(), want) {
			kit.Need(t, !time.Now().After(deadline), "no %q in the log:\n%s", want, p.log.String())
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// end stops the proxy as a signal would.
func (p *process) end(t *testing.T) {
	t.Helper()
	p.stop()
	select {
	case code := <-p.code:
		kit.Check(t, code == 0 && strings.Contains(p.log.String(), "Stopped; the rules stay in force"), "exit %d:\n%s", code, p.log.String())
	case <-time.After(time.Minute):
		t.Fatalf("does not stop:\n%s", p.log.String())
	}
}

// TestHNSStateUnsupportedOS checks that the error names the system of the command.
func TestHNSStateUnsupportedOS(t *testing.T) {
	want := outcome{1, "", "kube-proxy: " + errNoHNS.Error() + "\n"}
	kit.Same(t, "(-want +got)", want, call(t, t.TempDir(), "hns-state"))
}
