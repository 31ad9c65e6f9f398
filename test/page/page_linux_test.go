// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package page opens the page of a running proxy in a browser.
package page

import (
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

var (
	kubeProxy program.Program
	pictures  = flag.String("pictures", "", "the folder for pictures of the page, none if empty")
)

func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }

// browser is Debian's Chromium without a screen.
const browser = "chromium-headless-shell"

// markup is what an attacker names things that have no rules for names.
const markup = "<script>document.title='taken'</script><img src=x onerror=document.title='taken'>"

func objects(pod string) []runtime.Object {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Namespace: "shop", Name: name} }
	web := func(name, addr string) *corev1.Service {
		return &corev1.Service{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: meta(name),
			Spec: corev1.ServiceSpec{ClusterIP: addr, ClusterIPs: []string{addr}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}}},
		}
	}
	odd := web("odd", "10.96.0.12")
	odd.Spec.SessionAffinity = corev1.ServiceAffinity(markup)
	ready, there, zone, tcp, name, port := true, "node-a", markup, corev1.ProtocolTCP, "http", int32(8080)
	slice := &discoveryv1.EndpointSlice{
		TypeMeta: metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"}, ObjectMeta: meta("web-1"), AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{pod}, NodeName: &there, Zone: &zone, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "web"}
	return []runtime.Object{web("web", "10.96.0.10"), web("empty", "10.96.0.11"), odd, slice}
}

// TestPage looks at each view, and at what names with markup do there.
func TestPage(t *testing.T) {
	if _, err := exec.LookPath(browser); err != nil {
		t.Skip("there is no " + browser)
	}
	l := netlab.Start(t, netlab.Config{Pods: []string{"web-1", "client"}})
	web, node := l.Host("web-1"), l.Host(netlab.NodeName)
	_, err := web.Echo("", 8080)
	kit.Must(t, err)
	manifest := filepath.Join(t.TempDir(), "shop.yaml")
	kit.Must(t, os.WriteFile(manifest, program.Manifest(t, objects(web.IPv4.String())...), 0o600))
	p := kubeProxy.Start(t, node, "--manifests="+manifest, "--hostname-override=node-a", "--proxy-mode=nftables", "--cluster-cidr="+netlab.ClusterCIDR)
	kit.Until(t, "the proxy is ready", func() bool { return p.Status(t, program.HealthAddr, "/healthz") == 200 })
	for _, tt := range []struct {
		name, at string
		has      []string
	}{
		{"services", "", []string{"node-a", "mode nftables", ">empty<", "no endpoints", ">web<", "3 of 3", "not ClientIP or None"}},
		{"service", "#/service/shop/web", []string{"10.96.0.10:80", web.IPv4.String() + ":8080", "node-a (here)", "yes: it is ready"}},
		{"connection", "#/connection?source=" + l.Host("client").IPv4.String() + "&destination=10.96.0.10:80", []string{"The node does what it should", ">Client<", ">Service<", "shop/web", web.IPv4.String() + ":8080"}},
		{"refused", "#/connection?source=" + l.Host("client").IPv4.String() + "&destination=10.96.0.11:80", []string{"reject"}},
		{"dropped", "#/connection?source=" + l.Host("client").IPv4.String() + "&destination=10.96.0.10:80", []string{"The node does not do what it should", "inet firewall guard"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.name == "dropped" {
				_, err := program.Run(t, node, exec.Command("nft", "add table inet firewall; add chain inet firewall guard { type filter hook forward priority 0; policy drop; }"))
				kit.Must(t, err)
			}
			args := []string{"--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1280,720", "--virtual-time-budget=5000", "--dump-dom"}
			if *pictures != "" {
				args = append(args, "--screenshot="+filepath.Join(*pictures, "view-"+tt.name+".png"))
			}
			out, _ := program.Run(t, node, exec.Command(browser, append(args, "http://"+program.MetricsAddr+"/view/"+tt.at)...))
			for _, want := range tt.has {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
			if strings.Contains(out, "taken</title>") || strings.Contains(out, "<img") {
				t.Errorf("a name became markup:\n%s", out)
			}
		})
	}
}
