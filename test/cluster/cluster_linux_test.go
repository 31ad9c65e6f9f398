// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"net/http"
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
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

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
	want := (Programs{Etcd: "/some/where/etcd", APIServer: "/some/where/kube-apiserver"})
	kit.Check(t, err == nil && got == want, "%+v, %v; want %+v", got, err, want)
}

func TestControlPlaneComesUp(t *testing.T) {
	begin := time.Now()
	_, c := start(t, Options{})
	version, err := c.Client.Discovery().ServerVersion()
	kit.Must(t, err)
	got, want := version.GitVersion, "v1.37.2"
	kit.Check(t, got == want, "version = %s, want %s", got, want)
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
		err := unix.Kill(pid, 0)
		kit.Check(t, errors.Is(err, unix.ESRCH), "process %d after Close: %v, want %v", pid, err, unix.ESRCH)
	}
	got := []int{c.Etcd.Pid(), c.APIServer.Pid()}
	kit.Check(t, got[0] == 0 && got[1] == 0, "Pid = %v after Close, want 0", got)
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
		err := c.Delete(t.Context(), second)
		kit.Check(t, err == nil, "%v", err)
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
	err := c.Set(t.Context(), s)
	kit.Check(t, err == nil, "%v", err)
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
	want := []seen{{watch.Added, 1}, {watch.Modified, 2}, {watch.Deleted, 2}}
	kit.Check(t, slices.Equal(got, want), "events = %v, want %v", got, want)
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

// clientOn returns the client of a program on h with the kubeconfig.
func clientOn(t *testing.T, h *netlab.Host, kubeconfig string) kubernetes.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	kit.Must(t, err)
	config.Dial = h.Dial
	client, err := kubernetes.NewForConfig(config)
	kit.Must(t, err)
	return client
}

func list(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	return err
}

// TestLogins connects from the node, as the proxy does.
func TestLogins(t *testing.T) {
	lab, c := start(t, Options{Authorization: RBAC})
	for name, tc := range map[string]struct {
		login Login
		ok    func(error) bool
	}{
		"administrator":       {Login{}, func(err error) bool { return err == nil }},
		"wrong token":         {Login{Token: "wrong"}, apierrors.IsUnauthorized},
		"proxy":               {Login{User: "system:kube-proxy"}, func(err error) bool { return err == nil }},
		"somebody":            {Login{User: "somebody"}, apierrors.IsForbidden},
		"group of masters":    {Login{User: "somebody", Groups: []string{"system:masters"}}, func(err error) bool { return err == nil }},
		"expired certificate": {Login{User: "system:kube-proxy", Until: time.Now().Add(-time.Hour)}, apierrors.IsUnauthorized},
		"nobody there": {
			Login{Server: "https://192.0.2.100:1"}, func(err error) bool { return err != nil && strings.Contains(err.Error(), "connection refused") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			path, err := c.Kubeconfig(tc.login)
			kit.Must(t, err)
			err = list(t.Context(), clientOn(t, lab.Node, path))
			kit.Check(t, tc.ok(err), "list of Services: %v", err)
		})
	}
	t.Run("server's certificate expired", func(t *testing.T) { testExpiredServer(t, lab, c) })
}

func testExpiredServer(t *testing.T, lab *netlab.Lab, c *Cluster) {
	path, err := c.Kubeconfig(Login{})
	kit.Must(t, err)
	for _, step := range []struct {
		until time.Duration
		ok    func(error) bool
	}{
		{-time.Hour, func(err error) bool { return err != nil && strings.Contains(err.Error(), "expired") }},
		{time.Hour, func(err error) bool { return err == nil }},
	} {
		kit.Must(t, c.SetServerCertificate(time.Now().Add(step.until)))
		kit.Until(t, "the certificate's change", func() bool {
			return step.ok(list(t.Context(), clientOn(t, lab.Node, path)))
		})
	}
}

// TestFaults shares one control plane, which each case leaves in order.
func TestFaults(t *testing.T) {
	_, c := start(t, Options{})
	kept := newService("kept", corev1.ServiceSpec{})
	kit.Must(t, c.Set(t.Context(), kept))
	for name, test := range map[string]func(*testing.T, *Cluster){
		"API server killed":  testKilled,
		"API server paused":  testPaused,
		"versions forgotten": testCompacted,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, c)
			now, err := c.Client.CoreV1().Services(space).Get(t.Context(), kept.Name, metav1.GetOptions{})
			if err != nil || now.Spec.ClusterIP != kept.Spec.ClusterIP {
				t.Errorf("afterwards the Service has ClusterIP %q, error %v; want %q", now.Spec.ClusterIP, err, kept.Spec.ClusterIP)
			}
		})
	}
}

func testKilled(t *testing.T, c *Cluster) {
	c.APIServer.Kill()
	err := list(t.Context(), c.Client)
	kit.Check(t, err != nil, "a killed API server answers")
	kit.Must(t, c.APIServer.Start(t.Context()))
	err = c.APIServer.Start(t.Context())
	kit.Check(t, err != nil, "second Start: no error, want one that says it runs")
}

func testPaused(t *testing.T, c *Cluster) {
	kit.Must(t, c.APIServer.Pause())
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := list(ctx, c.Client)
	kit.Check(t, errors.Is(err, context.DeadlineExceeded), "paused: %v, want silence", err)
	kit.Must(t, c.APIServer.Resume())
}

// testCompacted continues a watch from a version that was compacted.
func testCompacted(t *testing.T, c *Cluster) {
	old, err := c.Client.CoreV1().Services(space).List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	for _, name := range []string{"one", "two"} {
		kit.Must(t, c.Set(t.Context(), newService(name, corev1.ServiceSpec{})))
	}
	kit.Must(t, c.Compact(t.Context()))
	at := map[string]any{"key": []byte("/"), "limit": 1, "revision": old.ResourceVersion}
	if err := c.etcd(t.Context(), http.MethodPost, "/v3/kv/range", at, &struct{}{}); err == nil || !strings.Contains(err.Error(), "compacted") {
		t.Errorf("read of revision %s: %v, want one that says compacted", old.ResourceVersion, err)
	}
	kit.Must(t, errors.Join(c.Etcd.Restart(t.Context()), c.APIServer.Restart(t.Context())))
	w, err := c.Client.CoreV1().Services(space).Watch(t.Context(), metav1.ListOptions{ResourceVersion: old.ResourceVersion})
	if err == nil {
		defer w.Stop()
		event := <-w.ResultChan()
		err = apierrors.FromObject(event.Object)
	}
	kit.Check(t, apierrors.IsResourceExpired(err) || apierrors.IsGone(err),
		"watch from version %s: %v, want expired", old.ResourceVersion, err)
}

// TestFaultProxy reads the API server from the node through a FaultProxy.
func TestFaultProxy(t *testing.T) {
	lab, c := start(t, Options{})
	f, err := c.NewFaultProxy(t.Context())
	kit.Must(t, err)
	defer f.Close()
	path, err := c.Kubeconfig(Login{Server: f.URL})
	kit.Must(t, err)
	client := clientOn(t, lab.Node, path)
	kit.Must(t, list(t.Context(), client))
	testBrokenWatch(t, client, func() {
		err := c.Set(t.Context(), newService("passing", corev1.ServiceSpec{}))
		kit.Check(t, err == nil, "%v", err)
	}, f)
	testOtherPathsPass(t, client, f)
	for name, tc := range map[string]struct {
		fault Fault
		ok    func(error) bool
		waits bool // until it gives up
	}{
		"500":    {fault: Fault{Status: http.StatusInternalServerError}, ok: apierrors.IsInternalError},
		"503":    {fault: Fault{Status: http.StatusServiceUnavailable}, ok: apierrors.IsServiceUnavailable},
		"silent": {fault: Fault{Silent: true}, ok: func(err error) bool { return errors.Is(err, context.Canceled) }, waits: true},
		// The client repeats the request after Retry-After.
		"429": {
			fault: Fault{Status: http.StatusTooManyRequests, RetryAfter: time.Minute},
			ok:    func(err error) bool { return err != nil }, waits: true,
		},
		"slow":      {fault: Fault{Delay: 10 * time.Millisecond}, ok: func(err error) bool { return err == nil }},
		"truncated": {fault: Fault{Cut: 100}, ok: func(err error) bool { return err != nil && !strings.Contains(err.Error(), "connection") }},
		"reset": {
			fault: Fault{Cut: 100, Reset: true},
			ok:    func(err error) bool { return err != nil && strings.Contains(err.Error(), "connection reset") },
		},
		"only some": {fault: Fault{Status: http.StatusForbidden, Only: "/services"}, ok: apierrors.IsForbidden},
		"none":      {ok: func(err error) bool { return err == nil }},
	} {
		t.Run(name, func(t *testing.T) {
			f.SetFault(tc.fault)
			before := f.FaultCount()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if tc.waits {
				go giveUp(ctx, cancel, func() bool { return f.FaultCount() > before })
			}
			err := list(ctx, client)
			kit.Check(t, tc.ok(err), "list: %v", err)
			if got, want := f.FaultCount() > before, tc.fault != (Fault{}); got != want {
				t.Errorf("spoiled %d requests, before %d", f.FaultCount(), before)
			}
		})
	}
}

// giveUp ends ctx a second after something has happened.
func giveUp(ctx context.Context, cancel func(), happened func() bool) {
	for ctx.Err() == nil {
		if happened() {
			time.AfterFunc(time.Second, cancel)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// testBrokenWatch receives an event at once and then the end of the watch.
func testBrokenWatch(t *testing.T, client kubernetes.Interface, change func(), f *FaultProxy) {
	t.Helper()
	w, err := client.CoreV1().Services(space).Watch(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	defer w.Stop()
	change()
	for event := range w.ResultChan() {
		if s, ok := event.Object.(*corev1.Service); ok && s.Name == "passing" {
			break
		}
	}
	f.SetFault(Fault{Status: http.StatusServiceUnavailable})
	for event := range w.ResultChan() {
		_, ok := event.Object.(*corev1.Service)
		kit.Check(t, !ok, "event %v after the watch was spoiled", event)
	}
}

// testOtherPathsPass spoils paths that the client does not request.
func testOtherPathsPass(t *testing.T, client kubernetes.Interface, f *FaultProxy) {
	t.Helper()
	f.SetFault(Fault{Status: http.StatusForbidden, Only: "/nodes"})
	before := f.FaultCount()
	if err := list(t.Context(), client); err != nil || f.FaultCount() != before {
		t.Errorf("list while something else is spoiled: %v, %d requests spoiled", err, f.FaultCount()-before)
	}
}
