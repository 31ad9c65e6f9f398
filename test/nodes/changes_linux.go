// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Trial is a change that is made under load, in a cluster in which a proxy runs already.
type Trial struct {
	Name, About string
	// Lossy trials end endpoints, and connections that they hold with them.
	Lossy bool

	change func(context.Context, *Cluster, Chart) error
}

// Trials are in the order in which they run on one cluster. The first one finds it with
// kubeadm's kube-proxy, the last one leaves it with that.
var Trials = []Trial{
	{Name: "1-install", About: "installed beside kubeadm's kube-proxy, as docs/install.md says", change: install},
	{Name: "2-roll", About: "the DaemonSet rolled", change: roll},
	{Name: "3-application", About: "all pods of the application replaced", Lossy: true, change: rollApplication},
	{Name: "4-drain", About: "a node drained, and back", Lossy: true, change: drain},
	{Name: "5-reboot", About: "a node rebooted", Lossy: true, change: reboot},
	{Name: "6-api", About: "the API server silent for 10 minutes", Lossy: true, change: silence},
	{Name: "7-back", About: "back to kubeadm's kube-proxy, as docs/install.md says", change: goBack},
}

// Try makes the change under load.
func (c *Cluster) Try(ctx context.Context, t Trial, chart Chart) (Change, error) {
	c.progress("== %s", t.About)
	flows, took, err := c.Under(ctx, func(ctx context.Context) error { return t.change(ctx, c, chart) })
	return Change{Name: t.Name, About: t.About, On: time.Now().UTC(), Took: took, Flows: flows}, err
}

// install is what docs/install.md says for kubeadm.
func install(ctx context.Context, c *Cluster, chart Chart) error {
	const aside = `{"spec":{"template":{"spec":{"nodeSelector":{"service-proxy":"kube-proxy"}}}}}`
	if _, err := c.kubectl(ctx, "", "-n", system, "patch", "daemonset", "kube-proxy", "--type=merge", "-p", aside); err != nil {
		return err
	}
	return c.Install(ctx, chart)
}

// goBack is what docs/install.md says. After it nothing of this proxy answers.
func goBack(ctx context.Context, c *Cluster, chart Chart) error {
	if err := c.Uninstall(ctx); err != nil {
		return err
	}
	const back = `{"spec":{"template":{"spec":{"nodeSelector":{"service-proxy":null},"affinity":null}}}}`
	if _, err := c.kubectl(ctx, "", "-n", system, "patch", "daemonset", "kube-proxy", "--type=merge", "-p", back); err != nil {
		return err
	}
	if err := c.awaitProxy(ctx, "kube-proxy"); err != nil {
		return err
	}
	for i := 1; i <= c.Nodes; i++ {
		if err := c.cleanUp(ctx, i, chart); err != nil {
			return err
		}
	}
	return nil
}

// debugRights are what kube-proxy --cleanup needs, in the form of kubectl debug --custom.
const debugRights = `{"securityContext": {"runAsUser": 0, "capabilities": {"add": ["NET_ADMIN", "NET_RAW", "DAC_READ_SEARCH"]}}}`

// cleanUp removes what this proxy left on a node, from where kubectl is, and checks that
// the node has nothing of it.
func (c *Cluster) cleanUp(ctx context.Context, i int, chart Chart) error {
	rights := c.path("cleanup.json")
	if err := os.WriteFile(rights, []byte(debugRights), 0o644); err != nil {
		return err
	}
	before, err := c.onNode(i, "nft", "list", "tables")
	if err != nil {
		return err
	}
	if !strings.Contains(before, "kube-services") {
		return fmt.Errorf("%s has no tables of ours before the cleanup, so it shows nothing:\n%s", node(i), before)
	}
	err = c.kubectls(ctx,
		[]string{
			"debug", "-n", system, "node/" + node(i), "--profile=netadmin", "--custom=" + rights,
			"--image=" + chart.Repository + "-iptables:" + chart.Tag, "--", "/usr/local/bin/kube-proxy", "--cleanup",
		},
		[]string{
			"-n", system, "wait", "pod", "-l", "app.kubernetes.io/managed-by=kubectl-debug",
			"--for=jsonpath={.status.phase}=Succeeded", timeout(),
		})
	if err != nil {
		return err
	}
	tables, err := c.onNode(i, "nft", "list", "tables")
	if err != nil {
		return err
	}
	if strings.Contains(tables, "kube-services") {
		return fmt.Errorf("%s still has tables of ours:\n%s", node(i), tables)
	}
	return nil
}

// onNode runs a command on a node.
func (c *Cluster) onNode(i int, args ...string) (string, error) {
	cmd, err := c.Machine(node(i)).Command(args...)
	if err != nil {
		return "", err
	}
	text, err := output(cmd)
	if err != nil {
		err = fmt.Errorf("%s on %s: %w", args[0], node(i), err)
	}
	return text, err
}

func roll(ctx context.Context, c *Cluster, _ Chart) error {
	return c.kubectls(ctx,
		[]string{"-n", system, "rollout", "restart", "daemonset/kubeproxy"},
		[]string{"-n", system, "rollout", "status", "daemonset/kubeproxy", timeout()})
}

func rollApplication(ctx context.Context, c *Cluster, _ Chart) error {
	err := c.kubectls(ctx,
		[]string{"-n", "load", "rollout", "restart", "deployment/web"},
		[]string{"-n", "load", "rollout", "status", "deployment/web", timeout()})
	if err != nil {
		return err
	}
	return poll(patience, func() (bool, error) { // until the last old pod is gone
		pods, err := c.kubectl(ctx, "", "-n", "load", "get", "pods", "-l", "app=web", "-o", "name")
		return strings.Count(pods, "\n") == replicas, err
	})
}

// replicas is how many pods load.yaml asks for.
const replicas = 6

// drain takes a node that no client is on, or connects to.
func drain(ctx context.Context, c *Cluster, _ Chart) error {
	return c.kubectls(ctx,
		[]string{"drain", "n3", "--ignore-daemonsets", "--delete-emptydir-data", timeout()},
		[]string{"uncordon", "n3"})
}

func reboot(ctx context.Context, c *Cluster, _ Chart) error {
	if err := c.Reboot(ctx, 3); err != nil {
		return err
	}
	// The API server calls the node ready until it hears otherwise, so ask the node.
	err := poll(patience, func() (bool, error) {
		tables, err := c.onNode(3, "nft", "list", "tables")
		return strings.Contains(tables, "kube-services"), err
	})
	if err != nil {
		return fmt.Errorf("wait for rules on the node: %w", err)
	}
	return c.kubectls(ctx,
		[]string{"wait", "--for=condition=Ready", "node/n3", timeout()},
		[]string{"-n", "load", "rollout", "status", "deployment/web", timeout()})
}

// silent is how long the API server does not answer.
const silent = 10 * time.Minute

// silence stops the API server without ending it.
func silence(ctx context.Context, c *Cluster, _ Chart) error {
	pid, err := c.Machine(control).program("kube-apiserver")
	if err != nil {
		return err
	}
	if err := unix.Kill(pid, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	pause(ctx, silent)
	if err := unix.Kill(pid, syscall.SIGCONT); err != nil {
		return fmt.Errorf("continue the API server: %w", err)
	}
	return c.await(ctx, patience, "wait", "--for=condition=Ready", "node", "--all", "--timeout=10s")
}

func (c *Cluster) kubectls(ctx context.Context, commands ...[]string) error {
	for _, args := range commands {
		if _, err := c.kubectl(ctx, "", args...); err != nil {
			return err
		}
	}
	return nil
}
