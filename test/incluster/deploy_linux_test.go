// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"kubeproxy/config"
	"kubeproxy/platform/modes"
	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
	"kubeproxy/test/thirdparty"
)

// rendered returns the chart's objects for values in YAML and flags of the tool. With a
// kubeconfig, the chart asks the cluster for the address of the API server.
func rendered(t *testing.T, w *fixture, tool, values string, flags ...string) []byte {
	t.Helper()
	if !strings.Contains(strings.Join(flags, " "), "-kubeconfig=") {
		values = withServer(t, values)
	}
	out, err := render(t, w, tool, values, flags...)
	kit.Need(t, err == nil, "render with %s: %v\n%s", values, err, out)
	return []byte(out)
}

func render(t *testing.T, w *fixture, tool, values string, flags ...string) (string, error) {
	t.Helper()
	cmd := exec.Command(tool, append([]string{"render", "-chart", filepath.Join("..", "..", "build", "chart")}, flags...)...)
	cmd.Stdin = strings.NewReader(values)
	return program.Run(t, w.Host("control"), cmd)
}

// withServer returns values that have an address of the API server.
func withServer(t *testing.T, values string) string {
	t.Helper()
	all := map[string]any{"apiServer": "https://192.0.2.9"}
	err := yaml.Unmarshal([]byte(values), &all)
	text, marshalErr := yaml.Marshal(all)
	kit.Must(t, errors.Join(err, marshalErr))
	return string(text)
}

// acceptedValues returns the values that build/release lists for the chart, in YAML.
func acceptedValues(t *testing.T) []string {
	t.Helper()
	var matrix struct{ Accepted []map[string]any }
	for _, name := range []string{"values.yaml", "teams.yaml"} {
		var one struct{ Accepted []map[string]any }
		text, err := os.ReadFile(filepath.Join("..", "..", "build", "release", "chart", "testdata", name))
		if err == nil {
			err = yaml.Unmarshal(text, &one)
		}
		kit.Need(t, err == nil && len(one.Accepted) >= 10, "%s has %d values: %v", name, len(one.Accepted), err)
		matrix.Accepted = append(matrix.Accepted, one.Accepted...)
	}
	var all []string
	for _, values := range matrix.Accepted {
		text, err := yaml.Marshal(values)
		kit.Must(t, err)
		all = append(all, string(text))
	}
	return all
}

// acceptMonitoring has the API server know the kinds of Prometheus' operator. Their fields
// are checked in build/release.
func (w *fixture) acceptMonitoring(t *testing.T) {
	t.Helper()
	for plural, kind := range map[string]string{"podmonitors": "PodMonitor", "servicemonitors": "ServiceMonitor", "prometheusrules": "PrometheusRule"} {
		w.acceptKind(t, "monitoring.coreos.com", "v1", plural, kind)
	}
}

// acceptKind has the API server know a kind, with any fields.
func (w *fixture) acceptKind(t *testing.T, group, version, plural, kind string) {
	t.Helper()
	crd := fmt.Sprintf(`apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %[3]s.%[1]s}
spec:
  group: %[1]s
  scope: Namespaced
  names: {plural: %[3]s, singular: %[5]s, kind: %[4]s}
  versions:
  - {name: %[2]s, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`, group, version, plural, kind, strings.ToLower(kind))
	kit.Must(t, w.api.Apply(t.Context(), []byte(crd)))
	one := fmt.Sprintf("apiVersion: %s/%s\nkind: %s\nmetadata: {name: one, namespace: default}\n", group, version, kind)
	kit.Until(t, "the kind "+kind, func() bool { return w.api.Try(t.Context(), []byte(one)) == nil })
}

// testChart has the API server check what the chart gives for many values, and installs
// it beside the objects of kubeadm.
func testChart(t *testing.T, w *fixture) {
	tool := program.ChartTool(t)
	w.acceptMonitoring(t)
	for _, values := range acceptedValues(t) {
		manifest := rendered(t, w, tool, values)
		err := errors.Join(w.api.Try(t.Context(), manifest), readable(manifest))
		kit.Check(t, err == nil, "values %s: %v", values, err)
	}
	admin := w.kubeconfig(t, cluster.Login{})
	t.Run("without an address", func(t *testing.T) { testNoAddress(t, w, tool, admin) })
	t.Run("cluster-info", func(t *testing.T) {
		w.configMap(t, metav1.NamespacePublic, "cluster-info", "kubeconfig", serverAt("https://192.0.2.1:6443"))
		testServer(t, rendered(t, w, tool, "{}", "-kubeconfig="+admin), "https://192.0.2.1:6443")
	})
	t.Run("beside kubeadm", func(t *testing.T) { testBeside(t, w, tool, admin) })
	t.Run("second release", func(t *testing.T) { testSecondRelease(t, w, tool) })
	t.Run("pod security", func(t *testing.T) { testPodSecurity(t, w, tool) })
	testServer(t, rendered(t, w, tool, `{apiServer: "https://192.0.2.3"}`, "-kubeconfig="+admin), "https://192.0.2.3")
}

// readable reads the configuration files in the objects of the chart as the program does.
func readable(manifest []byte) error {
	for document := range strings.SplitSeq(string(manifest), "---\n") {
		var m corev1.ConfigMap
		if yaml.Unmarshal([]byte(document), &m) != nil || m.Kind != "ConfigMap" {
			continue
		}
		for _, system := range []config.OS{config.Linux, config.Windows} {
			text, is := m.Data[string(system)+".yaml"]
			flags := &config.Flags{Modes: modes.All().Config(), Config: string(system) + ".yaml", StrictConfig: true}
			if _, err := config.LoadFrom(flags, system, []byte(text)); is && err != nil {
				return err
			}
		}
	}
	return nil
}

// testSecondRelease installs the chart for labelled Services beside the chart for the rest.
func testSecondRelease(t *testing.T, w *fixture, tool string) {
	values := "{extraArgs: [--service-proxy-name=team], metrics: {bindAddress: '127.0.0.1:10349'}, linux: {config: {healthzBindAddress: '[::]:10356'}}}"
	for _, manifest := range [][]byte{rendered(t, w, tool, "{}"), rendered(t, w, tool, values, "-release", "team")} {
		kit.Must(t, w.api.Apply(t.Context(), manifest))
	}
	sets, err := w.api.Client.AppsV1().DaemonSets(system).List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	for i := range sets.Items {
		template := labels.Set(sets.Items[i].Spec.Template.Labels)
		for j := range sets.Items {
			selector, err := metav1.LabelSelectorAsSelector(sets.Items[j].Spec.Selector)
			if err != nil || selector.Matches(template) != (i == j) {
				t.Errorf("DaemonSet %s selects the pods of %s: %v, %v", sets.Items[j].Name, sets.Items[i].Name, selector.Matches(template), err)
			}
		}
	}
}

// serverAt returns a kubeconfig with a server.
func serverAt(address string) string {
	return "apiVersion: v1\nkind: Config\nclusters:\n- name: default\n  cluster: {server: '" + address + "'}\n"
}

// configMap creates a ConfigMap. It stays: testBeside checks that kubeadm's goes first, and
// deletes both.
func (w *fixture) configMap(t *testing.T, namespace, name, key, text string) {
	t.Helper()
	client := w.api.Client.CoreV1()
	_, err := client.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{})
	kit.Need(t, err == nil || apierrors.IsAlreadyExists(err), "%v", err)
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{key: text}}
	_, err = client.ConfigMaps(namespace).Create(t.Context(), m, metav1.CreateOptions{})
	kit.Must(t, err)
}

// kubeconfigOf returns the kubeconfig in the objects of the chart.
func kubeconfigOf(t *testing.T, manifest []byte) string {
	t.Helper()
	for document := range strings.SplitSeq(string(manifest), "---\n") {
		var m corev1.ConfigMap
		if yaml.Unmarshal([]byte(document), &m) == nil && m.Kind == "ConfigMap" && m.Name == "kubeproxy" {
			return m.Data["kubeconfig.conf"]
		}
	}
	t.Fatalf("no ConfigMap in\n%s", manifest)
	return ""
}

func testServer(t *testing.T, manifest []byte, want string) {
	t.Helper()
	text := kubeconfigOf(t, manifest)
	kit.Check(t, strings.Contains(text, `server: "`+want+`"`), "want the server %s in\n%s", want, text)
}

// testNoAddress installs the chart in a cluster in which it finds no address.
func testNoAddress(t *testing.T, w *fixture, tool, admin string) {
	out, err := render(t, w, tool, "{}", "-kubeconfig="+admin)
	if err == nil || !strings.Contains(out, "apiServer is not set, and no ConfigMap of the cluster has the address") {
		t.Errorf("rendered without an address: %v\n%s", err, out)
	}
}

// folder contains the manifests that users apply, each deployment in a folder of its own.
var folder = filepath.Join("..", "..", "build", "deploy")

const (
	system  = metav1.NamespaceSystem
	account = "kubeproxy"
)

// kustomization contains the field that a deployment's objects do not show. The tests of
// build/release build the folder as kubectl does.
type kustomization struct {
	ConfigMapGenerator []struct {
		Name      string   `json:"name"`
		Namespace string   `json:"namespace"`
		Files     []string `json:"files"`
	} `json:"configMapGenerator"`
	GeneratorOptions struct {
		DisableNameSuffixHash bool `json:"disableNameSuffixHash"`
	} `json:"generatorOptions"`
}

// read returns a file of the deployment.
func read(t *testing.T, path ...string) []byte {
	t.Helper()
	text := kit.ReadFile(t, filepath.Join(path...))
	return text
}

// deployment returns the documents that applying a folder applies.
func deployment(t *testing.T, name string) []byte {
	t.Helper()
	return program.Manifest(t, built(t, filepath.Join(folder, name))...)
}

// built returns the objects of a folder with a kustomization.
func built(t *testing.T, dir string) []map[string]any {
	t.Helper()
	var k kustomization
	err := yaml.Unmarshal(read(t, dir, "kustomization.yaml"), &k)
	kit.Need(t, err == nil, "%s: %v", dir, err)
	kit.Check(t, k.GeneratorOptions.DisableNameSuffixHash,
		"%s: names of ConfigMaps get a hash at their end, so no running proxy sees a change", dir)
	all := documents(t, filepath.Join(dir, "objects.yaml"))
	for _, g := range k.ConfigMapGenerator {
		data := map[string]any{}
		for _, name := range g.Files {
			data[name] = string(read(t, dir, name))
		}
		all = append(all, map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": g.Name, "namespace": g.Namespace}, "data": data})
	}
	return all
}

// documents reads the documents of a file. A duplicate field is an error.
func documents(t *testing.T, path string) []map[string]any {
	t.Helper()
	var all []map[string]any
	reader := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader(read(t, path))))
	for {
		text, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		var o map[string]any
		if err == nil {
			err = yaml.UnmarshalStrict(text, &o)
		}
		kit.Need(t, err == nil, "%s: %v", path, err)
		if o != nil {
			all = append(all, o)
		}
	}
}

// deploy applies the deployment, and logs in as its ServiceAccount.
func (w *fixture) deploy(t *testing.T) {
	t.Helper()
	kit.Must(t, w.api.Apply(t.Context(), deployment(t, "linux")))
	token, err := w.api.Client.CoreV1().ServiceAccounts(system).
		CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	kit.Must(t, err)
	w.token = token.Status.Token
	if w.login, err = w.api.Kubeconfig(cluster.Login{Token: w.token}); err != nil {
		t.Fatal(err)
	}
}

// pods validates a pod of a DaemonSet at the API server, and returns its spec and the
// configuration for its system, in a file.
func (w *fixture) pods(t *testing.T, name, image string) (spec corev1.PodSpec, file string) {
	t.Helper()
	set, err := w.api.Client.AppsV1().DaemonSets(system).Get(t.Context(), name, metav1.GetOptions{})
	kit.Must(t, err)
	spec = set.Spec.Template.Spec
	spec.NodeName = node().Name
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: system, GenerateName: name + "-", Labels: set.Spec.Template.Labels}, Spec: spec}
	if _, err := w.api.Client.CoreV1().Pods(system).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Errorf("a pod of the DaemonSet %s: %v", name, err)
	}
	for _, c := range append(spec.InitContainers, spec.Containers...) {
		kit.Check(t, c.Image == image, "image of container %s = %q, want %s", c.Name, c.Image, image)
	}
	for _, v := range spec.Volumes {
		if v.Projected == nil { // the kubeconfig is of the cluster, and w.login stands for it
			continue
		}
		m, err := w.api.Client.CoreV1().ConfigMaps(system).Get(t.Context(), v.Projected.Sources[0].ConfigMap.Name, metav1.GetOptions{})
		kit.Need(t, err == nil, "volume %s: %v", v.Name, err)
		file = filepath.Join(t.TempDir(), "config.yaml")
		kit.WriteFile(t, file, m.Data[spec.NodeSelector[corev1.LabelOSStable]+".yaml"])
	}
	return spec, file
}

// validate checks a configuration for a system, and returns the notes on it.
func (w *fixture) validate(t *testing.T, file, system string) string {
	t.Helper()
	out, err := program.Run(t, w.Node, exec.Command(kubeProxy.Path, "config", "validate", "--os="+system, file))
	kit.Check(t, err == nil, "config validate for %s: %v\n%s", system, err, out)
	return string(out)
}

// testDeployment checks that a pod of the deployment can be created, that its mounts
// exist, and that the proxy runs with its configuration.
func testDeployment(t *testing.T, w *fixture) {
	_, file := w.pods(t, "kubeproxy", "localhost/kubeproxy-iptables:dev")
	w.validate(t, file, "linux")
	w.trackOptions.Pods.Prefixes = w.trackOptions.Pods.Prefixes[:1] // the file has IPv4 only
	defer func() { w.trackOptions.Pods.Prefixes = w.trackOptions.Pods.Prefixes[:2] }()
	web := newService("web", typed(corev1.ServiceTypeNodePort))
	w.set(t, append(endpoints("web", w.webs(2)...), web)...)
	p := w.run(t, "--config="+file, "--kubeconfig="+w.login)
	w.awaitProgrammed(t).Check(t, w.calls(t, web))
	p.Stop(t)
}

// testWindowsDeployment applies the deployment for Windows, and the one for nodes of both
// systems.
func testWindowsDeployment(t *testing.T, w *fixture) {
	for _, name := range []string{"windows", "mixed"} {
		err := w.api.Apply(t.Context(), deployment(t, name))
		kit.Need(t, err == nil, "deployment %s: %v", name, err)
		spec, file := w.pods(t, "kubeproxy-windows", "localhost/kubeproxy:dev")
		if o := spec.SecurityContext.WindowsOptions; o == nil || o.HostProcess == nil || !*o.HostProcess || !spec.HostNetwork || spec.NodeSelector[corev1.LabelOSStable] != "windows" {
			t.Errorf("%s: pods are no HostProcess pods of Windows nodes: %+v", name, spec)
		}
		text := w.validate(t, file, "windows")
		kit.Check(t, !strings.Contains(text, "note: "), "remarks on the configuration of %s: %s", name, text)
	}
	spec, file := w.pods(t, "kubeproxy", "localhost/kubeproxy-iptables:dev")
	kit.Check(t, spec.NodeSelector[corev1.LabelOSStable] == "linux",
		"the pods for Linux go to nodes with %v", spec.NodeSelector)
	w.validate(t, file, "linux")
	w.trackOptions.Pods.Prefixes = w.trackOptions.Pods.Prefixes[:1]
	defer func() { w.trackOptions.Pods.Prefixes = w.trackOptions.Pods.Prefixes[:2] }()
	web := newService("web")
	w.set(t, append(endpoints("web", w.webs(1)...), web)...)
	p := w.run(t, "--config="+file, "--kubeconfig="+w.login)
	w.awaitProgrammed(t).Check(t, w.calls(t, web))
	p.Stop(t)
}

// testPodSecurity asks the API server what the level baseline of Pod Security has against the
// pods of the chart. docs/SECURITY.md lists all of it, and nothing else.
func testPodSecurity(t *testing.T, w *fixture, tool string) {
	page := kit.ReadFile(t, filepath.Join("..", "..", "docs", "SECURITY.md"))
	_, listed, _ := strings.Cut(string(page), "### Pod Security")
	listed, _, _ = strings.Cut(listed, "\n#")
	var want strings.Builder
	for _, p := range []struct{ name, values string }{
		{"Linux, every mode", "{}"},
		{"Linux, `linux.socketAcceleration: true`", "{linux: {socketAcceleration: true}}"},
		{"Linux, `image.variant: plain`", "{image: {variant: plain}}"},
		{"Windows", "{linux: {enabled: false}, windows: {enabled: true}}"},
	} {
		pod := podOf(t, rendered(t, w, tool, p.values))
		want.WriteString("| " + p.name + " | " + strings.Join(w.objections(t, pod), "; ") + " |\n")
	}
	if !strings.HasSuffix(strings.TrimSpace(listed), strings.TrimSpace(want.String())) {
		t.Errorf("docs/SECURITY.md has another table; the API server says\n%s", want.String())
	}
}

// podOf returns the pod of the DaemonSet in the objects of the chart.
func podOf(t *testing.T, manifest []byte) *corev1.Pod {
	t.Helper()
	for document := range strings.SplitSeq(string(manifest), "---\n") {
		var d appsv1.DaemonSet
		if yaml.Unmarshal([]byte(document), &d) == nil && d.Kind == "DaemonSet" {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "kubeproxy-"}, Spec: d.Spec.Template.Spec}
		}
	}
	t.Fatalf("no DaemonSet in\n%s", manifest)
	return nil
}

// objections returns what the API server has against pod in a namespace of level baseline.
func (w *fixture) objections(t *testing.T, pod *corev1.Pod) []string {
	t.Helper()
	client := w.api.Client.CoreV1()
	space, err := client.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
		GenerateName: "level-", Labels: map[string]string{"pod-security.kubernetes.io/warn": "baseline"},
	}}, metav1.CreateOptions{})
	kit.Must(t, err)
	result := client.RESTClient().Post().Namespace(space.Name).Resource("pods").Body(pod).
		VersionedParams(&metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, scheme.ParameterCodec).Do(t.Context())
	kit.Must(t, result.Error())
	var all []string
	for _, x := range result.Warnings() {
		_, text, _ := strings.Cut(x.Text, ": ")
		all = append(all, text)
	}
	return all
}

// testBeside installs the chart in a cluster whose kube-proxy is kubeadm's. The objects of
// kubeadm do not change, and the chart finds the API server there.
func testBeside(t *testing.T, w *fixture, tool, admin string) {
	w.installAddon(t, admin)
	before := w.stock(t)
	manifest := rendered(t, w, tool, "{}", "-kubeconfig="+admin)
	testServer(t, manifest, "https://192.0.2.2:6443")
	kit.Must(t, w.api.Apply(t.Context(), manifest))
	if after := w.stock(t); after.ResourceVersion != before.ResourceVersion {
		t.Errorf("kubeadm's DaemonSet was changed:\n%s", cmp.Diff(before.Spec, after.Spec))
	}
	w.testAside(t, admin, before)
	w.testAddonConfig(t)
	// When kubeadm's ConfigMap goes, an upgrade keeps the address that is installed.
	for _, m := range [][2]string{{system, "kube-proxy"}, {metav1.NamespacePublic, "cluster-info"}} {
		err := w.api.Client.CoreV1().ConfigMaps(m[0]).Delete(t.Context(), m[1], metav1.DeleteOptions{})
		kit.Need(t, err == nil || apierrors.IsNotFound(err), "%v", err)
	}
	testServer(t, rendered(t, w, tool, "{}", "-kubeconfig="+admin), "https://192.0.2.2:6443")
}

// installAddon has kubeadm create what it creates for kube-proxy, or restore it as its
// upgrade does.
func (w *fixture) installAddon(t *testing.T, admin string) {
	t.Helper()
	programs, err := thirdparty.Kubeadm.Build(t.Context(), os.Stderr, "kubeadm")
	kit.Must(t, err)
	version, err := w.api.Client.Discovery().ServerVersion()
	kit.Must(t, err)
	cmd := exec.Command(filepath.Join(programs, "kubeadm"), "init", "phase", "addon", "kube-proxy", "--kubeconfig="+admin,
		"--kubernetes-version="+version.GitVersion, "--apiserver-advertise-address=192.0.2.2", "--pod-network-cidr=10.244.0.0/16")
	if out, err := program.Run(t, w.Host("control"), cmd); err != nil {
		t.Fatalf("kubeadm: %v\n%s", err, out)
	}
}

// stock returns kubeadm's DaemonSet.
func (w *fixture) stock(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	d, err := w.api.Client.AppsV1().DaemonSets(system).Get(t.Context(), "kube-proxy", metav1.GetOptions{})
	kit.Must(t, err)
	return d
}

// stockPatch finds patches of kubeadm's DaemonSet in a page.
var stockPatch = regexp.MustCompile(`kubectl -n kube-system patch daemonset kube-proxy --type=merge (?:\\\s+)?-p '([^']+)'`)

// testAside applies the patches of docs/install.md: kube-proxy put aside, or moved aside
// node by node, and started again. An upgrade by kubeadm that does not skip the addon
// takes them back, as that page says.
func (w *fixture) testAside(t *testing.T, admin string, before *appsv1.DaemonSet) {
	page := kit.ReadFile(t, filepath.Join("..", "..", "docs", "install.md"))
	patches := stockPatch.FindAllSubmatch(page, -1)
	kit.Need(t, len(patches) == 3, "docs/install.md has %d patches of kubeadm's DaemonSet, want three", len(patches))
	aside, byNode, back := patches[0][1], patches[1][1], patches[2][1]
	patch := func(text []byte) *appsv1.DaemonSet {
		t.Helper()
		d, err := w.api.Client.AppsV1().DaemonSets(system).Patch(t.Context(), "kube-proxy", types.MergePatchType, text, metav1.PatchOptions{})
		kit.Must(t, err)
		return d
	}
	isAside := func(d *appsv1.DaemonSet) bool { return d.Spec.Template.Spec.NodeSelector["service-proxy"] != "" }
	if d := patch(aside); !isAside(d) || d.Spec.Template.Spec.NodeSelector["kubernetes.io/os"] != "linux" {
		t.Errorf("put aside: the node selector is %v", d.Spec.Template.Spec.NodeSelector)
	}
	if d := patch(back); !cmp.Equal(d.Spec, before.Spec) {
		t.Errorf("back: -kubeadm's +ours:\n%s", cmp.Diff(before.Spec, d.Spec))
	}
	patch(aside)
	if d := patch(byNode); !strings.Contains(d.Spec.Template.Spec.Affinity.String(), "service-proxy") {
		t.Errorf("node by node: the affinity is %v", d.Spec.Template.Spec.Affinity)
	}
	if d := patch(back); !cmp.Equal(d.Spec, before.Spec) {
		t.Errorf("back: -kubeadm's +ours:\n%s", cmp.Diff(before.Spec, d.Spec))
	}
	patch(aside)
	if w.installAddon(t, admin); isAside(w.stock(t)) {
		t.Error("kubeadm keeps kube-proxy aside; docs/install.md says that it starts it again")
	}
}

// testAddonConfig checks that this proxy takes kubeadm's configuration as it is.
func (w *fixture) testAddonConfig(t *testing.T) {
	m, err := w.api.Client.CoreV1().ConfigMaps(system).Get(t.Context(), "kube-proxy", metav1.GetOptions{})
	kit.Must(t, err)
	file := filepath.Join(t.TempDir(), "config.conf")
	kit.WriteFile(t, file, m.Data["config.conf"])
	if out, err := program.Run(t, w.Node, exec.Command(kubeProxy.Path, "config", "validate", file)); err != nil {
		t.Errorf("kubeadm's configuration: %v\n%s", err, out)
	}
}
