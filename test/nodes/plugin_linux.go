// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// The networks of pods for Cluster.Network.
const (
	Flannel    = "flannel"
	KubeRouter = "kube-router"
)

// clusterIPServer is the API server's address for pods, and for these networks, whose
// programs are pods elsewhere. So they wait for the service proxy, which must not wait for them.
const clusterIPServer = "https://10.96.0.1:443"

// ParseNetwork checks the name of a network of pods.
func ParseNetwork(text string) (string, error) {
	switch text {
	case "", Flannel, KubeRouter:
		return text, nil
	}
	return "", fmt.Errorf("there is no network %q; want %s or %s, or nothing for routes between the nodes", text, Flannel, KubeRouter)
}

// networkFiles returns a pattern of the files that a node has for the network of pods. In
// place of flannel's CNI plugin, which Go's module proxy lacks, plugin bridge gets the
// settings that this one would hand it. Kube-router writes the ranges into its file.
func (c *Cluster) networkFiles() string {
	return "files/networks/" + cmp.Or(c.Network, "routes") + "/*"
}

// networkSteps start what connects the pods of the machine with those of other ones.
func (c *Cluster) networkSteps(m *Machine) []Step {
	env := []string{"env", "NODE_NAME=" + m.Name}
	switch c.Network {
	case Flannel:
		return []Step{{"flannel", append(env, "flannel", "--kubeconfig-file="+c.path("network.conf"),
			"--net-config-path="+m.path("net-conf.json"), "--iface=eth0"), Forever}}
	case KubeRouter:
		// It writes to this folder, and loads modules, both of which would be the host's.
		const ownFolder = "cp -a /etc/iproute2 /run/ && mount --bind /run/iproute2 /etc/iproute2"
		return []Step{
			{"iproute2", []string{"sh", "-c", ownFolder}, Once},
			{"kube-router", append(env, "KUBE_ROUTER_CNI_CONF_FILE="+m.path("cni/10-kuberouter.conflist"),
				"setpriv", "--bounding-set=-sys_module", "kube-router", "--kubeconfig="+c.path("network.conf"), "--run-router",
				"--run-service-proxy=false", "--run-firewall=false", "--disable-source-dest-check=false",
				"--enable-ipv6", "--bgp-graceful-restart"), Forever}, // without the second one, peers exchange no routes of IPv6
		}
	}
	return nil
}

// barDetour has the control plane's machine, which knows the ways to all pods for the API
// server, pass nothing on between nodes. Pods would reach each other without a network of theirs, too.
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
