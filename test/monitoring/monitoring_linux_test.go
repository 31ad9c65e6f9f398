// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// kubeProxy is the proxy, freshly built for each run of the tests.
var kubeProxy program.Program

func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }

// TestAlerts begins with nodes without proxies, starts those, begins all faults at once
// and ends them.
func TestAlerts(t *testing.T) {
	rules := scaledRules(t)
	var names []string
	want, known := map[string]map[string]bool{}, map[string]bool{"ServiceProxyAbsent": true}
	for _, f := range faults {
		names = append(names, f.node)
		add(want, f.node, f.alerts...)
		for _, a := range f.alerts {
			known[a] = true
		}
	}
	for alert := range alertsOf(t, rules) {
		kit.Check(t, known[alert], "no fault is known for alert %s", alert)
	}
	s := newSite(t, names...)
	var hosts []*netlab.Host
	for _, n := range s.nodes {
		hosts = append(hosts, n.Host)
	}
	p := startPrometheus(t, s.Host(control), rules, hosts...)
	absent := map[string]map[string]bool{"": {"ServiceProxyAbsent": true}}
	p.awaitFiring(t, absent)

	s.churn(t)
	s.startAll(t)
	kit.Until(t, "a scrape of each proxy", func() bool { // only what was seen once can be missed
		return len(p.during(t, "kubeproxy_standby")) == len(s.nodes)
	})
	load := s.Host("customer").Load(t.Context(), netlab.LoadConfig{Query: netlab.Query{Proto: "tcp", To: webAddr}, Pause: 20 * time.Millisecond})
	t.Cleanup(func() { load.Stop() })
	s.withSignal.Store(true)
	ends := []func(){func() { s.withSignal.Store(false) }}
	for _, f := range faults {
		if f.begin != nil {
			ends = append(ends, f.begin(t, s, s.node(f.node)))
		}
	}
	p.awaitFiring(t, want)
	t.Run("metrics", func(t *testing.T) { testMetrics(t, p) })
	t.Run("dashboard", func(t *testing.T) { testDashboard(t, p) })
	for _, end := range ends {
		end()
	}
	p.awaitFiring(t, nil)
	writeData(t, p)
	add(want, "", "ServiceProxyAbsent")
	missing, extra := compare(want, p.fired(t))
	kit.Check(t, len(missing)+len(extra) == 0, "alerts that should have fired: %v; that should not: %v", missing, extra)
}

// startAll starts the proxies, and waits for those that can be synced.
func (s *site) startAll(t *testing.T) {
	t.Helper()
	for _, f := range faults {
		n := s.node(f.node)
		if f.start != nil {
			f.start(t, s, n)
		} else {
			s.start(t, n, nil)
		}
	}
	for _, n := range s.nodes {
		if n.Name == "unsynced" {
			continue
		}
		kit.Until(t, "the proxy of "+n.Name, func() bool { return n.proxy.Status(t, program.HealthAddr, "/livez") == 200 })
		n.proxy.AwaitLog(t, `"Programmed"`)
	}
}

// data is a file into which the answers to the dashboard's queries are written.
var data = flag.String("data", "", "write what the panels of the dashboard show to this `file`")

// panel is a part of the dashboard, and what it shows.
type panel struct {
	Title, Type string
	GridPos     struct{ X, Y, W, H int }
	Targets     []query

	FieldConfig struct {
		Defaults struct {
			Unit       string
			Thresholds any
		}
	}
}

type query struct {
	Expr, LegendFormat string
	Series             []series
}

// testMetrics checks that Prometheus has every metric that alerts and dashboard name.
func testMetrics(t *testing.T, p *prometheus) {
	names := metricsOf(chartFile(t, "rules.yaml") + chartFile(t, "dashboard.json"))
	kit.Check(t, len(names) >= 20, "only %d metrics are named", len(names))
	for name := range names {
		kit.Check(t, len(p.during(t, name)) != 0, "no node has metric %s", name)
	}
}

// testDashboard checks that every query of the dashboard gives data.
func testDashboard(t *testing.T, p *prometheus) {
	panels := ask(t, p)
	kit.Check(t, len(panels) >= 10, "only %d panels", len(panels))
	for _, panel := range panels {
		for _, q := range panel.Targets {
			kit.Check(t, len(q.Series) != 0, "panel %q shows nothing for %s", panel.Title, q.Expr)
		}
	}
}

// ask returns the panels with what they show.
func ask(t *testing.T, p *prometheus) []panel {
	t.Helper()
	var board struct{ Panels []panel }
	kit.Must(t, json.Unmarshal([]byte(chartFile(t, "dashboard.json")), &board))
	// What Grafana puts in: all nodes, and four scrapes.
	variables := strings.NewReplacer("$instance", ".*", "$__rate_interval", (4 * scrapeInterval).String())
	for _, panel := range board.Panels {
		for i := range panel.Targets {
			panel.Targets[i].Series = p.during(t, variables.Replace(panel.Targets[i].Expr))
		}
	}
	return board.Panels
}

// writeData writes what the panels show, if that was asked for.
func writeData(t *testing.T, p *prometheus) {
	t.Helper()
	if *data == "" {
		return
	}
	text, err := json.Marshal(ask(t, p))
	if err == nil {
		err = os.WriteFile(*data, text, 0o644)
	}
	kit.Check(t, err == nil, "%v", err)
}

// fault is what goes wrong on a node, and what has to be said about it.
type fault struct {
	node   string
	alerts []string
	// start starts the proxy. Without one, it starts as usual.
	start func(*testing.T, *site, *node)
	// begin starts the fault, after which end ends it.
	begin func(*testing.T, *site, *node) (end func())
}

// faults are those that the alerts are for. An absent proxy is apart, as it takes all
// nodes.
var faults = []fault{
	{node: "well", start: func(t *testing.T, s *site, n *node) { s.start(t, n, nil, "--count-traffic") }, begin: visit},
	{
		node: "down", alerts: []string{"ServiceProxyDown"},
		begin: func(t *testing.T, s *site, n *node) func() { n.proxy.Stop(t); return func() { s.start(t, n, nil) } },
	},
	{
		node: "unsynced", alerts: []string{"ServiceProxyNotSynced", "ServiceProxySourceStale", "ServiceProxyCondition"},
		start: func(t *testing.T, s *site, n *node) { n.cut(t, s); s.start(t, n, nil) },
		begin: func(t *testing.T, _ *site, n *node) func() { return func() { n.mend(t) } },
	},
	{
		node: "cut", alerts: []string{"ServiceProxySourceStale", "ServiceProxyCondition"},
		begin: func(t *testing.T, s *site, n *node) func() { n.cut(t, s); return func() { n.mend(t) } },
	},
	{
		node: "broken", alerts: []string{"ServiceProxyChangesNotInForce", "ServiceProxyRoundsFail"},
		start: startBreakable, begin: breakCommands,
	},
	{
		node: "cramped", alerts: []string{"ServiceProxyServicesUnserved", "ServiceProxyServicePortsFailed", "ServiceProxyRoundsFail", "ServiceProxyCondition"},
		start: startCramped,
		begin: func(t *testing.T, s *site, n *node) func() {
			return func() { n.proxy.Stop(t); s.start(t, n, nil, "--proxy-mode=userspace") }
		},
	},
	{node: "altered", alerts: []string{"ServiceProxyRulesAltered", "ServiceProxyCondition"}, begin: alter},
	{
		node: "rejected", alerts: []string{"ServiceProxyConfigurationRejected", "ServiceProxyCondition"},
		start: func(t *testing.T, s *site, n *node) {
			s.start(t, n, nil, "--config="+n.write(t, "config.yaml", goodConfig))
		},
		begin: func(t *testing.T, _ *site, n *node) func() {
			n.write(t, "config.yaml", goodConfig+"nodePortAddresses: [everywhere]\n")
			return func() { n.write(t, "config.yaml", goodConfig) }
		},
	},
	{
		node: "stopped", alerts: []string{"ServiceProxyTrafficBlocked", "ServiceProxyCondition"},
		begin: func(t *testing.T, _ *site, n *node) func() {
			n.setForwarding(t, "0")
			return func() { n.setForwarding(t, "1") }
		},
	},
	{
		node: "garbled", alerts: []string{"ServiceProxyManifestFaults", "ServiceProxyCondition"},
		start: func(t *testing.T, _ *site, n *node) {
			n.proxy = program.Start(t, n.Host, kubeProxy.Command("--manifests="+n.write(t, "shop.yaml", goodManifest), "--hostname-override="+n.Name,
				"--cluster-cidr="+netlab.ClusterCIDR, "--nodeport-addresses=all", "--metrics-bind-address=0.0.0.0:10249"))
		},
		begin: func(t *testing.T, _ *site, n *node) func() {
			n.write(t, "shop.yaml", "{")
			return func() { n.write(t, "shop.yaml", goodManifest) }
		},
	},
	{node: "full", alerts: []string{"ServiceProxyConntrackFull"}, start: startFillable, begin: fill},
	{node: "deaf", alerts: []string{"ServiceProxyEndpointsSilent"}, begin: deafen},
	{
		node: "slow", alerts: []string{"ServiceProxyChangesSlow"}, start: startBreakable,
		begin: func(t *testing.T, _ *site, n *node) func() {
			path := n.write(t, "slow", "")
			return func() { kit.Must(t, os.Remove(path)) }
		},
	},
	{node: "waiting", alerts: []string{"ServiceProxyStandby", "ServiceProxyCondition"}, begin: replace},
	{node: "bereft", alerts: []string{"ServiceProxyOrphansEnd"}, begin: bereave},
	{node: "besieged", alerts: []string{"ServiceProxyServicesUnserved", "ServiceProxyRelayRefuses", "ServiceProxyCondition"}, start: startLimited, begin: besiege},
}

const goodConfig = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

const goodManifest = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {clusterIP: 10.96.1.1, ports: [{port: 80}]}\n"

// cut refuses connections to the API server, and resets those that there are.
func (n *node) cut(t *testing.T, s *site) {
	t.Helper()
	script := `table inet cut { chain out { type filter hook output priority 0; ip daddr %s tcp dport 6443 reject with tcp reset; }; }`
	kit.Must(t, n.nft(t.Context(), fmt.Sprintf(script, s.Host(control).IPv4)))
}

func (n *node) mend(t *testing.T) {
	t.Helper()
	kit.Must(t, n.nft(t.Context(), "delete table inet cut"))
}

// startBreakable starts the proxy in mode iptables, with commands that fail, or take long, while a
// file exists.
func startBreakable(t *testing.T, s *site, n *node) {
	dir := filepath.Join(n.dir, "commands")
	kit.Must(t, os.Mkdir(dir, 0o755))
	for _, c := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-restore", "-save"} {
			script := fmt.Sprintf("#!/bin/sh\nif [ -e %s/broken ]; then echo 'out of memory' >&2; exit 4; fi\nif [ -e %s/slow ]; then sleep 1; fi\nexec /usr/sbin/%s-nft%s \"$@\"\n", n.dir, n.dir, c, suffix)
			n.write(t, filepath.Join("commands", c+suffix), script)
		}
	}
	s.start(t, n, nil, "--proxy-mode=iptables")
}

func breakCommands(t *testing.T, _ *site, n *node) func() {
	path := n.write(t, "broken", "")
	return func() { kit.Must(t, os.Remove(path)) }
}

// visit has a node connect to Service web.
func visit(t *testing.T, _ *site, n *node) func() {
	return repeat(t, 100*time.Millisecond, func(ctx context.Context, _ int) error {
		if c, err := n.Dial(ctx, "tcp", webAddr.String()); err == nil {
			_ = c.Close()
		}
		return nil
	})
}

// replace has another proxy take the node.
func replace(t *testing.T, s *site, n *node) func() {
	first := n.proxy
	s.start(t, n, nil, "--metrics-bind-address=127.0.0.1:10250", "--healthz-bind-address=127.0.0.1:10251")
	second := n.proxy
	n.proxy = first
	return func() { second.Stop(t) }
}

// startCramped starts the proxy in mode userspace with fewer ports for its listeners than
// Services have.
func startCramped(t *testing.T, s *site, n *node) {
	s.start(t, n, nil, "--proxy-mode=userspace", "--proxy-port-range=25000-25000", "--bind-address="+n.IPv4.String())
}

// alter deletes rules of the proxy again and again.
func alter(t *testing.T, _ *site, n *node) func() {
	return repeat(t, 300*time.Millisecond, func(ctx context.Context, _ int) error {
		return n.nft(ctx, "flush chain ip kube-services dispatch")
	})
}

// fillable are the entries that the conntrack table of the node called full may have.
const fillable = 1000

// startFillable starts the proxy where it reads another limit of the conntrack table: the
// real one is the machine's, and no namespace may change it.
func startFillable(t *testing.T, s *site, n *node) {
	limit := n.write(t, "limit", fmt.Sprintln(fillable))
	s.start(t, n, []string{"unshare", "--mount", "sh", "-c", `mount --bind "$0" /proc/sys/net/netfilter/nf_conntrack_max && exec "$@"`, limit})
}

// fill has a client of a pod use many ports.
func fill(t *testing.T, s *site, n *node) func() {
	var all []net.Conn
	for range fillable * 95 / 100 {
		c, err := n.Dial(t.Context(), "udp", netip.AddrPortFrom(s.webs()[0].IPv4, target).String())
		kit.Must(t, err)
		all = append(all, c)
	}
	stop := repeat(t, 5*time.Second, func(context.Context, int) error {
		for _, c := range all {
			_, _ = c.Write([]byte("x"))
		}
		return nil
	})
	return func() {
		stop()
		for _, c := range all {
			_ = c.Close()
		}
		kit.Must(t, n.run(t.Context(), "", "conntrack", "--delete", "--proto=udp"))
	}
}

// deafen has one of the two endpoints of Service chat drop what a node sends, while that connects.
func deafen(t *testing.T, s *site, n *node) func() {
	t.Helper()
	web := &node{Host: s.webs()[0]}
	script := `table inet deaf { chain in { type filter hook input priority 0; ip saddr %s tcp dport %d drop; }; }`
	kit.Must(t, web.nft(t.Context(), fmt.Sprintf(script, n.IPv4, target)))
	stop := repeat(t, 100*time.Millisecond, func(ctx context.Context, _ int) error {
		go func() {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if c, err := n.Dial(ctx, "tcp", "10.96.0.22:80"); err == nil {
				_ = c.Close()
			}
		}()
		return nil
	})
	return func() {
		stop()
		kit.Must(t, web.nft(t.Context(), "delete table inet deaf"))
	}
}

// bereave keeps connections to Service leader open, whose endpoint changes, until they end.
func bereave(t *testing.T, _ *site, n *node) func() {
	return repeat(t, 300*time.Millisecond, func(ctx context.Context, _ int) error {
		c, err := n.Dial(ctx, "tcp", "10.96.0.24:80")
		if err != nil {
			return nil // it comes with the next change
		}
		context.AfterFunc(ctx, func() { _ = c.Close() })
		go func() {
			_, _ = c.Read(make([]byte, 1))
			_ = c.Close()
		}()
		return nil
	})
}

// startLimited starts the proxy in mode userspace with few open files.
func startLimited(t *testing.T, s *site, n *node) {
	s.start(t, n, []string{"prlimit", "--nofile=256:256", "setpriv", "--bounding-set=-sys_resource", "--inh-caps=-sys_resource"}, "--proxy-mode=userspace")
}

// besiege keeps connections to a Service open, and tries to open more.
func besiege(t *testing.T, _ *site, n *node) func() {
	var all []net.Conn
	stop := repeat(t, 20*time.Millisecond, func(ctx context.Context, _ int) error {
		if c, err := n.Dial(ctx, "tcp", webAddr.String()); err == nil { // else it was refused
			all = append(all, c)
		}
		return nil
	})
	return func() {
		stop()
		for _, c := range all {
			_ = c.Close()
		}
	}
}

const target = 8080 // where pods serve

// webAddr is where Service web is reached.
var webAddr = netip.MustParseAddrPort("10.96.0.20:80")

// objects returns the cluster after its change i: Nodes; Services web, whose endpoints
// change, and chat; leader, whose one endpoint does; Service empty, which has no endpoints.
func (s *site) objects(i int) []metav1.Object {
	at, leader := i/4%2, newService("leader", "10.96.0.24", corev1.ProtocolTCP)
	leader.Annotations = map[string]string{"kubeproxy.io/close-connections": "left"}
	all := []metav1.Object{
		newService("web", webAddr.Addr().String(), corev1.ProtocolTCP), newSlice("web", i, corev1.ProtocolTCP, s.webs()[:1+i%2]...),
		newService("chat", "10.96.0.22", corev1.ProtocolTCP), newSlice("chat", i, corev1.ProtocolTCP, s.webs()...),
		leader, newSlice("leader", i, corev1.ProtocolTCP, s.webs()[at:at+1]...),
		newService("empty", "10.96.0.23", corev1.ProtocolTCP),
	}
	for _, n := range s.nodes {
		all = append(all, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: n.Name},
			Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: n.IPv4.String()}, {Type: corev1.NodeInternalIP, Address: n.IPv6.String()},
			}},
		})
	}
	for _, o := range all {
		if o.GetAnnotations() == nil {
			o.SetAnnotations(map[string]string{"change": fmt.Sprint(i)})
		}
	}
	return all
}

// signal is a Service with SCTP, which mode userspace cannot forward.
func (s *site) signal(i int) []metav1.Object {
	return []metav1.Object{newService("signal", "10.96.0.21", corev1.ProtocolSCTP), newSlice("signal", i, corev1.ProtocolSCTP, s.webs()...)}
}

func newService(name, address string, protocol corev1.Protocol) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: address, Ports: []corev1.ServicePort{{Port: 80, Protocol: protocol}}},
	}
}

// newSlice returns the endpoints of a Service. The time of the change is what the
// endpoint controller writes.
func newSlice(name string, i int, protocol corev1.Protocol, on ...*netlab.Host) *discoveryv1.EndpointSlice {
	port, unnamed, yes := int32(target), "", true
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().Format(time.RFC3339Nano), "change": fmt.Sprint(i)},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &unnamed, Port: &port, Protocol: &protocol}},
	}
	for _, h := range on {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{h.IPv4.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
		})
	}
	return s
}
