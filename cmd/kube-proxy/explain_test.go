// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/explain"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

func explainCall(t *testing.T, args ...string) outcome {
	t.Helper()
	return call(t, "", append([]string{"explain", "--manifests", "../../docs/examples/shop", "--hostname-override", "node-a", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48"}, args...)...)
}

func TestExplainPrints(t *testing.T) {
	for _, destination := range []string{"svc/shop/web:http", "shop/web", "svc/web -n shop", "web:80/tcp -n shop", "web"} {
		got := explainCall(t, strings.Fields("10.244.1.7 "+destination)...)
		kit.Check(t, got.Code == 0 && got.Err == "" && strings.Contains(got.Out, "Forwarded to one of 3 endpoints") && strings.Contains(got.Out, "10.244.2.11:8080"),
			"%s: code %d, stderr %q, stdout:\n%s", destination, got.Code, got.Err, got.Out)
	}
}

func TestExplainJSON(t *testing.T) {
	got := explainCall(t, "node", "10.96.0.10:80", "-o", "json")
	var x explain.Explanation
	err := json.Unmarshal([]byte(got.Out), &x)
	kit.Need(t, err == nil, "%v in:\n%s", err, got.Out)
	kit.Check(t, x.Action == "forward" && x.Service == "shop/web" && x.Frontend == "ClusterIP" && len(x.Endpoints) == 3 && x.Endpoints[0].Client == "masqueraded",
		"answer %+v", x)
}

// TestExplainKernelspace has Services that HNS cannot serve as Kubernetes says.
func TestExplainKernelspace(t *testing.T) {
	const services = `apiVersion: v1
kind: Service
metadata: {name: ranges, namespace: shop}
spec: {type: LoadBalancer, clusterIP: 10.96.0.21, loadBalancerSourceRanges: [198.51.100.0/24], ports: [{name: http, port: 80, targetPort: 8080}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.8}]}}
---
apiVersion: v1
kind: Service
metadata: {name: kept, namespace: shop, annotations: {preserve-destination: "true"}}
spec: {type: NodePort, clusterIP: 10.96.0.22, ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30022}]}
---
apiVersion: v1
kind: Service
metadata: {name: none, namespace: shop}
spec: {clusterIP: 10.96.0.23, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: local, namespace: shop}
spec: {type: LoadBalancer, externalTrafficPolicy: Local, clusterIP: 10.96.0.24, ports: [{name: http, port: 80, targetPort: 8080, nodePort: 30024}]}
status: {loadBalancer: {ingress: [{ip: 203.0.113.9}]}}
---
apiVersion: v1
kind: Service
metadata: {name: two, namespace: shop}
spec: {clusterIP: 10.96.0.25, ports: [{name: http, port: 80, targetPort: http}]}
`
	const slice = `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: NAME-1, namespace: shop, labels: {kubernetes.io/service-name: NAME}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.2.11], nodeName: other, conditions: {ready: true}}]
`
	manifests := services
	for _, name := range []string{"ranges", "kept", "local"} {
		manifests += strings.ReplaceAll(slice, "NAME", name)
	}
	two := strings.ReplaceAll(slice, "NAME-1", "two-2")
	manifests += strings.ReplaceAll(slice, "NAME", "two") + strings.NewReplacer("NAME", "two", "8080", "9090", "2.11", "2.12").Replace(two)
	manifests += "---\napiVersion: v1\nkind: Node\nmetadata: {name: win}\nstatus: {addresses: [{type: InternalIP, address: 192.0.2.10}]}\n"
	dir := files(t, map[string]string{"all.yaml": manifests})
	for _, tt := range []struct{ from, to, want string }{
		{"198.51.100.9", "203.0.113.8:80", "HNS has no source ranges: 203.0.113.8 is not programmed"},
		{"198.51.100.9", "192.0.2.10:30022", "preserve-destination leads load balancer's addresses and NodePorts to endpoints of this node only"},
		{"10.244.1.5", "10.96.0.23:80", "HNS can neither refuse nor drop a connection"},
		{"10.244.1.5", "203.0.113.9:80", "external policy Local applies to all clients"},
		{"10.244.1.5", "10.96.0.25:80", "only the 1 with port 8080 get traffic, not 1 with ports [9090]"},
		{"10.244.1.5", "10.96.0.21:80", ""},
	} {
		got := call(t, dir, "explain", "--manifests", dir, "--proxy-mode", "kernelspace", "--hostname-override", "win", "--cluster-cidr", "10.244.0.0/16", "-o", "json", tt.from, tt.to)
		var x explain.Explanation
		err := json.Unmarshal([]byte(got.Out), &x)
		kit.Need(t, err == nil && got.Code == 0, "%s: exit code %d, %v: %s%s", tt.to, got.Code, err, got.Out, got.Err)
		notes := strings.Join(x.Notes, "; ")
		kit.Check(t, (tt.want != "" || notes == "") && strings.Contains(notes, tt.want), "%s: notes %q, want %q", tt.to, notes, tt.want)
	}
}

func TestExplainMistakes(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"10.244.1.7"}, "wants SOURCE and DESTINATION, not 1"},
		{[]string{"10.244.1.7", "svc/shop/wbe"}, "did you mean svc/shop/web?"},
		{[]string{"10.244.1.7", "web", "-n", "other"}, "did you mean svc/shop/web?"},
		{[]string{"10.244.1.7", "shop/web", "-n", "other"}, `"shop/web" is not in the namespace of --namespace, "other"`},
		{[]string{"pod/nobody", "web", "-n", "shop"}, `source "pod/shop/nobody": `},
		{[]string{"10.244.1.7", "svc/shop/web:https"}, "http (80/tcp)"},
		{[]string{"somewhere", "10.96.0.10:80"}, "want an address, pod/NAMESPACE/NAME, node or outside"},
		{[]string{"10.244.1.7", "10.96.0.10:80", "-o", "xml"}, "want text, json, yaml or jsonpath=TEMPLATE"},
		{[]string{"10.244.1.7", "10.96.0.10:80", "--outptu", "json"}, "did you mean --output?"},
	} {
		got := explainCall(t, tc.args...)
		kit.Check(t, got.Code == exitUnknown && got.Out == "" && strings.Contains(got.Err, tc.want),
			"%q: code %d, want %d; stdout %q; stderr %q, want %q", tc.args, got.Code, exitUnknown, got.Out, got.Err, tc.want)
	}
	if got := call(t, "", "explain", "10.244.1.7", "10.96.0.10:80", "--server", "127.0.0.1:1"); got.Code != exitUnknown || !strings.Contains(got.Err, "nobody answers at 127.0.0.1:1") {
		t.Errorf("without a proxy: code %d, stderr %q", got.Code, got.Err)
	}
}

// runningProxy serves what a proxy of the example Services answers. It knows the pods of
// EndpointSlices alone.
func runningProxy(t *testing.T) string {
	t.Helper()
	tracker := track.New(track.Options{NodeName: "node-a", Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}})
	pods := explain.NewPods(tracker)
	files := source.Manifests{Paths: []string{"../../docs/examples/shop"}, NodeName: "node-a"}
	kit.Must(t, files.Load(t.Context(), pods))
	s := &explain.Server{
		Tracker: tracker, Local: func(netip.Addr) bool { return false },
		Trace: func(context.Context, *service.Snapshot, route.Conn) (*explain.Walk, error) { return nil, nil },
		Pod:   func(_ context.Context, id types.NamespacedName) ([]netip.Addr, string, error) { return pods.Find(id) },
	}
	mux := http.NewServeMux()
	mux.Handle("/explain", s.Handler())
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return strings.TrimPrefix(server.URL, "http://")
}

// podServer is an API server that has the pod shop/batch-1, and forbids namespace secret.
// It returns a kubeconfig for it.
func podServer(t *testing.T) string {
	t.Helper()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch q.URL.Path {
		case "/api/v1/namespaces/shop/pods/batch-1":
			fmt.Fprint(w, `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"batch-1","namespace":"shop"},"spec":{"nodeName":"node-b"},"status":{"phase":"Running","podIPs":[{"ip":"10.244.2.77"}]}}`)
		case "/api/v1/namespaces/secret/pods/batch-1":
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"pods \"batch-1\" is forbidden: User \"eve\" cannot get resource \"pods\" in the namespace \"secret\"","code":403}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","message":"pods not found","code":404}`)
		}
	}))
	t.Cleanup(api.Close)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf("apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {server: %s}\nusers:\n- name: u\n  user: {token: t}\ncontexts:\n- name: x\n  context: {cluster: c, user: u}\ncurrent-context: x\n", api.URL)
	kit.WriteFile(t, path, text)
	return path
}

// TestExplainPods asks a running proxy about pods that it knows, and about others.
func TestExplainPods(t *testing.T) {
	server, kubeconfig := runningProxy(t), podServer(t)
	for _, tc := range []struct {
		pod, kubeconfig, env string
		flags                string
		out, err             string
	}{
		{"shop/batch-1", kubeconfig, "", "", "10.244.2.77 -> 10.96.0.10:80/tcp", ""},
		{"shop/batch-1", kubeconfig, "", "", "pod shop/batch-1 runs on node node-b", ""},
		{"shop/batch-1", "", kubeconfig, "", "10.244.2.77 -> 10.96.0.10:80/tcp", ""},
		{"shop/none", kubeconfig, "", "", "", "has no pod shop/none"},
		{"shop/none", kubeconfig, "", "", "", "no EndpointSlice refers to pod shop/none by targetRef"},
		{"secret/batch-1", kubeconfig, "", "", "", `User "eve" cannot get resource "pods"`},
		{"secret/batch-1", kubeconfig, "", "", "", "want the right to get pods in namespace secret"},
		{"shop/batch-1", "", "", "--pod-address=10.244.2.78 --pod-address=fd00::78 --pod-node=node-c", "10.244.2.78 -> 10.96.0.10:80/tcp", ""},
		{"shop/batch-1", "", "", "--pod-address=fd00::78,10.244.2.78 --pod-node=node-c", "pod shop/batch-1 runs on node node-c", ""},
		{"shop/batch-1", "", "", "--pod-address=x", "", "invalid"},
		{"shop/batch-1", "", "", "--pod-address=10.244.2.78 --manifests=x", "", "want it without --manifests"},
		{"shop/batch-1", "", "", "", "", "want --kubeconfig FILE, $KUBECONFIG or ~/.kube/config"},
	} {
		t.Setenv("KUBECONFIG", tc.env)
		t.Setenv("HOME", t.TempDir())
		args := []string{"explain", "--server", server, "pod/" + tc.pod, "10.96.0.10:80"}
		args = append(args, strings.Fields(tc.flags)...)
		if tc.kubeconfig != "" {
			args = append(args, "--kubeconfig", tc.kubeconfig)
		}
		got := call(t, "", args...)
		kit.Check(t, got.Code == exitUnknown && strings.Contains(strings.Join(strings.Fields(got.Out), " "), tc.out) && strings.Contains(got.Err, tc.err) && (tc.err != "" || got.Err == ""),
			"%+v: code %d, stdout %q, stderr %q", tc, got.Code, got.Out, got.Err)
	}
}
