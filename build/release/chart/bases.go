// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// A base is a folder for kubectl apply -k.
type base struct {
	title  string
	values map[string]any
}

// podRange stands in the bases for the range of the pods, which users change.
const podRange = "10.244.0.0/16"

// noServer is what the chart gets as the address of the API server, and the bases do not
// have: users set it.
const noServer = "https://api-server.invalid"

// bases are the folders of build/deploy.
var bases = map[string]base{
	"linux":     {"Linux nodes, mode nftables", linux("nftables")},
	"iptables":  {"Linux nodes, mode iptables", linux("iptables")},
	"ipvs":      {"Linux nodes, mode ipvs", linux("ipvs")},
	"userspace": {"Linux nodes, mode userspace", linux("userspace")},
	"windows":   {"Windows nodes. Linux nodes have another proxy", withWindows(map[string]any{"apiServer": noServer, "linux": map[string]any{"enabled": false}})},
	"mixed":     {"Linux nodes, mode nftables, and Windows nodes", withWindows(linux("nftables"))},
}

func linux(mode string) map[string]any {
	return map[string]any{"apiServer": noServer, "clusterCIDR": podRange, "linux": map[string]any{"mode": mode}}
}

func withWindows(values map[string]any) map[string]any {
	values["windows"] = map[string]any{"enabled": true}
	return values
}

// Bases returns the files of build/deploy, by path.
func (s *Source) Bases() (map[string]string, error) {
	files := map[string]string{}
	for name, b := range bases {
		texts, err := s.Render(b.values)
		if err != nil {
			return nil, fmt.Errorf("base %s: %w", name, err)
		}
		settings, err := data(texts["config.yaml"])
		if err != nil {
			return nil, fmt.Errorf("base %s: %w", name, err)
		}
		for file, text := range settings {
			files[path.Join(name, file)] = strings.ReplaceAll(text, noServer, "")
		}
		delete(texts, "config.yaml")
		objects := "# Generated from build/chart by make manifests.\n"
		for _, file := range slices.Sorted(maps.Keys(texts)) {
			if path.Ext(file) == ".yaml" {
				objects += "---\n" + texts[file]
			}
		}
		files[path.Join(name, "objects.yaml")] = objects
		files[path.Join(name, "kustomization.yaml")] = s.kustomization(name, b.title, slices.Sorted(maps.Keys(settings)))
	}
	return files, nil
}

// data returns the content of a ConfigMap.
func data(text string) (map[string]string, error) {
	var m struct{ Data map[string]string }
	err := yaml.Unmarshal([]byte(text), &m)
	return m.Data, err
}

func (s *Source) kustomization(name, title string, settings []string) string {
	return fmt.Sprintf(`# kubectl apply -k build/deploy/%[1]s
#
# %[2]s.
# Generated from build/chart by make manifests. Set the image here, in kubeconfig.conf
# the address of the API server, and beside it the range of the pods.
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [objects.yaml]
configMapGenerator:
- name: kubeproxy
  namespace: %[3]s
  files: [%[4]s]
  options:
    labels: {app.kubernetes.io/name: kubeproxy}
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
`, name, title, Namespace, strings.Join(settings, ", "), cmp.Or(s.Image, localImage), cmp.Or(s.Version, "dev"))
}
