// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// In an embedded cluster, as k3s makes one, no object names the service proxy. It is a
// part of what runs on each node anyhow, which also forwards a port of loopback to the API
// server.

// embeddedPort is that of the API server on each node's loopback, as with k3s.
const embeddedPort = 6444

// switchedOff is the file that stands for k3s' flag --disable-kube-proxy.
const switchedOff = "/var/lib/disable-kube-proxy"

// embed returns the steps of a node that are further parts of k3s.
func (c *Cluster) embed(m *Machine, mode string) ([]Step, error) {
	text, err := files.ReadFile("files/embedded.yaml")
	if err == nil {
		filled := strings.NewReplacer("LOGIN", c.path("proxy.conf"), "MODE", mode).Replace(string(text))
		err = os.WriteFile(m.path("kube-proxy.yaml"), []byte(filled), 0o644)
	}
	if err != nil {
		return nil, fmt.Errorf("configure the kube-proxy of %s: %w", m.Name, err)
	}
	run := fmt.Sprintf("test -e %s && exec sleep infinity; exec kube-proxy --config=%s --hostname-override=%s", switchedOff, m.path("kube-proxy.yaml"), m.Name)
	return append(localSteps(embeddedPort), Step{"kube-proxy", []string{"sh", "-c", run}, Forever}), nil
}

// restartEmbedded starts anew what a restart of k3s does. Pods go on.
func (c *Cluster) restartEmbedded(ctx context.Context, i int) error {
	for _, step := range []string{"kube-proxy", "kubelet"} {
		if _, err := c.onNode(ctx, i, "sh", "-c", "kill $(cat /run/"+step+".pid)"); err != nil {
			return err
		}
	}
	return nil
}

// awaitEmbedded waits until the embedded proxies have synced, and the DNS of the cluster
// answers.
func (c *Cluster) awaitEmbedded(ctx context.Context) error {
	for i := 1; i <= c.Nodes; i++ {
		err := poll(ctx, patience, func() (bool, error) {
			_, err := c.onNode(ctx, i, "curl", "-s", "-f", "-m", "2", "http://127.0.0.1:10256/healthz")
			return err == nil, err
		})
		if err != nil {
			return fmt.Errorf("wait for the kube-proxy of %s: %w", node(i), err)
		}
	}
	_, err := c.kubectl(ctx, "", "-n", system, "rollout", "status", "deployment/coredns", timeout())
	return err
}

// installEmbedded is what docs/distributions.md says for k3s.
func installEmbedded(ctx context.Context, c *Cluster, s Setting) error {
	for i := 1; i <= c.Nodes; i++ {
		if _, err := c.onNode(ctx, i, "touch", switchedOff); err != nil {
			return err
		}
		if err := c.restartEmbedded(ctx, i); err != nil {
			return err
		}
	}
	s.Chart.Server = LocalServer(embeddedPort)
	return c.Install(ctx, s.Chart)
}

// goBackEmbedded is what docs/distributions.md says for k3s.
func goBackEmbedded(ctx context.Context, c *Cluster, s Setting) error {
	if err := c.leave(ctx, s.Chart); err != nil {
		return err
	}
	for i := 1; i <= c.Nodes; i++ {
		if _, err := c.onNode(ctx, i, "rm", switchedOff); err != nil {
			return err
		}
		if err := c.restartEmbedded(ctx, i); err != nil {
			return err
		}
	}
	if err := c.awaitEmbedded(ctx); err != nil {
		return err
	}
	return c.deleteTables(ctx)
}
