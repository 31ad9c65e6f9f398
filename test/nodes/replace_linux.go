// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
)

// aside and back are what docs/install.md says for kubeadm's kube-proxy.
const (
	aside = `{"spec":{"template":{"spec":{"nodeSelector":{"service-proxy":"kube-proxy"}}}}}`
	back  = `{"spec":{"template":{"spec":{"nodeSelector":{"service-proxy":null},"affinity":null}}}}`
)

// install is what docs/install.md says for kubeadm.
func install(ctx context.Context, c *Cluster, s Setting) error {
	if _, err := c.kubectl(ctx, "", "-n", system, "patch", "daemonset", "kube-proxy", "--type=merge", "-p", aside); err != nil {
		return err
	}
	return c.Install(ctx, s.Chart)
}

// installEarlier has an earlier version in place of this one.
func installEarlier(ctx context.Context, c *Cluster, s Setting) error {
	if err := c.Uninstall(ctx); err != nil {
		return err
	}
	return c.Install(ctx, s.Earlier)
}

// upgrade is what docs/install.md says.
func upgrade(ctx context.Context, c *Cluster, s Setting) error {
	return c.upgrade(ctx, s.Chart, "image.tag="+s.Chart.Tag)
}

func rollback(ctx context.Context, c *Cluster, _ Setting) error {
	if _, err := c.helm(ctx, "", "rollback", "kubeproxy"); err != nil {
		return err
	}
	return c.awaitProxy(ctx, "kubeproxy")
}

func (c *Cluster) upgrade(ctx context.Context, chart Chart, value string) error {
	if _, err := c.helm(ctx, "", "upgrade", "kubeproxy", chart.Folder, "--reset-then-reuse-values", "--set", value); err != nil {
		return err
	}
	return c.awaitProxy(ctx, "kubeproxy")
}

func roll(ctx context.Context, c *Cluster, _ Setting) error {
	return c.kubectls(ctx,
		[]string{"-n", system, "rollout", "restart", "daemonset/kubeproxy"},
		[]string{"-n", system, "rollout", "status", "daemonset/kubeproxy", timeout()})
}

// leave removes this proxy as docs/install.md says for the way back. Its rules stay, in
// tables that no other proxy has.
func (c *Cluster) leave(ctx context.Context, chart Chart) error {
	if chart.Mode != "nftables" {
		if err := c.upgrade(ctx, chart, "linux.mode=nftables"); err != nil {
			return err
		}
		// No pod is replaced: kubelet brings the new configuration to the pods, see
		// https://kubernetes.io/docs/concepts/configuration/configmap/#mounted-configmaps-are-updated-automatically
		if err := poll(ctx, patience, func() (bool, error) { return c.say(ctx, "mode nftables") }); err != nil {
			return fmt.Errorf("wait for mode nftables: %w", err)
		}
		if chart.Mode == "ipvs" { // CoreDNS watches the API server, over one connection
			err := c.kubectls(ctx,
				[]string{"-n", system, "rollout", "restart", "deployment/coredns"},
				[]string{"-n", system, "rollout", "status", "deployment/coredns", timeout()})
			if err != nil {
				return err
			}
		}
		if err := c.awaitAlone(ctx, chart.Mode); err != nil {
			return fmt.Errorf("wait until nothing of mode %s is left: %w", chart.Mode, err)
		}
	}
	return c.Uninstall(ctx)
}

// leftoverLine finds lines of status that name leftovers.
var leftoverLine = regexp.MustCompile(`(?m)^.*leftovers-.*$`)

// drainTime is how long leftovers may stay. IPVS remembers UDP flows for five minutes after
// their last packet (kernel: net/netfilter/ipvs/ip_vs_proto_udp.c, udp_timeouts), and clients
// that take a port again begin that time anew.
const drainTime = 4 * patience

// awaitAlone waits until no node has rules of another proxy or of a mode, and says now
// and then what it waits for.
func (c *Cluster) awaitAlone(ctx context.Context, mode string) error {
	const often, rarely = 2 * time.Second, time.Minute
	spoken := time.Now()
	return poll(ctx, drainTime, func() (bool, error) {
		ok, err := c.alone(ctx)
		if ok {
			return true, nil
		}
		if time.Since(spoken) > rarely {
			spoken = time.Now()
			c.progress("still waiting: %v", err)
			if mode == "ipvs" {
				c.progress("%s", c.virtualConnections(ctx))
			}
		}
		pause(ctx, often) // to ask is work for the cluster
		return false, err
	})
}

// virtualConnections lists the connections that IPVS has on each node, as the kernel does:
// protocol, client, service and endpoint in hexadecimal numbers, state, seconds left.
func (c *Cluster) virtualConnections(ctx context.Context) string {
	const most = 20
	var all []string
	for i := 1; i <= c.Nodes; i++ {
		text, err := c.onNode(ctx, i, "cat", "/proc/net/ip_vs_conn")
		if err != nil {
			return err.Error()
		}
		lines := slices.Collect(strings.Lines(text))[1:] // without the titles
		all = append(all, fmt.Sprintf("%s has %d connections in IPVS", node(i), len(lines)))
		for _, line := range lines[:min(len(lines), most)] {
			all = append(all, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(all, "\n")
}

// say returns whether status on every node has a text.
func (c *Cluster) say(ctx context.Context, text string) (bool, error) {
	return c.everyStatus(ctx, func(pod, status string) error {
		if !strings.Contains(status, text) {
			return fmt.Errorf("%s does not say %s", pod, text)
		}
		return nil
	})
}

// alone returns whether no node has rules of another proxy or mode, and an error that says
// which has.
func (c *Cluster) alone(ctx context.Context) (bool, error) {
	return c.everyStatus(ctx, func(pod, status string) error {
		if left := leftoverLine.FindString(status); left != "" {
			return fmt.Errorf("%s: %s", pod, left)
		}
		return nil
	})
}

// everyStatus returns whether check accepts what status says on every node.
func (c *Cluster) everyStatus(ctx context.Context, check func(pod, status string) error) (bool, error) {
	pods, err := c.kubectl(ctx, "", "-n", system, "get", "pods", "-l", ofProxy, "-o", "name")
	if err != nil {
		return false, err
	}
	for _, pod := range strings.Fields(pods) {
		status, err := c.kubectl(ctx, "", "-n", system, "exec", pod, "--", "kube-proxy", "status")
		if err == nil {
			err = check(pod, status)
		}
		if err != nil {
			return false, err
		}
	}
	return pods != "", nil
}

// goBack is what docs/install.md says. After it nothing of this proxy answers.
func goBack(ctx context.Context, c *Cluster, s Setting) error {
	if err := c.leave(ctx, s.Chart); err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, "", "-n", system, "patch", "daemonset", "kube-proxy", "--type=merge", "-p", back); err != nil {
		return err
	}
	if err := c.awaitProxy(ctx, "kube-proxy"); err != nil {
		return err
	}
	return c.deleteTables(ctx)
}

// synced are metrics of Kubernetes' own kube-proxy once it has written its rules.
var synced = regexp.MustCompile(`(?m)^kubeproxy_sync_proxy_rules_last_timestamp_seconds\{ip_family="IPv[46]"\} [1-9]`)

// deleteTables removes the tables of this proxy from every node, when the other one has
// written its rules for both families. Its pods are ready before that.
func (c *Cluster) deleteTables(ctx context.Context) error {
	c.progress("waiting for the rules of kube-proxy, then removing the tables of this proxy")
	for i := 1; i <= c.Nodes; i++ {
		err := poll(ctx, patience, func() (bool, error) {
			text, err := c.onNode(ctx, i, "curl", "-s", "-f", "-m", "2", "http://127.0.0.1:10249/metrics")
			return len(synced.FindAllString(text, -1)) == 2, err
		})
		if err != nil {
			return fmt.Errorf("wait for the rules of kube-proxy on %s: %w", node(i), err)
		}
		for _, family := range []string{"ip", "ip6"} {
			if _, err := c.onNode(ctx, i, "nft", "delete", "table", family, "kube-services"); err != nil {
				return err
			}
		}
	}
	return nil
}

// reinstall leaves nothing of this proxy anywhere, and installs it again.
func reinstall(ctx context.Context, c *Cluster, s Setting) error {
	if err := c.Uninstall(ctx); err != nil {
		return err
	}
	for i := 1; i <= c.Nodes; i++ {
		if err := c.cleanUp(ctx, i, s.Chart); err != nil {
			return err
		}
	}
	if err := c.Install(ctx, s.Chart); err != nil {
		return err
	}
	_, err := c.helm(ctx, "", "test", "kubeproxy", "--logs", timeout())
	return err
}

// cleanUp removes what this proxy left on a node, from where Helm and kubectl are, and checks that the node has nothing
// of it.
func (c *Cluster) cleanUp(ctx context.Context, i int, chart Chart) error {
	before, err := c.rules(ctx, i)
	if err != nil {
		return err
	}
	if before == "" {
		return fmt.Errorf("%s has no rules before the cleanup, so it shows nothing", node(i))
	}
	version, err := c.Version(ctx)
	if err != nil {
		return err
	}
	pods, err := c.helm(ctx, chart.values(), "template", "kubeproxy", chart.Folder, "--values=-", "--set=cleanup.linux={"+node(i)+"}", "--kube-version="+version)
	if err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, pods, "apply", "-f", "-"); err != nil {
		return err
	}
	const ofCleanup = "app.kubernetes.io/component=cleanup"
	err = c.kubectls(ctx,
		[]string{"-n", system, "wait", "pod", "-l", ofCleanup, "--for=jsonpath={.status.phase}=Succeeded", timeout()},
		[]string{"-n", system, "delete", "pod", "-l", ofCleanup, "--wait=false"})
	if err != nil {
		return err
	}
	after, err := c.rules(ctx, i)
	if err == nil && after != "" {
		err = fmt.Errorf("%s still has rules after the cleanup:\n%s", node(i), after)
	}
	return err
}

// ofKubelet are the chains that kubelet makes where it finds iptables, see
// pkg/kubelet/kubelet_network_linux.go in kubernetes/kubernetes.
var ofKubelet = regexp.MustCompile(`KUBE-(KUBELET-CANARY|IPTABLES-HINT|FIREWALL)|-A (INPUT|OUTPUT) -j KUBE-FIREWALL`)

// rules returns what a service proxy has on a node: tables of nftables, chains of
// iptables in both of its kinds, ipsets.
func (c *Cluster) rules(ctx context.Context, i int) (string, error) {
	var all strings.Builder
	for _, command := range []string{"nft list tables", "iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save", "ipset list -n"} {
		text, err := c.onNode(ctx, i, strings.Fields(command)...)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, " --comment") // texts may name anything
			if (strings.Contains(line, "kube-") || strings.Contains(line, "KUBE-")) && !ofKubelet.MatchString(line) {
				fmt.Fprintf(&all, "%s: %s\n", command, strings.TrimSpace(line))
			}
		}
	}
	return all.String(), nil
}

// onNode runs a command on a node.
func (c *Cluster) onNode(ctx context.Context, i int, args ...string) (string, error) {
	cmd, err := c.Machine(node(i)).Command(ctx, args...)
	if err != nil {
		return "", err
	}
	text, err := output(cmd)
	if err != nil {
		err = fmt.Errorf("%s on %s: %w", args[0], node(i), err)
	}
	return text, err
}
