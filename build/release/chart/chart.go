// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chart renders and packs the Helm chart, and writes the kustomize bases that
// follow from it.
//
// The chart is the one place where the objects are described. What is in build/deploy is
// generated, and a test fails if it is not what the chart gives.
package chart

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	helm "helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"
	"helm.sh/helm/v3/pkg/engine"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"
)

// Namespace is where the chart is installed if nothing else is said, as system-node-critical
// pods may be refused elsewhere.
const Namespace = "kube-system"

// Source is the chart, and the cluster that it may ask for the API server's address.
type Source struct {
	Folder    string
	Version   string       // of the application; empty leaves what is in the chart
	Release   string       // name; empty is that of the chart
	Namespace string       // of the release; empty is Namespace
	Image     string       // repository, in place of the one in what is packed
	Home      string       // where the source is, as a URL, for what is packed
	Cluster   *rest.Config // nil asks none
	Kube      string       // version of Kubernetes that it is rendered for; empty is a new one
}

// newKube stands for every version in which nothing is left of what the chart does for older ones.
const newKube = "v1.36.0"

// Render returns the text of each template with these values, by name, without those
// that are empty. A value that cannot be used is an error that names it.
func (s *Source) Render(values map[string]any) (map[string]string, error) {
	c, err := loader.LoadDir(s.Folder)
	if err != nil {
		return nil, err
	}
	if s.Version != "" {
		c.Metadata.AppVersion = s.Version
	}
	kube, err := chartutil.ParseKubeVersion(cmp.Or(s.Kube, newKube))
	if err != nil {
		return nil, err
	}
	able := chartutil.DefaultCapabilities.Copy()
	able.KubeVersion = *kube
	all, err := chartutil.ToRenderValues(c, values, chartutil.ReleaseOptions{Name: cmp.Or(s.Release, c.Name()), Namespace: cmp.Or(s.Namespace, Namespace), IsInstall: true}, able)
	if err != nil {
		return nil, err
	}
	texts, err := s.render(c, all)
	if err != nil {
		return nil, err
	}
	named := map[string]string{}
	for name, text := range texts {
		if strings.TrimSpace(text) != "" && !strings.HasPrefix(path.Base(name), "_") {
			named[path.Base(name)] = strings.TrimSpace(text) + "\n"
		}
	}
	return named, nil
}

func (s *Source) render(c *helm.Chart, values chartutil.Values) (map[string]string, error) {
	if s.Cluster != nil {
		return engine.RenderWithClient(c, values, s.Cluster)
	}
	return engine.Render(c, values)
}

// Manifest returns the objects as one text, as helm template prints them.
func (s *Source) Manifest(values map[string]any) (string, error) {
	texts, err := s.Render(values)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		if path.Ext(name) == ".yaml" {
			fmt.Fprintf(&out, "---\n%s", texts[name])
		}
	}
	return out.String(), nil
}

// A base is a folder for kubectl apply -k.
type base struct {
	title  string
	values map[string]any
}

// kubeconfigFile is the key of the kubeconfig in its ConfigMap, and the file beside the bases.
const kubeconfigFile = "kubeconfig.conf"

// podRange stands in the bases for the range of the pods, which users change.
const podRange = "10.244.0.0/16"

// kubeconfigMap is the ConfigMap with the kubeconfig. It is in no base: a base that is applied again, unchanged
// or over another installation, would take the address of the API server away from every node. Without the
// ConfigMap, pods wait for it.
const kubeconfigMap = "kubeproxy-kubeconfig"

// noServer is what the chart gets as the address of the API server for the kubeconfig beside
// the bases, which does not have it: users set it.
const noServer = "https://api-server.invalid"

// bases are the folders of build/deploy.
var bases = map[string]base{
	"linux":     {"Linux nodes, mode nftables", linux("nftables")},
	"iptables":  {"Linux nodes, mode iptables", linux("iptables")},
	"ipvs":      {"Linux nodes, mode ipvs", linux("ipvs")},
	"userspace": {"Linux nodes, mode userspace", linux("userspace")},
	"windows":   {"Windows nodes. Linux nodes have another proxy", withWindows(based(map[string]any{"linux": map[string]any{"enabled": false}}))},
	"mixed":     {"Linux nodes, mode nftables, and Windows nodes", withWindows(linux("nftables"))},
}

func linux(mode string) map[string]any {
	return based(map[string]any{"clusterCIDR": podRange, "linux": map[string]any{"mode": mode}})
}

// based adds to values what all bases have.
func based(values map[string]any) map[string]any {
	values["kubeconfig"] = map[string]any{"configMapName": kubeconfigMap}
	return values
}

func withWindows(values map[string]any) map[string]any {
	values["windows"] = map[string]any{"enabled": true}
	return values
}

// ofHelm finds the labels that say that Helm manages an object.
var ofHelm = regexp.MustCompile(`(?m)^ +(app\.kubernetes\.io/managed-by|helm\.sh/chart): .*\n`)

// Bases returns the files of build/deploy, by path.
func (s *Source) Bases() (map[string]string, error) {
	_, settings, err := s.settings(map[string]any{"apiServer": noServer})
	if err != nil {
		return nil, err
	}
	files := map[string]string{kubeconfigFile: strings.ReplaceAll(settings[kubeconfigFile], noServer, "")}
	for name, b := range bases {
		texts, settings, err := s.settings(b.values)
		if err != nil {
			return nil, fmt.Errorf("base %s: %w", name, err)
		}
		for file, text := range settings {
			files[path.Join(name, file)] = text
		}
		delete(texts, "config.yaml")
		delete(texts, "test.yaml") // kubectl would run it at once
		objects := "# Generated from build/chart by make manifests.\n"
		for _, file := range slices.Sorted(maps.Keys(texts)) {
			if path.Ext(file) == ".yaml" {
				objects += "---\n" + ofHelm.ReplaceAllString(texts[file], "")
			}
		}
		files[path.Join(name, "objects.yaml")] = objects
		files[path.Join(name, "kustomization.yaml")] = s.kustomization(name, b.title, slices.Sorted(maps.Keys(settings)))
	}
	return files, nil
}

// settings returns what the chart gives for values, and the content of its ConfigMap.
func (s *Source) settings(values map[string]any) (texts, settings map[string]string, err error) {
	if texts, err = s.Render(values); err != nil {
		return nil, nil, err
	}
	var m struct{ Data map[string]string }
	err = yaml.Unmarshal([]byte(texts["config.yaml"]), &m)
	return texts, m.Data, err
}

func (s *Source) kustomization(name, title string, settings []string) string {
	return fmt.Sprintf(`# kubectl apply -k build/deploy/%[1]s
#
# %[2]s.
# Generated from build/chart by make manifests. Set the image here, and beside it the range of the pods.
#
# The address of the API server is in ConfigMap %[7]s, which is not in this folder, so that no
# apply changes it. Until you create it, pods wait with the event: configmap "%[7]s" not found.
#
#     sed 's|server: ""|server: "https://192.0.2.1:6443"|' build/deploy/kubeconfig.conf |
#       kubectl -n %[3]s create configmap %[7]s --from-file=kubeconfig.conf=/dev/stdin
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [objects.yaml]
configMapGenerator:
- name: kubeproxy
  namespace: %[3]s
  files: [%[4]s]
  options:
    labels:
      app.kubernetes.io/instance: kubeproxy
      app.kubernetes.io/name: kubeproxy
      app.kubernetes.io/part-of: kubeproxy
      app.kubernetes.io/version: %[6]q
# The proxy follows changes of its configuration while it runs, so the name
# stays as it is and no pod is replaced.
generatorOptions:
  disableNameSuffixHash: true
images:
- name: localhost/kubeproxy
  newName: %[5]s
  newTag: %[6]q
- name: localhost/kubeproxy-iptables
  newName: %[5]s-iptables
  newTag: %[6]q
`, name, title, Namespace, strings.Join(settings, ", "), cmp.Or(s.Image, localImage), cmp.Or(s.Version, "dev"), kubeconfigMap)
}
