// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"kubeproxy/test/cluster"
	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
	"kubeproxy/test/wine"
)

// soakFor is how long TestSoak runs.
var soakFor = flag.Duration("soak", usualSoak(), "how long faults are made at random, both versions of HNS together; by default $KUBEPROXY_SOAK or 15s")

func usualSoak() time.Duration {
	if d, err := time.ParseDuration(os.Getenv("KUBEPROXY_SOAK")); err == nil {
		return d
	}
	return 15 * time.Second
}

// kubeProxy is the program for Linux, exe that for Windows, both freshly built for each
// run of the tests and in one folder.
var (
	kubeProxy program.Program
	exe       = sync.OnceValues(build)
)

func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }

func build() (string, error) {
	path := filepath.Join(filepath.Dir(kubeProxy.Path), "kube-proxy.exe")
	return path, wine.BuildProgram(path, "kubeproxy/cmd/kube-proxy")
}

// node is a Windows node: node-a of a lab, with an overlay network that CNI created, and
// manifests.
type node struct {
	*netlab.Lab
	wine    *wine.Wine
	hns     *hns.Server
	dir     string // of manifests
	process *wine.Process
	foreign map[string]string // foreign load balancers, in the form of programmed
	idle    []string          // ClusterIPs without endpoints
	env     []string          // more variables of the proxy
}

// locals are the pods for which CNI has created endpoints; others of the subnet follow
// later.
var locals = []string{"10.244.1.11", "10.244.1.12"}

func newNode(t *testing.T, o hns.Options) *node {
	t.Helper()
	n := &node{dir: t.TempDir(), foreign: map[string]string{}}
	n.Lab = netlab.Start(t, netlab.Config{Clients: []string{"control"}})
	l, err := n.Node.Listen(t.Context(), "tcp", "127.0.0.1:0")
	kit.Must(t, err)
	n.hns = hns.StartAt(t, l, o)
	n.wine = wine.Start(t, wine.Options{Host: n.Node, Env: []string{"HNS_SIM_ADDR=" + n.hns.Addr}})
	n.installNetwork(t)
	for _, object := range nodes() {
		n.write(t, object.Name+".yaml", program.Manifest[any](t, object))
	}
	return n
}

func (n *node) installNetwork(t *testing.T) {
	t.Helper()
	_, err := n.hns.AddNetwork(hns.NetworkConfig{
		Name: "vxlan0", Type: "Overlay", Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")},
		Routes: []hns.Route{{Prefix: netip.MustParsePrefix("10.244.2.0/24"), Provider: n.Other.IPv4, MAC: "00-15-5D-00-00-02"}},
	})
	kit.Must(t, err)
	for _, ip := range locals {
		n.installPod(t, ip)
	}
}

func (n *node) installPod(t *testing.T, ip string) string {
	t.Helper()
	id, err := n.hns.AddPod("vxlan0", "pod-"+ip, netip.MustParseAddr(ip))
	kit.Must(t, err)
	return id
}

// installForeign creates a remote endpoint and a load balancer of another program.
func (n *node) installForeign(t *testing.T) {
	t.Helper()
	e, err := n.hns.AddRemote("vxlan0", netip.MustParseAddr("10.244.2.99"), n.Other.IPv4, "02-11-0a-f4-02-63")
	kit.Must(t, err)
	if _, err := n.hns.AddLoadBalancer(hns.Document{
		"HostComputeEndpoints": []any{e}, "FrontendVIPs": []any{"172.30.0.1"},
		"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 1, "ExternalPort": 1}},
	}); err != nil {
		t.Fatal(err)
	}
	n.foreign["6 172.30.0.1:1"] = "1 on 10.244.2.99"
}

// write replaces a file of the manifests in one step.
func (n *node) write(t *testing.T, name string, text []byte) {
	t.Helper()
	next := filepath.Join(n.dir, name+".next")
	kit.Must(t, os.WriteFile(next, text, 0o600))
	kit.Must(t, os.Rename(next, filepath.Join(n.dir, name)))
}

func (n *node) save(t *testing.T, apps ...app) {
	t.Helper()
	for _, a := range apps {
		n.write(t, a.name+".yaml", program.Manifest[any](t, a.service(), a.slice()))
	}
}

func (n *node) remove(t *testing.T, a app) {
	t.Helper()
	kit.Must(t, os.Remove(filepath.Join(n.dir, a.name+".yaml")))
}

// start starts the proxy, with the manifests unless flags name a kubeconfig.
func (n *node) start(t *testing.T, flags ...string) {
	t.Helper()
	program, err := exe()
	kit.Must(t, err)
	args := []string{
		"--hostname-override=" + netlab.NodeName, "--iptables-min-sync-period=10ms", "--iptables-sync-period=500ms", "-v=2",
		"--cluster-cidr=10.244.0.0/16",
	}
	if !slices.ContainsFunc(flags, func(f string) bool { return strings.HasPrefix(f, "--kubeconfig") }) {
		args = append(args, "--manifests="+wine.File(n.dir))
	}
	if n.process, err = n.wine.Start(wine.Program{Path: program, Args: append(args, flags...), Env: n.env}); err != nil {
		t.Fatal(err)
	}
}

// stop ends the proxy as Ctrl+C does.
func (n *node) stop(t *testing.T) {
	t.Helper()
	kit.Must(t, n.process.Interrupt())
	select {
	case <-n.process.Ended():
	case <-time.After(kit.Limit):
		t.Fatal("the proxy does not stop")
	}
	code, err := n.process.Wait(t.Context())
	kit.Check(t, err == nil && code == 0, "the proxy ended with %d, %v", code, err)
}

// kill ends the proxy as a crash does, and returns when HNS has finished the current
// call.
func (n *node) kill(t *testing.T) {
	t.Helper()
	n.process.Kill()
	n.hns.DropConnections() // Wine may keep the sockets of a killed program open
	kit.Until(t, "the last call is over", func() bool { return n.hns.Connections() == 0 })
}

// programmed returns the load balancers of HNS by their frontends.
func (n *node) programmed() map[string]string {
	ips := map[string]string{}
	for _, e := range n.hns.Objects(hns.Endpoint) {
		for _, ip := range e.IPs() {
			ips[e.ID()] = ip.String()
		}
	}
	have := map[string]string{}
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		vip := strings.Join(lb.VIPs(), ",")
		if vip == "" {
			vip = "node"
		}
		var leads []string
		for _, id := range lb.Endpoints() {
			leads = append(leads, ips[id])
		}
		slices.Sort(leads)
		for _, p := range lb.Ports() {
			have[fmt.Sprintf("%v %s:%v", p["Protocol"], vip, p["ExternalPort"])] = fmt.Sprintf("%v on %s", p["InternalPort"], strings.Join(leads, " "))
		}
	}
	return have
}

// awaitProgrammed waits until HNS has exactly the objects of apps and the foreign ones.
func (n *node) awaitProgrammed(t *testing.T, apps ...app) {
	t.Helper()
	want := maps.Clone(n.foreign)
	for _, a := range apps {
		a.adds(want)
	}
	for deadline := time.Now().Add(kit.Limit); ; time.Sleep(20 * time.Millisecond) {
		diff := cmp.Diff(want, n.programmed())
		if diff == "" {
			break
		}
		kit.Need(t, !time.Now().After(deadline), "load balancers (-want +got):\n%s", diff)
	}
	n.awaitNoLeftovers(t)
}

// awaitIdle waits until the proxy is idle: it may have lost the answer to a call that
// succeeded, and try it again.
func (n *node) awaitIdle(t *testing.T) {
	t.Helper()
	before := n.hns.Calls()
	kit.Until(t, "two resyncs without a change", func() bool {
		calls := n.hns.Calls().Sub(before)
		if calls.Writes("") > 0 {
			before = n.hns.Calls()
		}
		return calls.Writes("") == 0 && calls.Lists(hns.LoadBalancer) >= 3
	})
}

// awaitNoLeftovers waits until there are no leftovers.
func (n *node) awaitNoLeftovers(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(kit.Limit); ; time.Sleep(20 * time.Millisecond) {
		litter := n.leftovers()
		if litter == "" {
			return
		}
		kit.Need(t, !time.Now().After(deadline), "left over: %s", litter)
	}
}

// leftovers names unused objects of HNS. Remote endpoints with addresses of Services are
// in use.
func (n *node) leftovers() string {
	vips := map[string]bool{}
	for _, vip := range n.idle {
		vips[vip] = true
	}
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		for _, vip := range lb.VIPs() {
			vips[vip] = true
		}
	}
	lines := n.hns.DanglingReferences()
	for _, e := range n.hns.Unused() {
		if !slices.ContainsFunc(e.IPs(), func(ip netip.Addr) bool { return vips[ip.String()] }) {
			lines = append(lines, fmt.Sprintf("endpoint %s with %v is not in use", e.ID(), e.IPs()))
		}
	}
	return strings.Join(lines, "\n")
}

// checkIdle waits until two resyncs have passed and fails the test if the proxy changed
// anything meanwhile.
func (n *node) checkIdle(t *testing.T, why string) {
	t.Helper()
	before := n.hns.Calls()
	lists := func() int { return n.hns.Calls().Sub(before).Lists(hns.LoadBalancer) }
	kit.Until(t, "two resyncs", func() bool { return lists() >= 3 })
	if n := n.hns.Calls().Sub(before); n.Writes("") != 0 {
		t.Errorf("%s: calls that change something where nothing is to be done: %s", why, n)
	}
}

// app is a Service in namespace shop and its endpoints. Its ClusterIP and its node port
// follow from its number, 1 to 250.
type app struct {
	name   string
	number int
	pods   []string // addresses; those in 10.244.1.0/24 are on the Windows node
}

func (a app) clusterIP() string { return fmt.Sprintf("10.96.0.%d", a.number) }
func (a app) nodePort() int32   { return int32(30000 + a.number) }

// on returns a with other endpoints.
func (a app) on(pods ...string) app {
	a.pods = pods
	return a
}

const target = 8080

// adds adds the expected load balancers of a to want, their endpoints by their frontends.
func (a app) adds(want map[string]string) {
	if len(a.pods) == 0 {
		return
	}
	pods := slices.Sorted(slices.Values(a.pods))
	leads := fmt.Sprintf("%d on %s", target, strings.Join(pods, " "))
	want[fmt.Sprintf("6 %s:80", a.clusterIP())] = leads
	want[fmt.Sprintf("6 node:%d", a.nodePort())] = leads
}

func (a app) service() *corev1.Service {
	s := &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}}
	s.Namespace, s.Name = "shop", a.name
	s.Spec.Type = corev1.ServiceTypeNodePort
	s.Spec.ClusterIP, s.Spec.ClusterIPs = a.clusterIP(), []string{a.clusterIP()}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	s.Spec.Ports = []corev1.ServicePort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: a.nodePort()}}
	return s
}

func (a app) slice() *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}}
	s.Namespace, s.Name = "shop", a.name
	s.Labels = map[string]string{discoveryv1.LabelServiceName: a.name}
	s.AddressType = discoveryv1.AddressTypeIPv4
	s.Ports = []discoveryv1.EndpointPort{{Name: new("web"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(target))}}
	for _, ip := range a.pods {
		node := netlab.OtherName
		if strings.HasPrefix(ip, "10.244.1.") {
			node = netlab.NodeName
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{ip}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
		})
	}
	return s
}

// nodes are both nodes of the lab: the first one runs Windows.
func nodes() []*corev1.Node {
	var list []*corev1.Node
	for i, name := range []string{netlab.NodeName, netlab.OtherName} {
		n := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}}
		n.Name = name
		n.Spec.PodCIDR = fmt.Sprintf("10.244.%d.0/24", i+1)
		n.Spec.PodCIDRs = []string{n.Spec.PodCIDR}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: fmt.Sprintf("192.0.2.%d", 10+i)}}
		list = append(list, n)
	}
	return list
}

// hostProcess is the HostProcess pod that the chart gives, on a node.
type hostProcess struct {
	*mixed
	pod    corev1.PodSpec
	config map[string]string // data of the ConfigMap
	// mount is the folder of the image and the volumes, below drive C. Since containerd 1.7 it is
	// "hpc" for each pod, and volumes are at their mountPath, too:
	// https://kubernetes.io/docs/tasks/configure-pod-container/create-hostprocess-pod/#volume-mounts
	mount string
}

const kubeSystem = "kube-system"

// newHostProcess installs the chart in a cluster.
func newHostProcess(t *testing.T) *hostProcess {
	t.Helper()
	h := &hostProcess{mixed: &mixed{node: newNode(t, hns.Options{})}}
	h.Cluster = cluster.Start(t, cluster.Options{
		Host: h.Host("control"), Authorization: cluster.RBAC, Flags: []string{"--allow-privileged=true"},
	})
	h.idle = []string{"10.96.0.1"} // the API server's own
	for _, namespace := range []string{"shop", kubeSystem} {
		h.set(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}})
	}
	for _, n := range nodes() {
		h.set(t, n)
	}
	cmd := exec.CommandContext(t.Context(), program.ChartTool(t), "render", "-chart", filepath.Join("..", "..", "build", "chart"))
	cmd.Stdin = strings.NewReader("{apiServer: '" + h.Server + "', clusterCIDR: 10.244.0.0/16, linux: {enabled: false}, windows: {enabled: true}}")
	manifest, err := cmd.Output()
	if err == nil {
		err = h.Apply(t.Context(), manifest)
	}
	kit.Must(t, err)
	set, err := h.Client.AppsV1().DaemonSets(kubeSystem).Get(t.Context(), "kubeproxy-windows", metav1.GetOptions{})
	kit.Must(t, err)
	config, err := h.Client.CoreV1().ConfigMaps(kubeSystem).Get(t.Context(), "kubeproxy", metav1.GetOptions{})
	kit.Must(t, err)
	h.pod, h.config = set.Spec.Template.Spec, config.Data
	return h
}

// put writes a file of a volume where the runtime mounts it, in one step.
func (h *hostProcess) put(t *testing.T, name string, text []byte) {
	t.Helper()
	roots := []string{h.mount}
	if h.mount == "hpc" {
		roots = append(roots, "")
	}
	for _, root := range roots {
		path := filepath.Join(h.wine.Prefix(), "drive_c", root, filepath.FromSlash(name))
		kit.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path+".next", text, 0o755), os.Rename(path+".next", path)))
	}
}

const account = "var/run/secrets/kubernetes.io/serviceaccount/"

// rotate writes a token that is valid until revoke is called.
func (h *hostProcess) rotate(t *testing.T, name string) (revoke func()) {
	t.Helper()
	bound := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: kubeSystem, Name: name}}
	secrets := h.Client.CoreV1().Secrets(kubeSystem)
	bound, err := secrets.Create(t.Context(), bound, metav1.CreateOptions{})
	kit.Must(t, err)
	ask := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Secret", APIVersion: "v1", Name: name, UID: bound.UID},
	}}
	token, err := h.Client.CoreV1().ServiceAccounts(kubeSystem).CreateToken(t.Context(), h.pod.ServiceAccountName, ask, metav1.CreateOptions{})
	kit.Must(t, err)
	h.put(t, account+"token", []byte(token.Status.Token))
	return func() { kit.Must(t, secrets.Delete(t.Context(), name, metav1.DeleteOptions{})) }
}

// startPod starts the container as containerd does.
func (h *hostProcess) startPod(t *testing.T) {
	t.Helper()
	c := h.pod.Containers[0]
	mount := `C:\` + strings.ReplaceAll(h.mount, "/", `\`)
	words := strings.NewReplacer("$env:CONTAINER_SANDBOX_MOUNT_POINT", mount, "$(NODE_NAME)", netlab.NodeName)
	var line []string
	for _, word := range append(c.Command, c.Args...) {
		line = append(line, words.Replace(word))
	}
	env := []string{`CONTAINER_SANDBOX_MOUNT_POINT=` + mount + `\`, "NODE_NAME=" + netlab.NodeName}
	var err error
	if h.process, err = h.wine.Start(wine.Program{Path: line[0], Args: line[1:], Env: env}); err != nil {
		t.Fatal(err)
	}
}

// TestHostProcess runs the pod of the chart with its files where containerd 1.6 and 1.7 have
// them, until Services are in force. A new token and a kubeconfig with the paths of Linux work,
// too.
func TestHostProcess(t *testing.T) {
	h := newHostProcess(t)
	file, err := exe()
	kit.Must(t, err)
	image := kit.ReadFile(t, file)
	login, err := h.Kubeconfig(cluster.Login{})
	kit.Must(t, err)
	admin, err := clientcmd.LoadFromFile(login)
	kit.Must(t, err)
	web, cart, dns := shop()
	for _, mount := range []string{"C/0d5b", "hpc"} {
		t.Run(mount, func(t *testing.T) {
			h.mount = mount
			h.put(t, "kube-proxy.exe", image)
			for name, text := range h.config {
				h.put(t, "etc/kubeproxy/"+name, []byte(text))
			}
			h.put(t, account+"ca.crt", admin.Clusters[admin.Contexts[admin.CurrentContext].Cluster].CertificateAuthorityData)
			revoke := h.rotate(t, "first")
			h.publish(t, web)
			h.startPod(t)
			h.node.awaitProgrammed(t, web)

			// The API server forgets connections and answers about tokens.
			renewed := h.rotate(t, "second")
			revoke()
			kit.Must(t, h.APIServer.Restart(t.Context()))
			h.publish(t, cart)
			h.node.awaitProgrammed(t, web, cart)
			h.stop(t)

			h.put(t, "etc/kubeproxy/kubeconfig.conf", []byte(strings.ReplaceAll(h.config["kubeconfig.conf"], "../../var", "/var")))
			h.publish(t, dns)
			h.startPod(t)
			h.node.awaitProgrammed(t, web, cart, dns)
			h.stop(t)
			renewed()
			for _, a := range []app{web, cart, dns} {
				kit.Must(t, h.Delete(t.Context(), a.service(), a.slice()))
			}
		})
	}
}
