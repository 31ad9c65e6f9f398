// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package chart

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

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
		if err != nil {
			t.Fatal(err)
		}
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
