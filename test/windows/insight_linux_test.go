// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/cluster"
	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/wine"
)

var updateInsight = flag.Bool("update-insight", false, "rewrite the sessions in docs/insight.md")

// shownFolder is where the page says that the manifests are.
const shownFolder = `C:\srv\services`

// notWindows are parts of an output that only Wine causes: it lacks the extension VFP and
// lists the addresses of another machine. The rest are checks that find nothing.
var notWindows = []struct {
	pattern *regexp.Regexp
	shown   string
}{
	{regexp.MustCompile(`\r|(?m)^kube-proxy: \d+ of \d+ checks done.*\n`), ""}, // of a slow machine
	{regexp.MustCompile(`(?s)\d\. \w+ +(vfp-extension|node-unknown)\n.*?\n\n`), ""},
	{regexp.MustCompile(`(?m)(^  (ok|skipped|found) +(VFP extension|Node)( .*)?\n)`), "  ok\n"},
	{regexp.MustCompile(`(?m)(^  (ok|skipped)( .*)?\n( {20,}.*\n)*)+`), "  ...\n"},
	{regexp.MustCompile(`(?m)^\d\. `), "1. "},
	{regexp.MustCompile(`\d findings?\n`), "1 finding\n"},
}

// TestInsight runs sessions of docs/insight.md that need Windows.
func TestInsight(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 10, Minor: 1}})
	web, _, _ := shop()
	n.save(t, web)
	n.start(t, "--enable-dsr")
	n.awaitProgrammed(t, web)
	const line = "kube-proxy doctor --enable-dsr --hostname-override node-a --manifests " + shownFolder
	args := strings.Fields(strings.ReplaceAll(line, shownFolder, wine.File(n.dir)))
	code, out := n.run(t, args[1:]...)
	for _, x := range notWindows {
		out = x.pattern.ReplaceAllString(out, x.shown)
	}
	s := &kit.Session{Name: "dsr", Prompt: ">", Status: "echo %ERRORLEVEL%"}
	s.Typed(line, out, code)
	n.stop(t)
	kit.Page{Path: "../../docs/insight.md", Rewrite: *updateInsight}.Compare(t, s)
}

// TestExplain asks the running proxy what happens to connections: while HNS has what it
// should, and after another program replaced a load balancer and deleted another one.
func TestExplain(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 15, Minor: 5}})
	web, cart, _ := shop()
	n.save(t, web, cart)
	n.start(t, "--iptables-sync-period=1h") // nothing is repaired meanwhile
	n.awaitProgrammed(t, web, cart)
	explain := func(code int, destination string, words ...string) {
		t.Helper()
		got, out := n.run(t, "explain", "10.244.1.11", destination)
		for _, w := range words {
			kit.Check(t, got == code && strings.Contains(strings.Join(strings.Fields(out), " "), w),
				"explain %s: exit %d, want %d; want %q in\n%s", destination, got, code, w, out)
		}
	}
	ids := map[string]string{}
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		ids[strings.Join(lb.VIPs(), "")] = strings.ToLower(lb.ID())
	}
	const agrees = "The node does what it should, as far as this can be told: routes, interfaces and firewalls are not looked at"
	explain(0, web.clusterIP()+":80", agrees, "network vxlan0 Overlay, HNS 15.5", "load balancer "+ids[web.clusterIP()]+" tcp 10.96.0.10:80 -> :8080", "10.244.1.11 local", "10.244.2.11 remote 02-11-0a-f4-02-0b via 192.0.2.11")
	explain(0, "node:30020", agrees, "tcp node:30020 -> :8080 local-routed external", "of shop/cart:web")

	n.replaceLoadBalancer(t, web.clusterIP())
	kit.Must(t, n.hns.Delete(hns.LoadBalancer, ids[cart.clusterIP()]))
	calls := n.hns.Calls()
	explain(1, web.clusterIP()+":80", "has the target port 9090, and should have 8080", "the node also sends it to 10.244.2.11:9090", "lacks endpoint")
	explain(1, cart.clusterIP()+":80", "no load balancer has tcp 10.96.0.20:80, of shop/cart:web", "the node does leave it alone, and should forward")
	if calls = n.hns.Calls().Sub(calls); calls.Writes("") > 0 || calls.Lists(hns.LoadBalancer) != 2 {
		t.Errorf("two questions cost %s, want a list each and no change", calls)
	}
	n.stop(t)
}

// replaceLoadBalancer replaces the load balancer at vip by one to another port and fewer
// endpoints.
func (n *node) replaceLoadBalancer(t *testing.T, vip string) {
	t.Helper()
	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		if !slices.Contains(lb.VIPs(), vip) {
			continue
		}
		kit.Must(t, n.hns.Delete(hns.LoadBalancer, lb.ID()))
		var ends []any
		for _, e := range n.hns.Objects(hns.Endpoint) {
			if e.IPs()[0].String() == "10.244.2.11" {
				ends = append(ends, e.ID())
			}
		}
		if _, err := n.hns.AddLoadBalancer(hns.Document{
			"HostComputeEndpoints": ends, "FrontendVIPs": []any{vip},
			"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 9090, "ExternalPort": 80}},
		}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDiff compares what HNS holds with the manifests: while a proxy runs, and after
// another program changed load balancers. Then it collects an archive.
func TestDiff(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 15, Minor: 5}})
	web, cart, _ := shop()
	n.save(t, web, cart)
	n.start(t, "--iptables-sync-period=1h") // nothing is repaired meanwhile
	n.awaitProgrammed(t, web, cart)
	flags := []string{"--hostname-override=" + netlab.NodeName, "--cluster-cidr=10.244.0.0/16", "--manifests=" + wine.File(n.dir)}
	diff := func(code int, args []string, words ...string) {
		t.Helper()
		got, out := n.run(t, append(append([]string{"diff"}, flags...), args...)...)
		for _, w := range words {
			if got != code || strings.Contains(out, "system_windows.go") || !strings.Contains(strings.Join(strings.Fields(out), " "), w) {
				t.Errorf("diff %q: exit %d, want %d; want %q in\n%s", args, got, code, w, out)
			}
		}
	}
	calls := n.hns.Calls()
	diff(0, nil, "node node-a, mode kernelspace: from what the node has to", "Nothing differs.")

	for _, lb := range n.hns.Objects(hns.LoadBalancer) {
		if strings.Join(lb.VIPs(), "") == cart.clusterIP() {
			kit.Must(t, n.hns.Delete(hns.LoadBalancer, lb.ID()))
		}
	}
	n.replaceLoadBalancer(t, web.clusterIP())
	diff(1, nil, "changes of the node, IPv4:", "+ loadbalancer tcp "+cart.clusterIP()+":80", "- loadbalancer tcp "+web.clusterIP()+":80", "for Service ports shop/cart:web and shop/web:web.")
	diff(1, []string{"-o=diff"}, "--- what the node has", "+loadbalancer tcp "+cart.clusterIP()+":80 -> :8080", "# shop/cart:web", "-loadbalancer tcp "+web.clusterIP()+":80 -> :9090", "+loadbalancer tcp "+web.clusterIP()+":80 -> :8080")
	if calls = n.hns.Calls().Sub(calls); calls.Writes("") > 2 { // the test's own
		t.Errorf("diff changed HNS: %s", calls)
	}

	file := filepath.Join(n.dir, "..", "dump.tar.gz")
	code, out := n.run(t, append(append([]string{"support-dump"}, flags...), wine.File(file))...)
	kit.Need(t, code <= 1, "support-dump: exit %d\n%s", code, out)
	parts := unpack(t, file)
	for name, word := range map[string]string{
		"rules.txt": "loadbalancer tcp " + web.clusterIP() + ":80 -> :9090 ", "plan.txt": "shop/web:web", "hns.json": "HostComputeEndpoints", "status.txt": "mode kernelspace",
		"doctor.txt": "windows, mode kernelspace", "services.json": "shop", "config.yaml": "KubeProxyConfiguration",
	} {
		if !strings.Contains(parts[name], word) {
			t.Errorf("%s of the archive has no %q:\n%s\n%s", name, word, parts[name], out)
		}
	}
	n.stop(t)
}

// unpack returns the files of an archive by name.
func unpack(t *testing.T, file string) map[string]string {
	t.Helper()
	text := kit.ReadFile(t, file)
	z, err := gzip.NewReader(bytes.NewReader(text))
	kit.Must(t, err)
	parts, r := map[string]string{}, tar.NewReader(z)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return parts
		}
		kit.Must(t, err)
		body, err := io.ReadAll(r)
		kit.Must(t, err)
		parts[path.Base(h.Name)] = string(body)
	}
}

// diagnose runs doctor and returns a line for each finding: its id and what it says. It
// leaves out the extension VFP, a driver that Wine does not have.
func (n *node) diagnose(t *testing.T, flags ...string) (found []string, code int) {
	t.Helper()
	code, out := n.run(t, append([]string{"doctor", "--before-start", "-o=json", "--hostname-override=" + netlab.NodeName, "--cluster-cidr=10.244.0.0/16", "--manifests=" + wine.File(n.dir)}, flags...)...)
	var r struct {
		Findings []struct{ ID, What string }
		Checks   []struct{ Name, State, Note string }
	}
	i := strings.Index(out, "{")
	kit.Need(t, i >= 0 && json.Unmarshal([]byte(out[i:]), &r) == nil, "exit %d\n%s", code, out)
	vfp := false
	for _, f := range r.Findings {
		if f.ID == "vfp-extension" {
			vfp = true
			continue
		}
		if f.ID != "node-unknown" { // Wine lists the addresses of another machine
			found = append(found, f.ID+": "+f.What)
		}
	}
	kit.Check(t, vfp, "the extension is not missed: %s", out)
	for _, c := range r.Checks {
		kit.Check(t, c.State != "failed", "%s could not look: %s", c.Name, c.Note)
	}
	return found, code
}

// TestDoctor makes faults of HNS and of the configuration. Doctor names each.
func TestDoctor(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 10, Minor: 3}})
	web, _, _ := shop()
	n.save(t, web)
	expect := func(what string, found []string, words ...string) {
		t.Helper()
		for _, w := range words {
			kit.Check(t, slices.ContainsFunc(found, func(f string) bool { return strings.Contains(f, w) }),
				"%s: no %q in %q", what, w, found)
		}
		kit.Check(t, len(found) == len(words), "%s: %d findings, want %d: %q", what, len(found), len(words), found)
	}
	found, code := n.diagnose(t, "--enable-dsr")
	expect("all is well", found)
	if code != 1 { // for the extension
		t.Errorf("exit %d, want 1", code)
	}
	found, _ = n.diagnose(t)
	expect("without direct server return, and ports enough", found)
	found, _ = n.diagnose(t, "--enable-dsr", "--network-name=none")
	expect("a network that is missing", found, `hns-network: waiting for network "none"`)
	found, _ = n.diagnose(t, "--enable-dsr", "--source-vip=192.0.2.1")
	expect("a source VIP outside", found, "source-vip: --source-vip or winkernel.sourceVip: 192.0.2.1 is in no subnet")
	calls := n.hns.Calls()
	for name, count := range calls {
		if count > 0 && (strings.HasPrefix(name, "HcnCreate") || strings.HasPrefix(name, "HcnDelete") || strings.HasPrefix(name, "HcnModify")) {
			t.Errorf("doctor changed HNS: %s", calls)
		}
	}

	n.start(t, "--enable-dsr")
	n.awaitProgrammed(t, web)
	found, _ = n.diagnose(t, "--enable-dsr")
	expect("while the proxy runs", found)
	n.stop(t)
}

// TestDoctorOldHNS asks for what the HNS lacks.
func TestDoctorOldHNS(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 10, Minor: 1}})
	found, _ := n.diagnose(t, "--enable-dsr")
	kit.Check(t, len(found) == 1 && strings.Contains(found[0], "hns-version: HNS 10.1 has no direct server return"),
		"found %q", found)
	_, text := n.run(t, "doctor", "--hostname-override="+netlab.NodeName, "--manifests="+wine.File(n.dir))
	t.Logf("\n%s", text)
}

// event waits for an Event with a reason about an object, with all of words.
func (m *mixed) event(t *testing.T, reason, object string, words ...string) {
	t.Helper()
	var seen []string
	reported := func() bool {
		list, err := m.Client.CoreV1().Events(metav1.NamespaceAll).List(t.Context(), metav1.ListOptions{})
		kit.Must(t, err)
		seen = nil
		for _, e := range list.Items {
			if e.Reason == reason && e.InvolvedObject.Name == object && has(e.Message, words...) {
				return true
			}
			seen = append(seen, e.Type+" "+e.Reason+" "+e.InvolvedObject.Name+": "+e.Message)
		}
		return false
	}
	deadline := time.Now().Add(kit.Limit)
	for !reported() {
		if time.Now().Before(deadline) {
			time.Sleep(200 * time.Millisecond)
			continue
		}
		t.Fatalf("no Event %s about %s with %q:\n%s\n%s", reason, object, words, strings.Join(seen, "\n"), m.process.Tail())
	}
}

// TestEvents makes HNS refuse a load balancer, lack a feature that a Service needs, and
// stop. Events on a real API server and status report the start and the end of each.
func TestEvents(t *testing.T) {
	m := newMixed(t)
	kubeconfig, err := m.Kubeconfig(cluster.Login{})
	kit.Must(t, err)
	web, cart, dns := shop()
	m.hns.Hold(6, int(cart.nodePort()))
	m.publish(t, web, cart)
	sticky := dns.service()
	sticky.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
	m.set(t, sticky)
	m.set(t, dns.slice())
	m.start(t, "--kubeconfig="+wine.File(kubeconfig))

	m.event(t, "ServiceNotProgrammed", "cart", "Node node-a", "port web/tcp, IPv4", "HNS says that the port is taken", "0x803b0013")
	m.event(t, "ServiceLimited", "dns", "Limits of mode kernelspace: port web/tcp: session affinity has no timeout")
	if code, output := m.run(t, "status", "shop/dns"); code != 0 || !has(output, "shop/dns: programmed", "session affinity has no timeout") {
		t.Errorf("status shop/dns: exit code %d\n%s", code, output)
	}
	text := m.fetch(t, "/services")
	kit.Check(t, has(text, `"unsupported":`, "shop/dns"), "no condition in %s", text)
	m.hns.Release(6, int(cart.nodePort()))
	m.event(t, "ServiceProgrammed", "cart", "Node node-a")

	m.hns.Stop(hns.ServerUnavailable)
	m.event(t, "RulesNotProgrammed", "node-a", "HNS is not running")
	m.hns.Start(hns.Everything)
	m.event(t, "RulesProgrammed", "node-a")
	m.node.awaitProgrammed(t, web, cart, dns)
	m.stop(t)
}
