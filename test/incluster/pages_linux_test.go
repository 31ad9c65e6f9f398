// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"bytes"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
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
		if _, err := w.api.Client.CoreV1().Pods(system).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// programs puts what the pages run into the folder bin.
func (p *typist) programs(t *testing.T) {
	t.Helper()
	kubernetes, err := thirdparty.Kubernetes.Build(t.Context(), os.Stderr, "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	release, err := thirdparty.Release.Build(t.Context(), os.Stderr, "helm")
	if err != nil {
		t.Fatal(err)
	}
	p.kubectl, p.helm = filepath.Join(kubernetes, "kubectl"), filepath.Join(release, "helm")
	here, err := filepath.Abs("testdata/typed")
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]string{
		"bin/kubectl": here + "/kubectl", "bin/helm": here + "/helm", "bin/kube-proxy": kubeProxy.Path,
		"build": filepath.Join(here, "../../../../build"),
	}
	for _, name := range untyped {
		if !strings.Contains(name, " ") {
			links["bin/"+name] = here + "/untyped"
		}
	}
	if err := os.Mkdir(filepath.Join(p.dir, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(p.dir, name)); err != nil {
			t.Fatal(err)
		}
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
	if out, err := program.Run(t, p.Host("control"), cmd); err != nil {
		t.Errorf("%s: %v\n%s\n%s", b.Section, err, b.Text, out)
	}
}

// file keeps a block that is no script: YAML, or JSON, under the name that the page gives it.
func (p *typist) file(t *testing.T, b block) {
	t.Helper()
	var content map[string]any
	if err := yaml.UnmarshalStrict([]byte(b.Text), &content); err != nil {
		t.Errorf("%s: neither a command nor YAML: %v\n%s", b.Section, err, b.Text)
	}
	if names := namedFile.FindAllStringSubmatch(b.About, -1); names != nil {
		p.write(t, names[len(names)-1][1], b.Text)
	}
}

func (p *typist) write(t *testing.T, name, text string) {
	t.Helper()
	file := filepath.Join(p.dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
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
	if err := p.api.Client.CoreV1().ConfigMaps(system).Delete(t.Context(), "kube-proxy", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	p.configMap(t, system, "kube-proxy", "kubeconfig", serverAt("https://192.0.2.5"))
	all := kit.Blocks(page)
	install := all[0]
	if !strings.Contains(install.Text, "-f values.yaml") {
		t.Fatalf("the page does not begin with the installation, but with %s", install.Text)
	}
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
	if err := p.api.Apply(t.Context(), []byte("apiVersion: controlplane.cluster.x-k8s.io/v1beta1\nkind: KubeadmControlPlane\nmetadata: {name: team, namespace: default}\n")); err != nil {
		t.Fatal(err)
	}
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
		if !slices.Equal(parts, []string{"Aside", "Values", "Back", "Images"}) {
			t.Errorf("%s has the parts %q", name, parts)
		}
		distributions++
	}
	if distributions < 15 {
		t.Errorf("%d distributions", distributions)
	}
}

// checkSettings has the program read the configuration in the releases that are installed.
func (p *typist) checkSettings(t *testing.T, b block) {
	t.Helper()
	list, err := p.api.Client.CoreV1().ConfigMaps(system).List(t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name"})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Items {
		for _, name := range []string{"linux", "windows"} {
			text, ok := m.Data[name+".yaml"]
			if !ok {
				continue
			}
			p.write(t, "settings.yaml", text)
			file := filepath.Join(p.dir, "settings.yaml")
			cmd := exec.Command(kubeProxy.Path, "config", "validate", "--os="+name, file)
			if out, err := program.Run(t, p.Host("control"), cmd); err != nil {
				t.Errorf("%s: settings of %s: %v\n%s\n%s", b.Section, m.Name, err, out, text)
			}
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
	if got := slices.Sorted(maps.Keys(seen)); !slices.Equal(got, untyped) {
		t.Errorf("not typed: %q, want %q", got, untyped)
	}
	t.Logf("not typed, as they need the distribution: %s", strings.Join(untyped, ", "))
}
