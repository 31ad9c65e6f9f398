// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// TestStartsWithLittleMemory starts the proxy in a cgroup that may have little memory,
// with Services of ten endpoints each. KUBEPROXY_NIGHTLY=1 has 5,000 of them. Everything
// counts: what manifests hold, the kernel's rules and the iptables commands.
// In mode nftables it starts once more, and reads what it has made.
func TestStartsWithLittleMemory(t *testing.T) {
	t.Parallel()
	const megabyte = 1 << 20
	for _, tt := range []struct {
		way                           string
		few, limitOfFew, many, ofMany int
	}{
		{"nftables", 1000, 28, 5000, 64},
		{"iptables-nft", 1000, 48, 5000, 128},
		{"iptables-legacy", 1000, 48, 5000, 128},
	} {
		t.Run(tt.way, func(t *testing.T) {
			services, limit := tt.few, tt.limitOfFew
			if kit.Nightly() {
				services, limit = tt.many, tt.ofMany
			}
			m := switchableModes()[tt.way]
			c := newCluster(t, m)
			web := app{name: "web", number: 10}.on(c.webs()...)
			c.save(t, web)
			for first := 0; first < services; first += 100 {
				c.write(t, fmt.Sprintf("many-%d.yaml", first), manyServices(first, min(services, first+100)))
			}
			group := memoryGroup(t, limit*megabyte)
			start := func(what string) {
				p, took := group.startProxy(t, c, m)
				if p.Ended() {
					t.Fatalf("in %d MB, with %d Services, the proxy that %s has ended: %v", limit, services, what, p.Wait(t))
				}
				t.Logf("%d Services in %d MB, %s: programmed after %s, %.0f MB resident, the group had at most %s bytes", services, limit,
					what, took.Round(10*time.Millisecond), memory(t, p)/megabyte, group.most())
				c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web))
				p.Stop(t)
			}
			start("finds nothing")
			if tt.way == "nftables" {
				start("finds its own table")
			}
		})
	}
}

// startProxy starts the proxy in g and waits until all is programmed, or it has ended.
func (g group) startProxy(t *testing.T, c *cluster, m mode) (p *program.Proxy, took time.Duration) {
	t.Helper()
	cmd := c.command(append(m.flags, "--manifests="+c.dir)...)
	p = program.Start(t, c.Node, g.command(cmd))
	start := time.Now()
	kit.Until(t, "all that is to be in force, or the end", func() bool {
		return p.Ended() || p.Log.Has(`"Programmed"`, "IPv4")
	})
	return p, time.Since(start)
}

// manyServices are manifests of some of many Services with ten endpoints each.
func manyServices(from, to int) []byte {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: many-%[1]d, namespace: shop}
spec:
  clusterIP: 10.97.%[2]d.%[3]d
  ports: [{name: http, port: 80}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: many-%[1]d, namespace: shop, labels: {kubernetes.io/service-name: many-%[1]d}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints:
`, i, i/250, i%250+1)
		for e := range 10 {
			n := i*10 + e
			fmt.Fprintf(&b, "- {addresses: [10.%d.%d.%d]}\n", 128+n/62500, n/250%250, n%250+1)
		}
		b.WriteString("---\n")
	}
	return []byte(b.String())
}

// group is a cgroup for memory.
type group struct{ dir, peak string }

// memoryGroup makes a cgroup with a limit in bytes, of whichever version there is.
func memoryGroup(t *testing.T, limit int) group {
	t.Helper()
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(own)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		root, file, peak := "/sys/fs/cgroup", "memory.max", "memory.peak"
		switch {
		case parts[1] == "memory":
			root, file, peak = "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.max_usage_in_bytes"
		case parts[0] != "0":
			continue
		}
		dir := filepath.Join(root, parts[2], "kube-proxy-test-"+strconv.FormatInt(time.Now().UnixNano(), 36))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() { removeGroup(t, dir) })
		if os.WriteFile(filepath.Join(dir, file), []byte(strconv.Itoa(limit)), 0o600) == nil {
			return group{dir, filepath.Join(dir, peak)}
		}
	}
	t.Skip("the machine lets nobody make a cgroup for memory")
	return group{}
}

// removeGroup waits until the last process of a cgroup is gone: one that is killed in a
// large transaction has to see it through first.
func removeGroup(t *testing.T, dir string) {
	t.Helper()
	kit.Until(t, "that the cgroup is empty", func() bool {
		err := os.Remove(dir)
		return err == nil || os.IsNotExist(err)
	})
}

// command returns cmd so that it runs in g.
func (g group) command(cmd *exec.Cmd) *exec.Cmd {
	const enter = `echo $$ > "$0" && exec "$@"`
	cmd.Args = append([]string{"sh", "-c", enter, filepath.Join(g.dir, "cgroup.procs"), cmd.Path}, cmd.Args[1:]...)
	cmd.Path = "/bin/sh"
	return cmd
}

// most returns the most bytes that g ever had.
func (g group) most() string {
	text, err := os.ReadFile(g.peak)
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}
