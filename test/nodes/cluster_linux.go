// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodes runs a real Kubernetes cluster on one machine, without a container engine
// and without a registry: a control plane, and nodes with containerd and kubelet.
//
//	 pods              pods              pods
//	10.244.1.0/24     10.244.2.0/24     10.244.3.0/24
//	┌─┴──────────┐    ┌─┴──────────┐    ┌─┴──────────┐
//	│     n1     │    │     n2     │    │     n3     │ containerd, kubelet, kube-proxy
//	│ 172.30.0.11│    │ 172.30.0.12│    │ 172.30.0.13│
//	└─┬──────────┘    └─┬──────────┘    └─┬──────────┘
//	──┴────────────┬────┴─────────────────┴── 172.30.0.0/24, fd30::/64
//	         ┌─────┴──────┐
//	         │  control   │ etcd, API server, controllers, scheduler; and a client
//	         │ 172.30.0.1 │ outside of the cluster
//	         └────────────┘
//
// Each box is a Machine: namespaces for network, mounts, processes, host name, IPC and
// cgroups. Its process 1 is this program, which starts what the machine runs. Whatever
// happens to it, the kernel ends all processes of the machine with it, see
// pid_namespaces(7). The host's own network stays as it is: the API server is reached
// through a port on loopback.
//
// The cluster outlives the program that started it. Its files are in one folder, and Down
// removes the folder with everything else.
package nodes

import (
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"kubeproxy/test/authority"
	"kubeproxy/test/cache"
	"kubeproxy/test/thirdparty"
)

// Cluster is a cluster on this machine.
type Cluster struct {
	// Name distinguishes clusters that exist at the same time. It is empty for the
	// usual one.
	Name string
	// Nodes is how many nodes it has: n1, n2 and so on.
	Nodes int
	// Programs is a folder with kubectl, ctr, helm and whatever else runs in it.
	Programs string
	// Embedded is the mode of a kube-proxy that runs on each node without a pod, and empty
	// if there is none.
	Embedded string
	// Network is what connects the pods of different nodes: Flannel, KubeRouter, or routes that every
	// host has from its start if it is empty.
	Network string
	// LocalPort is a port of each node's loopback that leads to the API server, as with
	// Talos. Kubelet uses it. There is none if it is 0.
	LocalPort int
	// Tests is a folder with the tests of Kubernetes. Without, they are built when they are
	// needed.
	Tests string
	// Archives are the images that every node has.
	Archives []string
	// Store is a folder of containerd with further images, of which every node has a copy.
	Store string
	// Rate is how many new connections a second each client makes while something is
	// changed, 0 for DefaultRate. It holds two fifths of that open.
	Rate int

	folder  string
	out     io.Writer
	started time.Time
}

// ErrNone means that no cluster of the name is there.
var ErrNone = errors.New("no cluster; make cluster starts one")

// ErrThere means that the files of a cluster of the same name are there. Since the host has
// booted again, it does not run.
var ErrThere = errors.New("a cluster is there already")

// most is how many nodes a cluster can have: their numbers are the last digit of addresses.
const most = 9

// fitName is what becomes a part of names of namespaces, cgroups and folders.
var fitName = regexp.MustCompile(`^[a-z0-9]{0,20}$`)

// Folder returns where the files of a cluster are.
func Folder(name string) (string, error) {
	if !fitName.MatchString(name) {
		return "", fmt.Errorf("cluster %q: want a name of at most 20 small letters and digits", name)
	}
	if name != "" {
		name = "-" + name
	}
	return cache.Folder("cluster" + name)
}

// descriptionFile describes a cluster in its folder.
const descriptionFile = "cluster.json"

// Open returns the cluster of this name. Progress is reported to out.
func Open(out io.Writer, name string) (*Cluster, error) {
	folder, err := Folder(name)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(folder, descriptionFile)
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, ErrNone
	}
	c := &Cluster{Name: name, folder: folder, out: out, started: time.Now()}
	if err == nil {
		err = json.Unmarshal(text, c)
	}
	if err != nil {
		return nil, fmt.Errorf("read the cluster's description %s: %w; %s removes the cluster", file, err, c.DownCommand())
	}
	cache.Touch(filepath.Dir(c.Programs))
	return c, nil
}

// Find returns what is there of a cluster of this name, for Down alone. Its description may
// be missing or broken, as after a full disk, and so may its folder.
func Find(out io.Writer, name string) (*Cluster, error) {
	folder, err := Folder(name)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Name: name, Nodes: most, folder: folder, out: out, started: time.Now()}
	_, err = os.Stat(folder)
	if err == nil || slices.ContainsFunc(c.machines(), (*Machine).hasNamespace) {
		return c, nil
	}
	if errors.Is(err, os.ErrNotExist) {
		err = ErrNone
	}
	return nil, err
}

// machines returns those of the nodes, and the control plane's.
func (c *Cluster) machines() []*Machine {
	var all []*Machine
	for i := range c.Nodes {
		all = append(all, c.Machine(node(i+1)))
	}
	return append(all, c.Machine(control))
}

func (c *Cluster) save() error {
	text, err := json.Marshal(c)
	if err != nil {
		return err
	}
	next := c.path(descriptionFile + ".next")
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return err
	}
	return os.Rename(next, c.path(descriptionFile))
}

func (c *Cluster) path(elements ...string) string {
	return filepath.Join(append([]string{c.folder}, elements...)...)
}

// progress reports a line with the time since the start.
func (c *Cluster) progress(format string, args ...any) {
	fmt.Fprintf(c.out, "%6.1fs  %s\n", time.Since(c.started).Seconds(), fmt.Sprintf(format, args...))
}

// Up starts a cluster: its nodes are ready when it returns. No service proxy runs yet,
// and so the DNS of the cluster does not answer.
func Up(ctx context.Context, out io.Writer, c *Cluster) error {
	if c.Nodes < 1 || c.Nodes > most {
		return fmt.Errorf("%d nodes: want 1 to %d", c.Nodes, most)
	}
	var err error
	if c.folder, err = Folder(c.Name); err != nil {
		return err
	}
	c.out, c.started = out, time.Now()
	if _, err := os.Stat(c.path(descriptionFile)); err == nil {
		return fmt.Errorf("%w, in %s; %s removes it", ErrThere, c.folder, c.DownCommand())
	}
	if err := Room(c.Nodes); err != nil {
		return err
	}
	if err := os.MkdirAll(c.path("pki"), 0o700); err != nil {
		return err
	}
	if err := c.save(); err != nil { // first, as Down removes what it describes
		return err
	}
	for _, step := range []func(context.Context) error{c.startControl, c.startNodes, c.awaitNodes} {
		if err := step(ctx); err != nil {
			return c.Explain(err)
		}
	}
	return nil
}

// Explain adds to the error of a step what the logs say, and how the cluster is removed.
func (c *Cluster) Explain(err error) error {
	return errors.Join(err, c.complaints(), errors.New(c.DownCommand()+" removes what is there"))
}

// DownCommand returns what a user types to remove the cluster.
func (c *Cluster) DownCommand() string {
	if c.Name != "" {
		return "make cluster-down CLUSTER=" + c.Name
	}
	return "make cluster-down"
}

func (c *Cluster) startNodes(ctx context.Context) error {
	for i := range c.Nodes {
		if err := c.startNode(ctx, i+1); err != nil {
			return fmt.Errorf("start node n%d: %w", i+1, err)
		}
	}
	return nil
}

// Down ends the cluster and removes everything that belongs to it. It goes on after a
// failure, so that a second try has less to do.
func (c *Cluster) Down() error {
	if c.folder == "" {
		return nil // Up refused it
	}
	var errs []error
	for _, m := range c.machines() {
		errs = append(errs, m.remove())
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return os.RemoveAll(c.folder)
}

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

// lifetime is how long a cluster's certificates are valid.
const lifetime = 365 * 24 * time.Hour

// signer makes the files of certificates and keys that the cluster's programs read.
type signer struct {
	cluster *Cluster
	*authority.Authority
}

func (c *Cluster) newSigner() (*signer, error) {
	a, err := authority.New(time.Now().Add(lifetime))
	if err != nil {
		return nil, fmt.Errorf("make an authority: %w", err)
	}
	key, err := a.KeyPEM()
	if err == nil {
		err = errors.Join(os.WriteFile(c.pki("ca.key"), key, 0o600), os.WriteFile(c.pki("ca.crt"), a.PEM, 0o644))
	}
	return &signer{c, a}, err
}

func (c *Cluster) pki(name string) string { return c.path("pki", name) }

// newKey writes a new key, and returns it. One alone signs for service accounts.
func (c *Cluster) newKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := authority.NewKey()
	if err != nil {
		return nil, err
	}
	text, err := authority.KeyPEM(key)
	if err != nil {
		return nil, err
	}
	return key, os.WriteFile(c.pki(name+".key"), text, 0o600)
}

// issue writes a certificate and its key.
func (s *signer) issue(name string, who authority.Subject) error {
	key, err := s.cluster.newKey(name)
	if err != nil {
		return err
	}
	who.Until = time.Now().Add(lifetime)
	cert, err := s.Issue(who, key)
	if err != nil {
		return err
	}
	return os.WriteFile(s.cluster.pki(name+".crt"), cert, 0o644)
}

// login writes a kubeconfig with the certificate called name.
func (c *Cluster) login(file, name, server string) error {
	who, where := clientcmdapi.NewAuthInfo(), clientcmdapi.NewCluster()
	who.ClientCertificate, who.ClientKey = c.pki(name+".crt"), c.pki(name+".key")
	where.Server, where.CertificateAuthority = server, c.pki("ca.crt")
	config := clientcmdapi.NewConfig()
	config.Clusters["kubeproxy"], config.AuthInfos[name] = where, who
	config.Contexts["kubeproxy"] = &clientcmdapi.Context{Cluster: "kubeproxy", AuthInfo: name}
	config.CurrentContext = "kubeproxy"
	return clientcmd.WriteToFile(*config, file)
}

func addrs(texts ...string) []netip.Addr {
	var all []netip.Addr
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

// clusterPrograms are those that machines run.
var clusterPrograms = []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet", "kube-proxy"}

// parts are the programs that machines run, by the modules that have them, and those that
// only a network of pods needs.
var parts = []struct {
	module   thirdparty.Module
	programs []string
	network  string
}{
	{thirdparty.Kubernetes, clusterPrograms, ""},
	{thirdparty.Containerd, []string{"containerd", "containerd-shim-runc-v2", "ctr"}, ""},
	{thirdparty.Release, []string{"helm"}, ""},
	{thirdparty.Flannel, []string{"flannel"}, Flannel},
	{thirdparty.KubeRouter, []string{"kube-router"}, KubeRouter},
}

// Missing returns the programs of a cluster and of its tests that are not built yet.
// Building them takes much longer than anything else.
func Missing(ctx context.Context) ([]string, error) {
	var all []string
	add := func(m thirdparty.Module, names ...string) error {
		missing, err := m.Missing(ctx, names...)
		all = append(all, missing...)
		return err
	}
	var errs []error
	for _, p := range parts {
		if p.network == "" {
			errs = append(errs, add(p.module, p.programs...))
		}
	}
	for name, module := range imagePrograms {
		errs = append(errs, add(module, name))
	}
	errs = append(errs, add(thirdparty.Kubernetes, testPrograms...))
	slices.Sort(all)
	return slices.Compact(all), errors.Join(errs...)
}

// Build makes everything that a cluster consists of, and is there already the second time.
// It returns a description for Up.
func Build(ctx context.Context, out io.Writer, count int, network string) (*Cluster, error) {
	var files []string
	for _, p := range parts {
		if p.network != "" && p.network != network {
			continue
		}
		folder, err := p.module.Build(ctx, out, p.programs...)
		if err != nil {
			return nil, err
		}
		for _, name := range p.programs {
			files = append(files, filepath.Join(folder, name))
		}
	}
	images, err := TestImages(ctx, out)
	if err != nil {
		return nil, err
	}
	c := &Cluster{Nodes: count, Network: network, Archives: []string{images}, out: out}
	if c.Programs, err = join(ctx, out, files); err != nil {
		return nil, fmt.Errorf("collect programs: %w", err)
	}
	return c, nil
}

// join makes a folder that has files, and returns it. Other files get another folder, as
// clusters run with what they began with. The files stay if what they were made from goes.
func join(ctx context.Context, out io.Writer, files []string) (string, error) {
	name := fmt.Sprintf("programs-%x", sha256.Sum256([]byte(strings.Join(files, "\n"))))[:25]
	folder := filepath.Join(beside(files[0]), name, "bin")
	return folder, cache.Make(ctx, folder, waitingFor(out, "the programs"), func(part string) error {
		return linkAll(files, part)
	})
}

// linkAll makes a folder with links to files of the same file system.
func linkAll(files []string, folder string) error {
	errs := []error{os.MkdirAll(folder, 0o755)}
	for _, file := range files {
		errs = append(errs, os.Link(file, filepath.Join(folder, filepath.Base(file))))
	}
	return errors.Join(errs...)
}

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
