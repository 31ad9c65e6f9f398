// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The addresses. A node's last number is 10 and its own number, its pods are in a network
// with that number.
const (
	controlIPv4, controlIPv6 = "172.30.0.1", "fd30::1"
	ServiceCIDR              = "10.96.0.0/16,fd00:10:96::/112"
	PodCIDR                  = "10.244.0.0/16,fd00:10:244::/48"
	dnsIP                    = "10.96.0.10"
)

// NodeIPv4 returns the address of a node, from 1.
func NodeIPv4(i int) string { return fmt.Sprintf("172.30.0.1%d", i) }

// NodeIPv6 returns the other address of a node.
func NodeIPv6(i int) string { return fmt.Sprintf("fd30::1%d", i) }

func podCIDRs(i int) (ipv4, ipv6 string) {
	return fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:10:244:%d::/64", i)
}

// forwarding are the settings of a host that passes packets on. Addresses are used at
// once, without a search for duplicates.
var forwarding = map[string]string{
	"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
	"ipv6/conf/all/accept_dad": "0", "ipv6/conf/default/accept_dad": "0",
	"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
}

// addNamespace makes the machine's network namespace, a host that passes packets on.
func (m *Machine) addNamespace() error {
	if err := ip("netns", "add", m.namespace()); err != nil {
		return err
	}
	return m.inside(func() error {
		var errs []error
		for name, value := range forwarding {
			errs = append(errs, os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644))
		}
		return errors.Join(errs...)
	})
}

// removeNamespace removes the machine's network namespace, and its links with it.
func (m *Machine) removeNamespace() error {
	if !m.hasNamespace() {
		return nil
	}
	return ip("netns", "del", m.namespace())
}

// hasNamespace returns whether the machine's network namespace is there, as it is before the
// machine starts and until it is removed.
func (m *Machine) hasNamespace() bool {
	_, err := os.Stat(filepath.Join("/run/netns", m.namespace()))
	return err == nil
}

// inside runs fn on a thread in the machine's network namespace.
func (m *Machine) inside(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		ns, err := netns.GetFromName(m.namespace())
		if err == nil {
			defer ns.Close()
			err = netns.Set(ns)
		}
		if err != nil {
			result <- fmt.Errorf("enter network namespace %s: %w", m.namespace(), err)
			return
		}
		result <- fn()
	}()
	return <-result
}

// ips runs lines of ip(8) in the machine's network namespace.
func (m *Machine) ips(lines ...string) error {
	cmd := exec.Command("ip", "-n", m.namespace(), "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n"))
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip in %s: %w\n%s", m.namespace(), err, out)
	}
	return nil
}

func ip(args ...string) error {
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

// connectControl makes the network of the nodes, a bridge on the control plane's machine.
func connectControl(m *Machine) error {
	if err := m.addNamespace(); err != nil {
		return err
	}
	return m.ips(
		"link set lo up",
		"link add br0 type bridge mcast_snooping 0",
		"link set br0 up",
		"addr add "+controlIPv4+"/24 dev br0",
		"addr add "+controlIPv6+"/64 dev br0 nodad",
	)
}

// cardAddress returns the link-layer address of a node. It is that of its card, and so the
// same after a reboot. Neighbours would send to another one for as long as they believe in
// it, half a minute and more, see base_reachable_time_ms in arp(7).
func cardAddress(i int) string { return fmt.Sprintf("02:00:ac:1e:00:1%d", i) }

// disconnectNode pulls the plug. The kernel ends a network namespace some time after the
// last process, and its links with it, so one that boots again would find the plug in use.
func (c *Cluster) disconnectNode(i int) error { return c.Machine(control).ips("link del " + node(i)) }

// connectNode plugs a node into the network. Each host has a route to the pods of each
// node, unless the nodes find their ways to each other by themselves, and everything else
// goes to the control plane's machine, which knows no way on.
func (c *Cluster) connectNode(i int) error {
	m, to := c.Machine(node(i)), c.Machine(control)
	if err := m.addNamespace(); err != nil {
		return err
	}
	own4, own6 := podCIDRs(i)
	err := to.ips(
		fmt.Sprintf("link add n%d type veth peer name eth0 address %s netns %s", i, cardAddress(i), m.namespace()),
		fmt.Sprintf("link set n%d master br0", i),
		fmt.Sprintf("link set n%d up", i),
		"route replace "+own4+" via "+NodeIPv4(i),
		"route replace "+own6+" via "+NodeIPv6(i),
	)
	if err != nil {
		return err
	}
	lines := []string{
		"link set lo up", "link set eth0 up",
		"addr add " + NodeIPv4(i) + "/24 dev eth0",
		"addr add " + NodeIPv6(i) + "/64 dev eth0 nodad",
		"route add default via " + controlIPv4,
		"route add ::/0 via " + controlIPv6,
	}
	for j := 1; j <= c.Nodes; j++ {
		if j != i && c.Network == "" {
			v4, v6 := podCIDRs(j)
			lines = append(lines, "route add "+v4+" via "+NodeIPv4(j), "route add "+v6+" via "+NodeIPv6(j))
		}
	}
	return m.ips(lines...)
}

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

// instances returns how many instances of inotify a cluster takes: kubelet 6, containerd 2,
// pods the rest; the API server 6, the controllers 5. The kernel counts those of a user
// in all namespaces together, and 128 is its default limit (kernel:
// fs/notify/inotify/inotify_user.c, inotify_user_setup).
func instances(nodes int) int { return 12 + 10*nodes }

// Room returns an error if the kernel has not enough left for a cluster of some nodes.
// kubelet would end with "too many open files", again and again.
func Room(nodes int) error {
	return room(instances(nodes), func() (fd int, err error) { return unix.InotifyInit1(unix.IN_CLOEXEC) })
}

// room makes instances, and ends them.
func room(want int, instance func() (fd int, err error)) error {
	for have := range want {
		fd, err := instance()
		if errors.Is(err, unix.EMFILE) {
			return fmt.Errorf("the cluster would take %d instances of inotify, and the kernel has %d left: "+
				"end another cluster, or raise the limit: sysctl fs.inotify.max_user_instances=512", want, have)
		}
		if err != nil {
			return fmt.Errorf("make an instance of inotify: %w", err)
		}
		defer unix.Close(fd)
	}
	return nil
}
