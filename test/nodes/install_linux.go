// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// system is the namespace that service proxies are in.
const system = "kube-system"

// Chart is this proxy as a user installs it.
type Chart struct {
	Folder string
	// Repository and Tag are of the image, whose archive is one of Cluster.Archives.
	Repository, Tag string
	Mode            string
	// SocketAcceleration is whether sockets get endpoints at connect(2).
	SocketAcceleration bool
	// Server is the API server's address. Without, the chart finds one in the cluster.
	Server string
}

// Install installs this proxy with Helm, and returns when every node has it and the DNS of
// the cluster answers.
func (c *Cluster) Install(ctx context.Context, chart Chart) error {
	if _, err := c.helm(ctx, chart.values(), "upgrade", "--install", "kubeproxy", chart.Folder, "--values=-"); err != nil {
		return err
	}
	return c.awaitProxy(ctx, "kubeproxy")
}

// values are those of the chart, in YAML. Specs of Kubernetes want NodePorts on loopback
// addresses, too.
func (chart Chart) values() string {
	const nodePorts = "config: {nodePortAddresses: [primary, localhost]}"
	return fmt.Sprintf("apiServer: %q\nclusterCIDR: %q\nlinux: {mode: %q, socketAcceleration: %t, %s}\nimage: {repository: %q, tag: %q}\n",
		chart.Server, PodCIDR, chart.Mode, chart.SocketAcceleration, nodePorts, chart.Repository, chart.Tag)
}

// Uninstall removes what Install made. Rules stay on the nodes. Helm does not wait for
// pods, whose processes repair the rules as long as they run.
func (c *Cluster) Uninstall(ctx context.Context) error {
	if _, err := c.helm(ctx, "", "uninstall", "kubeproxy", "--wait"); err != nil {
		return err
	}
	_, err := c.kubectl(ctx, "", "-n", system, "wait", "pod", "-l", ofProxy, "--for=delete", timeout())
	return err
}

// ofProxy selects the pods of this proxy.
const ofProxy = "app.kubernetes.io/name=kubeproxy"

// KnownMode returns the mode of Kubernetes' own kube-proxy that one of ours is compared
// with, or replaces. It has no mode userspace since 1.26.
func KnownMode(mode string) string {
	if mode == "userspace" {
		return "iptables"
	}
	return mode
}

// InstallKnown installs Kubernetes' own kube-proxy as kubeadm does, unless the nodes have
// it already.
func (c *Cluster) InstallKnown(ctx context.Context, mode string) error {
	if c.Embedded != "" {
		return c.awaitEmbedded(ctx)
	}
	text, err := files.ReadFile("files/known.yaml")
	if err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, strings.Replace(string(text), "mode: MODE", "mode: "+mode, 1), "create", "-f", "-"); err != nil {
		return err
	}
	return c.awaitProxy(ctx, "kube-proxy")
}

func (c *Cluster) awaitProxy(ctx context.Context, name string) error {
	for _, what := range []string{"daemonset/" + name, "deployment/coredns"} {
		if _, err := c.kubectl(ctx, "", "-n", system, "rollout", "status", what, timeout()); err != nil {
			return err
		}
		c.progress("%s is ready", what)
	}
	return nil
}

// helm runs Helm for the administrator.
func (c *Cluster) helm(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Programs, "helm"), append(args, "--namespace="+system, "--kubeconfig="+c.Kubeconfig())...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+c.path("helm"), "HELM_CONFIG_HOME="+c.path("helm"), "HELM_DATA_HOME="+c.path("helm"))
	cmd.Stdin = strings.NewReader(stdin)
	return output(cmd)
}

// Demo deploys a small application, and waits for it.
func (c *Cluster) Demo(ctx context.Context) error {
	if err := c.applyFile(ctx, "demo.yaml"); err != nil {
		return err
	}
	for _, name := range []string{"web", "client"} {
		if _, err := c.kubectl(ctx, "", "-n", "demo", "rollout", "status", "deployment/"+name, timeout()); err != nil {
			return err
		}
	}
	c.progress("the demo application is ready")
	return c.await(ctx, patience, "-n", "demo", "exec", "deployment/client", "--", "curl", "-sf", "-m", "5", "http://web/hostname")
}

// Version returns the version of the API server.
func (c *Cluster) Version(ctx context.Context) (string, error) {
	text, err := c.kubectl(ctx, "", "get", "--raw=/version")
	if err != nil {
		return "", err
	}
	var v struct{ GitVersion string }
	err = json.Unmarshal([]byte(text), &v)
	return v.GitVersion, err
}

// Kernel returns the release of the kernel, such as 6.1.0-56-amd64.
func Kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
