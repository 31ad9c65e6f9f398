// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package incluster

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/judge"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

const modeAnnotation = "net.experimental.kubernetes.io/proxy-mode"

// testModeAnnotation selects the mode by the Node's annotation, and overrides it in the
// configuration.
func testModeAnnotation(t *testing.T, w *fixture) {
	n := node()
	for _, tc := range []struct {
		annotated string
		flags     []string
		want      []string
	}{
		{"iptables", nil, []string{`mode="iptables"`, `modeFrom="the Node's annotation ` + modeAnnotation + `"`}},
		{"iptables", []string{"--proxy-mode=nftables"}, []string{`mode="nftables"`, `modeFrom="--proxy-mode"`}},
		{"magic", nil, []string{`mode="nftables"`, `modeFrom="the best that works here"`}},
	} {
		n.Annotations = map[string]string{modeAnnotation: tc.annotated}
		w.set(t, n)
		p := w.launchAs(t, tc.want, tc.flags...)
		p.AwaitLog(t, `"Programmed"`, "IPv4")
		p.Stop(t)
	}
}

// launchAs launches a proxy whose start must log the words of want. If the API server is
// too busy to answer the start's question, the proxy is launched again.
func (w *fixture) launchAs(t *testing.T, want []string, flags ...string) *program.Proxy {
	t.Helper()
	var p *program.Proxy
	for range 5 {
		p = w.launch(t, flags...)
		p.AwaitLog(t, `"Starting"`)
		if p.Log.Has(append(want, `"Starting"`)...) || !p.Log.Has("the annotation of the Node cannot be read now") {
			break
		}
		p.Stop(t)
	}
	p.AwaitLog(t, append(want, `"Starting"`)...)
	return p
}

// edgeCase is a Service that is unusual, by itself or by its endpoints. The API server
// accepts it, or another version of it would.
type edgeCase struct {
	service    *corev1.Service
	slices     []metav1.Object
	field      string // with a problem in /services, none if empty
	unanswered bool   // its ClusterIPs do not answer
	unknown    bool   // /services does not have it
}

// only reduces s to the first family and TCP.
func only(s *corev1.Service) {
	one := corev1.IPFamilyPolicySingleStack
	s.Spec.IPFamilyPolicy, s.Spec.IPFamilies, s.Spec.Ports = &one, s.Spec.IPFamilies[:1], s.Spec.Ports[:1]
}

func externalIPs(ips ...string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.ExternalIPs = ips }
}

// edgeServices are unusual by themselves.
func (w *fixture) edgeServices(claimed string) []edgeCase {
	proxied, prefer := corev1.LoadBalancerIPModeProxy, "PreferSameNode"
	long := strings.Repeat("long-", 12) + "end"
	all := []edgeCase{
		{service: newService("delegated", func(s *corev1.Service) {
			s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": ""}
		}), unanswered: true, unknown: true},
		{service: newService("headless", func(s *corev1.Service) { s.Spec.ClusterIP = corev1.ClusterIPNone }), unanswered: true, unknown: true},
		{service: newService("name", asName), unanswered: true, unknown: true},
		{service: newService("other-family", only, externalIPs("2001:db8:51::9")), field: "spec.externalIPs[0]"},
		{service: newService("claims", only, externalIPs(claimed)), field: "spec.ports"},
		{service: newService("of-the-node", externalIPs("192.0.2.10"))},
		{service: newService("other-range", only, func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"2001:db8::/32"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.20"}}
		}), field: "spec.loadBalancerSourceRanges"},
		{service: newService("balanced-elsewhere", only, func(s *corev1.Service) {
			s.Spec.Type = corev1.ServiceTypeLoadBalancer
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.21", IPMode: &proxied}, {Hostname: "lb.example"}}
		})},
		{service: newService("prefers", func(s *corev1.Service) { s.Spec.TrafficDistribution = &prefer })},
		{service: newService(long, func(s *corev1.Service) { s.Spec.Ports[0].Name = long })},
		{service: newService("many-ports", func(s *corev1.Service) {
			for i := range 300 {
				p := corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(65535 - i)}
				s.Spec.Ports = append(s.Spec.Ports, p)
			}
		})},
		{service: newService("sctp", func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "sctp", Protocol: corev1.ProtocolSCTP, Port: 80})
		})},
		{service: newService("held", func(s *corev1.Service) { s.Finalizers = []string{finalizer} })},
	}
	for i, o := range all {
		all[i].slices = withPorts(o.service, endpoints(o.service.Name, w.webs(2)...))
	}
	return all
}

// finalizer keeps a deleted Service in existence.
const finalizer = "kubeproxy.test/hold"

// withPorts gives slices the names of the first two ports of s.
func withPorts(s *corev1.Service, list []metav1.Object) []metav1.Object {
	for _, o := range list {
		for i, p := range s.Spec.Ports[:min(2, len(s.Spec.Ports))] {
			o.(*discoveryv1.EndpointSlice).Ports[i].Name = &p.Name
		}
	}
	return list
}

// edgeSlices are unusual by their endpoints.
func (w *fixture) edgeSlices() []edgeCase {
	edited := func(name string, edit func(*discoveryv1.EndpointSlice), more ...*discoveryv1.EndpointSlice) edgeCase {
		s := newSlice(name, service.IPv4, w.webs(2)...)
		edit(s)
		o := edgeCase{service: newService(name, only), slices: []metav1.Object{s}}
		for _, m := range more {
			o.slices = append(o.slices, m)
		}
		return o
	}
	unnamed := edited("unnamed", func(s *discoveryv1.EndpointSlice) { s.Ports = s.Ports[:1]; s.Ports[0].Name = nil })
	unnamed.service.Spec.Ports[0].Name = ""
	again := newSlice("twice", service.IPv4, w.webs(3)...)
	again.Name = "twice-again"
	all := []edgeCase{
		unnamed,
		edited("all-ports", func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = nil }),
		edited("no-ports", func(s *discoveryv1.EndpointSlice) { s.Ports = nil }),
		edited("no-label", func(s *discoveryv1.EndpointSlice) { s.Labels = nil }),
		edited("names", func(s *discoveryv1.EndpointSlice) {
			s.AddressType, s.Endpoints = discoveryv1.AddressTypeFQDN, s.Endpoints[:1]
			s.Endpoints[0].Addresses = []string{"web.example"}
		}),
		edited("nobody", func(s *discoveryv1.EndpointSlice) { s.Endpoints = nil }),
		edited("undecided", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = nil }),
		edited("nowhere", func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].NodeName = nil }),
		edited("far-zone", func(s *discoveryv1.EndpointSlice) {
			for i := range s.Endpoints {
				s.Endpoints[i].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "nowhere"}}}
			}
		}),
		edited("twice", func(*discoveryv1.EndpointSlice) {}, again),
		edited("huge", func(*discoveryv1.EndpointSlice) {}, huge(1), huge(2), huge(3)),
	}
	for i := range all[1:6] {
		all[1+i].unanswered = true
	}
	return all
}

// huge returns a slice with as many endpoints as the API server accepts.
func huge(n int) *discoveryv1.EndpointSlice {
	s := newSlice("huge", service.IPv4)
	s.Name = fmt.Sprintf("huge-%d", n)
	for i := range 1000 {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.%d.%d", 10*n+i/250, 1+i%250)}})
	}
	return s
}

// invalidServices are Services that this version of the API server would reject. It does
// not know that their ClusterIPs are in use. They are in the band that it assigns to
// other Services only when the rest is used up, the first 256 addresses of the range. See
// https://kubernetes.io/docs/concepts/services-networking/cluster-ip-allocation/
func (w *fixture) invalidServices() []edgeCase {
	edits := []struct {
		name, field string
		edit        func(*corev1.Service)
		silent      bool
	}{
		{name: "new-type", edit: typed("Teleport")},
		{name: "new-affinity", field: "spec.sessionAffinity", edit: func(s *corev1.Service) { s.Spec.SessionAffinity = "Cookie" }},
		{name: "new-policy", field: "spec.internalTrafficPolicy", edit: func(s *corev1.Service) {
			nearest := corev1.ServiceInternalTrafficPolicy("Nearest")
			s.Spec.InternalTrafficPolicy = &nearest
		}},
		{name: "new-distribution", field: "endpointslice alien addressType", edit: func(s *corev1.Service) {
			nearest := "PreferNearest"
			s.Spec.TrafficDistribution = &nearest
		}},
		{name: "new-protocol", field: "spec.ports[1].protocol", edit: func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "quic", Port: 81, Protocol: "QUIC"})
		}},
		{name: "far-port", field: "spec.ports[1].port", edit: func(s *corev1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "far", Port: 70000, Protocol: corev1.ProtocolTCP})
		}},
		{name: "no-address", field: "spec.clusterIPs[0]", silent: true, edit: func(s *corev1.Service) {
			s.Spec.ClusterIPs = []string{"10.96.200.300"}
			s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
		}},
		{name: "bad-range", field: "spec.loadBalancerSourceRanges[0]", edit: func(s *corev1.Service) {
			s.Spec.Type, s.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"everybody"}
		}},
	}
	var all []edgeCase
	for i, e := range edits {
		s := newService(e.name, only)
		s.APIVersion, s.Kind, s.UID, s.CreationTimestamp = "v1", "Service", types.UID(e.name), metav1.Now()
		s.Spec.ClusterIPs = []string{fmt.Sprintf("10.96.0.%d", 200+i)}
		s.Spec.ClusterIP = s.Spec.ClusterIPs[0]
		e.edit(s)
		all = append(all, edgeCase{service: s, slices: []metav1.Object{newSlice(e.name, service.IPv4, w.webs(2)...)}, field: e.field, unanswered: e.silent})
	}
	return all
}

// testEdgeCases gives the proxy objects that it cannot program, or only in part. It must
// report that, program the rest, and go on.
func testEdgeCases(t *testing.T, w *fixture) {
	sound := newService("sound", typed(corev1.ServiceTypeNodePort))
	w.set(t, append(endpoints("sound", w.webs(4)...), sound)...)
	p := w.start(t)
	traffic := w.load(t, sound)

	regular := append(w.edgeServices(sound.Spec.ClusterIPs[0]), w.edgeSlices()...)
	strange := w.invalidServices()
	for _, o := range regular {
		w.set(t, append(o.slices, o.service)...)
	}
	for _, o := range strange {
		w.set(t, o.slices...)
		kit.Must(t, w.api.Store(t.Context(), "/registry/services/specs/"+space+"/"+o.service.Name, o.service))
	}
	alien := newSlice("new-distribution", service.IPv4)
	alien.APIVersion, alien.Kind, alien.Name, alien.AddressType = "discovery.k8s.io/v1", "EndpointSlice", "alien", "IPX"
	kit.Must(t, w.api.Store(t.Context(), "/registry/endpointslices/"+space+"/alien", alien))
	all := append(regular, strange...)
	held := all[slices.IndexFunc(all, func(o edgeCase) bool { return o.service.Name == "held" })].service
	w.remove(t, held) // its finalizer keeps it

	now := w.awaitProgrammed(t)
	for _, o := range all {
		t.Run(o.service.Name, func(t *testing.T) { w.checkEdgeCase(t, p, now, o) })
	}
	held.Finalizers = nil
	w.set(t, held)
	for _, o := range all {
		w.remove(t, append(o.slices, o.service)...)
	}
	w.remove(t, alien)
	w.awaitProgrammed(t)
	kit.Until(t, "/services reports no problem any more", func() bool { return !hasProblem(t, p, "/services", "") })
	traffic.stop(t)
	p.Stop(t)
}

// checkEdgeCase checks the fields of o, and compares connections with package route.
func (w *fixture) checkEdgeCase(t *testing.T, p *program.Proxy, now judge.Judge, o edgeCase) {
	path := "/services/" + space + "/" + o.service.Name
	if page := p.Fetch(t, program.MetricsAddr, path); (page.Status == http.StatusNotFound) != o.unknown {
		t.Errorf("%s: status %d, but unknown is %t", path, page.Status, o.unknown)
	}
	if o.field != "" {
		kit.Until(t, path+" reports "+o.field, func() bool { return hasProblem(t, p, path, o.field) })
	}
	for _, ip := range o.service.Spec.ClusterIPs {
		calls := w.dial(judge.Call{Name: "ClusterIP of " + o.service.Name}, ip, o.service.Spec.Ports[0].Port, corev1.ProtocolTCP)
		if len(calls) == 0 || o.service.Name == "huge" { // most of its endpoints do not exist
			continue
		}
		now.Check(t, calls)
		q := calls[0].Query()
		if o.unanswered {
			q.Timeout = netlab.SilenceTimeout
		}
		a, err := calls[0].From.Ask(t.Context(), q)
		if err != nil || (a.Outcome == netlab.Answered) == o.unanswered {
			t.Errorf("%s: %s, %v, but silent is %t", calls[0], a.Outcome, err, o.unanswered)
		}
	}
}

// hasProblem returns whether a page of /services contains a problem with a field, or any
// problem if field is empty.
func hasProblem(t *testing.T, p *program.Proxy, path, field string) bool {
	t.Helper()
	page := p.Fetch(t, program.MetricsAddr, path)
	var answer struct {
		Services []struct{ Problems []struct{ Field string } }
	}
	err := json.Unmarshal(page.Body, &answer)
	kit.Need(t, err == nil, "%s: %v\n%s", path, err, page.Body)
	for _, s := range answer.Services {
		for _, one := range s.Problems {
			if field == "" || one.Field == field {
				return true
			}
		}
	}
	return false
}

// testIPTables applies the deployment of mode iptables and runs the proxy with its
// configuration, with each variant of iptables. One Service goes through all its types
// while another one carries traffic.
func testIPTables(t *testing.T, w *fixture) {
	kit.Must(t, w.api.Apply(t.Context(), deployment(t, "iptables")))
	spec, file := w.pods(t, "kubeproxy", "localhost/kubeproxy-iptables:dev")
	w.validate(t, file, "linux")
	proxy := spec.Containers[0]
	if add := proxy.SecurityContext.Capabilities.Add; !slices.Contains(add, "NET_RAW") || !slices.Contains(add, "NET_ADMIN") {
		t.Errorf("rights %v, want those that iptables-legacy needs", add)
	}
	if !slices.ContainsFunc(proxy.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/run/xtables.lock" && !m.ReadOnly }) {
		t.Errorf("mounts %v lack the lock of the node", proxy.VolumeMounts)
	}
	for _, v := range program.IPTablesVariants {
		t.Run(v, func(t *testing.T) {
			w.clear(t)
			x := *w
			x.mode, x.commands, x.trackOptions.NodePortsPrimary = "iptables", program.IPTables(t, v), false
			x.flags = []string{"--config=" + file}
			x.kernel = program.NewIPTablesKernel(t, w.Node, iptables.Options{MasqueradeBit: 14, DropInvalid: true, Dir: x.commands})
			testTypes(t, &x)
		})
	}
}

// TestIPVS runs mode ipvs. It has a control plane of its own, as it runs in a virtual
// machine, where the other tests of this package would take too long.
func TestIPVS(t *testing.T) {
	if !ipvs.Installed() {
		t.Skip("the kernel has no IPVS; make vm runs this on one that has")
	}
	w := newFixture(t)
	w.mode, w.trackOptions.NodePortsPrimary = "ipvs", false
	w.kernel = program.NewIPVSKernel(t, w.Node, ipvs.Options{MasqueradeBit: 14, SyncPeriod: time.Minute})
	t.Run("asked for by the Node", func(t *testing.T) {
		w.clear(t)
		testIPVSByAnnotation(t, w)
	})
	t.Run("every type of Service", func(t *testing.T) {
		w.clear(t)
		w.flags = []string{"--proxy-mode=ipvs"}
		testTypes(t, w)
	})
	w.wantVirtualServers(t, nil) // a Service was left, until the cleanup
}

// testIPVSByAnnotation selects the mode by the Node's annotation, and checks that the
// process reports it. It adds a Service, removes an endpoint and deletes the Service. In
// the end IPVS must be empty according to ipvsadm, not only to the proxy.
func testIPVSByAnnotation(t *testing.T, w *fixture) {
	n := node()
	n.Annotations = map[string]string{modeAnnotation: "ipvs"}
	w.set(t, n)
	w.wantVirtualServers(t, nil)
	p := w.start(t)
	p.AwaitLog(t, `"Starting"`, `mode="ipvs"`, `modeFrom="the Node's annotation `+modeAnnotation+`"`)
	awaitHealth(t, p, "all is programmed", http.StatusOK, http.StatusOK)
	mode := string(p.Fetch(t, program.MetricsAddr, "/proxyMode").Body)
	kit.Check(t, mode == "ipvs", "/proxyMode is %q, want ipvs", mode)
	kit.Until(t, "the Event that the proxy starts", func() bool { return w.hasEvent(t, "Starting") })

	web := newService("web")
	w.set(t, append(endpoints("web", w.webs(4)...), web)...)
	w.awaitProgrammed(t).Check(t, w.calls(t, web))
	w.wantVirtualServers(t, web)
	w.set(t, endpoints("web", w.webs(4)[1:]...)...)
	w.awaitProgrammed(t).Check(t, w.calls(t, web))
	calls := w.calls(t, web)
	w.remove(t, append(endpoints("web"), web)...)
	w.awaitProgrammed(t).Check(t, calls)
	w.wantVirtualServers(t, nil)
	p.Stop(t)
}

// hasEvent returns whether the API server has an Event about the Node.
func (w *fixture) hasEvent(t *testing.T, reason string) bool {
	t.Helper()
	list, err := w.api.Client.CoreV1().Events("").List(t.Context(), metav1.ListOptions{})
	kit.Must(t, err)
	return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
		return e.InvolvedObject.Kind == "Node" && e.InvolvedObject.Name == netlab.NodeName && e.Reason == reason
	})
}

// wantVirtualServers compares the addresses and ports of all virtual servers in
// ipvsadm(8) with those of a Service, which may be nil.
func (w *fixture) wantVirtualServers(t *testing.T, s *corev1.Service) {
	t.Helper()
	var want, got []string
	if s != nil {
		stored, err := w.api.Client.CoreV1().Services(s.Namespace).Get(t.Context(), s.Name, metav1.GetOptions{})
		kit.Must(t, err)
		for _, a := range stored.Spec.ClusterIPs {
			if strings.Contains(a, ":") {
				a = "[" + a + "]"
			}
			want = append(want, "-t "+a+":80", "-u "+a+":80")
		}
	}
	text, err := program.Run(t, w.Node, exec.Command("ipvsadm", "-S", "-n"))
	kit.Need(t, err == nil, "ipvsadm: %v\n%s", err, text)
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 2 && words[0] == "-A" {
			got = append(got, words[1]+" "+words[2])
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	kit.Check(t, slices.Equal(got, want), "virtual servers %q, want %q, in\n%s", got, want, text)
}

// testUserspace runs mode userspace. One Service goes through all its types while another
// one carries traffic. Then the node switches between this mode and mode iptables while
// Services are created, changed and deleted.
func testUserspace(t *testing.T, w *fixture) {
	x := w.inMode(t, "userspace", "nft")
	testTypes(t, x)
	w.clear(t)
	testHandOver(t, x, w.inMode(t, "iptables", "nft"))
}

// inMode returns w with another mode, by a variant of iptables.
func (w *fixture) inMode(t *testing.T, mode, variant string) *fixture {
	t.Helper()
	x := *w
	x.mode, x.commands, x.trackOptions.NodePortsPrimary = mode, program.IPTables(t, variant), false
	x.flags = []string{"--proxy-mode=" + mode, "--iptables-localhost-nodeports=false"}
	o := iptables.Options{MasqueradeBit: 14, DropInvalid: true, Dir: x.commands}
	x.kernel = program.NewIPTablesKernel(t, w.Node, o)
	if mode == "userspace" {
		x.kernel = program.NewUserspaceKernel(t, w.Node, userspace.Options{Rules: o})
	}
	return &x
}

// testHandOver replaces the process several times: by mode relays, twice, by mode other,
// and by relays again. Changes before the end of a process, and while there is none, are
// programmed afterwards, and no connection to an unchanged endpoint is lost.
func testHandOver(t *testing.T, relays, other *fixture) {
	w := relays
	web := newService("web", typed(corev1.ServiceTypeNodePort))
	w.set(t, append(endpoints("web", w.webs(4)...), web)...)
	p := w.start(t)
	traffic := w.load(t, web)
	old, past := web, w.calls(t, web)[:0]
	for i, next := range []*fixture{relays, other, relays} {
		came := newService([]string{"one", "two", "three"}[i])
		w.set(t, append(endpoints(came.Name, w.webs(3)...), came)...)
		calls := join(w.calls(t, web), w.calls(t, came))
		w.awaitProgrammed(t).Check(t, calls)
		w.set(t, endpoints("web", w.webs(4 + i)[i:]...)...) // one is removed and serves on, one is added
		p.Stop(t)
		w.set(t, endpoints(came.Name, w.webs(4)[2:]...)...)
		if old != web {
			past = w.calls(t, old)
			w.remove(t, append(endpoints(old.Name), old)...)
		}
		old, w = came, next
		p = w.launch(t)
		for _, f := range service.Families {
			p.AwaitLog(t, `"Programmed"`, w.mode+" "+f.String())
		}
		w.awaitProgrammed(t).Check(t, join(calls, past))
	}
	traffic.stop(t)
	p.Stop(t)
}
