// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

var kubeProxy Program

func TestMain(m *testing.M) { os.Exit(Main(m, &kubeProxy)) }

const node = `apiVersion: v1
kind: Node
metadata: {name: node-a}
status: {addresses: [{type: InternalIP, address: 192.0.2.10}]}
`

func TestProxyAnswers(t *testing.T) {
	lab := netlab.Start(t, netlab.Config{})
	file := filepath.Join(t.TempDir(), "node.yaml")
	kit.WriteFile(t, file, node)
	before := Generation(t, lab.Node)
	p := kubeProxy.Start(t, lab.Node, "--manifests="+file, "--cluster-cidr="+netlab.ClusterCIDR)
	p.AwaitLog(t, `"Programmed"`, "nftables IPv4")
	kit.Until(t, "it is alive", func() bool { return p.Status(t, HealthAddr, "/livez") == http.StatusOK })
	kit.Check(t, Generation(t, lab.Node) != before, "the rules have the generation of the start, want a later one")
	var about struct{ Mode string }
	if p.JSON(t, "/services", &about); about.Mode != "nftables" {
		t.Errorf("mode = %q, want nftables", about.Mode)
	}
	n, found := p.Metric(t, "process_cpu_seconds_total")
	kit.Check(t, found && n >= 0, "metric = %v, found %t", n, found)
	if _, found := p.Metric(t, "process_cpu_seconds_total", "no", "label"); found {
		t.Error("a metric was found by a label that it has not")
	}
	now, peak := p.Memory(t)
	kit.Check(t, now >= 1<<20 && peak >= now, "memory = %d, at most %d", now, peak)
	kit.Check(t, p.CPU(t) > 0, "no CPU time was used")
	p.Stop(t)
	kit.Check(t, p.Ended() && p.Status(t, HealthAddr, "/livez") == 0, "stopped, it is still there")
	out, err := Run(t, lab.Node, kubeProxy.Command("--cleanup"))
	kit.Check(t, err == nil, "cleanup: %v\n%s", err, out)
}
