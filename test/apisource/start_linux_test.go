// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apisource

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"kubeproxy/common/source"
	"kubeproxy/test/authority"
	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
	"kubeproxy/test/thirdparty"
)

var kubeProxy program.Program

func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }

// fixture is a node and an API server beside it.
type fixture struct {
	*cluster.Cluster
	lab *netlab.Lab
}

func newFixture(t testing.TB, o cluster.Options) fixture {
	t.Helper()
	lab := netlab.Start(t, netlab.Config{Clients: []string{"control"}})
	o.Host = lab.Host("control")
	return fixture{cluster.Start(t, o), lab}
}

// newLab is a fixture without an API server.
func newLab(t testing.TB) fixture {
	t.Helper()
	return fixture{lab: netlab.Start(t, netlab.Config{Clients: []string{"control"}})}
}

// start starts the proxy with the login l.
func (w fixture) start(t testing.TB, l cluster.Login, args ...string) *program.Proxy {
	t.Helper()
	return kubeProxy.Start(t, w.lab.Node, append([]string{"--kubeconfig=" + w.kubeconfig(t, l), "--cluster-cidr=" + netlab.ClusterCIDR}, args...)...)
}

func (w fixture) kubeconfig(t testing.TB, l cluster.Login) string {
	t.Helper()
	path, err := w.Kubeconfig(l)
	kit.Must(t, err)
	return path
}

func (w fixture) set(t testing.TB, objects ...metav1.Object) {
	t.Helper()
	kit.Must(t, w.Set(t.Context(), objects...))
}

// namespace is where the tests have their Services.
const namespace = "default"

func newService(name string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{"example.com/owner": "somebody at " + name}},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": name}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}
}

// newSlice has n endpoints for a Service, the first of them at base.
func newSlice(name string, base netip.Addr, n int) *discoveryv1.EndpointSlice {
	port, portName, proto, yes := int32(8080), "http", corev1.ProtocolTCP, true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name + "-1",
			Labels: map[string]string{discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io", "app": name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port, Protocol: &proto}},
	}
	for i := range n {
		node, zone := fmt.Sprintf("node-%d", i), "zone-1"
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{base.String()}, NodeName: &node, Zone: &zone,
			Conditions: discoveryv1.EndpointConditions{Ready: &yes, Serving: &yes},
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-7d4b9c6f5-%05d", name, i), UID: "c0ffee00-0000-4000-8000-000000000000"},
		})
		base = base.Next()
	}
	return s
}

func newNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: netlab.NodeName},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}, {Type: corev1.NodeInternalIP, Address: "2001:db8:2::10"},
		}},
	}
}

// A proxy that the API server refuses, or that cannot reach it, logs the remedy once,
// tries again and again, and shows that in its health. Nothing is programmed.
func TestLoginFails(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	other := newOther(t, w)
	for name, tc := range map[string]struct {
		config string
		want   []string // in one line of the log
	}{
		"wrong token":         {w.kubeconfig(t, cluster.Login{Token: "wrong"}), []string{"Unauthorized", "remedy=", "renew"}},
		"expired certificate": {w.kubeconfig(t, cluster.Login{User: "system:kube-proxy", Until: time.Now().Add(-time.Hour)}), []string{"client certificate has expired", "kubeconfig=", "renew"}},
		"no rights":           {w.kubeconfig(t, cluster.Login{User: "somebody"}), []string{"forbidden", "remedy=", "ClusterRole"}},
		"nobody there":        {w.kubeconfig(t, cluster.Login{Server: "https://192.0.2.100:1"}), []string{"connection refused", "remedy=", "cluster.server"}},
		"no such host":        {w.kubeconfig(t, cluster.Login{Server: "https://api.invalid:6443"}), []string{"api.invalid", "remedy=", "cluster.server"}},
		"another authority":   {other, []string{"unknown authority", "remedy=", "certificate-authority"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := kubeProxy.Start(t, w.lab.Node, "--kubeconfig="+tc.config)
			p.AwaitLog(t, tc.want...)
			kit.Until(t, "the failure among the sources", func() bool {
				health, err := program.Fetch(t.Context(), w.lab.Node, program.HealthAddr, "/healthz")
				if err != nil || health.Status != http.StatusServiceUnavailable {
					return false
				}
				page, err := program.Fetch(t.Context(), w.lab.Node, program.MetricsAddr, "/services")
				return err == nil && strings.Contains(string(page.Body), "at the API server: ")
			})
			kit.Check(t, !p.Ended() && !p.Log.Has(`"Programmed"`), "it ended, or programmed what it cannot know")
			n := p.Log.Count("The API server cannot be read")
			kit.Check(t, n <= 3, "%d lines about one thing", n)
			p.Stop(t)
		})
	}
}

// newOther returns a kubeconfig that trusts another authority.
func newOther(t *testing.T, w fixture) string {
	t.Helper()
	path := w.kubeconfig(t, cluster.Login{})
	config, err := clientcmd.LoadFromFile(path)
	kit.Must(t, err)
	other, err := authority.New(time.Time{})
	kit.Must(t, err)
	for _, c := range config.Clusters {
		c.CertificateAuthorityData = other.PEM
	}
	kit.Must(t, clientcmd.WriteToFile(*config, path))
	return path
}

// One that is let in later, without a restart, begins to work.
func TestLoginRecovers(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	w.set(t, newNode())
	p := w.start(t, cluster.Login{User: "old"})
	p.AwaitLog(t, "The API server cannot be read", "forbidden")
	kit.Must(t, w.Apply(t.Context(), []byte(oldClusterRole)))
	awaitSlowLog(t, p, `"Programmed"`, "IPv4")
	awaitSlowLog(t, p, "The API server can be read again")
}

// TestDiffWithTheAPIServer compares what a node has, and manifests, with what the API
// server says. The Events of a support-dump need rights that the proxy does not have.
func TestDiffWithTheAPIServer(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	w.set(t, newNode(), newService("web"), newSlice("web", netip.MustParseAddr("10.244.1.11"), 2))
	kubeconfig := "--kubeconfig=" + w.kubeconfig(t, cluster.Login{})
	folder, other := t.TempDir(), newService("other")
	other.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	other.Spec.ClusterIP, other.Spec.ClusterIPs = "10.96.0.77", []string{"10.96.0.77"}
	kit.Must(t, os.WriteFile(filepath.Join(folder, "web.yaml"), program.Manifest[any](t, other), 0o600))
	run := func(args ...string) (code int, out string) {
		cmd := exec.Command(kubeProxy.Path, append(args, "--hostname-override=node-a")...)
		out, err := program.Run(t, w.lab.Node, cmd)
		kit.Need(t, err == nil || cmd.ProcessState != nil, "%v", err)
		return cmd.ProcessState.ExitCode(), out
	}
	if code, out := run("diff", kubeconfig); code != 1 || !strings.Contains(out, "from what the node has to the API server") || !strings.Contains(out, "default/web") {
		t.Errorf("with the node: exit %d\n%s", code, out)
	}
	if code, out := run("diff", "--from=api", kubeconfig, "--manifests="+folder); code != 1 || !strings.Contains(out, "- default/web") || !strings.Contains(out, "+ default/other") {
		t.Errorf("with manifests: exit %d\n%s", code, out)
	}
	archive := filepath.Join(t.TempDir(), "dump.tar.gz")
	if code, out := run("support-dump", kubeconfig, archive); code != 1 || strings.Contains(out, "events.json") {
		t.Errorf("support-dump: exit %d\n%s", code, out)
	}
}

// diagnosis is what kube-proxy doctor -o json prints.
type diagnosis struct {
	code     int
	Findings []struct{ ID, Subject, What, Fix, Advice string }
	Checks   []struct{ Name, State, Note string }
}

// find returns what the finding of this id says, empty if there is none.
func (d *diagnosis) find(id string) string {
	for _, f := range d.Findings {
		if f.ID == id {
			return strings.Join([]string{f.Subject, f.What, f.Fix, f.Advice}, "; ")
		}
	}
	return ""
}

// diagnose runs doctor on the node with the login l.
func (w fixture) diagnose(t *testing.T, l cluster.Login, args ...string) *diagnosis {
	t.Helper()
	cmd := exec.Command(kubeProxy.Path, append([]string{"doctor", "--before-start", "-o=json", "--kubeconfig=" + w.kubeconfig(t, l), "--cluster-cidr=" + netlab.ClusterCIDR, "--hostname-override=" + netlab.NodeName, "--timeout=5s"}, args...)...)
	var out strings.Builder
	cmd.Stdout = &out
	said, err := program.Run(t, w.lab.Node, cmd)
	d := &diagnosis{}
	if cmd.ProcessState == nil || json.Unmarshal([]byte(out.String()), d) != nil {
		t.Fatalf("doctor: %v\n%s%s", err, out.String(), said)
	}
	d.code = cmd.ProcessState.ExitCode()
	return d
}

// expect checks that doctor finds id with these words, or with no words that it does not.
func (d *diagnosis) expect(t *testing.T, id string, words ...string) {
	t.Helper()
	text := d.find(id)
	kit.Check(t, len(words) != 0 || text == "", "found %s: %s", id, text)
	for _, word := range words {
		kit.Check(t, d.code != 0 && strings.Contains(text, word),
			"exit %d, %s: %q, want %q in it and another exit code than 0; all: %+v", d.code, id, text, word, d.Findings)
	}
}

// TestDoctor asks a real API server about an account without rights and with those of the
// deployment, and about a Node that is missing or of another machine.
func TestDoctor(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	w.set(t, newService("web"))
	d := w.diagnose(t, deployed)
	d.expect(t, "missing-rights", "may not list services, watch services, list endpointslices", "--serviceaccount=kube-system:kubeproxy")

	objects := kit.ReadFile(t, filepath.Join("..", "..", "build", "deploy", "linux", "objects.yaml"))
	account, _, _ := strings.Cut(string(objects), "---\napiVersion: apps/v1\n") // without the DaemonSet
	kit.Must(t, w.Apply(t.Context(), []byte(account)))
	kit.Until(t, "the rights of the deployment", func() bool { d = w.diagnose(t, deployed); return d.find("missing-rights") == "" })
	d.expect(t, "clock-skew")
	d.expect(t, "node-unknown", "there is no Node of the name "+netlab.NodeName)

	other := newNode()
	other.Name = "node-z"
	other.Status.Addresses[0].Address, other.Status.Addresses[1].Address = "192.0.2.99", "2001:db8:2::99"
	w.set(t, newNode(), other)
	w.diagnose(t, deployed).expect(t, "node-unknown")
	w.diagnose(t, deployed, "--hostname-override=node-z").expect(t, "node-unknown", "192.0.2.99", "--hostname-override="+netlab.NodeName)
	t.Run("addresses of nodes", func(t *testing.T) { testAddresses(t, w) })
}

// testAddresses reads the addresses of one node, and of many, with the rights of the deployment.
func testAddresses(t *testing.T, w fixture) {
	names := []string{netlab.NodeName}
	for i := range 20 {
		n := newNode()
		n.Name = fmt.Sprint("node-", i)
		w.set(t, n)
		names = append(names, n.Name)
	}
	to, err := clientcmd.BuildConfigFromFlags("", w.kubeconfig(t, deployed))
	kit.Must(t, err)
	to.Dial, to.ContentType = w.lab.Node.Dial, "application/vnd.kubernetes.protobuf"
	api := &source.APIServer{Config: to}
	for _, ask := range [][]string{{netlab.NodeName, "none"}, names} {
		found := map[string][]netip.Addr{}
		kit.Until(t, fmt.Sprint(ask), func() bool { // the API server answers from its memory
			kit.Must(t, api.Nodes(t.Context(), ask, func(name string, all []netip.Addr) { found[name] = all }))
			return len(found[ask[0]]) == 2 && (len(ask) == 2 || len(found[ask[20]]) == 2)
		})
		if _, is := found["none"]; is || len(ask) == 2 && len(found) > 1 {
			t.Errorf("%v was found, want %v", found, ask[:1])
		}
	}
}

// TestDoctorOfClocks asks a real API server whose answers have another date.
func TestDoctorOfClocks(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	w.set(t, newNode())
	front, err := w.NewFaultProxy(t.Context())
	kit.Must(t, err)
	defer front.Close()
	for _, tt := range []struct {
		by   time.Duration
		want []string
	}{{0, nil}, {time.Hour, []string{"h0m", "behind that of the API server"}}, {-10 * time.Minute, []string{"10m", "ahead of that"}}} {
		front.SetFault(cluster.Fault{Skew: tt.by})
		w.diagnose(t, cluster.Login{Server: front.URL}).expect(t, "clock-skew", tt.want...)
	}
}

// lines are what the log says of these topics.
func lines(p *program.Proxy, topic string) (all []string) {
	for line := range strings.Lines(p.Log.String()) {
		if strings.Contains(line, topic) {
			all = append(all, line)
		}
	}
	return all
}

// Late parts of the Node are used when they arrive: the Node itself, its addresses, its
// pod ranges, its zone.
func TestNodeArrivesInParts(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	web, slice := newService("web"), newSlice("web", netip.MustParseAddr("10.244.1.20"), 2)
	for i, zone := range []string{"near", "far"} {
		slice.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: zone}}}
	}
	w.set(t, web, slice)
	p := kubeProxy.Start(t, w.lab.Node, "--kubeconfig="+w.kubeconfig(t, cluster.Login{}), "--detect-local-mode=NodeCIDR", "--hostname-override=  Node-A ", "-v=4")
	p.AwaitLog(t, `"Starting"`, `mode="nftables"`, `families="IPv4, IPv6"`, `node="node-a"`, `nodeFrom="--hostname-override"`,
		`pods="sources in the Node's podCIDRs"`, `podsFrom="--detect-local-mode"`)
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	kit.Check(t, w.endpoints(t, web) == 2, "without a zone, want both endpoints")

	bare := &corev1.Node{}
	bare.Name = netlab.NodeName
	w.set(t, bare)
	p.AwaitLog(t, `"The Node is known"`, `nodeIPs=[]`)
	full := newNode()
	full.Spec.PodCIDRs, full.Spec.PodCIDR = []string{"10.244.1.0/24", "fd00:10:244:1::/64"}, "10.244.1.0/24"
	w.set(t, full)
	p.AwaitLog(t, `"The Node has changed"`, `nodeIPs=["192.0.2.10","2001:db8:2::10"]`)
	p.AwaitLog(t, `"The Node has changed"`, `podCIDRs=["10.244.1.0/24","fd00:10:244:1::/64"]`)
	kit.Until(t, "rules for pods", func() bool { return strings.Contains(w.nft(t, "chain", "mark-unless-pod"), "10.244.1.0/24") })
	full.Labels = map[string]string{corev1.LabelTopologyZone: "far"}
	w.set(t, full)
	kit.Until(t, "the zone's endpoint alone", func() bool { return w.endpoints(t, web) == 1 })
	p.Stop(t)
	n := len(lines(p, "Warning: the API server has no Node"))
	kit.Check(t, n == 0, "%d warnings about a Node that came in time", n)
}

// nft lists something of the IPv4 table.
func (w fixture) nft(t *testing.T, what ...string) string {
	t.Helper()
	out, err := program.Run(t, w.lab.Node, nftCommand(what))
	kit.Need(t, err == nil, "nft list %v: %v\n%s", what, err, out)
	return out
}

// endpoints counts what a Service leads to.
func (w fixture) endpoints(t *testing.T, s *corev1.Service) int {
	t.Helper()
	return strings.Count(w.nft(t, "map", "endpoints"), s.Spec.ClusterIP+" . ")
}

// A node that is to go, or is gone, is not healthy for load balancers any
// more, and goes on forwarding.
func TestNodeLeaves(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	node := newNode()
	w.set(t, node, newService("web"))
	p := w.start(t, cluster.Login{})
	status := func(path string) int { return p.Status(t, program.HealthAddr, path) }
	kit.Until(t, "healthy", func() bool { return status("/healthz") == http.StatusOK })
	before := program.Generation(t, w.lab.Node)

	node.Spec.Taints = []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}
	w.set(t, node)
	kit.Until(t, "unhealthy for the taint", func() bool { return status("/healthz") == http.StatusServiceUnavailable })
	node.Spec.Taints = nil
	w.set(t, node)
	kit.Until(t, "healthy again", func() bool { return status("/healthz") == http.StatusOK })
	kit.Must(t, w.Delete(t.Context(), node))
	kit.Until(t, "unhealthy without the Node", func() bool { return status("/healthz") == http.StatusServiceUnavailable })
	kit.Equal(t, status("/livez"), http.StatusOK, "/livez")
	w.set(t, newNode())
	kit.Until(t, "healthy with a Node again", func() bool { return status("/healthz") == http.StatusOK })
	now := program.Generation(t, w.lab.Node)
	kit.Check(t, now == before, "the rules were written %d times, want none", now-before)
}

// A name that no Node has is logged once, after half a minute, with the usual cause.
// Services are forwarded nevertheless.
func TestNoSuchNode(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{})
	w.set(t, newNode(), newService("web"))
	p := w.start(t, cluster.Login{}, "--hostname-override=node-a.example.com")
	p.AwaitLog(t, `"Programmed"`, "IPv4")
	awaitSlowLog(t, p, "has no Node of this name", `node="node-a.example.com"`, "remedy=", "--hostname-override")
	n := p.Log.Count("no Node of this name")
	kit.Check(t, n == 1, "said %d times, want once", n)
}

// TestKubectlPlugin finds pods with a real kubectl and API server. There is no kubelet, so
// a script in place of kubectl prints what kubectl exec would be asked for, unless the user
// may not do that.
func TestKubectlPlugin(t *testing.T) {
	t.Parallel()
	w := newFixture(t, cluster.Options{Authorization: cluster.RBAC})
	for _, p := range []struct{ namespace, name, node, app string }{
		{"kube-system", "kubeproxy-a", "node-a", "kubeproxy"}, {"kube-system", "kubeproxy-b", "node-b", "kubeproxy"},
		{"kube-system", "other", "node-b", "other"}, {namespace, "cart-0", "node-b", "cart"},
	} {
		w.run(t, p.namespace, p.name, p.node, p.app)
	}
	for _, name := range []string{"node-a", "node-b", "node-c"} {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"pool": "of-" + name}}}
		_, err := w.Client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
		kit.Must(t, err)
	}
	w.allow(t, "lister", rbacv1.PolicyRule{Verbs: []string{"get", "list"}, APIGroups: []string{""}, Resources: []string{"pods"}})
	path := w.plugin(t)
	for _, tc := range []struct {
		user, args string
		code       int
		want       string
	}{
		{"", "status --node node-a", 3, "--namespace=kube-system --container=kube-proxy kubeproxy-a -- kube-proxy status"},
		{"", "explain pod/" + namespace + "/cart-0 svc/" + namespace + "/web", 3, "--container=kube-proxy kubeproxy-b -- kube-proxy explain --hostname-override=node-b --pod-address=10.244.1.7 --pod-address=fd00:10:244::7 --pod-node=node-b pod/"},
		{"", "-n " + namespace + " status --node node-a", 2, "no pod with labels"},
		{"", "-n " + namespace + " status --node node-b", 2, "app.kubernetes.io/name=cart, not kubeproxy"},
		{"", "version", 2, "want --node NODE, one of node-a, node-b"},
		{"", "status --failing", 2, "Nodes: 3, well: 0, not well: 0, without answer: 3"},
		{"", "status --node node-b", 3, "DaemonSet other, which controls it, has the label app.kubernetes.io/name=other, not kubeproxy"},
		{"", "status", 2, "no pod of the proxy runs there, and the Node is Unknown"},
		{"", "status --nodes pool=of-node-b -o jsonpath={.nodes[*].pod}", 2, "kube-system/kubeproxy-b"},
		{"", "status --nodes pool=none", 2, "no Node has labels pool=none"},
		{"", "status --node node-c", 2, "no pod with labels app.kubernetes.io/name=kubeproxy runs on node node-c"},
		{"", "explain pod/" + namespace + "/none svc/" + namespace + "/web", 2, `pods "none" not found`},
		{"nobody", "status", 2, "want the right to list pods in all namespaces, or --namespace with that of the proxy"},
		{"lister", "status", 2, "want the right to list daemonsets.apps in all namespaces"},
		{"lister", "status", 2, `nodes is forbidden: User "lister" cannot list resource "nodes"`},
		{"lister", "status", 2, `Nodes: 2, well: 0, not well: 0, without answer: 2`},
		{"lister", "status", 2, `User "lister" cannot create resource "pods/exec" in API group "" in the namespace "kube-system"`},
	} {
		cmd := exec.Command("kubectl", append([]string{"svcproxy", "--kubeconfig=" + w.kubeconfig(t, cluster.Login{User: tc.user})}, strings.Fields(tc.args)...)...)
		cmd.Path, cmd.Env = filepath.Join(path, "kubectl"), []string{"HOME=" + t.TempDir(), "PATH=" + path + ":/usr/bin:/bin", "REAL=" + tc.user}
		out, err := program.Run(t, w.lab.Node, cmd)
		kit.Need(t, err == nil || cmd.ProcessState != nil, "%v", err)
		if code := cmd.ProcessState.ExitCode(); code != tc.code || !strings.Contains(out, tc.want) {
			t.Errorf("%s %s: exit %d, want %d with %q\n%s", tc.user, tc.args, code, tc.code, tc.want, out)
		}
	}
}

// allow gives a user a right in all namespaces.
func (w fixture) allow(t *testing.T, user string, rule rbacv1.PolicyRule) {
	t.Helper()
	name := metav1.ObjectMeta{Name: user}
	_, err := w.Client.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: name, Rules: []rbacv1.PolicyRule{rule}}, metav1.CreateOptions{})
	kit.Must(t, err)
	_, err = w.Client.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: name, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: user},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	kit.Must(t, err)
}

// run makes a pod that runs on a node.
func (w fixture) run(t *testing.T, namespace, name, node, app string) {
	t.Helper()
	kit.Until(t, "namespace "+namespace, func() bool {
		_, err := w.Client.CoreV1().Namespaces().Get(t.Context(), namespace, metav1.GetOptions{})
		return err == nil
	})
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: app}}
	if _, err := w.Client.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	sets := w.Client.AppsV1().DaemonSets(namespace)
	set, err := sets.Get(t.Context(), app, metav1.GetOptions{})
	spec := corev1.PodSpec{
		HostNetwork: true, ServiceAccountName: app,
		Containers: []corev1.Container{{Name: "kube-proxy", Image: "none", Args: []string{"--hostname-override=$(NODE_NAME)"}}},
	}
	if apierrors.IsNotFound(err) {
		chosen := map[string]string{"app": app}
		set, err = sets.Create(t.Context(), &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: app, Labels: map[string]string{"app.kubernetes.io/name": app}}, Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: chosen}, Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: chosen}, Spec: spec},
		}}, metav1.CreateOptions{})
	}
	kit.Must(t, err)
	spec.NodeName = node
	pods := w.Client.CoreV1().Pods(namespace)
	p, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{"app.kubernetes.io/name": "kubeproxy"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "DaemonSet", Name: app, UID: set.UID, Controller: new(true)}},
		},
		Spec: spec,
	}, metav1.CreateOptions{})
	if err == nil {
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.244.1.7", PodIPs: []corev1.PodIP{{IP: "10.244.1.7"}, {IP: "fd00:10:244::7"}}}
		_, err = pods.UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
	}
	kit.Must(t, err)
}

// plugin returns a folder with kubectl and the plugin. Kubectl ends with 3 in place of
// running a command in a pod.
func (w fixture) plugin(t *testing.T) string {
	t.Helper()
	programs, err := thirdparty.Kubernetes.Build(t.Context(), os.Stderr, "kubectl")
	kit.Must(t, err)
	folder := t.TempDir()
	build := exec.CommandContext(t.Context(), "go", "build", "-o", filepath.Join(folder, "kubectl-svcproxy"), "kubeproxy/cmd/kubectl-svcproxy")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the plugin: %v\n%s", err, out)
	}
	script := fmt.Sprintf("#!/bin/sh\n[ -n \"$REAL\" ] || for a; do case $a in exec) echo \"$@\"; exit 3;; --) break;; esac; done\nexec %s \"$@\"\n", filepath.Join(programs, "kubectl"))
	kit.Must(t, os.WriteFile(filepath.Join(folder, "kubectl"), []byte(script), 0o755))
	return folder
}
