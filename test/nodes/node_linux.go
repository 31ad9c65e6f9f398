// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
)

// files are the configuration files of a node, and objects of the cluster.
//
//go:embed files
var files embed.FS

func node(i int) string { return fmt.Sprintf("n%d", i) }

// zones is how many zones nodes are in, in turn.
const zones = 3

// startNode connects a node and starts what it runs. Images come first, as kubelet would
// look for them in a registry.
func (c *Cluster) startNode(ctx context.Context, i int) error {
	if err := c.connectNode(i); err != nil {
		return err
	}
	m := c.Machine(node(i))
	if err := c.configureNode(i); err != nil {
		return fmt.Errorf("configure %s: %w", m.Name, err)
	}
	if err := m.copyStore(c.Store); err != nil {
		return err
	}
	m.Steps = append(m.containerdSteps(m.path("containerd.toml")), m.importSteps(c.Archives)...)
	m.Steps = append(append(m.Steps, localSteps(c.LocalPort)...), c.networkSteps(m)...)
	if c.Embedded != "" {
		more, err := c.embed(m, c.Embedded)
		if err != nil {
			return err
		}
		m.Steps = append(m.Steps, more...)
	}
	m.Steps = append(m.Steps, Step{"kubelet", []string{
		"kubelet", "--config=" + m.path("kubelet.yaml"), "--kubeconfig=" + c.path(m.Name+".conf"), "--hostname-override=" + m.Name,
		"--node-ip=" + NodeIPv4(i) + "," + NodeIPv6(i),
		fmt.Sprintf("--node-labels=topology.kubernetes.io/zone=zone-%d,topology.kubernetes.io/region=here", (i-1)%zones+1),
	}, Forever})
	return m.boot(nil)
}

// containerdSteps start containerd, and end when it answers.
func (m *Machine) containerdSteps(config string) []Step {
	return []Step{
		{"containerd", []string{"containerd", "--config=" + config}, Forever},
		{"containerd-ready", []string{"ctr", "version"}, Once},
	}
}

// importSteps give containerd the images of archives.
func (m *Machine) importSteps(archives []string) []Step {
	var all []Step
	for _, archive := range archives {
		all = append(all, Step{"import", []string{"ctr", "-n", "k8s.io", "images", "import", "--local", archive}, Once})
	}
	return all
}

// copyStore gives the disk of a new machine the images of a folder of containerd.
func (m *Machine) copyStore(from string) error {
	to := m.path("var/lib/containerd")
	if _, err := os.Stat(to); from == "" || err == nil {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if _, err := output(exec.Command("cp", "-a", from, to)); err != nil {
		return fmt.Errorf("copy the images: %w", err)
	}
	return nil
}

// configureNode writes the node's configuration files.
func (c *Cluster) configureNode(i int) error {
	m := c.Machine(node(i))
	all, err := template.ParseFS(files, "files/node/*", c.networkFiles())
	if err != nil {
		return err
	}
	v4, v6 := podCIDRs(i)
	pods4, pods6, _ := strings.Cut(PodCIDR, ",")
	about := map[string]string{
		"CA": c.pki("ca.crt"), "Certificate": c.pki(m.Name + ".crt"), "Key": c.pki(m.Name + ".key"),
		"DNS": dnsIP, "PodCIDRv4": v4, "PodCIDRv6": v6, "PodsIPv4": pods4, "PodsIPv6": pods6,
		"ResolvConf": m.path("resolv.conf"), "CNI": m.path("cni"),
	}
	if err := os.MkdirAll(m.path("cni"), 0o755); err != nil {
		return err
	}
	for _, t := range all.Templates() {
		to := m.path(t.Name())
		if filepath.Ext(to) == ".conflist" {
			to = filepath.Join(m.path("cni"), t.Name())
		}
		var text strings.Builder
		if err := errors.Join(t.Execute(&text, about), os.WriteFile(to, []byte(text.String()), 0o644)); err != nil {
			return err
		}
	}
	return nil
}

// awaitNodes waits until every node is ready, and gives them their ranges of pod
// addresses, as a cloud would.
func (c *Cluster) awaitNodes(ctx context.Context) error {
	for i := 1; i <= c.Nodes; i++ {
		if err := c.await(ctx, patience, "get", "node", node(i)); err != nil {
			return fmt.Errorf("wait for node %s to register: %w", node(i), err)
		}
		v4, v6 := podCIDRs(i)
		patch := fmt.Sprintf(`{"spec":{"podCIDR":%q,"podCIDRs":[%q,%q]}}`, v4, v4, v6)
		if _, err := c.kubectl(ctx, "", "patch", "node", node(i), "--type=merge", "-p", patch); err != nil {
			return err
		}
	}
	c.progress("%d nodes have registered", c.Nodes)
	objects := []string{"coredns.yaml", "cluster-info.yaml"}
	if c.Embedded != "" {
		objects = objects[:1] // k3s has no ConfigMap with the address of the API server
	}
	for _, file := range objects {
		if err := c.applyFile(ctx, file); err != nil {
			return err
		}
	}
	if _, err := c.kubectl(ctx, "", "wait", "--for=condition=Ready", "node", "--all", timeout()); err != nil {
		return err
	}
	c.progress("the nodes are ready")
	return nil
}

// applyFile applies objects that come with this program.
func (c *Cluster) applyFile(ctx context.Context, name string) error {
	text, err := files.ReadFile("files/" + name)
	if err == nil {
		_, err = c.kubectl(ctx, string(text), "apply", "-f", "-")
	}
	return err
}

// Reboot ends a node as a power failure does: nobody hears of it. Then it starts the node
// again, with its disk and an empty network.
func (c *Cluster) Reboot(ctx context.Context, i int) error {
	if err := c.disconnectNode(i); err != nil {
		return err
	}
	if err := c.Machine(node(i)).remove(); err != nil {
		return err
	}
	return c.startNode(ctx, i)
}
