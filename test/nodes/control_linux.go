// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"kubeproxy/test/authority"
)

// patience is how long a step may take on a busy machine.
const patience = 5 * time.Minute

// control is the name of the control plane's machine.
const control = "control"

// Server is the API server's address for the nodes.
const Server = "https://" + controlIPv4 + ":6443"

// Machine returns a machine of the cluster by its name: control, n1, n2 and so on.
func (c *Cluster) Machine(name string) *Machine {
	return &Machine{
		Name: name, Cluster: c.Name, Folder: c.path(name),
		Path: c.Programs + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
	}
}

// Kubeconfig returns the administrator's kubeconfig, for the host.
func (c *Cluster) Kubeconfig() string { return c.path("admin.conf") }

// InsideKubeconfig returns the administrator's kubeconfig for the cluster's machines.
func (c *Cluster) InsideKubeconfig() string { return c.path("inside.conf") }

func (c *Cluster) startControl(ctx context.Context) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for kubectl: %w", err)
	}
	defer l.Close() // the machine has its own by then
	if err := c.certify("https://" + l.Addr().String()); err != nil {
		return fmt.Errorf("make certificates: %w", err)
	}
	m := c.Machine(control)
	if err := errors.Join(connectControl(m), c.barDetour(m)); err != nil {
		return err
	}
	m.Forward = "127.0.0.1:6443"
	m.Steps = []Step{
		{"etcd", c.etcdArgs(), Forever},
		{"kube-apiserver", c.apiServerArgs(), Forever},
		{"kube-controller-manager", c.controllersArgs(), Forever},
		{"kube-scheduler", c.schedulerArgs(), Forever},
	}
	if err := m.boot(l.(*net.TCPListener)); err != nil {
		return err
	}
	if err := c.await(ctx, patience, "get", "--raw=/readyz"); err != nil {
		return fmt.Errorf("wait for the API server: %w", err)
	}
	c.progress("the API server is ready")
	return nil
}

// certify writes the certificates of the control plane and the kubeconfigs of its
// clients.
func (c *Cluster) certify(forHost string) error {
	s, err := c.newSigner()
	if err != nil {
		return err
	}
	if _, err := s.cluster.newKey("account"); err != nil {
		return err
	}
	for name, who := range map[string]authority.Subject{
		"apiserver": {
			Name:  "kube-apiserver",
			Hosts: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
			Addrs: addrs("127.0.0.1", controlIPv4, controlIPv6, "10.96.0.1", "fd00:10:96::1"),
		},
		"front-proxy":    {Name: "front-proxy"},
		"kubelet-client": {Name: "apiserver-kubelet-client", Groups: []string{"system:masters"}},
		"admin":          {Name: "admin", Groups: []string{"system:masters"}},
		"controllers":    {Name: "system:kube-controller-manager"},
		"scheduler":      {Name: "system:kube-scheduler"},
		"proxy":          {Name: "system:kube-proxy"},
	} {
		if err := s.issue(name, who); err != nil {
			return err
		}
	}
	for i := range c.Nodes {
		name := node(i + 1)
		err := s.issue(name, authority.Subject{
			Name: "system:node:" + name, Groups: []string{"system:nodes"}, Hosts: []string{name},
			Addrs: addrs(NodeIPv4(i+1), NodeIPv6(i+1)),
		})
		if err != nil {
			return err
		}
		if err := c.login(c.path(name+".conf"), name, c.nodeServer()); err != nil {
			return err
		}
	}
	for file, login := range map[string][2]string{
		"admin.conf": {"admin", forHost}, "inside.conf": {"admin", Server},
		"controllers.conf": {"controllers", Server}, "scheduler.conf": {"scheduler", Server},
		"proxy.conf": {"proxy", LocalServer(embeddedPort)}, "network.conf": {"admin", clusterIPServer},
	} {
		if err := c.login(c.path(file), login[0], login[1]); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) etcdArgs() []string {
	const url, peer = "http://127.0.0.1:2379", "http://127.0.0.1:2380"
	return []string{
		"etcd", "--name=control", "--data-dir=" + c.path(control, "etcd"), "--log-level=warn", "--unsafe-no-fsync",
		"--listen-client-urls=" + url, "--advertise-client-urls=" + url,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=control=" + peer,
	}
}

func (c *Cluster) apiServerArgs() []string {
	return []string{
		"kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", "--service-cluster-ip-range=" + ServiceCIDR,
		"--bind-address=0.0.0.0", "--secure-port=6443", "--advertise-address=" + controlIPv4,
		"--tls-cert-file=" + c.pki("apiserver.crt"), "--tls-private-key-file=" + c.pki("apiserver.key"),
		"--client-ca-file=" + c.pki("ca.crt"), "--authorization-mode=Node,RBAC", "--allow-privileged=true",
		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.pki("account.key"), "--service-account-signing-key-file=" + c.pki("account.key"),
		"--kubelet-certificate-authority=" + c.pki("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + c.pki("kubelet-client.crt"), "--kubelet-client-key=" + c.pki("kubelet-client.key"),
		"--requestheader-client-ca-file=" + c.pki("ca.crt"), "--requestheader-allowed-names=front-proxy",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.pki("front-proxy.crt"), "--proxy-client-key-file=" + c.pki("front-proxy.key"),
	}
}

func (c *Cluster) controllersArgs() []string {
	login := c.path("controllers.conf")
	return []string{
		"kube-controller-manager", "--kubeconfig=" + login, "--authentication-kubeconfig=" + login,
		"--authorization-kubeconfig=" + login, "--use-service-account-credentials", "--leader-elect=false",
		"--service-account-private-key-file=" + c.pki("account.key"), "--root-ca-file=" + c.pki("ca.crt"),
		"--cluster-signing-cert-file=" + c.pki("ca.crt"), "--cluster-signing-key-file=" + c.pki("ca.key"),
		"--service-cluster-ip-range=" + ServiceCIDR, "--cluster-cidr=" + PodCIDR, "--allocate-node-cidrs=false",
	}
}

func (c *Cluster) schedulerArgs() []string {
	login := c.path("scheduler.conf")
	return []string{
		"kube-scheduler", "--kubeconfig=" + login, "--authentication-kubeconfig=" + login,
		"--authorization-kubeconfig=" + login, "--leader-elect=false",
	}
}

// timeout is patience for kubectl.
func timeout() string { return "--timeout=" + patience.String() }

// kubectl runs kubectl for the administrator, with a text as standard input, and returns
// what it prints.
func (c *Cluster) kubectl(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Programs, "kubectl"), append([]string{"--kubeconfig=" + c.Kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	return output(cmd)
}

// output runs a program. Its standard error becomes part of the error.
func output(cmd *exec.Cmd) (string, error) {
	var complaints strings.Builder
	cmd.Stderr = &complaints
	text, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s: %w\n%s", filepath.Base(cmd.Path), err, complaints.String())
	}
	return string(text), err
}

// kubectlPause is between two attempts of kubectl.
const kubectlPause = 500 * time.Millisecond

// await runs kubectl until it succeeds.
func (c *Cluster) await(ctx context.Context, limit time.Duration, args ...string) error {
	tried := false
	return poll(ctx, limit, func() (bool, error) {
		if tried {
			pause(ctx, kubectlPause) // a start of kubectl is a lot of work for a slow machine
		}
		tried = true
		_, err := c.kubectl(ctx, "", args...)
		return err == nil, err
	})
}

// complaints returns the ends of the logs of all machines and pods, for an error that they
// explain.
func (c *Cluster) complaints() error {
	machines, err := filepath.Glob(c.path("*", "log", "*.log"))
	if err != nil {
		return err
	}
	pods, err := filepath.Glob(c.path("*", "var", "log", "pods", "*", "*", "*.log")) // kubelet keeps them there
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, file := range append(machines, pods...) {
		log, err := os.ReadFile(file)
		if err != nil || len(log) == 0 {
			continue
		}
		lines := strings.Split(strings.TrimSpace(string(log)), "\n")
		fmt.Fprintf(&text, "== %s\n%s\n", file, strings.Join(lines[max(0, len(lines)-5):], "\n"))
	}
	return fmt.Errorf("the ends of the logs:\n%s", text.String())
}
