// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/cluster"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// site is a network with a control plane, pods that serve, a client, and nodes. The
// control plane's host runs Prometheus, too.
type site struct {
	*netlab.Lab
	*cluster.Cluster
	nodes []*node
	// withSignal is whether Service signal exists.
	withSignal atomic.Bool
}

// node is a host on the LAN with a proxy.
type node struct {
	*netlab.Host
	proxy *program.Proxy
	dir   string // for files of the test
}

const control = "control"

// newSite returns a site with a node for each name.
func newSite(t *testing.T, names ...string) *site {
	t.Helper()
	s := &site{Lab: netlab.Start(t, netlab.Config{Pods: []string{"web-1", "web-2"}, Clients: append([]string{control, "customer"}, names...)})}
	for _, h := range s.webs() {
		if _, err := h.Echo("", target); err != nil {
			t.Fatal(err)
		}
	}
	s.Cluster = cluster.Start(t, cluster.Options{Host: s.Host(control)})
	for _, name := range names {
		n := &node{Host: s.Host(name), dir: t.TempDir()}
		n.forward(t)
		s.nodes = append(s.nodes, n)
	}
	if err := s.Set(t.Context(), s.objects(0)...); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) webs() []*netlab.Host { return []*netlab.Host{s.Host("web-1"), s.Host("web-2")} }

// forward makes a host of the lab a router, as a node is.
func (n *node) forward(t *testing.T) {
	t.Helper()
	err := n.Do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	})
	if err != nil {
		t.Fatalf("forward on %s: %v", n.Name, err)
	}
}

func (s *site) node(name string) *node {
	return s.nodes[slices.IndexFunc(s.nodes, func(n *node) bool { return n.Name == name })]
}

// start starts the proxy of a node. Before it come the words of wrap, such as a program
// that starts others.
func (s *site) start(t *testing.T, n *node, wrap []string, args ...string) {
	t.Helper()
	kubeconfig, err := s.Kubeconfig(cluster.Login{})
	if err != nil {
		t.Fatal(err)
	}
	cmd := kubeProxy.Command(append([]string{
		"--kubeconfig=" + kubeconfig, "--hostname-override=" + n.Name, "--cluster-cidr=" + netlab.ClusterCIDR, "--metrics-bind-address=0.0.0.0:10249",
	}, args...)...)
	if len(wrap) > 0 {
		cmd.Args = slices.Concat(wrap, []string{cmd.Path}, cmd.Args[1:])
		if cmd.Path, err = exec.LookPath(wrap[0]); err != nil {
			t.Fatal(err)
		}
	}
	n.proxy = program.Start(t, n.Host, program.With(cmd, n.commands()))
}

// commands is a folder of the node with commands of its own, "" without.
func (n *node) commands() string {
	dir := filepath.Join(n.dir, "commands")
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return dir
}

// write writes a file of a node in one step.
func (n *node) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(n.dir, name)
	if err := errors.Join(os.WriteFile(path+".next", []byte(text), 0o755), os.Rename(path+".next", path)); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs a command on a node.
func (n *node) run(ctx context.Context, stdin string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	out := &program.Log{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), out, out
	if err := n.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s on %s: %w: %s", args[0], n.Name, err, out)
	}
	return nil
}

// nft runs a script of nft on a node.
func (n *node) nft(ctx context.Context, script string) error {
	return n.run(ctx, script, "nft", "-f", "-")
}

// churn changes objects of each kind that a proxy reads, until the test ends. Without
// changes the API server is silent for a minute, which is too long at this pace.
func (s *site) churn(t *testing.T) {
	t.Helper()
	repeat(t, 500*time.Millisecond, func(ctx context.Context, i int) error {
		change := s.Delete
		if s.withSignal.Load() {
			change = s.Set
		}
		if err := errors.Join(s.Set(ctx, s.objects(i)...), change(ctx, s.signal(i)...)); err != nil {
			return err
		}
		ranges, err := s.Client.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
		if err == nil {
			ranges.Annotations = map[string]string{"change": fmt.Sprint(i)}
			_, err = s.Client.NetworkingV1().ServiceCIDRs().Update(ctx, ranges, metav1.UpdateOptions{})
		}
		return err
	})
}

// repeat calls do with growing numbers until stop, which waits for its end, or the end of
// the test. An error fails the test.
func repeat(t *testing.T, every time.Duration, do func(ctx context.Context, i int) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticks := time.NewTicker(every)
		defer ticks.Stop()
		for i := 1; ; i++ {
			if err := do(ctx, i); err != nil && ctx.Err() == nil {
				t.Error(err)
			}
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}
