// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/vm"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m.Run)) }

// start creates a network with a node and a control plane beside it.
func start(t *testing.T, o Options) (*netlab.Lab, *Cluster) {
	t.Helper()
	lab := netlab.Start(t, netlab.Config{Clients: []string{"control"}})
	o.Host = lab.Host("control")
	return lab, Start(t, o)
}

const deployment = `# A comment alone is no object.
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: proxy, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: proxy}
rules:
- {apiGroups: [""], resources: [services], verbs: [list, watch]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: proxy, namespace: kube-system}
spec:
  selector: {matchLabels: {app: proxy}}
  template:
    metadata: {labels: {app: proxy}}
    spec: {containers: [{name: proxy, image: proxy}]}
`

func testApply(t *testing.T, c *Cluster) {
	for range 2 { // the second changes nothing
		kit.Must(t, c.Apply(t.Context(), []byte(deployment)))
	}
	if _, err := c.Client.AppsV1().DaemonSets("kube-system").Get(t.Context(), "proxy", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	for name, tc := range map[string]struct{ manifest, want string }{
		"unknown field":   {strings.Replace(deployment, "image: proxy", "image: proxy, imgae: x", 1), `document 4: DaemonSet proxy`},
		"field twice":     {strings.Replace(deployment, "image: proxy", "image: proxy, image: x", 1), `document 4`},
		"unknown kind":    {"apiVersion: v1\nkind: Serivce\nmetadata: {name: a}", `kind "Serivce" of "v1"`},
		"unknown version": {"apiVersion: v9\nkind: Service\nmetadata: {name: a}", `kinds of "v9"`},
		"no YAML":         {"a: b: c", "document 1"},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.Apply(t.Context(), []byte(tc.manifest))
			kit.Check(t, err != nil && strings.Contains(err.Error(), tc.want),
				"Apply = %v, want an error with %q", err, tc.want)
		})
	}
}

// TestProgramsFromEnvironment checks that installed programs are used without a search
// and without a build.
func TestProgramsFromEnvironment(t *testing.T) {
	t.Setenv(vm.ControlPlaneVariable, "/some/where")
	t.Chdir(t.TempDir()) // below no module
	got, err := Build(t.Context(), os.Stderr)
	if want := (Programs{Etcd: "/some/where/etcd", APIServer: "/some/where/kube-apiserver"}); err != nil || got != want {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

func TestControlPlaneComesUp(t *testing.T) {
	begin := time.Now()
	_, c := start(t, Options{})
	version, err := c.Client.Discovery().ServerVersion()
	kit.Must(t, err)
	if got, want := version.GitVersion, "v1.37.2"; got != want {
		t.Errorf("version = %s, want %s", got, want)
	}
	etcd, err := c.Etcd.Memory()
	kit.Check(t, err == nil, "%v", err)
	api, err := c.APIServer.Memory()
	kit.Check(t, err == nil, "%v", err)
	t.Logf("ready after %s, resident: etcd %d MB, API server %d MB", time.Since(begin), etcd>>20, api>>20)
}

func TestCloseLeavesNoProcess(t *testing.T) {
	lab := netlab.Start(t, netlab.Config{Clients: []string{"control"}})
	programs, err := Build(t.Context(), os.Stderr)
	kit.Must(t, err)
	c, err := New(t.Context(), programs, Options{Host: lab.Host("control"), Dir: t.TempDir()})
	kit.Must(t, err)
	pids := []int{c.Etcd.Pid(), c.APIServer.Pid()}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	for _, pid := range pids {
		if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
			t.Errorf("process %d after Close: %v, want %v", pid, err, unix.ESRCH)
		}
	}
	if got := []int{c.Etcd.Pid(), c.APIServer.Pid()}; got[0] != 0 || got[1] != 0 {
		t.Errorf("Pid = %v after Close, want 0", got)
	}
}

const space = metav1.NamespaceDefault

func newService(name string, spec corev1.ServiceSpec) *corev1.Service {
	if spec.Type != corev1.ServiceTypeExternalName {
		spec.Ports = []corev1.ServicePort{{Name: "http", Port: 80}}
	}
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name}, Spec: spec}
}

// everyType returns one Service of each type, and the expected result.
func everyType() map[string]struct {
	object *corev1.Service
	want   addresses
} {
	both := corev1.IPFamilyPolicyRequireDualStack
	ingress := []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
	balanced := newService("balanced", corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ExternalIPs: []string{"198.51.100.7"}})
	balanced.Status.LoadBalancer.Ingress = ingress
	return map[string]struct {
		object *corev1.Service
		want   addresses
	}{
		"ClusterIP": {newService("plain", corev1.ServiceSpec{}), addresses{V4: true}},
		"dual stack": {
			newService("dual", corev1.ServiceSpec{IPFamilyPolicy: &both}), addresses{V4: true, V6: true},
		},
		"headless":     {newService("headless", corev1.ServiceSpec{ClusterIP: "None"}), addresses{Headless: true}},
		"NodePort":     {newService("ported", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort}), addresses{V4: true, NodePort: true}},
		"LoadBalancer": {balanced, addresses{V4: true, NodePort: true, External: []string{"198.51.100.7"}, Ingress: "203.0.113.9"}},
		"ExternalName": {
			newService("elsewhere", corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.com"}), addresses{},
		},
	}
}

// addresses are the kinds of addresses of a Service, as the API server assigns the
// numbers.
type addresses struct {
	V4, V6, Headless, NodePort bool
	External                   []string
	Ingress                    string
}

func addressesOf(s *corev1.Service) addresses {
	a := addresses{External: s.Spec.ExternalIPs}
	for _, ip := range s.Spec.ClusterIPs {
		addr, err := netip.ParseAddr(ip)
		a.V4 = a.V4 || err == nil && netip.MustParsePrefix(ServiceCIDRv4).Contains(addr)
		a.V6 = a.V6 || err == nil && netip.MustParsePrefix(ServiceCIDRv6).Contains(addr)
		a.Headless = a.Headless || ip == corev1.ClusterIPNone
	}
	for _, p := range s.Spec.Ports {
		a.NodePort = a.NodePort || p.NodePort >= 30000
	}
	for _, in := range s.Status.LoadBalancer.Ingress {
		a.Ingress = in.IP
	}
	return a
}

func testEveryType(t *testing.T, c *Cluster) {
	for name, tc := range everyType() {
		t.Run(name, func(t *testing.T) {
			kit.Must(t, c.Set(t.Context(), tc.object))
			stored, err := c.Client.CoreV1().Services(space).Get(t.Context(), tc.object.Name, metav1.GetOptions{})
			kit.Must(t, err)
			kit.Same(t, "Service, -want +got", tc.want, addressesOf(stored))
			kit.Same(t, "object after Set, -stored +got", stored, tc.object)
		})
	}
}

// testSetAgain changes a Service of which the caller has only its own version.
func testSetAgain(t *testing.T, c *Cluster) {
	first := newService("again", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort})
	second := newService("again", corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, SessionAffinity: corev1.ServiceAffinityClientIP})
	for _, s := range []*corev1.Service{first, second} {
		kit.Must(t, c.Set(t.Context(), s))
	}
	kit.Check(t, second.Spec.SessionAffinity == corev1.ServiceAffinityClientIP,
		"affinity = %q, want that of the second Set", second.Spec.SessionAffinity)
	kit.Same(t, "ClusterIPs, -first +second", first.Spec.ClusterIPs, second.Spec.ClusterIPs)
	kit.Check(t, first.UID == second.UID, "UID = %s, then %s: the Service was made anew", first.UID, second.UID)
	for range 2 {
		if err := c.Delete(t.Context(), second); err != nil {
			t.Error(err)
		}
	}
	_, err := c.Client.CoreV1().Services(space).Get(t.Context(), second.Name, metav1.GetOptions{})
	kit.Check(t, apierrors.IsNotFound(err), "after Delete: %v, want not found", err)
}

func testNode(t *testing.T, c *Cluster) {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node-a", Labels: map[string]string{corev1.LabelTopologyZone: "here"}},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:10:244:1::/64"}},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}}},
	}
	want := n.DeepCopy()
	kit.Must(t, c.Set(t.Context(), n))
	got, err := c.Client.CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
	kit.Must(t, err)
	kit.Same(t, "addresses, -want +got", want.Status.Addresses, got.Status.Addresses)
	kit.Same(t, "pod CIDRs, -want +got", want.Spec.PodCIDRs, got.Spec.PodCIDRs)
}

func testNamespace(t *testing.T, c *Cluster) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	s := newService("web", corev1.ServiceSpec{})
	s.Namespace = ns.Name
	kit.Must(t, c.Set(t.Context(), ns))
	if err := c.Set(t.Context(), s); err != nil {
		t.Error(err)
	}
}

// testWatch follows an EndpointSlice through its life.
func testWatch(t *testing.T, c *Cluster) {
	slicesOf := c.Client.DiscoveryV1().EndpointSlices(space)
	w, err := slicesOf.Watch(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=watched"})
	kit.Must(t, err)
	defer w.Stop()
	object := func(ips ...string) *discoveryv1.EndpointSlice {
		s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
		s.Namespace, s.Name = space, "watched-1"
		s.Labels = map[string]string{discoveryv1.LabelServiceName: "watched"}
		for _, ip := range ips {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{ip}})
		}
		return s
	}
	for _, s := range []*discoveryv1.EndpointSlice{object("10.244.1.11"), object("10.244.1.11", "10.244.2.11")} {
		kit.Must(t, c.Set(t.Context(), s))
	}
	kit.Must(t, c.Delete(t.Context(), object()))
	type seen struct {
		Type      watch.EventType
		Endpoints int
	}
	var got []seen
	for event := range w.ResultChan() {
		s, ok := event.Object.(*discoveryv1.EndpointSlice)
		kit.Need(t, ok, "event %s with %v", event.Type, event.Object)
		got = append(got, seen{event.Type, len(s.Endpoints)})
		if event.Type == watch.Deleted {
			break
		}
	}
	if want := []seen{{watch.Added, 1}, {watch.Modified, 2}, {watch.Deleted, 2}}; !slices.Equal(got, want) {
		t.Errorf("events = %v, want %v", got, want)
	}
}

// TestObjects shares one control plane, whose start takes longest.
func TestObjects(t *testing.T) {
	_, c := start(t, Options{})
	for name, test := range map[string]func(*testing.T, *Cluster){
		"every type of Service": testEveryType,
		"set again":             testSetAgain,
		"node":                  testNode,
		"watch":                 testWatch,
		"refusals":              testRefusals,
		"namespace":             testNamespace,
		"manifests":             testApply,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// testRefusals mixes valid and invalid objects: the valid ones are written, the errors
// name the invalid ones.
func testRefusals(t *testing.T, c *Cluster) {
	good := newService("good", corev1.ServiceSpec{})
	err := c.Set(t.Context(), newService("Bad_Name", corev1.ServiceSpec{}), good, &corev1.Pod{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "default/Bad_Name") || !strings.Contains(err.Error(), "*v1.Pod") {
		t.Errorf("Set = %v, want it to name Bad_Name, invalid, and *v1.Pod", err)
	}
	kit.Check(t, good.Spec.ClusterIP != "", "the good Service has no ClusterIP: it was not written")
}
