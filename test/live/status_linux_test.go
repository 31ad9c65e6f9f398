// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestStatus checks the status command.
func TestStatus(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	status := func(t *testing.T, args ...string) (code int, out string) {
		t.Helper()
		return c.ask(t, append([]string{"status"}, args...)...)
	}
	check := func(t *testing.T, code int, words []string, args ...string) {
		t.Helper()
		got, out := status(t, args...)
		missing := ""
		for _, w := range words {
			if !strings.Contains(out, w) {
				missing = w
			}
		}
		if got != code || missing != "" {
			t.Errorf("status %q: exit %d, want %d; missing %q in\n%s", args, got, code, missing, out)
		}
	}

	check(t, 2, []string{"nobody answers at 127.0.0.1:10249", "is the proxy running on this node?"})
	c.save(t, app{name: "web", number: 10}.on(c.webs()...), app{name: "empty", number: 11})
	p := c.start(t)
	check(t, 0, []string{"on node node-a, mode nftables", ": healthy", "2 Services: 1 with a port that serves no client", "shop/web ", "10.96.0.10", "no endpoints"})
	check(t, 0, []string{"shop/web: programmed", "[fd00:10:96::a]:80", "node:30010"}, "web")
	check(t, 1, []string{"service shop/none is not known here"}, "shop/none")
	check(t, 2, []string{"is the health server of a kube-proxy"}, "--server=127.0.0.1:10256")

	odd := app{name: "odd", number: 12}.yaml(t)
	c.write(t, "odd.yaml", bytes.ReplaceAll(odd, []byte("10.96.0.12"), []byte("127.0.0.1")))
	kit.Until(t, "what is wrong shows", func() bool {
		code, out := status(t, "--failing")
		return code == 1 && strings.Contains(out, "shop/odd") && strings.Contains(out, "clusterIP")
	})
	var d struct {
		OK       bool
		Services []struct{ Name string }
	}
	_, out := status(t, "-o=json", "-n=shop")
	if err := json.Unmarshal([]byte(out), &d); err != nil || d.OK || len(d.Services) != 3 {
		t.Errorf("%v: %+v, want three Services and not ok, in\n%s", err, d, out)
	}

	if err := netlab.Pause(p.Pid()); err != nil {
		t.Fatal(err)
	}
	check(t, 2, []string{"accepts connections but does not answer in time"}, "--timeout=3s")
	if err := syscall.Kill(p.Pid(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.Stop(t)
	check(t, 2, []string{"nobody answers at"})
}

// TestStatusWatch follows changes of a Service's endpoints until an interrupt.
func TestStatusWatch(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()[1:]...)
	c.save(t, web)
	c.start(t)
	p := program.Start(t, c.Node, exec.Command(kubeProxy.Path, "status", "shop/web", "--watch"))
	p.AwaitLog(t, "shop/web: programmed")
	c.save(t, web.on(c.webs()...))
	p.AwaitLog(t, "IPv4: generation ", " is in force")
	p.AwaitLog(t, "shop/web: port lines/tcp IPv4: endpoint 10.244.1.11:8080 is new: ready, used")
	c.save(t, web)
	p.AwaitLog(t, "shop/web: port lines/tcp IPv4: endpoint 10.244.1.11:8080 is gone")
	kit.Must(t, syscall.Kill(p.Pid(), syscall.SIGINT))
	if err := p.Wait(t); err != nil {
		t.Errorf("an interrupt ends it with %v, want exit code 0", err)
	}
}
