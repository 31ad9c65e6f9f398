// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// Flannel is a network of pods for Cluster.Network.
const Flannel = "flannel"

// clusterIPServer is the API server's address for pods, and for flannel, which is one
// elsewhere. So it waits for the service proxy, which must not wait for it.
const clusterIPServer = "https://10.96.0.1:443"

// ParseNetwork checks the name of a network of pods.
func ParseNetwork(text string) (string, error) {
	if text != "" && text != Flannel {
		return "", fmt.Errorf("there is no network %q; want %s, or nothing for routes between the nodes", text, Flannel)
	}
	return text, nil
}

// networkFiles returns a pattern of the files that a node has for the network of pods. In
// place of flannel's CNI plugin, which Go's module proxy lacks, plugin bridge gets the
// settings that this one would hand it.
func (c *Cluster) networkFiles() string {
	return "files/networks/" + cmp.Or(c.Network, "routes") + "/*"
}

// networkSteps start what connects the pods of the machine with those of other ones.
func (c *Cluster) networkSteps(m *Machine) []Step {
	if c.Network == "" {
		return nil
	}
	return []Step{{"flannel", []string{
		"env", "NODE_NAME=" + m.Name, "flannel", "--kubeconfig-file=" + c.path("flannel.conf"),
		"--net-config-path=" + m.path("net-conf.json"), "--iface=eth0",
	}, Forever}}
}

// barDetour has the control plane's machine, which knows the ways to all pods for the API
// server, pass nothing on between nodes. Pods would reach each other without flannel, too.
func (c *Cluster) barDetour(m *Machine) error {
	if c.Network == "" {
		return nil
	}
	pods4, pods6, _ := strings.Cut(PodCIDR, ",")
	bar := func(family, to string) error {
		return ip(family, "-n", m.namespace(), "rule", "add", "iif", "br0", "to", to, "unreachable")
	}
	return errors.Join(bar("-4", pods4), bar("-6", pods6))
}

// LocalServer is the API server's address at a port of a node's loopback.
func LocalServer(port int) string { return fmt.Sprintf("https://127.0.0.1:%d", port) }

// localSteps give a machine the API server at a port of its loopback, unless that is 0.
func localSteps(port int) []Step {
	if port == 0 {
		return nil
	}
	listen := fmt.Sprintf("TCP-LISTEN:%d,bind=127.0.0.1,fork,reuseaddr", port)
	return []Step{{"to-server", []string{"socat", listen, "TCP:" + controlIPv4 + ":6443"}, Forever}}
}

// nodeServer is the API server's address for kubelet.
func (c *Cluster) nodeServer() string {
	if c.LocalPort == 0 {
		return Server
	}
	return LocalServer(c.LocalPort)
}
