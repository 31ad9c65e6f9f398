// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func rollApplication(ctx context.Context, c *Cluster, _ Setting) error {
	err := c.kubectls(ctx,
		[]string{"-n", loadNamespace, "rollout", "restart", "deployment/web"},
		[]string{"-n", loadNamespace, "rollout", "status", "deployment/web", timeout()})
	if err != nil {
		return err
	}
	return poll(ctx, patience, func() (bool, error) { // until the last old pod is gone
		pods, err := c.kubectl(ctx, "", "-n", loadNamespace, "get", "pods", "-l", "app=web", "-o", "name")
		return strings.Count(pods, "\n") == replicas, err
	})
}

// replicas is how many pods load.yaml asks for.
const replicas = 6

// drain takes a node that no client is on, or connects to.
func drain(ctx context.Context, c *Cluster, _ Setting) error {
	return c.kubectls(ctx,
		[]string{"drain", "n3", "--ignore-daemonsets", "--delete-emptydir-data", timeout()},
		[]string{"-n", loadNamespace, "rollout", "status", "deployment/web", timeout()},
		[]string{"uncordon", "n3"})
}

func reboot(ctx context.Context, c *Cluster, _ Setting) error {
	if err := c.Reboot(ctx, 3); err != nil {
		return err
	}
	// The API server calls the node ready until it hears otherwise, so ask the node.
	err := poll(ctx, patience, func() (bool, error) {
		rules, err := c.rules(ctx, 3)
		return rules != "", err
	})
	if err != nil {
		return fmt.Errorf("wait for rules on the node: %w", err)
	}
	return c.kubectls(ctx,
		[]string{"wait", "--for=condition=Ready", "node/n3", timeout()},
		[]string{"-n", loadNamespace, "rollout", "status", "deployment/web", timeout()})
}

// silence stops the API server without ending it, and a proxy that cannot ask it then.
// After it, the proxies must hear of a new Service.
func silence(ctx context.Context, c *Cluster, s Setting) error {
	proxy, err := c.proxyProcess(ctx, 2)
	if err != nil {
		return err
	}
	server, err := c.Machine(control).program("kube-apiserver")
	if err != nil {
		return err
	}
	if err := unix.Kill(server, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	pause(ctx, s.Silence/2)
	endErr := unix.Kill(proxy, syscall.SIGKILL)
	pause(ctx, s.Silence/2)
	if err := errors.Join(endErr, unix.Kill(server, syscall.SIGCONT)); err != nil {
		return fmt.Errorf("end a proxy and continue the API server: %w", err)
	}
	begin := time.Now()
	if err := c.await(ctx, patience, "wait", "--for=condition=Ready", "node", "--all", "--timeout=10s"); err != nil {
		return err
	}
	if err := c.newService(ctx); err != nil {
		return err
	}
	c.progress("every node had a new Service %s after the API server was back", time.Since(begin).Round(time.Second))
	return nil
}

// proxyProcess returns the process of this proxy on a node, in the numbers of the host.
func (c *Cluster) proxyProcess(ctx context.Context, i int) (int, error) {
	pod, err := c.kubectl(ctx, "", "-n", system, "get", "pods", "-l", ofProxy, "--field-selector=spec.nodeName="+node(i), "-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		return 0, err
	}
	return c.podProcess(ctx, system, pod)
}

// newService makes a Service and waits until every node serves it.
func (c *Cluster) newService(ctx context.Context) error {
	const name = "fresh"
	err := c.kubectls(ctx,
		[]string{"-n", loadNamespace, "delete", "service", name, "--ignore-not-found"},
		[]string{"-n", loadNamespace, "expose", "deployment", "web", "--name=" + name, "--port=80", "--target-port=" + loadPort})
	if err != nil {
		return err
	}
	address, err := c.kubectl(ctx, "", "-n", loadNamespace, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return err
	}
	for i := 1; i <= c.Nodes; i++ {
		err := poll(ctx, patience, func() (bool, error) {
			text, err := c.onNode(ctx, i, "curl", "-s", "-f", "-m", "2", "http://"+address+"/hostname")
			return strings.HasPrefix(text, "web-"), err
		})
		if err != nil {
			return fmt.Errorf("wait for a new Service on %s: %w", node(i), err)
		}
	}
	return nil
}

func (c *Cluster) kubectls(ctx context.Context, commands ...[]string) error {
	for _, args := range commands {
		if _, err := c.kubectl(ctx, "", args...); err != nil {
			return err
		}
	}
	return nil
}
