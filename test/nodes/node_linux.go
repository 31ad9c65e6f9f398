// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/template"

	"golang.org/x/sys/unix"

	"kubeproxy/test/cache"
	"kubeproxy/test/thirdparty"
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

// Reboot takes the power of a node, and starts it again, with its disk and an empty network.
func (c *Cluster) Reboot(ctx context.Context, i int) error {
	if err := c.powerOff(i); err != nil {
		return err
	}
	return c.startNode(ctx, i)
}

// powerOff ends a node as a power failure does: nobody hears of it.
func (c *Cluster) powerOff(i int) error {
	if err := c.disconnectNode(i); err != nil {
		return err
	}
	return c.Machine(node(i)).remove()
}

const cgroupRoot = "/sys/fs/cgroup"

// besideV1 is where the tree of v2 is mounted on a system that mixes v1 and v2. runc puts
// containers there, too: opencontainers/cgroups, IsCgroup2HybridMode.
const besideV1 = cgroupRoot + "/unified"

// hierarchy is a tree of cgroups: that of cgroup v2, or of some controllers of v1.
type hierarchy struct {
	controllers string // as in the options of mount(8); empty for v2
	path        string // of this process, as in /proc/self/cgroup
	root        string // where v2 is mounted
}

// hierarchies returns those of this process.
func hierarchies() ([]hierarchy, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	var all []hierarchy
	for line := range strings.Lines(string(text)) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) != 3 {
			return nil, fmt.Errorf("/proc/self/cgroup: %q: want three fields", line)
		}
		all = append(all, hierarchy{controllers: fields[1], path: fields[2]})
	}
	v2 := slices.IndexFunc(all, func(h hierarchy) bool { return h.controllers == "" })
	switch {
	case v2 < 0:
	case len(all) == 1:
		all[v2].root = cgroupRoot
	case isUnified(besideV1):
		all[v2].root = besideV1
	default:
		all = slices.Delete(all, v2, v2+1)
	}
	return all, nil
}

// isUnified reports whether v2 is mounted at a folder.
func isUnified(dir string) bool {
	var s unix.Statfs_t
	return unix.Statfs(dir, &s) == nil && s.Type == unix.CGROUP2_SUPER_MAGIC
}

// folder returns the folder in which a machine's cgroup is made. In v2 that is the root:
// other cgroups with processes cannot give controllers to their children, see cgroups(7).
func (h hierarchy) folder() string {
	if h.controllers == "" {
		return h.root
	}
	return filepath.Join(cgroupRoot, strings.TrimPrefix(h.controllers, "name="), h.path)
}

// enterCgroups makes the machine's cgroups and moves this process there.
func (m *Machine) enterCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		parent := h.folder()
		own := filepath.Join(parent, m.namespace())
		if h.controllers == "" {
			giveControllers(parent)
		}
		if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		if h.controllers == "cpuset" {
			if err := inheritProcessors(parent, own); err != nil {
				return err
			}
		}
		h.prefer(own)
		if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// prefer gives a machine ten times the processor time of a process outside of it, as all
// of its processes together have the weight of one otherwise: clients lost connections to
// pods that did not run for seconds while others compiled on the host. A kernel without
// such weights shares as it likes.
func (h hierarchy) prefer(own string) {
	file, weight := "cpu.weight", "1000" // of v2, where others have 100
	if h.controllers != "" {
		file, weight = "cpu.shares", "10240" // of v1, where others have 1024
	}
	if _, err := os.Stat(filepath.Join(own, file)); err == nil {
		_ = os.WriteFile(filepath.Join(own, file), []byte(weight), 0o644) // see above
	}
}

// inheritProcessors gives a cgroup of v1 the processors of its parent. Without, it takes no
// process, see cpuset(7).
func inheritProcessors(parent, own string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(parent, name))
		if err == nil {
			err = os.WriteFile(filepath.Join(own, name), text, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// giveControllers lets the children of a cgroup of v2 have all controllers. kubelet says
// which ones it misses. Nobody takes them back from the children of the root: the kernel only
// refuses that while a grandchild has them, and a child that limits itself meanwhile would
// lose its limits, see "Controlling Controllers" in Documentation/admin-guide/cgroup-v2.rst.
func giveControllers(dir string) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return
	}
	for _, c := range strings.Fields(string(text)) {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+c), 0o644) // kubelet complains
	}
}

// mountCgroups mounts trees of cgroups, in which this process is at the root.
func mountCgroups(all []hierarchy) error {
	for _, h := range all {
		switch {
		case h.controllers == "" && h.root == besideV1:
			if err := errors.Join(os.MkdirAll(besideV1, 0o755), unix.Mount("cgroup2", besideV1, "cgroup2", 0, "")); err != nil {
				return fmt.Errorf("mount cgroups beside v1: %w", err)
			}
			continue
		case h.controllers == "":
			return mountUnified()
		}
		at := filepath.Join(cgroupRoot, strings.TrimPrefix(h.controllers, "name="))
		data := h.controllers
		if strings.HasPrefix(data, "name=") {
			data = "none," + data
		}
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("cgroup", at, "cgroup", 0, data); err != nil {
			return fmt.Errorf("mount cgroups of %s: %w", h.controllers, err)
		}
		for _, one := range strings.Split(h.controllers, ",") { // cpu,cpuacct is found as cpu, too
			if err := os.Symlink(filepath.Base(at), filepath.Join(cgroupRoot, one)); err != nil && !errors.Is(err, fs.ErrExist) && !strings.HasPrefix(one, "name=") {
				return err
			}
		}
	}
	return nil
}

// mountUnified mounts the tree of v2, and moves this process out of its root, which could
// not give controllers to its children otherwise.
func mountUnified() error {
	if err := unix.Mount("cgroup2", cgroupRoot, "cgroup2", 0, ""); err != nil {
		return fmt.Errorf("mount cgroups: %w", err)
	}
	own := filepath.Join(cgroupRoot, "machine")
	if err := os.Mkdir(own, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := os.WriteFile(filepath.Join(own, "cgroup.procs"), []byte("0"), 0o644); err != nil {
		return err
	}
	giveControllers(cgroupRoot)
	return nil
}

// removeCgroups removes the machine's cgroups, innermost first. The kernel takes a moment
// to end processes, and until then they are busy.
func (m *Machine) removeCgroups() error {
	all, err := hierarchies()
	if err != nil {
		return err
	}
	for _, h := range all {
		// The caller may be in another cgroup than the one that booted the machine.
		for dir := h.folder(); ; dir = filepath.Dir(dir) {
			own := filepath.Join(dir, m.namespace())
			if err := poll(context.Background(), stopTimeout, func() (bool, error) { return removeTree(own) }); err != nil {
				return fmt.Errorf("remove cgroup %s: %w", own, err)
			}
			if dir == cgroupRoot || filepath.Dir(dir) == cgroupRoot {
				break
			}
		}
	}
	return nil
}

// removeTree removes the folders of a cgroup, and returns whether it is gone.
func removeTree(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for _, e := range entries {
		if e.IsDir() {
			if gone, err := removeTree(filepath.Join(dir, e.Name())); !gone {
				return false, err
			}
		}
	}
	err = os.Remove(dir)
	switch {
	case err == nil, errors.Is(err, fs.ErrNotExist):
		return true, nil
	case errors.Is(err, syscall.EBUSY):
		return false, nil
	}
	return false, err
}

// partsFile describes the parts of a cluster in their folder.
const partsFile = "parts.json"

// Pack puts everything that a cluster and its tests consist of into an empty folder, for a
// machine in which nothing can be built and which takes long to unpack images. It will
// have the folder at some path. Programs are linked, so the folder has to be in the file
// system of the user's cache.
func (c *Cluster) Pack(ctx context.Context, folder, at string) error {
	tests, err := c.testFolder(ctx)
	if err != nil {
		return err
	}
	programs := filepath.Join(folder, "programs")
	all, err := filepath.Glob(filepath.Join(c.Programs, "*"))
	if err != nil {
		return err
	}
	for _, name := range testPrograms {
		all = append(all, filepath.Join(tests, name))
	}
	if err := linkAll(all, programs); err != nil {
		return err
	}
	if err := c.fillStore(ctx, folder); err != nil {
		return fmt.Errorf("unpack the images: %w", err)
	}
	inside := filepath.Join(at, filepath.Base(programs))
	text, err := json.Marshal(Cluster{Programs: inside, Tests: inside, Store: filepath.Join(at, storeFolder)})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, partsFile), text, 0o644)
}

// storeFolder is the name of the folder with the images, as containerd keeps them.
const storeFolder = "containerd"

// fillStore has containerd import the images, in a machine of its own, and keeps the
// folder that it fills.
func (c *Cluster) fillStore(ctx context.Context, folder string) (err error) {
	m := c.Machine(fmt.Sprintf("store%d", os.Getpid())) // apart from those of other processes
	m.Folder = filepath.Join(folder, "store")
	var config string
	if config, err = m.configureContainerd(); err != nil {
		return err
	}
	m.Steps = append(m.containerdSteps(config), m.importSteps(c.Archives)...)
	m.Steps = append(m.Steps, Step{"filled", []string{"touch", "/var/tmp/filled"}, Once})
	defer func() { // first, as a step that fails leaves a part of what it makes
		err = errors.Join(err, m.remove())
		if err == nil {
			err = os.Rename(m.path("var/lib/containerd"), filepath.Join(folder, storeFolder))
		}
		err = errors.Join(err, os.RemoveAll(m.Folder))
	}()
	if err := m.addNamespace(); err != nil {
		return err
	}
	if err := m.boot(nil); err != nil {
		return err
	}
	return poll(ctx, patience, func() (bool, error) {
		_, err := os.Stat(m.path("var/tmp/filled"))
		return err == nil, nil
	})
}

// configureContainerd writes the configuration file for the machine's containerd.
func (m *Machine) configureContainerd() (file string, err error) {
	t, err := template.ParseFS(files, "files/node/containerd.toml")
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(m.Folder, 0o755); err != nil {
		return "", err
	}
	file = m.path("containerd.toml")
	f, err := os.Create(file)
	if err != nil {
		return "", err
	}
	return file, errors.Join(t.Execute(f, map[string]string{"CNI": m.path("cni")}), f.Close())
}

// OpenParts returns the description for Up of a cluster whose parts are in a folder that
// Pack filled.
func OpenParts(out io.Writer, folder string, count int) (*Cluster, error) {
	text, err := os.ReadFile(filepath.Join(folder, partsFile))
	if err != nil {
		return nil, fmt.Errorf("read the parts of the cluster: %w", err)
	}
	c := &Cluster{out: out}
	if err := json.Unmarshal(text, c); err != nil {
		return nil, fmt.Errorf("read the parts of the cluster: %w", err)
	}
	c.Nodes = count
	return c, nil
}

// image is an image of an archive, as build/release pack reads it. Folders become layers,
// from bottom to top.
type image struct {
	Names      []string `json:"names"`
	Folders    []string `json:"folders"`
	Entrypoint []string `json:"entrypoint,omitempty"`
	Cmd        []string `json:"cmd,omitempty"`
	User       string   `json:"user,omitempty"`
}

// imagePrograms are the programs in images, by the name of their folder. Their places
// follow from placed.
var imagePrograms = map[string]thirdparty.Module{
	"agnhost": thirdparty.Kubernetes, "kube-proxy": thirdparty.Kubernetes,
	"regression-issue-74839": thirdparty.Kubernetes, "coredns": thirdparty.CoreDNS,
}

// testImages are those that the cluster itself needs, and those that the tests of
// Kubernetes ask for, see test/utils/image/manifest.go in its repository, by names of this
// machine, see registries.yaml. Instead of the originals, one root with Debian's programs
// serves for all.
func testImages(folder string) []image {
	const e2e = "localhost/e2e/"
	in := func(names ...string) []string {
		var all []string
		for _, name := range names {
			all = append(all, filepath.Join(folder, name))
		}
		return all
	}
	return []image{
		{Names: []string{e2e + "agnhost:2.66.1", e2e + "agnhost:2.55"}, Folders: in("root", "agnhost"), Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}},
		{Names: []string{e2e + "nginx:1.27.0-2", e2e + "nginx:1.28.0-2"}, Folders: in("root", "agnhost"), Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}},
		{Names: []string{e2e + "busybox:1.37.0-2", "localhost/build/distroless-iptables:v0.9.9"}, Folders: in("root"), Cmd: []string{"sh"}},
		{Names: []string{e2e + "glibc-dns-testing:2.1.1"}, Folders: in("root"), Cmd: []string{"sleep", "36000"}},
		{Names: []string{e2e + "regression-issue-74839:1.5"}, Folders: in("root", "regression-issue-74839"), Entrypoint: []string{"/regression-issue-74839"}},
		{Names: []string{"localhost/kubernetes/pause:3.10.2"}, Folders: in("pause"), Entrypoint: []string{"/pause"}, User: "65535:65535"},
		{Names: []string{"localhost/kubernetes/coredns:test"}, Folders: in("coredns"), Entrypoint: []string{"/coredns"}},
		{Names: []string{"localhost/kubernetes/kube-proxy:test"}, Folders: in("root", "kube-proxy"), Entrypoint: []string{"/usr/local/bin/kube-proxy"}},
	}
}

// placed returns where an image has a program.
func placed(name string) string {
	if name == "kube-proxy" {
		return "usr/local/bin/kube-proxy"
	}
	return name
}

// TestImages returns an archive with the images of testImages. It is made once for each
// version of the programs, and kept where these are.
func TestImages(ctx context.Context, out io.Writer) (archive string, err error) {
	programs := map[string]string{}
	for name, module := range imagePrograms {
		folder, err := module.Build(ctx, out, name)
		if err != nil {
			return "", err
		}
		programs[name] = filepath.Join(folder, name)
	}
	recipe, err := json.Marshal(map[string]any{"programs": programs, "images": testImages(""), "root": rootPrograms, "texts": rootTexts, "certificate": certificate})
	if err != nil {
		return "", err
	}
	folder := filepath.Join(beside(programs["agnhost"]), fmt.Sprintf("images-%x", sha256.Sum256(recipe))[:23])
	archive = filepath.Join(folder, "images.tar")
	return archive, cache.Make(ctx, archive, waitingFor(out, "the images"), func(part string) error {
		fmt.Fprintln(out, "making the images of the tests")
		return makeImages(ctx, programs, part)
	})
}

// beside returns the folder of what is made of a program and kept as long as that.
func beside(program string) string { return filepath.Dir(filepath.Dir(program)) }

// waitingFor returns a report that another process makes something.
func waitingFor(out io.Writer, what string) func() {
	return func() { fmt.Fprintf(out, "waiting for %s, which another process makes\n", what) }
}

// makeImages collects the folders of the images, and packs them.
func makeImages(ctx context.Context, programs map[string]string, archive string) error {
	folder, err := os.MkdirTemp(beside(programs["agnhost"]), "images")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	for name, file := range programs {
		if err := copyFile(file, filepath.Join(folder, name, placed(name))); err != nil {
			return err
		}
	}
	err = errors.Join(makeRoot(filepath.Join(folder, "root")), buildPause(ctx, filepath.Join(folder, "pause", "pause")))
	if err == nil {
		err = copyCertificate(ctx, filepath.Join(folder, "agnhost"))
	}
	if err == nil {
		err = os.Symlink("agnhost", filepath.Join(folder, "agnhost", "agnhost-2"))
	}
	if err == nil {
		err = pack(ctx, folder, archive)
	}
	return err
}

// certificate are files of the image of agnhost, without which it serves no TLS, see its
// Dockerfile.
var certificate = []string{"localhost.crt", "localhost.key"}

func copyCertificate(ctx context.Context, to string) error {
	from, err := thirdparty.Kubernetes.Source(ctx, "k8s.io/kubernetes/test/images/agnhost/porter")
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range certificate {
		errs = append(errs, copyFile(filepath.Join(from, name), filepath.Join(to, name)))
	}
	return errors.Join(errs...)
}

func buildPause(ctx context.Context, file string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", file, "kubeproxy/test/nodes/pause")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	_, err := output(cmd)
	return err
}

// pack has the module of the product's own images make the archive, which has the library
// for it.
func pack(ctx context.Context, folder, archive string) error {
	text, err := json.Marshal(testImages(folder))
	if err != nil {
		return err
	}
	list := filepath.Join(folder, "images.json")
	if err := os.WriteFile(list, text, 0o644); err != nil {
		return err
	}
	top, err := output(exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "kubeproxy"))
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "run", ".", "pack", "-list", list, "-out", archive)
	cmd.Dir = filepath.Join(filepath.Clean(top[:len(top)-1]), "build", "release")
	_, err = output(cmd)
	return err
}
