// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// accelerated reports whether every proxy of these tests runs with --socket-acceleration, and
// the node and its pods are in cgroups, so that it takes their connections.
func accelerated() bool { return os.Getenv("KUBEPROXY_SOCKET_ACCELERATION") != "" }

// withoutBPF says that the proxies of c may not load programs, so that the rules serve all,
// even if socket acceleration is on.
func (c *cluster) withoutBPF(t *testing.T) {
	t.Helper()
	c.accelerated = false
	c.setMode(t, c.mode)
}

// TestSocketAcceleration runs the proxy with --socket-acceleration: TCP connections of the
// node to ClusterIPs are made to endpoints, over both families, and no connection is tracked
// by a ClusterIP. A stop leaves that in force, a proxy without the flag and --cleanup
// remove it.
func TestSocketAcceleration(t *testing.T) {
	t.Parallel()
	m := defaultMode()
	m.plain = true
	m.flags = append(slices.Clip(m.flags), "--socket-acceleration")
	c := newCluster(t, m)
	inside := c.withPins(t)
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	args := append([]string{"--manifests=" + c.dir}, m.flags...)
	start := func(args []string) *program.Proxy {
		p := program.Start(t, c.Node, inside(c.command(args...)))
		for _, f := range service.Families {
			p.AwaitLog(t, `"Programmed"`, "nftables "+f.String())
		}
		return p
	}
	p := start(args)
	c.awaitProgrammed(t)
	c.checkAccelerated(t, p, web)
	p.Stop(t)
	c.connectSome(t, web)
	c.checkTracked(t, web, false)
	c.expectAcceleratedDiff(t, inside, args, 0, "Nothing differs.")
	c.save(t, web.on(c.webs()[1:]...))
	c.expectAcceleratedDiff(t, inside, args, 1, "+ take connections to 10.96.0.10:80, shop/web:lines: ")
	c.expectAcceleratedDiff(t, inside, append(args, "-o=diff"), 1, "\n-#   10.244.1.11:8080\n")
	p = start(args)
	c.awaitProgrammed(t)
	for _, f := range service.Families {
		for range 20 {
			if a, err := c.Node.Ask(t.Context(), netlab.Query{Proto: "tcp", Unbound: true, To: web.at(service.ClusterIP, f)}); err != nil || a.At.Addr() == c.Host("web-1").Addr(a.At.Addr()) {
				t.Fatalf("after web-1 has gone: %v, %v", a, err)
			}
		}
	}
	p.Stop(t)
	p = start(args[:len(args)-1])
	c.connectSome(t, web)
	c.checkTracked(t, web, true)
	p.Stop(t)
	start(args).Stop(t)
	out, err := program.Run(t, c.Node, inside(c.command("--cleanup", "--v=0")))
	for _, f := range service.Families {
		if want := `place="socket acceleration of ` + f.String() + `" removed=`; err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: no %s in\n%s", err, want, out)
		}
	}
}

// withPins returns a function that changes a command. It then runs where a BPF file system is
// mounted, for this test alone.
func (c *cluster) withPins(t *testing.T) func(*exec.Cmd) *exec.Cmd {
	t.Helper()
	holder := exec.Command("unshare", "--mount", "sh", "-c", "mount -t bpf bpf /sys/fs/bpf && echo mounted && exec cat")
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		_ = holder.Wait()
	})
	if n, err := out.Read(make([]byte, 100)); err != nil || n == 0 {
		t.Skipf("no BPF file system can be mounted: %v", err)
	}
	return func(cmd *exec.Cmd) *exec.Cmd {
		args := append([]string{fmt.Sprintf("--mount=/proc/%d/ns/mnt", holder.Process.Pid)}, cmd.Args...)
		inside := exec.Command("nsenter", args...)
		inside.Env = cmd.Env
		return inside
	}
}

// expectAcceleratedDiff compares the node with its manifests.
func (c *cluster) expectAcceleratedDiff(t *testing.T, inside func(*exec.Cmd) *exec.Cmd, args []string, code int, want string) {
	t.Helper()
	cmd := c.command(args...)
	cmd.Args = slices.Insert(cmd.Args, 1, "diff")
	cmd = inside(cmd)
	out, err := program.Run(t, c.Node, cmd)
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if got := cmd.ProcessState.ExitCode(); got != code || !strings.Contains(out, want) {
		t.Errorf("exit %d, want %d with %q:\n%s", got, code, want, out)
	}
}

// connectSome makes ten connections from the node in each family.
func (c *cluster) connectSome(t *testing.T, a app) {
	t.Helper()
	for _, f := range service.Families {
		for range 10 {
			q := netlab.Query{Proto: "tcp", Unbound: true, To: a.at(service.ClusterIP, f)}
			if answer, err := c.Node.Ask(t.Context(), q); err != nil || answer.Outcome != netlab.Answered {
				t.Fatalf("%s: %v, %v", q.To, answer.Outcome, err)
			}
		}
	}
}

// checkAccelerated makes connections, and looks for them in the metrics.
func (c *cluster) checkAccelerated(t *testing.T, p *program.Proxy, a app) {
	t.Helper()
	c.connectSome(t, a)
	c.checkTracked(t, a, false)
	page := string(p.Fetch(t, program.MetricsAddr, "/metrics").Body)
	for _, f := range service.Families {
		if want := fmt.Sprintf("kubeproxy_socket_acceleration_connections_total{ip_family=%q} 10\n", f); !strings.Contains(page, want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// checkTracked looks for connections that the rules translated.
func (c *cluster) checkTracked(t *testing.T, a app, want bool) {
	t.Helper()
	for _, f := range service.Families {
		dst := a.at(service.ClusterIP, f).Addr()
		cmd := exec.Command("conntrack", "-L", "-f", strings.ToLower(f.String()), "-p", "tcp", "--orig-dst", dst.String())
		out, err := program.Run(t, c.Node, cmd)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(out, "dst="); got != want {
			t.Errorf("connections to %s are tracked: %v, want %v\n%s", dst, got, want, out)
		}
	}
}
