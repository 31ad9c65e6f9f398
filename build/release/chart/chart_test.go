// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"helm.sh/helm/v3/pkg/lint"
	"helm.sh/helm/v3/pkg/lint/support"
	yamlreader "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

func source() *Source { return &Source{Folder: filepath.Join("..", "..", "chart")} }

// withServer returns values that have an address of the API server.
func withServer(values map[string]any) map[string]any {
	all := map[string]any{"apiServer": noServer}
	maps.Copy(all, values)
	return all
}

func deploy(path ...string) string {
	return filepath.Join(append([]string{"..", "..", "deploy"}, path...)...)
}

// TestLint runs helm lint, strictly.
func TestLint(t *testing.T) {
	l := lint.All(source().Folder, map[string]any{}, Namespace, true)
	for _, m := range l.Messages {
		if m.Severity > support.InfoSev {
			t.Error(m)
		}
	}
}

// TestBasesAreGenerated compares build/deploy with what the chart gives.
func TestBasesAreGenerated(t *testing.T) {
	want, err := source().Bases()
	must(t, err)
	found, err := filepath.Glob(deploy("*", "*"))
	must(t, err)
	if len(found)+1 != len(want) { // kubeconfig.conf is in no folder
		t.Errorf("the folders of build/deploy have %d files, the chart gives %d", len(found), len(want)-1)
	}
	for name, text := range want {
		got, err := os.ReadFile(deploy(filepath.FromSlash(name)))
		if err != nil || string(got) != text {
			t.Errorf("build/deploy/%s is not what the chart gives (%v): run make manifests", name, err)
		}
	}
}

// TestReadmeIsGenerated compares the README of the chart with its values, and wants the
// default of one with what it takes.
func TestReadmeIsGenerated(t *testing.T) {
	want, err := source().Readme()
	must(t, err)
	got, err := os.ReadFile(filepath.Join(source().Folder, "README.md"))
	if err != nil || string(got) != want {
		t.Errorf("build/chart/README.md is not what the chart gives (%v): run make manifests", err)
	}
	if row := "| `linux.mode` | `\"nftables\"` of `\"\"`, `\"nftables\"`, `\"iptables\"`, `\"ipvs\"`, `\"userspace\"` | "; !strings.Contains(want, row) {
		t.Errorf("want %s in\n%s", row, want)
	}
}

// TestBasesEqualChart builds each folder as kubectl apply -k does, and compares its
// objects with those of helm template.
func TestBasesEqualChart(t *testing.T) {
	for name, b := range bases {
		t.Run(name, func(t *testing.T) {
			built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), deploy(name))
			must(t, err)
			text, err := built.AsYaml()
			must(t, err)
			manifest, err := source().Manifest(b.values)
			must(t, err)
			got, want := objects(t, text), objects(t, []byte(ofHelm.ReplaceAllString(manifest, "")))
			delete(want, "Pod kubeproxy-test") // of helm test
			for key := range want {
				if !reflect.DeepEqual(got[key], want[key]) {
					t.Errorf("%s differs:\n%v\n%v", key, got[key], want[key])
				}
			}
			if len(got) != len(want) {
				t.Errorf("%d objects, the chart has %d", len(got), len(want))
			}
			if strings.Contains(string(text), "server: ") {
				t.Error("the folder has an address of the API server, which it would put in place of the cluster's")
			}
		})
	}
}

// objects reads the objects of a manifest, by kind and name.
func objects(t *testing.T, text []byte) map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]any{}
	for r := yamlreader.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))); ; {
		document, err := r.Read()
		if errors.Is(err, io.EOF) {
			return all
		}
		var o map[string]any
		if err == nil {
			err = yaml.UnmarshalStrict(document, &o)
		}
		if err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		if o != nil {
			all[o["kind"].(string)+" "+o["metadata"].(map[string]any)["name"].(string)] = o
		}
	}
}

// installed returns what the chart installs with values in YAML, see objects.
func installed(t *testing.T, values string) map[string]map[string]any {
	t.Helper()
	var v map[string]any
	must(t, yaml.UnmarshalStrict([]byte(values), &v))
	manifest, err := source().Manifest(withServer(v))
	must(t, err)
	return objects(t, []byte(manifest))
}

// TestPods checks the rights that pods ask for.
func TestPods(t *testing.T) {
	for values, want := range map[string][]any{
		`{}`:                                  {"NET_ADMIN", "NET_RAW"},
		`{linux: {mode: ipvs}}`:               {"NET_ADMIN", "NET_RAW"},
		`{image: {variant: plain}}`:           {"NET_ADMIN"},
		`{linux: {socketAcceleration: true}}`: {"NET_ADMIN", "NET_RAW", "BPF", "PERFMON"},
		`{image: {variant: plain}, linux: {socketAcceleration: true}}`: {"NET_ADMIN", "BPF", "PERFMON"},
	} {
		pod := at(installed(t, values)["DaemonSet kubeproxy"], "spec", "template", "spec").(map[string]any)
		if got := at(pod, "securityContext", "seccompProfile", "type"); got != "RuntimeDefault" {
			t.Errorf("%s: seccomp profile %v", values, got)
		}
		container := pod["containers"].([]any)[0].(map[string]any)
		rights := at(container, "securityContext").(map[string]any)
		if got := at(rights, "capabilities", "add").([]any); !slices.Equal(got, want) {
			t.Errorf("%s: capabilities %v, want %v", values, got, want)
		}
		if !reflect.DeepEqual(at(rights, "capabilities", "drop"), []any{"ALL"}) || rights["readOnlyRootFilesystem"] != true || rights["allowPrivilegeEscalation"] != false {
			t.Errorf("%s: rights %v", values, rights)
		}
		var paths []string
		for _, volume := range pod["volumes"].([]any) {
			if path, ok := at(volume.(map[string]any), "hostPath", "path").(string); ok {
				paths = append(paths, path)
			}
		}
		if want := hostPaths(want); !slices.Equal(paths, want) {
			t.Errorf("%s: host paths %v, want %v", values, paths, want)
		}
	}
}

// TestConfinement checks what AppArmor and SELinux let the proxy do. The annotation is for Kubernetes before 1.30, whose
// API server does not know the field.
func TestConfinement(t *testing.T) {
	const field, note = `"appArmorProfile":{"type":"Unconfined"}`, `"container.apparmor.security.beta.kubernetes.io/kube-proxy":"unconfined"`
	const linux = `"seLinuxOptions":{"level":"s0","type":"spc_t"}`
	for _, c := range []struct {
		kube, values string
		want, not    []string
	}{
		{"v1.36.0", `{}`, nil, []string{"appArmor", "apparmor", "seLinux"}},
		{"v1.36.0", `{linux: {socketAcceleration: true}}`, []string{field, linux}, []string{note}},
		{"v1.30.1-eks-1", `{linux: {socketAcceleration: node}}`, []string{field, linux}, []string{note}},
		{"v1.29.9+k3s1", `{linux: {socketAcceleration: true}}`, []string{note, linux}, []string{field}},
		{"v1.29.0", `{linux: {appArmorProfile: {type: Localhost, localhostProfile: p}}, podAnnotations: {a: b}}`, []string{`io/kube-proxy":"localhost/p"`, `"a":"b"`}, []string{"seLinux"}},
		{"v1.36.0", `{linux: {socketAcceleration: true, appArmorProfile: {type: RuntimeDefault}, seLinuxOptions: {type: mine_t}}}`,
			[]string{`"appArmorProfile":{"type":"RuntimeDefault"}`, `"seLinuxOptions":{"type":"mine_t"}`}, []string{field, "level"}},
	} {
		s := source()
		s.Kube = c.kube
		var values map[string]any
		must(t, yaml.Unmarshal([]byte(c.values), &values))
		manifest, err := s.Manifest(withServer(values))
		must(t, err)
		pod, err := json.Marshal(at(objects(t, []byte(manifest))["DaemonSet kubeproxy"], "spec", "template"))
		must(t, err)
		for _, w := range c.want {
			if !strings.Contains(string(pod), w) {
				t.Errorf("Kubernetes %s, %s: want %s in %s", c.kube, c.values, w, pod)
			}
		}
		for _, n := range c.not {
			if strings.Contains(string(pod), n) {
				t.Errorf("Kubernetes %s, %s: %s is in %s", c.kube, c.values, n, pod)
			}
		}
	}
}

// TestNodesWithAnImage checks that pods go only to nodes for whose processor there is an image, in each of the
// alternatives that the values have.
func TestNodesWithAnImage(t *testing.T) {
	const affinity = `{podAffinity: {}, nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
  {matchExpressions: [{key: pool, operator: Exists}]}, {matchFields: [{key: metadata.name, operator: In, values: [a]}]}]}}}`
	image := map[string]any{"key": "kubernetes.io/arch", "operator": "In", "values": []any{"amd64", "arm64"}}
	for values, want := range map[string][]any{
		"{}": {map[string]any{"matchExpressions": []any{image}}},
		"{linux: {affinity: " + affinity + "}}": {
			map[string]any{"matchExpressions": []any{map[string]any{"key": "pool", "operator": "Exists"}, image}},
			map[string]any{"matchExpressions": []any{image}, "matchFields": []any{map[string]any{"key": "metadata.name", "operator": "In", "values": []any{"a"}}}},
		},
	} {
		got := at(installed(t, values)["DaemonSet kubeproxy"], "spec", "template", "spec", "affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: nodes with\n%v\nwant\n%v", values, got, want)
		}
	}
	if got := at(installed(t, "{windows: {enabled: true}}")["DaemonSet kubeproxy-windows"], "spec", "template", "spec", "nodeSelector", "kubernetes.io/arch"); got != "amd64" {
		t.Errorf("pods on Windows go to nodes of %v", got)
	}
}

// TestCleanup checks the pods that clean up nodes: they come alone, have what a private registry wants, and the lock of
// the node. Nothing else may come with them, as whoever applies them has uninstalled the proxy.
func TestCleanup(t *testing.T) {
	const digest = "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	all := installed(t, `
apiServer: ""
image: {tag: v1, digest: "`+digest[1:]+`", windowsDigest: "`+digest[1:]+`", pullSecrets: [secret]}
linux: {socketAcceleration: true}
extraArgs: [--v=2, --service-proxy-name=team]
cleanup: {linux: [a, b.example], windows: [win]}
monitoring: {dashboard: {enabled: true}}`)
	if len(all) != 3 {
		t.Errorf("%d objects, want a pod for each node: %v", len(all), all)
	}
	for name, image := range map[string]string{"a": "localhost/kubeproxy-iptables:v1", "b.example": "localhost/kubeproxy-iptables:v1", "win": "localhost/kubeproxy:v1"} {
		pod, _ := at(all["Pod kubeproxy-cleanup-"+name], "spec").(map[string]any)
		if pod == nil {
			t.Errorf("no pod for node %s", name)
			continue
		}
		container := pod["containers"].([]any)[0].(map[string]any)
		got := []any{pod["nodeName"], pod["hostNetwork"], container["image"], container["args"], pod["imagePullSecrets"], pod["tolerations"]}
		want := []any{name, true, image + digest, []any{"--cleanup", "--service-proxy-name=team"}, []any{map[string]any{"name": "secret"}}, []any{map[string]any{"operator": "Exists"}}}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("node %s: %v, want %v", name, got, want)
		}
		if name == "win" {
			continue
		}
		if lock := at(pod["volumes"].([]any)[0].(map[string]any), "hostPath", "path"); lock != "/run/xtables.lock" {
			t.Errorf("node %s: the first volume is %v", name, lock)
		}
		if rights := at(container, "securityContext", "capabilities", "add"); !reflect.DeepEqual(rights, []any{"NET_ADMIN", "NET_RAW", "BPF", "PERFMON"}) {
			t.Errorf("node %s: rights %v", name, rights)
		}
	}
}

// TestHelmTest checks the pod of helm test: it runs where the proxy does, and asks it as a user without rights.
func TestHelmTest(t *testing.T) {
	all := installed(t, "{linux: {nodeSelector: {pool: a}}, image: {pullSecrets: [secret]}}")
	test := all["Pod kubeproxy-test"]
	if got := at(test, "metadata", "annotations", "helm.sh/hook"); got != "test" {
		t.Errorf("the pod is a hook for %v", got)
	}
	// It outlives helm uninstall, after which docs/install.md waits for the end of pods with this label.
	if got := at(test, "metadata", "labels", "app.kubernetes.io/name"); got != "kubeproxy-test" {
		t.Errorf("the pod has the name %v, want one of its own", got)
	}
	proxy := at(all["DaemonSet kubeproxy"], "spec", "template", "spec").(map[string]any)
	for _, field := range []string{"nodeSelector", "affinity", "tolerations", "imagePullSecrets", "hostNetwork", "volumes"} {
		want := proxy[field]
		if field == "volumes" {
			want = want.([]any)[:1] // the configuration
		}
		if got := at(test, "spec", field); want == nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s of the pod is %v, that of the proxy %v", field, got, want)
		}
	}
	if all := installed(t, "{linux: {enabled: false}, windows: {enabled: true}}"); all["Pod kubeproxy-test"] != nil {
		t.Error("a test for Linux without a proxy there")
	}
}

// TestSettings checks that the init container has the flags of the proxy. Its name says whose
// socket acceleration it removes.
func TestSettings(t *testing.T) {
	pod := at(installed(t, `extraArgs: [--v=2, --service-proxy-name=team]`)["DaemonSet kubeproxy"], "spec", "template", "spec").(map[string]any)
	got := at(pod["initContainers"].([]any)[0].(map[string]any), "args")
	if want := []any{"--init-only", "--config=/etc/kubeproxy/linux.yaml", "--v=2", "--service-proxy-name=team"}; !reflect.DeepEqual(got, want) {
		t.Errorf("arguments %v, want %v", got, want)
	}
}

// TestPorts checks that a pod is probed and scraped where its configuration has the servers,
// and that health is served to a kubelet that asks by either family.
func TestPorts(t *testing.T) {
	for values, want := range map[string][2]any{
		`{}`: {"[::]:10256", []any{map[string]any{"containerPort": 10256.0}}},
		`{linux: {config: {healthzBindAddress: "0.0.0.0:10356", metricsBindAddress: "[::]:10349"}}}`: {"0.0.0.0:10356", []any{
			map[string]any{"containerPort": 10356.0}, map[string]any{"name": "metrics", "containerPort": 10349.0}}},
	} {
		all := installed(t, values)
		var c map[string]any
		must(t, yaml.Unmarshal([]byte(at(all["ConfigMap kubeproxy"], "data", "linux.yaml").(string)), &c))
		container := at(all["DaemonSet kubeproxy"], "spec", "template", "spec", "containers").([]any)[0].(map[string]any)
		if got := [2]any{c["healthzBindAddress"], container["ports"]}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", values, got, want)
		}
	}
}

// hostPaths returns the paths of the host that go with rights.
func hostPaths(rights []any) (paths []string) {
	if slices.Contains(rights, any("NET_RAW")) {
		paths = append(paths, "/run/xtables.lock")
	}
	if slices.Contains(rights, any("BPF")) {
		paths = append(paths, "/sys/fs/bpf", "/sys/fs/cgroup")
	}
	return paths
}

// at follows keys.
func at(o map[string]any, keys ...string) any {
	var x any = o
	for _, k := range keys {
		m, _ := x.(map[string]any)
		x = m[k]
	}
	return x
}

// TestNoAddress renders the chart as GitOps tools do, which ask no cluster. Rendered without
// an address, it would take that of an installation away.
func TestNoAddress(t *testing.T) {
	for _, values := range []map[string]any{{}, {"apiServer": ""}, {"windows": map[string]any{"enabled": true}}} {
		if _, err := source().Manifest(values); err == nil || !strings.Contains(err.Error(), "apiServer is not set, and no ConfigMap") {
			t.Errorf("%v: %v, want an error that names apiServer", values, err)
		}
	}
}

// TestKubeconfigOfItsOwn mounts a kubeconfig that the chart does not write. The folders of build/deploy do
// the same: applied again, they leave the address of the API server alone.
func TestKubeconfigOfItsOwn(t *testing.T) {
	all := installed(t, `{apiServer: "", kubeconfig: {configMapName: mine}, windows: {enabled: true}}`)
	if data := at(all["ConfigMap kubeproxy"], "data").(map[string]any); data["kubeconfig.conf"] != nil || data["linux.yaml"] == nil {
		t.Errorf("the chart writes %v", data)
	}
	for _, name := range []string{"kubeproxy", "kubeproxy-windows"} {
		config := at(all["DaemonSet "+name], "spec", "template", "spec", "volumes").([]any)[0].(map[string]any)
		want := []any{
			map[string]any{"configMap": map[string]any{"name": "kubeproxy"}},
			map[string]any{"configMap": map[string]any{"name": "mine", "items": []any{map[string]any{"key": "kubeconfig.conf", "path": "kubeconfig.conf"}}}},
		}
		if got := at(config, "projected", "sources"); !reflect.DeepEqual(got, want) {
			t.Errorf("%s mounts %v", name, config)
		}
	}
	texts, err := source().Render(map[string]any{"kubeconfig": map[string]any{"configMapName": "mine"}})
	if err != nil || !strings.Contains(texts["NOTES.txt"], "kubeconfig.conf of ConfigMap kube-system/mine names") {
		t.Errorf("notes %v, %s", err, texts["NOTES.txt"])
	}
}

// TestNotes checks the commands that Helm prints after an installation.
func TestNotes(t *testing.T) {
	texts, err := source().Render(withServer(map[string]any{"metrics": map[string]any{"bindAddress": "127.0.0.1:10349"}}))
	must(t, err)
	for _, want := range []string{
		"The proxy asks the API server at " + noServer + ".\n",
		"kubectl -n kube-system exec daemonset/kubeproxy -- kube-proxy status --config /etc/kubeproxy/linux.yaml\n", // whatever its port is
	} {
		if !strings.Contains(texts["NOTES.txt"], want) {
			t.Errorf("want %s in\n%s", want, texts["NOTES.txt"])
		}
	}
}

// configMaps are those of a cluster, by namespace and name. One without data may not be read.
type configMaps map[string]map[string]string

// cluster answers as an API server does that has nothing else.
func (m configMaps) cluster(t *testing.T) *rest.Config {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		status := func(code int, reason string) {
			w.WriteHeader(code)
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": "configmaps is forbidden"})
		}
		if r.URL.Path == "/api/v1" {
			kind := map[string]any{"name": "configmaps", "kind": "ConfigMap", "namespaced": true, "verbs": []string{"get"}}
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "APIResourceList", "groupVersion": "v1", "resources": []any{kind}})
			return
		}
		name := strings.Replace(strings.TrimPrefix(r.URL.Path, "/api/v1/namespaces/"), "/configmaps", "", 1)
		data, is := m[name]
		switch {
		case !is:
			status(http.StatusNotFound, "NotFound")
		case data == nil:
			status(http.StatusForbidden, "Forbidden")
		default:
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": "ConfigMap", "apiVersion": "v1", "metadata": map[string]any{"name": name}, "data": data})
		}
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}
}

const joined = "clusters:\n- cluster: {server: 'https://192.0.2.7:6443'}\n"

// TestLookups renders the chart in clusters that have the address, have it under the key of EKS, or do not show it. A
// deployer without rights reads a sentence, and needs none with apiServer.
func TestLookups(t *testing.T) {
	const other = "team"
	for name, c := range map[string]struct {
		maps      configMaps
		values    map[string]any
		namespace string
		want      string // in the kubeconfig, or in the error
	}{
		"kubeadm":            {configMaps{"kube-system/kube-proxy": {"kubeconfig.conf": joined}}, nil, "", "https://192.0.2.7:6443"},
		"EKS":                {configMaps{"kube-system/kube-proxy": {"kubeconfig": joined}}, nil, other, "https://192.0.2.7:6443"},
		"kind":               {configMaps{"kube-public/cluster-info": {"kubeconfig": joined}}, nil, other, "https://192.0.2.7:6443"},
		"nothing":            {configMaps{}, nil, "", "apiServer is not set, and no ConfigMap of the cluster has the address"},
		"forbidden":          {configMaps{"kube-public/cluster-info": nil}, nil, "", "): apiServer: it is not set, and the ConfigMaps of the cluster that may have it cannot be read; want an address"},
		"all are forbidden":  {configMaps{"kube-system/kube-proxy": nil}, nil, other, "): apiServer: it is not set, and the ConfigMaps of the cluster that may have it cannot be read; want an address"},
		"forbidden, with it": {configMaps{"kube-system/kube-proxy": nil, "kube-public/cluster-info": nil, "kube-system/kube-proxy-config": nil}, withServer(nil), other, noServer},
		"a ConfigMap of ours": {configMaps{"kube-system/kube-proxy": nil, "kube-public/cluster-info": nil, "kube-system/kube-proxy-config": nil},
			map[string]any{"kubeconfig": map[string]any{"configMapName": "mine"}}, other, "linux.yaml"},
	} {
		s := source()
		s.Cluster, s.Namespace = c.maps.cluster(t), c.namespace
		texts, err := s.Render(c.values)
		if got := texts["config.yaml"]; err == nil && !strings.Contains(got, c.want) {
			t.Errorf("%s: want %s in\n%s", name, c.want, got)
		}
		if err != nil && (!strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "error calling")) {
			t.Errorf("%s: want the sentence %s alone, got %v", name, c.want, err)
		}
	}
}

// TestNotesNameSettings installs the chart in a cluster whose kube-proxy has settings of its own.
func TestNotesNameSettings(t *testing.T) {
	const kubeadm = `
apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
bindAddress: 0.0.0.0
clientConnection: {kubeconfig: /var/lib/kube-proxy/kubeconfig.conf, qps: 0}
clusterCIDR: 10.244.0.0/16
conntrack: {maxPerCore: 65536, min: null, tcpCloseWaitTimeout: 0s, udpTimeout: 0s}
healthzBindAddress: ""
hostnameOverride: ""
iptables: {localhostNodePorts: true, masqueradeAll: true, masqueradeBit: null, syncPeriod: 0s}
ipvs: {excludeCIDRs: null, strictARP: true, scheduler: ""}
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}}, verbosity: 0}
mode: ipvs
nodePortAddresses: [192.0.2.0/24]
winkernel: {enableDSR: false, networkName: ""}
`
	const head = "ConfigMap kube-system/kube-proxy of the cluster's kube-proxy has settings that this release has not:\n"
	const noRange = "clusterCIDR is not set: the proxy cannot distinguish pods from clients outside"
	mine := map[string]any{"clusterCIDR": "10.244.0.0/16", "linux": map[string]any{"mode": "ipvs", "config": map[string]any{
		"conntrack": map[string]any{"maxPerCore": 65536}, "ipvs": map[string]any{"strictARP": true}, "nodePortAddresses": []any{"192.0.2.0/24"},
		"iptables": map[string]any{"localhostNodePorts": true, "masqueradeAll": true}}}}
	for _, c := range []struct {
		conf, key string
		values    map[string]any
		want, not []string
	}{
		{kubeadm, "kube-system/kube-proxy config.conf", nil, []string{noRange, head + `
    clusterCIDR: "10.244.0.0/16", not set here
    conntrack.maxPerCore: 65536, not set here
    iptables.localhostNodePorts: true, not set here
    iptables.masqueradeAll: true, not set here
    ipvs.strictARP: true, not set here
    mode: "ipvs", here "nftables"
    nodePortAddresses: ["192.0.2.0/24"], not set here
`, "configmap kube-proxy -o yaml | kube-proxy config migrate --values - > values.yaml\n"}, nil},
		{kubeadm, "kube-system/kube-proxy config.conf", mine, nil, []string{"settings", noRange}},
		{"kind: KubeProxyConfiguration\nmode: ''\n", "kube-system/kube-proxy config.conf", nil, []string{head + "\n    mode: \"iptables\", here \"nftables\"\n    nodePortAddresses: all addresses of the node, as it has no value, here [\"primary\"]\n"}, nil},
		{"kind: KubeProxyConfiguration\nmode: nftables\n", "kube-system/kube-proxy config.conf", nil, nil, []string{"settings"}},
		{"kind: KubeProxyConfiguration\nmode: ipvs\n", "kube-system/kube-proxy-config config", nil, []string{"ConfigMap kube-system/kube-proxy-config of", `mode: "ipvs", here "nftables"`}, nil},
		{"no configuration", "kube-system/kube-proxy config.conf", map[string]any{"linux": map[string]any{"config": map[string]any{"detectLocalMode": "NodeCIDR"}}}, nil, []string{"settings", noRange}},
		{"", "kube-system/other config.conf", map[string]any{"kubeProxyNames": true}, []string{"kubeProxyNames: metrics are for the node alone", "daemonset/kube-proxy-kubeproxy -- "}, []string{"settings"}},
	} {
		name, key, _ := strings.Cut(c.key, " ")
		s := source()
		s.Cluster = configMaps{name: {key: c.conf}}.cluster(t)
		texts, err := s.Render(withServer(c.values))
		must(t, err)
		for _, w := range c.want {
			if !strings.Contains(texts["NOTES.txt"], w) {
				t.Errorf("%s: want %s in\n%s", c.conf, w, texts["NOTES.txt"])
			}
		}
		for _, n := range c.not {
			if strings.Contains(texts["NOTES.txt"], n) {
				t.Errorf("%s, %v: %s is in\n%s", c.conf, c.values, n, texts["NOTES.txt"])
			}
		}
	}
}

// TestAlerts checks the alerts with promtool, and runs their unit tests.
func TestAlerts(t *testing.T) {
	dir := t.TempDir()
	for to, from := range map[string]string{
		"rules.yaml":      filepath.Join(source().Folder, "files", "rules.yaml"),
		"rules_test.yaml": filepath.Join("testdata", "rules_test.yaml"),
	} {
		text, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), text, 0o600)
		}
		must(t, err)
	}
	promtool := filepath.Join(dir, "promtool")
	// Without discovery of services, which is most of the program.
	runs(t, filepath.Join("..", "..", ".."), "go", "build", "-modfile=build/tools/prometheus/go.mod", "-tags=remove_all_sd", "-o", promtool,
		"github.com/prometheus/prometheus/cmd/promtool")
	runs(t, dir, promtool, "check", "rules", "--lint=all", "--lint-fatal", "rules.yaml")
	runs(t, dir, promtool, "test", "rules", "rules_test.yaml")
}

func runs(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// TestMonitoring reads the objects for Prometheus as its operator does. An unknown field
// is an error.
func TestMonitoring(t *testing.T) {
	manifest, err := source().Manifest(map[string]any{
		"apiServer": noServer,
		"metrics":   map[string]any{"bindAddress": "0.0.0.0:10249"},
		"tls":       map[string]any{"secretName": "kubeproxy-tls"},
		"monitoring": map[string]any{
			"podMonitor": map[string]any{"enabled": true, "labels": map[string]any{"release": "prometheus"}},
			"rules":      map[string]any{"enabled": true},
			"dashboard":  map[string]any{"enabled": true},
		},
	})
	must(t, err)
	all := objects(t, []byte(manifest))
	var pods monitoring.PodMonitor
	var rules monitoring.PrometheusRule
	for key, into := range map[string]any{"PodMonitor kubeproxy": &pods, "PrometheusRule kubeproxy": &rules} {
		text, err := yaml.Marshal(all[key])
		if err == nil {
			err = yaml.UnmarshalStrict(text, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", key, err)
		}
	}
	if port := pods.Spec.PodMetricsEndpoints[0].Port; port == nil || *port != "metrics" || pods.Labels["release"] != "prometheus" {
		t.Errorf("the PodMonitor reads port %v and has labels %v", port, pods.Labels)
	}
	testServiceMonitor(t)
	if n := len(rules.Spec.Groups[0].Rules); n < 10 {
		t.Errorf("%d alerts", n)
	}
	ports := at(all["DaemonSet kubeproxy"], "spec", "template", "spec", "containers").([]any)[0].(map[string]any)["ports"]
	if text, _ := json.Marshal(ports); string(text) != `[{"containerPort":10256},{"containerPort":10249,"name":"metrics"}]` {
		t.Errorf("ports %s", text)
	}
	var board struct{ Panels []any }
	text, _ := at(all["ConfigMap kubeproxy-dashboard"], "data", "kubeproxy.json").(string)
	if err := json.Unmarshal([]byte(text), &board); err != nil || len(board.Panels) < 10 {
		t.Errorf("dashboard with %d panels: %v", len(board.Panels), err)
	}
}

func testServiceMonitor(t *testing.T) {
	all := installed(t, `
metrics: {bindAddress: "0.0.0.0:10249"}
tls: {secretName: kubeproxy-tls}
monitoring: {serviceMonitor: {enabled: true, jobLabel: job, relabelings: [{sourceLabels: [a], separator: ";", targetLabel: b, regex: x, modulus: 2, replacement: c, action: keep}]}}
`)
	var services monitoring.ServiceMonitor
	text, err := yaml.Marshal(all["ServiceMonitor kubeproxy"])
	if err == nil {
		err = yaml.UnmarshalStrict(text, &services)
	}
	must(t, err)
	if e := services.Spec.Endpoints[0]; e.Port != "metrics" || len(e.RelabelConfigs) != 2 || e.RelabelConfigs[1].TargetLabel != "b" || services.Spec.JobLabel != "job" {
		t.Errorf("the ServiceMonitor is %+v", services.Spec)
	}
	service := all["Service kubeproxy-metrics"]
	if at(service, "metadata", "labels", "app.kubernetes.io/name") != services.Spec.Selector.MatchLabels["app.kubernetes.io/name"] || at(service, "metadata", "labels", "k8s-app") != nil {
		t.Errorf("the ServiceMonitor selects %v, the Service has %v", services.Spec.Selector, at(service, "metadata"))
	}
}

// must fails the test of err.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
