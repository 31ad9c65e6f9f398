// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/health"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

// TestUnknownPods checks that podCIDRs are required only of families that have Services.
func TestUnknownPods(t *testing.T) {
	r := newTestReports(Options{Families: service.Families[:], PodsFromNode: true})
	round := func(pods ...netip.Prefix) map[string]string {
		node := &service.Node{NodePorts: service.AnyAddress(), Pods: service.LocalPods{Prefixes: pods}}
		s := service.New(1, node, []*service.Port{{Name: service.PortName{Namespace: "shop", Name: "web"}, Family: service.IPv4}})
		for _, f := range service.Families {
			r.round(f, s, reconcile.Result{Outcome: reconcile.Outcome{FullSync: true}})
		}
		return r.Health.Report().Conditions
	}
	const want = "the Node node-a has no podCIDRs of IPv4, so clients that are no pods are not masqueraded: detectLocalMode NodeCIDR wants one"
	kit.Same(t, "without (-want +got)", map[string]string{"pods-IPv4": want}, round(netip.MustParsePrefix("fd00::/64")))
	got := round(netip.MustParsePrefix("10.244.1.0/24"))
	kit.Check(t, len(got) == 0, "with: %v", got)
	r.Reconfigure(track.Options{})
	if got := round(); len(got) > 0 {
		t.Errorf("reported otherwise: %v", got)
	}
}

// TestFamilyOutOfReach checks a round that finds that the node lacks a family. It matters
// only if the family has Services.
func TestFamilyOutOfReach(t *testing.T) {
	log, text := kit.NewLog(0)
	r := newTestReports(Options{Mode: "kernelspace", Families: []service.Family{service.IPv6}, Log: log})
	rounds := r.Sequence(Backend{})
	round := func(why string, ports ...*service.Port) string {
		s := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, ports)
		rounds.Report(Round{Family: service.IPv6, Result: reconcile.Result{Snapshot: s, Outcome: reconcile.Outcome{Unavailable: why}}})
		return r.Health.Report().Conditions["family-IPv6"]
	}
	web := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web"}, Family: service.IPv6}
	for i, got := range []string{round("no IPv6"), round("no IPv6", web), round("no IPv6", web), round("", web), round("no IPv6")} {
		want := []string{"", "no IPv6", "no IPv6", "", ""}[i]
		kit.Check(t, got == want, "round %d: condition %q, want %q", i, got, want)
	}
	kit.Same(t, "log (-want +got)", []string{`I "Warning: Services are not programmed for a family" family="IPv6" err="no IPv6"`}, kit.LogLines(text))
}

// TestClosedNodePortsAreReported checks that the condition lasts as long as no address of
// the node answers.
func TestClosedNodePortsAreReported(t *testing.T) {
	r := newTestReports(Options{Addresses: func() []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("fe80::1")}
	}})
	p := checkedPort(service.IPv4, "web", 0, 0)
	exposed := *p
	exposed.Frontends = []service.Frontend{{Kind: service.NodePort, Port: 30010}}
	other := []netip.Prefix{netip.MustParsePrefix("10.9.0.0/16")}
	for name, tt := range map[string]struct {
		node service.Node
		port *service.Port
		want string // of the condition, after its beginning
	}{
		"pending":      {service.Node{Name: "node-x", NodePortsPending: [2]bool{true}}, &exposed, `nodePortAddresses is "primary", and no Node named "node-x" with an address is known; `},
		"other":        {service.Node{NodePorts: other}, &exposed, "nodePortAddresses 10.9.0.0/16 has none of 192.0.2.10; "},
		"none":         {service.Node{Name: "node-x"}, &exposed, `nodePortAddresses is "primary", and the Node "node-x" has no IPv4 address; `},
		"loopback":     {service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, &exposed, ""},
		"no NodePort":  {service.Node{NodePorts: other}, p, ""},
		"on Windows":   {service.Node{NodePorts: other, NodePortsEverywhere: true}, &exposed, ""},
		"some address": {service.Node{NodePorts: service.AnyAddress()}, &exposed, ""},
	} {
		r.round(service.IPv4, service.New(1, &tt.node, []*service.Port{tt.port}), reconcile.Result{})
		text := r.Health.Report().Conditions["node-port-addresses-IPv4"]
		kit.Check(t, (text == "") == (tt.want == "") && (strings.HasPrefix(text, "no IPv4 address answers NodePorts: "+tt.want) || tt.want == ""),
			"%s: the condition is %q", name, text)
	}
}

// TestRefusedAddressesAreReported checks that the condition lasts as long as an address
// of a Service is refused.
func TestRefusedAddressesAreReported(t *testing.T) {
	r := newTestReports(Options{})
	h := r.sink
	round := func() string {
		r.round(service.IPv4, h.Latest(), reconcile.Result{})
		return r.Health.Report().Conditions["refused-addresses"]
	}
	victim, thief := shopService("victim", "10.96.0.9"), shopService("thief", "10.96.0.10")
	thief.Spec.ExternalIPs, thief.Spec.Ports[0].Port = []string{"10.96.0.9"}, 81
	h.SetService(victim)
	h.SetService(thief)
	h.Synced()
	if got := round(); !strings.Contains(got, "shop/thief: ExternalIP 10.96.0.9:81/tcp is refused: the address is the ClusterIP of service shop/victim") {
		t.Errorf("the condition is %q", got)
	}
	h.DeleteService(types.NamespacedName{Namespace: "shop", Name: "victim"})
	got := round()
	kit.Check(t, got == "", "the condition is %q when nobody has the address any more", got)
}

// TestNodeProblemsAreReported checks that what is wrong with a ServiceCIDR and with the
// Node is shown as long as it is, and names no Service to everybody.
func TestNodeProblemsAreReported(t *testing.T) {
	r := newTestReports(Options{})
	h := r.sink
	conditions := func() (ranges, node string) {
		r.round(service.IPv4, h.Latest(), reconcile.Result{})
		all := r.Health.Report().Conditions
		return all["service-cidrs"], all["node-object"]
	}
	set := func(cidr string) {
		o := &networkingv1.ServiceCIDR{Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{cidr}}}
		o.Name = "kubernetes"
		h.SetServiceCIDR(o)
	}
	bad := &corev1.Node{Spec: corev1.NodeSpec{PodCIDRs: []string{"10.244.0.0"}}}
	bad.Name = "node-a"
	h.SetNode(bad)
	set("10.0.0.0/7")
	h.Synced()
	ranges, node := conditions()
	kit.Check(t, strings.HasPrefix(ranges, `servicecidr kubernetes spec.cidrs[0]: "10.0.0.0/7" is too wide`) && strings.HasPrefix(node, "spec.podCIDRs[0]: "),
		"conditions %q and %q", ranges, node)
	set("10.96.0.0/16")
	good := bad.DeepCopy()
	good.Spec.PodCIDRs = nil
	h.SetNode(good)
	if ranges, node := conditions(); ranges+node != "" {
		t.Errorf("conditions %q and %q when all is well", ranges, node)
	}
	slice := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.96.0.200"}}}}
	slice.Namespace, slice.Name, slice.Labels = "shop", "web-1", map[string]string{discoveryv1.LabelServiceName: "web"}
	h.SetSlice(slice)
	if ranges, _ := conditions(); !strings.Contains(ranges, "10.96.0.200 of service shop/web") {
		t.Errorf("condition %q", ranges)
	}
	w := httptest.NewRecorder()
	r.Health.Handler(health.Observer{}).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/healthz", nil))
	text := w.Body.String()
	kit.Check(t, strings.Contains(text, "service-cidrs") && !strings.Contains(text, "shop"), "everybody reads %q", text)
}

// TestManyProblems wants the first of many problems logged, and the rest counted.
func TestManyProblems(t *testing.T) {
	log, text := kit.NewLog(0)
	r := newTestReports(Options{Log: log})
	const services = 100
	for i := range services {
		r.sink.SetService(shopService(fmt.Sprintf("s%03d", i), "10.96.0.10"))
	}
	r.sink.Synced()
	r.sink.Latest()
	if n := strings.Count(text.String(), "belongs to"); n != mostProblems || !strings.Contains(text.String(), `kube-proxy status and /services have them all" more=79`) {
		t.Errorf("%d problems are logged; want %d and how many more there are:\n%s", n, mostProblems, text)
	}
	n := r.Services.Summary().Problems
	kit.Check(t, n == services-1, "%d problems are known; want %d", n, services-1)
}

// shopService returns a Service with one port.
func shopService(name, clusterIP string) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: clusterIP, Ports: []corev1.ServicePort{{Port: 80}}},
	}
}

// TestDataplaneConditions checks that each condition begins and ends by itself, that a
// condition from before the Reports is kept, and that its start is logged once, but each
// detail.
func TestDataplaneConditions(t *testing.T) {
	var log strings.Builder
	monitor := health.New(health.Options{})
	d := &Dataplane{Health: monitor, Log: logr.FromSlogHandler(slog.NewTextHandler(io.Writer(&log), nil))}
	ports, refuses := d.Condition("dynamic-ports"), d.Condition("relay")
	hangs := func(text string) { d.Condition("dataplane")(text, "") }
	ports("4 are missing", "")
	refuses("clients are refused", "clients of ns/a are refused")
	o := newTestReports(Options{Health: monitor})
	hangs("HNS has not answered")
	ports("5 are missing", "")
	conditions := o.Health.Report().Conditions
	kit.Check(t, conditions["dataplane"] == "HNS has not answered" && conditions["dynamic-ports"] == "5 are missing" && conditions["relay"] == "clients of ns/a are refused",
		"conditions %v", conditions)
	hangs("")
	refuses("clients are refused", "clients of ns/a, ns/b are refused")
	refuses("", "")
	conditions = o.Health.Report().Conditions
	kit.Check(t, len(conditions) == 1 && conditions["dynamic-ports"] != "", "conditions %v", conditions)
	if n := strings.Count(log.String(), "Warning: "); n != 4 || strings.Contains(log.String(), "5 are") {
		t.Errorf("logged:\n%s", log.String())
	}
	ports("", "")
	conditions = o.Health.Report().Conditions
	kit.Check(t, len(conditions) == 0, "conditions %v", conditions)
}

func noRanges(f service.Family, name string) *reconcile.PortError {
	return portError(f, name, errors.Join(&reconcile.UnsupportedError{Text: "no source ranges"}))
}

func noted(name, text string) reconcile.Notes {
	passing := reconcile.Note{Text: "no endpoints", Transient: true}
	return reconcile.Notes{{Namespace: "shop", Name: name, Port: "http", Protocol: service.TCP}: {{Text: text}, passing}}
}

// TestEventsOfLimits checks that a limit of a mode is one Event, however many families
// and nodes report it, and that a temporary limit is none.
func TestEventsOfLimits(t *testing.T) {
	got := recordedEvents(t, func(h *Events) {
		l := &limits{events: h, health: health.New(health.Options{}), mode: "kernelspace"}
		round := func(f service.Family, r reconcile.Result) {
			r.Generation = 1
			h.Report(Round{Family: f, Result: r})
			l.Report(Round{Family: f, Result: r})
			time.Sleep(2 * time.Minute)
		}
		h.setService(newService("web", "u1"))
		h.setService(newService("old", "u2"))
		for _, f := range service.Families {
			round(f, reconcile.Result{Outcome: reconcile.Outcome{Notes: noted("old", "no timeout"), Err: errors.Join(noRanges(f, "web"))}})
		}
		round(v4, reconcile.Result{Outcome: reconcile.Outcome{Notes: noted("old", "no timeout"), Err: errors.Join(noRanges(v4, "web"), portError(v4, "old", errRefused))}})
		want := "mode kernelspace cannot do all that Services ask for, see kube-proxy status NAMESPACE/NAME: shop/old, shop/web"
		text := l.health.Report().Conditions["unsupported"]
		kit.Check(t, text == want, "condition %q, want %q", text, want)
		h.setService(newService("old", "u3")) // another Service of the same name
		time.Sleep(2 * time.Minute)
		for _, f := range service.Families {
			round(f, reconcile.Result{})
		}
		c := l.health.Report().Conditions
		kit.Check(t, len(c) == 0, "conditions %v, want none", c)
	})
	want := []string{
		"Warning ServiceLimited old u2: Limits of mode kernelspace: port http/tcp: no timeout",
		"Warning ServiceLimited web u1: Limits of mode kernelspace: port http/tcp: no source ranges",
		"Warning ServiceNotProgrammed old u2: Node node-a could not program port http/tcp, IPv4: refused",
		"Warning ServiceLimited old u3: Limits of mode kernelspace: port http/tcp: no timeout",
	}
	if len(got) > 2 && strings.Contains(got[0], " web ") { // the order of equal waits is random
		got[0], got[1] = got[1], got[0]
	}
	kit.Same(t, "(-want +got)", want, got)
}

// A difference from what a Service asks for is logged when it begins.
func TestLogOfLimits(t *testing.T) {
	log, b := kit.NewLog(0)
	l := &limits{events: newEvents(Options{}, nil), log: log, health: health.New(health.Options{}), mode: "nftables"}
	for _, notes := range []reconcile.Notes{noted("web", "no SCTP"), noted("web", "no SCTP"), nil} {
		l.Report(Round{Result: reconcile.Result{Outcome: reconcile.Outcome{Notes: notes}}})
	}
	if got := b.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `service="shop/web" lacks="Limits of mode nftables: port http/tcp: no SCTP"`) {
		t.Errorf("logged:\n%s", got)
	}
}

// A limit is logged once, and is no failure.
func TestLogLimits(t *testing.T) {
	log, b := kit.NewLog(0)
	r := newRoundLogger(log)
	limit := noRanges(v4, "web")
	for _, err := range []error{limit, limit, errors.Join(limit, errRefused), limit, nil, limit} {
		r.logRound(reconcile.Result{Generation: 1, Outcome: reconcile.Outcome{Err: err}})
	}
	var got []string
	for _, line := range kit.LogLines(b) {
		if text, _, ok := strings.Cut(line, "\" "); ok { // not further lines of an error
			got = append(got, text)
		}
	}
	limited := `E "Services ask for what this mode cannot do; the rest of them is in force`
	want := []string{
		`I "Programmed`, limited, `E "Not everything could be programmed; trying again`, `I "Programmed again`, limited,
	}
	kit.Same(t, "(-want +got)", want, got)
}
