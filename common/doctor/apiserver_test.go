// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/kubeclient"
	"kubeproxy/test/kit"
)

// fakeServer is an API server as far as the checks use one.
type fakeServer struct {
	*http.ServeMux
	skew   time.Duration // of its clock
	status int           // of each answer, 0 for success
	user   string
	denied []string // rights, as "verb resource"
	nodes  []corev1.Node
}

func (f *fakeServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Date", time.Now().Add(f.skew).UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json")
	if f.status != 0 {
		w.WriteHeader(f.status)
		reason := metav1.StatusReasonUnauthorized
		if f.status != http.StatusUnauthorized {
			reason = metav1.StatusReasonInternalError
		}
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Reason: reason, Message: "no", Code: int32(f.status)})
		return
	}
	_ = json.NewEncoder(w).Encode(f.answer(w, r))
}

func (f *fakeServer) answer(w http.ResponseWriter, r *http.Request) any {
	switch r.Method + " " + r.URL.Path {
	case "GET /version":
		return map[string]string{"gitVersion": "v1.36.3"}
	case "POST /apis/authentication.k8s.io/v1/selfsubjectreviews":
		return map[string]any{"status": map[string]any{"userInfo": map[string]string{"username": f.user}}}
	case "POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews":
		var asked struct {
			Spec struct {
				ResourceAttributes struct{ Group, Resource, Verb string }
			}
		}
		_ = json.NewDecoder(r.Body).Decode(&asked)
		a := asked.Spec.ResourceAttributes
		allowed := !strings.Contains(strings.Join(f.denied, ","), a.Verb+" "+a.Resource)
		return map[string]any{"status": map[string]bool{"allowed": allowed}}
	case "GET /api/v1/nodes":
		list := corev1.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
		for _, n := range f.nodes {
			if s := r.URL.Query().Get("fieldSelector"); s == "" || s == "metadata.name="+n.Name {
				list.Items = append(list.Items, n)
			}
		}
		return list
	}
	w.WriteHeader(http.StatusNotFound)
	return metav1.Status{Status: metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
}

func node(name, addr string, podCIDRs ...string) corev1.Node {
	n := corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs}}
	if addr != "" {
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: addr}}
	}
	return n
}

// look runs all checks and returns the findings, and the states of the checks.
func look(t *testing.T, s *Cluster) (found []Finding, states string) {
	t.Helper()
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	s.Addrs = func() ([]netip.Addr, error) { return []netip.Addr{netip.MustParseAddr("192.0.2.10")}, nil }
	s.SetClock = "set the clock"
	r := Runner{Checks: s.Checks(), Timeout: time.Minute, Patience: time.Minute}
	results, found := r.Run(t.Context())
	for _, c := range results {
		states += string(c.State) + " "
	}
	return found, strings.TrimSpace(states)
}

// expect compares the findings, a line for each: topic, severity, fix and words of what
// it says.
func expect(t *testing.T, found []Finding, want ...string) {
	t.Helper()
	var got []string
	for i, f := range found {
		line := strings.Join([]string{string(f.Topic), f.Fix, f.What + "; " + f.Advice}, " | ")
		got = append(got, line)
		if i >= len(want) {
			continue
		}
		for part := range strings.SplitSeq(want[i], " ... ") {
			kit.Check(t, strings.Contains(line, part), "no %q in %q", part, line)
		}
	}
	kit.Check(t, len(got) == len(want), "found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
}

func TestServer(t *testing.T) {
	const bind = "kubectl create clusterrolebinding kube-proxy-node-proxier --clusterrole=system:node-proxier "
	sound := []corev1.Node{node("node-a", "192.0.2.10", "10.244.1.0/24"), node("node-b", "192.0.2.11")}
	pods := Pods{CIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}
	for situation, test := range map[string]struct {
		server fakeServer
		name   string
		pods   Pods
		states string
		want   []string
	}{
		"all is well":  {fakeServer{nodes: sound, user: "admin"}, "node-a", pods, "ok ok ok", nil},
		"clock behind": {fakeServer{nodes: sound, skew: time.Hour}, "node-a", pods, "found ok ok", []string{"clock-skew | set the clock | the clock of this node is 1h0m0s behind that of the API server"}},
		"clock ahead":  {fakeServer{nodes: sound, skew: -time.Minute}, "node-a", pods, "found ok ok", []string{"clock-skew ... 1m0s ahead of"}},
		"clock, a bit": {fakeServer{nodes: sound, skew: 20 * time.Second}, "node-a", pods, "ok ok ok", nil},
		"unauthorized": {fakeServer{status: http.StatusUnauthorized}, "node-a", pods, "found skipped skipped", []string{"kubeconfig |  | ... refuses the credentials ... the credentials in "}},
		"broken":       {fakeServer{status: http.StatusInternalServerError}, "node-a", pods, "found skipped skipped", []string{"api-server |  | ... cannot be asked: no"}},
		"no rights": {fakeServer{nodes: sound, user: "system:serviceaccount:kube-system:kube-proxy", denied: []string{"watch endpointslices", "list nodes"}}, "node-a", pods, "ok found ok",
			[]string{"missing-rights | " + bind + "--serviceaccount=kube-system:kube-proxy | the account may not watch endpointslices, list nodes"}},
		"a user":         {fakeServer{nodes: sound, user: "eve", denied: []string{"create events"}}, "node-a", pods, "ok found ok", []string{"missing-rights | " + bind + "--user=eve"}},
		"another name":   {fakeServer{nodes: sound}, "host.example", pods, "ok ok found", []string{"node-unknown |  | there is no Node of the name host.example; Node node-a has an address of this machine: start the proxy with --hostname-override=node-a"}},
		"another node":   {fakeServer{nodes: sound}, "node-b", pods, "ok ok found", []string{"node-unknown ... Node node-b has the addresses 192.0.2.11 ... --hostname-override=node-a"}},
		"a podCIDR":      {fakeServer{nodes: []corev1.Node{node("node-a", "", "10.1.0.0/24", "fd00::/64")}}, "node-a", pods, "ok ok found", []string{"pod-cidr |  | the podCIDR 10.1.0.0/24 of Node node-a is not in the clusterCIDR 10.244.0.0/16"}},
		"a wide podCIDR": {fakeServer{nodes: []corev1.Node{node("node-a", "", "10.0.0.0/8")}}, "node-a", pods, "ok ok found", []string{"pod-cidr"}},
		"no podCIDR":     {fakeServer{nodes: sound}, "node-b", Pods{FromNode: true}, "ok ok found", []string{"node-unknown"}},
		"none of its":    {fakeServer{nodes: []corev1.Node{node("node-a", "192.0.2.10")}}, "node-a", Pods{FromNode: true}, "ok ok found", []string{"pod-cidr |  | detectLocalMode is NodeCIDR, and Node node-a has no podCIDRs"}},
	} {
		t.Run(situation, func(t *testing.T) {
			at := httptest.NewServer(&test.server)
			defer at.Close()
			found, states := look(t, &Cluster{Client: &kubeclient.Options{Master: at.URL}, Node: test.name, Pods: test.pods})
			expect(t, found, test.want...)
			kit.Check(t, states == test.states, "states %s, want %s", states, test.states)
		})
	}
}

// TestUnreached has no server to ask.
func TestUnreached(t *testing.T) {
	found, states := look(t, &Cluster{Client: &kubeclient.Options{}})
	expect(t, found)
	kit.Check(t, states == "skipped skipped skipped", "nothing is configured: %s", states)
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	found, _ = look(t, &Cluster{Client: &kubeclient.Options{Master: closed.URL}})
	expect(t, found, "api-server ... nobody listens there: check --master")
	file := filepath.Join(t.TempDir(), "config")
	s := &Cluster{Client: &kubeclient.Options{}}
	s.Client.Connection.Kubeconfig = file
	found, _ = look(t, s)
	expect(t, found, "kubeconfig |  | read kubeconfig ... no such file")
	kit.WriteFile(t, file, "kind: Pod\n")
	s = &Cluster{Client: s.Client}
	found, _ = look(t, s)
	expect(t, found, "kubeconfig |  | read kubeconfig")
}
