// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"kubeproxy/common/service"
	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftmonitor"
	"kubeproxy/test/program"
	"kubeproxy/test/thirdparty"
)

// untyped are the programs in the pages that need what a test does not have: a machine of
// the distribution, a registry, a cloud. kubectl svcproxy has tests of its own.
var untyped = []string{"aws", "az", "ctr", "curl", "kind", "kubeadm", "kubectl svcproxy", "make", "microk8s", "nft", "skopeo"}

// runnable are the programs that a test runs for the pages.
var runnable = []string{"for", "helm", "kube-proxy", "kubectl", "sed"}

// block is a block of a page.
type block struct{ kit.Block }

func command(section, text string) block { return block{kit.Block{Section: section, Text: text}} }

func (b block) isScript() bool {
	return slices.Contains(runnable, b.Program()) || slices.Contains(untyped, b.Program())
}

func (b block) isValues() bool { return strings.Contains(b.About, "**Values.**") && !b.isScript() }

// namedFile finds the name of a file in the paragraph before its content.
var namedFile = regexp.MustCompile("`[^`]*?([a-z0-9-]+\\.(?:yaml|json))`")

// typist types the commands of a page.
type typist struct {
	*fixture
	dir, admin    string
	kubectl, helm string
	pages         int // that were typed to their end
}

// TestPages types docs/install.md and docs/distributions.md from top to bottom against an
// API server. No kubelet runs: testdata/typed says what stands for it.
func TestPages(t *testing.T) {
	w := &fixture{Lab: netlab.Start(t, netlab.Config{Clients: []string{"control"}})}
	w.api = cluster.Start(t, cluster.Options{
		Host: w.Host("control"), Authorization: cluster.RBAC, Flags: []string{"--allow-privileged=true"},
	})
	p := newTypist(t, w)
	t.Run("install", func(t *testing.T) { p.typeInstall(t) })
	t.Run("distributions", func(t *testing.T) { p.typeDistributions(t) })
	if p.pages == 2 { // else -run selected one
		p.checkUntyped(t)
	}
}

// newTypist prepares a cluster as kubeadm leaves it, and a folder to type in.
func newTypist(t *testing.T, w *fixture) *typist {
	t.Helper()
	p := &typist{fixture: w, dir: t.TempDir(), admin: w.kubeconfig(t, cluster.Login{})}
	p.programs(t)
	w.installAddon(t, p.admin)
	w.configMap(t, metav1.NamespacePublic, "cluster-info", "kubeconfig", serverAt("https://192.0.2.1:6443"))
	w.configMap(t, system, "kubeadm-config", "ClusterConfiguration", "kind: ClusterConfiguration\n")
	w.configMap(t, system, "kube-proxy-config", "config", "kind: KubeProxyConfiguration\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nmode: iptables\n")
	w.acceptMonitoring(t)
	linux, windows := node(), node()
	linux.Labels = map[string]string{corev1.LabelOSStable: "linux"}
	windows.Name, windows.Labels = "node-w", map[string]string{corev1.LabelOSStable: "windows"}
	w.set(t, linux, windows)
	for _, name := range []string{"default", "kube-proxy"} {
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
		_, _ = w.api.Client.CoreV1().ServiceAccounts(system).Create(t.Context(), account, metav1.CreateOptions{})
	}
	for name, of := range map[string]map[string]string{
		"kubeproxy-1":  {"app.kubernetes.io/name": "kubeproxy", "app.kubernetes.io/component": "linux"},
		"kube-proxy-1": {"k8s-app": "kube-proxy"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: of}}
		pod.Spec.Containers = []corev1.Container{{Name: "proxy", Image: "localhost/proxy"}}
		_, err := w.api.Client.CoreV1().Pods(system).Create(t.Context(), pod, metav1.CreateOptions{})
		kit.Must(t, err)
	}
	return p
}

// programs puts what the pages run into the folder bin.
func (p *typist) programs(t *testing.T) {
	t.Helper()
	kubernetes, err := thirdparty.Kubernetes.Build(t.Context(), os.Stderr, "kubectl")
	kit.Must(t, err)
	release, err := thirdparty.Release.Build(t.Context(), os.Stderr, "helm")
	kit.Must(t, err)
	p.kubectl, p.helm = filepath.Join(kubernetes, "kubectl"), filepath.Join(release, "helm")
	here, err := filepath.Abs("testdata/typed")
	kit.Must(t, err)
	links := map[string]string{
		"bin/kubectl": here + "/kubectl", "bin/helm": here + "/helm", "bin/kube-proxy": kubeProxy.Path,
		"build": filepath.Join(here, "../../../../build"),
	}
	for _, name := range untyped {
		if !strings.Contains(name, " ") {
			links["bin/"+name] = here + "/untyped"
		}
	}
	kit.Must(t, os.Mkdir(filepath.Join(p.dir, "bin"), 0o755))
	for name, to := range links {
		kit.Must(t, os.Symlink(to, filepath.Join(p.dir, name)))
	}
}

// placeholders are the words in the commands that a user replaces.
var placeholders = strings.NewReplacer(
	"/var/lib/rancher/rke2/bin/ctr", "ctr", "HOST/TEAM", "registry.test/team", "CHART", "build/chart",
	"POD_RANGE", "10.244.0.0/16", "IMAGE ", "registry.test/team/kubeproxy:v1 ", "VERSION", "v1",
	" NODE ", " node-a ", " NAME ", " team ", " GROUP ", " group ",
)

// script types a block.
func (p *typist) script(t *testing.T, b block) {
	t.Helper()
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", placeholders.Replace(b.Text))
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(p.dir, "bin")+":"+os.Getenv("PATH"),
		"HOME="+p.dir, "KUBECONFIG="+p.admin, "KUBECTL="+p.kubectl, "HELM="+p.helm, "UNTYPED="+filepath.Join(p.dir, "untyped"),
		"HELM_CACHE_HOME="+p.dir, "HELM_CONFIG_HOME="+p.dir, "HELM_DATA_HOME="+p.dir)
	out, err := program.Run(t, p.Host("control"), cmd)
	kit.Check(t, err == nil, "%s: %v\n%s\n%s", b.Section, err, b.Text, out)
}

// file keeps a block that is no script: YAML, or JSON, under the name that the page gives it.
func (p *typist) file(t *testing.T, b block) {
	t.Helper()
	var content map[string]any
	err := yaml.UnmarshalStrict([]byte(b.Text), &content)
	kit.Check(t, err == nil, "%s: neither a command nor YAML: %v\n%s", b.Section, err, b.Text)
	if names := namedFile.FindAllStringSubmatch(b.About, -1); names != nil {
		p.write(t, names[len(names)-1][1], b.Text)
	}
}

func (p *typist) write(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(p.dir, name)
	kit.Must(t, os.MkdirAll(filepath.Dir(file), 0o755))
	kit.WriteFile(t, file, text)
}

// typeInstall types docs/install.md. Each section begins with the chart installed.
func (p *typist) typeInstall(t *testing.T) {
	section := ""
	for _, m := range kit.Blocks(string(read(t, "..", "..", "docs", "install.md"))) {
		b := block{m}
		if b.Section != section {
			section = b.Section
			p.script(t, command(section, "helm install kubeproxy CHART -n kube-system --set clusterCIDR=POD_RANGE\n"))
		}
		switch {
		case b.isScript():
			p.script(t, b)
			p.checkSettings(t, b)
		case strings.HasPrefix(b.Text, "resources:"):
			p.write(t, "overlay/kustomization.yaml", b.Text)
			p.write(t, "overlay/kubeconfig.conf", serverAt("https://192.0.2.1:6443"))
			p.write(t, "overlay/linux.yaml", string(read(t, folder, "linux", "linux.yaml")))
			p.script(t, command(section, "kubectl kustomize overlay | grep 192.0.2.1\n"))
		default:
			p.file(t, b)
		}
	}
	p.pages++
}

// typeDistributions types docs/distributions.md. The first block installs what the values
// of each distribution give.
func (p *typist) typeDistributions(t *testing.T) {
	page := string(read(t, "..", "..", "docs", "distributions.md"))
	p.acceptControlPlanes(t)
	// As EKS has it: the configuration is in a ConfigMap of its own.
	err := p.api.Client.CoreV1().ConfigMaps(system).Delete(t.Context(), "kube-proxy", metav1.DeleteOptions{})
	kit.Need(t, err == nil || apierrors.IsNotFound(err), "%v", err)
	p.configMap(t, system, "kube-proxy", "kubeconfig", serverAt("https://192.0.2.5"))
	all := kit.Blocks(page)
	install := all[0]
	kit.Need(t, strings.Contains(install.Text, "-f values.yaml"),
		"the page does not begin with the installation, but with %s", install.Text)
	for _, m := range all[1:] {
		b := block{m}
		switch {
		case b.isValues():
			p.write(t, "values.yaml", b.Text)
			p.script(t, command(b.Section, install.Text))
			p.checkSettings(t, b)
		case b.isScript():
			p.script(t, b)
		default:
			p.file(t, b)
		}
	}
	checkOrder(t, page)
	p.pages++
}

// acceptControlPlanes has the API server know the kind of Cluster API, and an object of it.
func (p *typist) acceptControlPlanes(t *testing.T) {
	t.Helper()
	p.acceptKind(t, "controlplane.cluster.x-k8s.io", "v1beta1", "kubeadmcontrolplanes", "KubeadmControlPlane")
	kit.Must(t, p.api.Apply(t.Context(), []byte("apiVersion: controlplane.cluster.x-k8s.io/v1beta1\nkind: KubeadmControlPlane\nmetadata: {name: team, namespace: default}\n")))
}

// checkOrder checks that each distribution has its parts in one order.
func checkOrder(t *testing.T, page string) {
	t.Helper()
	part := regexp.MustCompile(`\*\*(Aside|Values|Back|Images)\b`)
	sections := strings.Split(page, "\n## ")[1:]
	distributions := 0
	for _, s := range sections {
		name, text, _ := strings.Cut(s, "\n")
		text = strings.TrimSpace(text)
		if !strings.HasPrefix(text, "**") || strings.HasPrefix(text, "**Do not install.**") {
			continue
		}
		var parts []string
		for _, m := range part.FindAllStringSubmatch(text, -1) {
			parts = append(parts, m[1])
		}
		kit.Check(t, slices.Equal(parts, []string{"Aside", "Values", "Back", "Images"}),
			"%s has the parts %q", name, parts)
		distributions++
	}
	kit.Check(t, distributions >= 15, "%d distributions", distributions)
}

// checkSettings has the program read the configuration in the releases that are installed.
func (p *typist) checkSettings(t *testing.T, b block) {
	t.Helper()
	list, err := p.api.Client.CoreV1().ConfigMaps(system).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name"})
	kit.Must(t, err)
	for _, m := range list.Items {
		for _, name := range []string{"linux", "windows"} {
			text, ok := m.Data[name+".yaml"]
			if !ok {
				continue
			}
			p.write(t, "settings.yaml", text)
			file := filepath.Join(p.dir, "settings.yaml")
			cmd := exec.Command(kubeProxy.Path, "config", "validate", "--os="+name, file)
			out, err := program.Run(t, p.Host("control"), cmd)
			kit.Check(t, err == nil, "%s: settings of %s: %v\n%s\n%s", b.Section, m.Name, err, out, text)
		}
	}
}

// checkUntyped checks that all programs that are not run are on the pages, so that the
// list has no more than it must.
func (p *typist) checkUntyped(t *testing.T) {
	t.Helper()
	text := read(t, p.dir, "untyped")
	seen := map[string]bool{}
	for line := range bytes.Lines(text) {
		seen[strings.TrimSpace(string(line))] = true
	}
	got := slices.Sorted(maps.Keys(seen))
	kit.Check(t, slices.Equal(got, untyped), "not typed: %q, want %q", got, untyped)
	t.Logf("not typed, as they need the distribution: %s", strings.Join(untyped, ", "))
}

// testExplain asks the running proxy about connections of pods by name. It has the rights
// of the deployment, which do not include pods. So it knows only endpoints, and the
// command has to look up other pods.
func testExplain(t *testing.T, w *fixture) {
	slice := newSlice("web", service.IPv4, w.webs(3)...)
	for i := range slice.Endpoints {
		slice.Endpoints[i].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: space, Name: []string{"web-1", "web-2", "web-3"}[i]}
	}
	w.set(t, newService("web"), slice)
	pods := w.api.Client.CoreV1().Pods(space)
	batch, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "batch"},
		Spec:       corev1.PodSpec{NodeName: "node-b", Containers: []corev1.Container{{Name: "batch", Image: "none"}}},
	}, metav1.CreateOptions{})
	kit.Must(t, err)
	defer func() {
		now := int64(0)
		err := pods.Delete(t.Context(), "batch", metav1.DeleteOptions{GracePeriodSeconds: &now})
		kit.Check(t, err == nil, "%v", err)
	}()
	batch.Status.PodIPs = []corev1.PodIP{{IP: "10.244.2.77"}}
	batch.Status.PodIP = "10.244.2.77"
	if _, err := pods.UpdateStatus(t.Context(), batch, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := w.start(t)
	admin := w.kubeconfig(t, cluster.Login{})
	for _, tc := range []struct {
		pod, kubeconfig string
		code            int
		want            string
	}{
		{"web-1", "", 0, "10.244.1.11 -> "},
		{"web-3", "", 0, "pod " + space + "/web-3 runs on node node-b"},
		{"batch", admin, 0, "10.244.2.77 -> "},
		{"batch", admin, 0, "pod " + space + "/batch runs on node node-b"},
		{"batch", w.login, 2, "want the right to get pods in namespace " + space},
		{"batch", "", 2, "want --kubeconfig FILE"},
		{"nobody", admin, 2, "has no pod " + space + "/nobody"},
	} {
		cmd := exec.Command(kubeProxy.Path, "explain", "--kubeconfig="+tc.kubeconfig, "pod/"+space+"/"+tc.pod, "svc/"+space+"/web:"+portName(corev1.ProtocolTCP))
		cmd.Env = []string{"HOME=" + t.TempDir()}
		out, err := program.Run(t, w.Node, cmd)
		kit.Need(t, err == nil || cmd.ProcessState != nil, "%v", err)
		if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(strings.Join(strings.Fields(out), " "), tc.want) {
			t.Errorf("%s with kubeconfig %q: exit %d, want %d and %q; got\n%s", tc.pod, tc.kubeconfig, code, tc.code, tc.want, out)
		}
	}
	p.Stop(t)
}

// testLogins connects to the API server in every supported way.
func testLogins(t *testing.T, w *fixture) {
	web := newService("web")
	w.set(t, append(endpoints("web", w.webs(2)...), web)...)
	calls := w.calls(t, web)
	for _, tc := range []struct {
		name string
		args func(*testing.T) []string
	}{
		{"kubeconfig", func(*testing.T) []string { return []string{"--kubeconfig=" + w.login} }},
		{"kubeconfig of somebody with the role that API servers make", func(t *testing.T) []string {
			return []string{"--kubeconfig=" + w.kubeconfig(t, cluster.Login{User: "system:kube-proxy"})}
		}},
		{"kubeconfig and another address", func(t *testing.T) []string {
			return []string{
				"--kubeconfig=" + w.kubeconfig(t, cluster.Login{Token: w.token, Server: "https://192.0.2.100:1"}),
				"--master=" + w.api.Server,
			}
		}},
		{"address alone", func(t *testing.T) []string { return []string{"--master=" + w.serveWithoutLogin(t)} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := w.run(t, append(tc.args(t), "--cluster-cidr="+netlab.ClusterCIDR)...)
			w.awaitProgrammed(t).Check(t, calls)
			p.Stop(t)
			kit.Check(t, !p.Log.Has("forbidden"), "the account lacks a right")
		})
	}
	t.Run("in a pod", func(t *testing.T) {
		w.cleanUp(t)
		p := program.Start(t, w.Node, w.inPod(t, "--cluster-cidr="+netlab.ClusterCIDR))
		w.awaitProgrammed(t).Check(t, calls)
		p.Stop(t)
	})
	t.Run("no rights", func(t *testing.T) {
		before := program.Generation(t, w.Node)
		p := w.run(t, "--kubeconfig="+w.kubeconfig(t, cluster.Login{User: "somebody"}), "--cluster-cidr="+netlab.ClusterCIDR)
		p.AwaitLog(t, "The API server cannot be read", "forbidden")
		awaitHealth(t, p, "nothing was read", http.StatusServiceUnavailable, http.StatusServiceUnavailable)
		if p.Ended() || program.Generation(t, w.Node) != before {
			t.Errorf("ended: %t, rules changed %d times; want neither", p.Ended(), program.Generation(t, w.Node)-before)
		}
		p.Stop(t)
	})
}

func (w *fixture) kubeconfig(t *testing.T, l cluster.Login) string {
	t.Helper()
	path, err := w.api.Kubeconfig(l)
	kit.Must(t, err)
	return path
}

// serveWithoutLogin serves the API without authentication, and returns its address.
func (w *fixture) serveWithoutLogin(t *testing.T) string {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", w.login)
	kit.Must(t, err)
	control := w.Host("control")
	config.Dial = control.Dial
	transport, err := rest.TransportFor(config)
	kit.Must(t, err)
	to, err := url.Parse(w.api.Server)
	kit.Must(t, err)
	l, err := control.Listen(t.Context(), "tcp", net.JoinHostPort(control.IPv4.String(), "8001"))
	kit.Must(t, err)
	server := &http.Server{Handler: &httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(to) },
		Transport: transport, FlushInterval: -1,
	}}
	go func() { _ = server.Serve(l) }() // ends with Close
	t.Cleanup(func() { server.Close() })
	return "http://" + l.Addr().String()
}

// podScript mounts the files of a ServiceAccount at their path in pods, in a mount
// namespace of its own, and executes the program.
const podScript = `set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /run
mkdir -p /var/run/secrets/kubernetes.io
cp -r "$1" /var/run/secrets/kubernetes.io/serviceaccount
shift
exec "$@"`

// inPod prepares the proxy as in a pod: with the files of its ServiceAccount and the
// address of the API server in the environment. See
// https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/
func (w *fixture) inPod(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	config, err := clientcmd.LoadFromFile(w.login)
	kit.Must(t, err)
	dir := t.TempDir()
	for name, text := range map[string][]byte{
		"token": []byte(w.token), "namespace": []byte(system),
		"ca.crt": config.Clusters[config.Contexts[config.CurrentContext].Cluster].CertificateAuthorityData,
	} {
		kit.Must(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	proxy := kubeProxy.Command(args...)
	cmd := exec.Command("/bin/sh", append([]string{"-c", podScript, "pod", dir}, proxy.Args...)...)
	cmd.Env = append(os.Environ(), "KUBERNETES_SERVICE_HOST="+w.Host("control").IPv4.String(), "KUBERNETES_SERVICE_PORT=6443")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS}
	return cmd
}

// testRestart stops and kills the proxy while connections are made all the time. None is
// lost, and a proxy that finds the desired state writes nothing.
func testRestart(t *testing.T, w *fixture) {
	web := newService("web", typed(corev1.ServiceTypeNodePort))
	sticky := newService("sticky", func(s *corev1.Service) { s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP })
	w.set(t, append(endpoints("web", w.webs(4)...), web)...)
	w.set(t, append(endpoints("sticky", w.webs(4)...), sticky)...)
	p := w.start(t)
	traffic, more := w.load(t, web), w.load(t, sticky)
	before := program.Generation(t, w.Node)

	for _, end := range []struct {
		how string
		do  func()
	}{{"killed", func() { p.Kill() }}, {"stopped", func() { p.Stop(t) }}} {
		end.do()
		p = w.launch(t)
		for _, f := range service.Families {
			p.AwaitLog(t, `"Programmed"`, "nftables "+f.String(), "changed=false")
		}
		now := program.Generation(t, w.Node)
		kit.Check(t, now == before, "%s and started again, the proxy wrote the rules %d times", end.how, now-before)
		w.awaitProgrammed(t)
	}

	// The new process programs what changed in between, and nothing else. The removed
	// endpoint serves on for a while, as terminating pods do.
	p.Kill()
	w.set(t, endpoints("web", w.webs(10)[1:]...)...)
	w.remove(t, append(endpoints("sticky"), sticky)...)
	gone := more.calls
	more.stop(t)
	p = w.launch(t)
	w.awaitProgrammed(t).Check(t, gone)
	traffic.stop(t)
	p.Stop(t)
}

const (
	many    = 1000 // Services at once
	sampled = 20   // Services that are checked endpoint by endpoint
)

// programmingTimes records the time of the kernel's last notification about each Service
// address.
type programmingTimes struct {
	mu   sync.Mutex
	last map[netip.Addr]time.Time
}

// observe searches a notification for the bytes of any address of ServiceCIDRv4.
func (a *programmingTimes) observe(n nftmonitor.Event) {
	if n.Kind != nftmonitor.NewElement {
		return
	}
	cidr := prefix("10.96.0.0/12")
	a.mu.Lock()
	defer a.mu.Unlock()
	for at := 0; ; at++ {
		i := bytes.IndexByte(n.Data[at:], 10)
		if at += i; i < 0 || at+4 > len(n.Data) {
			return
		}
		if addr, _ := netip.AddrFromSlice(n.Data[at : at+4]); cidr.Contains(addr) {
			a.last[addr] = n.At
		}
	}
}

// testMany creates a thousand Services of ten endpoints each, as fast as the API server
// accepts them.
func testMany(t *testing.T, w *fixture) {
	p := w.start(t)
	seen := &programmingTimes{last: map[netip.Addr]time.Time{}}
	listener, err := nftmonitor.Listen(w.Node, seen.observe)
	kit.Must(t, err)
	defer listener.Close()
	all, written := w.writeMany(t)
	whole := w.awaitProgrammed(t)
	now, peak := p.Memory(t)
	t.Logf("the proxy used %s of CPU and has %d MB resident, at most %d MB", p.CPU(t), now>>20, peak>>20)
	_, err = listener.Counts()
	kit.Check(t, err == nil, "some notices were lost: %v", err)
	seen.print(t, all, written)

	for i, s := range all {
		if i%(many/sampled) == 0 {
			whole.Check(t, w.calls(t, s)[:1])
		}
	}
	w.askAll(t, all)
	w.clear(t)
	w.awaitProgrammed(t)
	p.Stop(t)
}

// writeMany writes Service after Service, each followed by its endpoints, and returns
// when the API server had both.
func (w *fixture) writeMany(t *testing.T) ([]*corev1.Service, map[string]time.Time) {
	t.Helper()
	var all []*corev1.Service
	for i := range many {
		all = append(all, newService(fmt.Sprintf("many-%d", i), func(s *corev1.Service) {
			one := corev1.IPFamilyPolicySingleStack
			s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &one, s.Spec.IPFamilies[:1]
			s.Spec.Ports = s.Spec.Ports[:1]
		}))
	}
	begin := time.Now()
	written := map[string]time.Time{}
	var mu sync.Mutex
	var writers sync.WaitGroup
	for part := range slices.Chunk(all, many/8) {
		writers.Go(func() {
			for _, s := range part {
				err := w.api.Set(t.Context(), s)
				if err == nil {
					err = w.api.Set(t.Context(), newSlice(s.Name, service.IPv4, w.webs(10)...))
				}
				kit.Check(t, err == nil, "%v", err)
				mu.Lock()
				written[s.Name] = time.Now()
				mu.Unlock()
			}
		})
	}
	writers.Wait()
	t.Logf("%d Services with ten endpoints each were written in %s", many, time.Since(begin).Round(time.Millisecond))
	return all, written
}

// print prints how long after the API server's response the kernel had the last rule of
// each Service. The proxy may be faster than that response.
func (a *programmingTimes) print(t *testing.T, all []*corev1.Service, written map[string]time.Time) {
	t.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	var took []time.Duration
	for _, s := range all {
		at, ok := a.last[netip.MustParseAddr(s.Spec.ClusterIP)]
		if !ok {
			t.Errorf("no element of %s at %s was heard of", s.Name, s.Spec.ClusterIP)
			continue
		}
		took = append(took, at.Sub(written[s.Name]))
	}
	slices.Sort(took)
	line := "from the API server's answer to the kernel:"
	for _, q := range []int{0, 10, 50, 90, 99, 100} {
		line += fmt.Sprintf("  p%d %s", q, took[q*(len(took)-1)/100].Round(100*time.Microsecond))
	}
	t.Log(line)
}

// askAll sends one request to every Service.
func (w *fixture) askAll(t *testing.T, all []*corev1.Service) {
	t.Helper()
	for _, s := range all {
		to := netip.AddrPortFrom(netip.MustParseAddr(s.Spec.ClusterIP), 80)
		a, err := w.Host("shopper").Ask(t.Context(), netlab.Query{Proto: "tcp", To: to})
		kit.Check(t, err == nil && a.Outcome == netlab.Answered, "%s at %s: %s, %v", s.Name, to, a.Outcome, err)
	}
}

// awaitHealth waits for the HTTP status of /healthz and /livez.
func awaitHealth(t *testing.T, p *program.Proxy, when string, eligible, alive int) {
	t.Helper()
	kit.Until(t, when+": health", func() bool {
		return p.Status(t, program.HealthAddr, "/healthz") == eligible && p.Status(t, program.HealthAddr, "/livez") == alive
	})
}

// testNode creates the own Node late, changes and deletes it. None of that stops traffic.
func testNode(t *testing.T, w *fixture) {
	here, there := newSlice("near", service.IPv4, w.webs(3)...), newSlice("near", service.IPv6, w.webs(3)...)
	for _, s := range []*discoveryv1.EndpointSlice{here, there} {
		for i := range s.Endpoints {
			zone := []string{"east", "west", "west"}[i]
			s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
		}
	}
	near := newService("near", typed(corev1.ServiceTypeNodePort))
	w.remove(t, node())
	w.set(t, here, there, near)
	p := w.launch(t)
	p.AwaitLog(t, `"Programmed"`, "nftables IPv4")
	p.AwaitLog(t, `"Programmed"`, "nftables IPv6")
	calls := w.calls(t, near)
	w.awaitProgrammed(t).Check(t, calls)
	awaitHealth(t, p, "no Node yet", http.StatusServiceUnavailable, http.StatusOK)

	n := node()
	w.set(t, n) // until then no NodePort answers
	p.AwaitLog(t, `"The Node is known"`)
	w.awaitProgrammed(t).Check(t, calls)
	traffic := w.load(t, near)
	for _, s := range []struct {
		name     string
		edit     func()
		eligible int
	}{
		{"the Node comes", func() {}, http.StatusOK},
		{"its zone comes", func() { n.Labels = map[string]string{corev1.LabelTopologyZone: "west"} }, http.StatusOK},
		{"another zone", func() { n.Labels[corev1.LabelTopologyZone] = "east" }, http.StatusOK},
		{"a zone without endpoints", func() { n.Labels[corev1.LabelTopologyZone] = "north" }, http.StatusOK},
		{"it is to be removed", func() {
			n.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
		}, http.StatusServiceUnavailable},
		{"it stays after all", func() { n.Spec.Taints = nil }, http.StatusOK},
	} {
		s.edit()
		w.set(t, n)
		w.awaitProgrammed(t).Check(t, calls)
		awaitHealth(t, p, s.name, s.eligible, http.StatusOK)
	}
	w.remove(t, n)
	awaitHealth(t, p, "it is gone", http.StatusServiceUnavailable, http.StatusOK)
	w.awaitProgrammed(t).Check(t, calls)
	w.set(t, node())
	awaitHealth(t, p, "it is back", http.StatusOK, http.StatusOK)
	traffic.stop(t)
	p.Stop(t)
}

// testNodeAddress changes the address at which NodePorts answer.
func testNodeAddress(t *testing.T, w *fixture) {
	web := newService("web", typed(corev1.ServiceTypeNodePort))
	w.set(t, append(endpoints("web", w.webs(3)...), web)...)
	p := w.start(t)
	second := netip.MustParseAddr("192.0.2.77")
	kit.Must(t, w.Node.AddAddr(second))
	calls := w.calls(t, web)
	at, err := w.api.Client.CoreV1().Services(space).Get(t.Context(), web.Name, metav1.GetOptions{})
	kit.Must(t, err)
	moved := w.dial(calls[len(calls)-1], second.String(), at.Spec.Ports[0].NodePort, corev1.ProtocolTCP)
	for i := range moved {
		moved[i].ToNode, moved[i].Name = true, "NodePort at the new address"
	}
	w.awaitProgrammed(t).Check(t, moved) // no host has the address yet
	n := node()
	n.Status.Addresses[0].Address = second.String()
	w.set(t, n)
	w.awaitProgrammed(t).Check(t, append(calls, moved...))
	kit.Must(t, w.Node.DelAddr(second))
	p.Stop(t)
}

// testNodeCIDR identifies pods by the Node's podCIDRs, which cannot change. A Node with
// other podCIDRs is another Node of the same name.
func testNodeCIDR(t *testing.T, w *fixture) {
	means := w.trackOptions
	defer func() { w.trackOptions = means }()
	w.trackOptions.Pods, w.trackOptions.PodsFromNode = service.LocalPods{}, true
	web := newService("web")
	w.set(t, append(endpoints("web", w.webs(3)...), web)...)
	p := w.run(t, "--kubeconfig="+w.login, "--detect-local-mode=NodeCIDR")
	calls := w.calls(t, web)
	w.awaitProgrammed(t).Check(t, calls)
	for _, cidrs := range [][]string{{"10.244.9.0/24", "fd00:10:244:9::/64"}, {"10.244.1.0/24", "fd00:10:244:1::/64"}} {
		n := node()
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidrs[0], cidrs
		w.remove(t, n)
		w.set(t, n)
		w.awaitProgrammed(t).Check(t, calls)
	}
	p.Stop(t)
}

// testNodeName spells the name as a user may.
func testNodeName(t *testing.T, w *fixture) {
	p := w.start(t, "--hostname-override= NODE-A ")
	awaitHealth(t, p, "the Node's name has small letters", http.StatusOK, http.StatusOK)
	var about struct{ Node string }
	if p.JSON(t, "/services", &about); about.Node != netlab.NodeName {
		t.Errorf("node = %q, want %q", about.Node, netlab.NodeName)
	}
	p.Stop(t)
}
