// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

// system is the namespace that service proxies are in.
const system = "kube-system"

// Chart is this proxy as a user installs it.
type Chart struct {
	Folder string
	// Repository and Tag are of the image, whose archive is one of Cluster.Archives.
	Repository, Tag string
	Mode            string
	// With is a layer above the rules, one of Layers, or nothing.
	With string
	// Server is the API server's address. Without, the chart finds one in the cluster.
	Server string
}

// The layers that all Services may have.
const (
	Acceleration = "socket acceleration"
	DirectReturn = "direct return"
)

// Layers are what Chart.With may have.
var Layers = []string{Acceleration, DirectReturn}

// Install installs this proxy with Helm, and returns when every node has it and the DNS of
// the cluster answers.
func (c *Cluster) Install(ctx context.Context, chart Chart) error {
	if _, err := c.helm(ctx, chart.values(), "upgrade", "--install", "kubeproxy", chart.Folder, "--values=-"); err != nil {
		return err
	}
	return c.awaitProxy(ctx, "kubeproxy")
}

// values are those of the chart, in YAML. Specs of Kubernetes want NodePorts on loopback
// addresses, too.
func (chart Chart) values() string {
	linux := "config: {nodePortAddresses: [primary, localhost]}"
	switch chart.With {
	case Acceleration:
		linux = "socketAcceleration: true, " + linux
	case DirectReturn:
		linux = strings.TrimSuffix(linux, "}") + ", directReturn: true}"
	}
	return fmt.Sprintf("apiServer: %q\nclusterCIDR: %q\nlinux: {mode: %q, %s}\nimage: {repository: %q, tag: %q}\n",
		chart.Server, PodCIDR, chart.Mode, linux, chart.Repository, chart.Tag)
}

// Uninstall removes what Install made. Rules stay on the nodes. Helm does not wait for
// pods, whose processes repair the rules as long as they run.
func (c *Cluster) Uninstall(ctx context.Context) error {
	if _, err := c.helm(ctx, "", "uninstall", "kubeproxy", "--wait"); err != nil {
		return err
	}
	_, err := c.kubectl(ctx, "", "-n", system, "wait", "pod", "-l", ofProxy, "--for=delete", timeout())
	return err
}

// ofProxy selects the pods of this proxy.
const ofProxy = "app.kubernetes.io/name=kubeproxy"

// KnownMode returns the mode of Kubernetes' own kube-proxy that one of ours is compared
// with, or replaces. It has no mode userspace since 1.26.
func KnownMode(mode string) string {
	if mode == "userspace" {
		return "iptables"
	}
	return mode
}

// InstallKnown installs Kubernetes' own kube-proxy as kubeadm does, unless the nodes have
// it already.
func (c *Cluster) InstallKnown(ctx context.Context, mode string) error {
	if c.Embedded != "" {
		return c.awaitEmbedded(ctx)
	}
	text, err := files.ReadFile("files/known.yaml")
	if err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, strings.Replace(string(text), "mode: MODE", "mode: "+mode, 1), "create", "-f", "-"); err != nil {
		return err
	}
	return c.awaitProxy(ctx, "kube-proxy")
}

func (c *Cluster) awaitProxy(ctx context.Context, name string) error {
	for _, what := range []string{"daemonset/" + name, "deployment/coredns"} {
		if _, err := c.kubectl(ctx, "", "-n", system, "rollout", "status", what, timeout()); err != nil {
			return err
		}
		c.progress("%s is ready", what)
	}
	return nil
}

// helm runs Helm for the administrator.
func (c *Cluster) helm(ctx context.Context, stdin string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(c.Programs, "helm"), append(args, "--namespace="+system, "--kubeconfig="+c.Kubeconfig())...)
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+c.path("helm"), "HELM_CONFIG_HOME="+c.path("helm"), "HELM_DATA_HOME="+c.path("helm"))
	cmd.Stdin = strings.NewReader(stdin)
	return output(cmd)
}

// Demo deploys a small application, and waits for it.
func (c *Cluster) Demo(ctx context.Context) error {
	if err := c.applyFile(ctx, "demo.yaml"); err != nil {
		return err
	}
	for _, name := range []string{"web", "client"} {
		if _, err := c.kubectl(ctx, "", "-n", "demo", "rollout", "status", "deployment/"+name, timeout()); err != nil {
			return err
		}
	}
	c.progress("the demo application is ready")
	return c.await(ctx, patience, "-n", "demo", "exec", "deployment/client", "--", "curl", "-sf", "-m", "5", "http://web/hostname")
}

// Version returns the version of the API server.
func (c *Cluster) Version(ctx context.Context) (string, error) {
	text, err := c.kubectl(ctx, "", "get", "--raw=/version")
	if err != nil {
		return "", err
	}
	var v struct{ GitVersion string }
	err = json.Unmarshal([]byte(text), &v)
	return v.GitVersion, err
}

// Kernel returns the release of the kernel, such as 6.1.0-56-amd64.
func Kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// aside and back are what docs/install.md says for kubeadm's kube-proxy.
const (
	aside = `{"spec":{"template":{"spec":{"nodeSelector":{"service-proxy":"kube-proxy"}}}}}`
	back  = `{"spec":{"template":{"spec":{"nodeSelector":{"service-proxy":null},"affinity":null}}}}`
)

// install is what docs/install.md says for kubeadm.
func install(ctx context.Context, c *Cluster, s Setting) error {
	if _, err := c.kubectl(ctx, "", "-n", system, "patch", "daemonset", "kube-proxy", "--type=merge", "-p", aside); err != nil {
		return err
	}
	return c.Install(ctx, s.Chart)
}

// installEarlier has an earlier version in place of this one.
func installEarlier(ctx context.Context, c *Cluster, s Setting) error {
	if err := c.Uninstall(ctx); err != nil {
		return err
	}
	return c.Install(ctx, s.Earlier)
}

// upgrade is what docs/install.md says.
func upgrade(ctx context.Context, c *Cluster, s Setting) error {
	return c.upgrade(ctx, s.Chart, "image.tag="+s.Chart.Tag)
}

func rollback(ctx context.Context, c *Cluster, _ Setting) error {
	if _, err := c.helm(ctx, "", "rollback", "kubeproxy"); err != nil {
		return err
	}
	return c.awaitProxy(ctx, "kubeproxy")
}

func (c *Cluster) upgrade(ctx context.Context, chart Chart, value string) error {
	if _, err := c.helm(ctx, "", "upgrade", "kubeproxy", chart.Folder, "--reset-then-reuse-values", "--set", value); err != nil {
		return err
	}
	return c.awaitProxy(ctx, "kubeproxy")
}

func roll(ctx context.Context, c *Cluster, _ Setting) error {
	return c.kubectls(ctx,
		[]string{"-n", system, "rollout", "restart", "daemonset/kubeproxy"},
		[]string{"-n", system, "rollout", "status", "daemonset/kubeproxy", timeout()})
}

// leave removes this proxy as docs/install.md says for the way back. Its rules stay, in
// tables that no other proxy has.
func (c *Cluster) leave(ctx context.Context, chart Chart) error {
	if chart.Mode != "nftables" {
		if err := c.upgrade(ctx, chart, "linux.mode=nftables"); err != nil {
			return err
		}
		// No pod is replaced: kubelet brings the new configuration to the pods, see
		// https://kubernetes.io/docs/concepts/configuration/configmap/#mounted-configmaps-are-updated-automatically
		if err := poll(ctx, patience, func() (bool, error) { return c.say(ctx, "mode nftables") }); err != nil {
			return fmt.Errorf("wait for mode nftables: %w", err)
		}
		if chart.Mode == "ipvs" { // CoreDNS watches the API server, over one connection
			err := c.kubectls(ctx,
				[]string{"-n", system, "rollout", "restart", "deployment/coredns"},
				[]string{"-n", system, "rollout", "status", "deployment/coredns", timeout()})
			if err != nil {
				return err
			}
		}
		if err := c.awaitAlone(ctx, chart.Mode); err != nil {
			return fmt.Errorf("wait until nothing of mode %s is left: %w", chart.Mode, err)
		}
	}
	return c.Uninstall(ctx)
}

// leftoverLine finds lines of status that name leftovers.
var leftoverLine = regexp.MustCompile(`(?m)^.*leftovers-.*$`)

// drainTime is how long leftovers may stay. IPVS remembers UDP flows for five minutes after
// their last packet (kernel: net/netfilter/ipvs/ip_vs_proto_udp.c, udp_timeouts), and clients
// that take a port again begin that time anew.
const drainTime = 4 * patience

// awaitAlone waits until no node has rules of another proxy or of a mode, and says now
// and then what it waits for.
func (c *Cluster) awaitAlone(ctx context.Context, mode string) error {
	const often, rarely = 2 * time.Second, time.Minute
	spoken := time.Now()
	return poll(ctx, drainTime, func() (bool, error) {
		ok, err := c.alone(ctx)
		if ok {
			return true, nil
		}
		if time.Since(spoken) > rarely {
			spoken = time.Now()
			c.progress("still waiting: %v", err)
			if mode == "ipvs" {
				c.progress("%s", c.virtualConnections(ctx))
			}
		}
		pause(ctx, often) // to ask is work for the cluster
		return false, err
	})
}

// virtualConnections lists the connections that IPVS has on each node, as the kernel does:
// protocol, client, service and endpoint in hexadecimal numbers, state, seconds left.
func (c *Cluster) virtualConnections(ctx context.Context) string {
	const most = 20
	var all []string
	for i := 1; i <= c.Nodes; i++ {
		text, err := c.onNode(ctx, i, "cat", "/proc/net/ip_vs_conn")
		if err != nil {
			return err.Error()
		}
		lines := slices.Collect(strings.Lines(text))[1:] // without the titles
		all = append(all, fmt.Sprintf("%s has %d connections in IPVS", node(i), len(lines)))
		for _, line := range lines[:min(len(lines), most)] {
			all = append(all, strings.Join(strings.Fields(line), " "))
		}
	}
	return strings.Join(all, "\n")
}

// say returns whether status on every node has a text.
func (c *Cluster) say(ctx context.Context, text string) (bool, error) {
	return c.everyStatus(ctx, func(pod, status string) error {
		if !strings.Contains(status, text) {
			return fmt.Errorf("%s does not say %s", pod, text)
		}
		return nil
	})
}

// alone returns whether no node has rules of another proxy or mode, and an error that says
// which has.
func (c *Cluster) alone(ctx context.Context) (bool, error) {
	return c.everyStatus(ctx, func(pod, status string) error {
		if left := leftoverLine.FindString(status); left != "" {
			return fmt.Errorf("%s: %s", pod, left)
		}
		return nil
	})
}

// everyStatus returns whether check accepts what status says on every node.
func (c *Cluster) everyStatus(ctx context.Context, check func(pod, status string) error) (bool, error) {
	pods, err := c.kubectl(ctx, "", "-n", system, "get", "pods", "-l", ofProxy, "-o", "name")
	if err != nil {
		return false, err
	}
	for _, pod := range strings.Fields(pods) {
		status, err := c.kubectl(ctx, "", "-n", system, "exec", pod, "--", "kube-proxy", "status")
		if err == nil {
			err = check(pod, status)
		}
		if err != nil {
			return false, err
		}
	}
	return pods != "", nil
}

// goBack is what docs/install.md says. After it nothing of this proxy answers.
func goBack(ctx context.Context, c *Cluster, s Setting) error {
	if err := c.leave(ctx, s.Chart); err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, "", "-n", system, "patch", "daemonset", "kube-proxy", "--type=merge", "-p", back); err != nil {
		return err
	}
	if err := c.awaitProxy(ctx, "kube-proxy"); err != nil {
		return err
	}
	return c.deleteTables(ctx)
}

// synced are metrics of Kubernetes' own kube-proxy once it has written its rules.
var synced = regexp.MustCompile(`(?m)^kubeproxy_sync_proxy_rules_last_timestamp_seconds\{ip_family="IPv[46]"\} [1-9]`)

// deleteTables removes the tables of this proxy from every node, when the other one has
// written its rules for both families. Its pods are ready before that.
func (c *Cluster) deleteTables(ctx context.Context) error {
	c.progress("waiting for the rules of kube-proxy, then removing the tables of this proxy")
	for i := 1; i <= c.Nodes; i++ {
		err := poll(ctx, patience, func() (bool, error) {
			text, err := c.onNode(ctx, i, "curl", "-s", "-f", "-m", "2", "http://127.0.0.1:10249/metrics")
			return len(synced.FindAllString(text, -1)) == 2, err
		})
		if err != nil {
			return fmt.Errorf("wait for the rules of kube-proxy on %s: %w", node(i), err)
		}
		for _, family := range []string{"ip", "ip6"} {
			if _, err := c.onNode(ctx, i, "nft", "delete", "table", family, "kube-services"); err != nil {
				return err
			}
		}
	}
	return nil
}

// reinstall leaves nothing of this proxy anywhere, and installs it again.
func reinstall(ctx context.Context, c *Cluster, s Setting) error {
	if err := c.Uninstall(ctx); err != nil {
		return err
	}
	for i := 1; i <= c.Nodes; i++ {
		if err := c.cleanUp(ctx, i, s.Chart); err != nil {
			return err
		}
	}
	if err := c.Install(ctx, s.Chart); err != nil {
		return err
	}
	_, err := c.helm(ctx, "", "test", "kubeproxy", "--logs", timeout())
	return err
}

// cleanUp removes what this proxy left on a node, from where Helm and kubectl are, and checks that the node has nothing
// of it.
func (c *Cluster) cleanUp(ctx context.Context, i int, chart Chart) error {
	before, err := c.rules(ctx, i)
	if err != nil {
		return err
	}
	if before == "" {
		return fmt.Errorf("%s has no rules before the cleanup, so it shows nothing", node(i))
	}
	version, err := c.Version(ctx)
	if err != nil {
		return err
	}
	pods, err := c.helm(ctx, chart.values(), "template", "kubeproxy", chart.Folder, "--values=-", "--set=cleanup.linux={"+node(i)+"}", "--kube-version="+version)
	if err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, pods, "apply", "-f", "-"); err != nil {
		return err
	}
	const ofCleanup = "app.kubernetes.io/component=cleanup"
	err = c.kubectls(ctx,
		[]string{"-n", system, "wait", "pod", "-l", ofCleanup, "--for=jsonpath={.status.phase}=Succeeded", timeout()},
		[]string{"-n", system, "delete", "pod", "-l", ofCleanup, "--wait=false"})
	if err != nil {
		return err
	}
	after, err := c.rules(ctx, i)
	if err == nil && after != "" {
		err = fmt.Errorf("%s still has rules after the cleanup:\n%s", node(i), after)
	}
	return err
}

// ofKubelet are the chains that kubelet makes where it finds iptables, see
// pkg/kubelet/kubelet_network_linux.go in kubernetes/kubernetes.
var ofKubelet = regexp.MustCompile(`KUBE-(KUBELET-CANARY|IPTABLES-HINT|FIREWALL)|-A (INPUT|OUTPUT) -j KUBE-FIREWALL`)

// rules returns what a service proxy has on a node: tables of nftables, chains of
// iptables in both of its kinds, ipsets.
func (c *Cluster) rules(ctx context.Context, i int) (string, error) {
	var all strings.Builder
	for _, command := range []string{"nft list tables", "iptables-nft-save", "ip6tables-nft-save", "iptables-legacy-save", "ip6tables-legacy-save", "ipset list -n"} {
		text, err := c.onNode(ctx, i, strings.Fields(command)...)
		if err != nil {
			return "", err
		}
		for line := range strings.Lines(text) {
			line, _, _ = strings.Cut(line, " --comment") // texts may name anything
			if (strings.Contains(line, "kube-") || strings.Contains(line, "KUBE-")) && !ofKubelet.MatchString(line) {
				fmt.Fprintf(&all, "%s: %s\n", command, strings.TrimSpace(line))
			}
		}
	}
	return all.String(), nil
}

// onNode runs a command on a node.
func (c *Cluster) onNode(ctx context.Context, i int, args ...string) (string, error) {
	cmd, err := c.Machine(node(i)).Command(ctx, args...)
	if err != nil {
		return "", err
	}
	text, err := output(cmd)
	if err != nil {
		err = fmt.Errorf("%s on %s: %w", args[0], node(i), err)
	}
	return text, err
}

// readiness is what the API server says about the endpoints of the clients' Services while
// something is changed. It separates what no proxy can route from what a proxy routes
// wrongly.
type readiness struct {
	ended chan struct{}
	now   map[string]discovery.EndpointSlice
	// outages are those of each reach, the last of which may go on.
	outages map[reach][]outage
}

// reach is where connections of a client can go.
type reach struct {
	service string
	family  discovery.AddressType
	node    string // for policy Local
}

// outage is a time in which the API server names no endpoint.
type outage struct{ from, to time.Time }

// reportLag is how much earlier or later than this program a proxy may hear of an endpoint,
// and write its rules.
const reportLag = time.Second

// watchReadiness follows the EndpointSlices of the Services until ctx ends.
func (c *Cluster) watchReadiness(ctx context.Context, all []*flow) (*readiness, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	r := &readiness{ended: make(chan struct{}), outages: map[reach][]outage{}}
	for _, f := range all {
		r.outages[f.reach] = nil
	}
	go func() {
		defer close(r.ended)
		for ; ctx.Err() == nil; pause(ctx, 200*time.Millisecond) {
			r.follow(ctx, client) // an API server that does not answer is tried again
		}
	}()
	return r, nil
}

// follow lists the EndpointSlices and watches them until the API server ends that.
func (r *readiness) follow(ctx context.Context, client kubernetes.Interface) {
	of := client.DiscoveryV1().EndpointSlices(loadNamespace)
	list, err := of.List(ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	r.now = map[string]discovery.EndpointSlice{}
	for _, s := range list.Items {
		r.now[s.Name] = s
	}
	r.note(time.Now())
	watch, err := of.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		return
	}
	defer watch.Stop()
	for event := range watch.ResultChan() {
		s, ok := event.Object.(*discovery.EndpointSlice)
		if !ok {
			return // an error, such as a version that is too old
		}
		r.now[s.Name] = *s
		if event.Type == "DELETED" {
			delete(r.now, s.Name)
		}
		r.note(time.Now())
	}
}

// note begins and ends outages.
func (r *readiness) note(at time.Time) {
	for to, known := range r.outages {
		out := len(known) > 0 && known[len(known)-1].to.IsZero()
		switch there := r.reachable(to); {
		case !there && !out:
			r.outages[to] = append(known, outage{from: at})
		case there && out:
			known[len(known)-1].to = at
		}
	}
}

// reachable returns whether a proxy can route to an endpoint: one that is ready, or one that
// serves while it terminates. Without a word about it, it counts as ready, see the type
// EndpointConditions of discovery.k8s.io/v1.
func (r *readiness) reachable(to reach) bool {
	for _, s := range r.now {
		if s.Labels[discovery.LabelServiceName] != to.service || s.AddressType != to.family {
			continue
		}
		for _, e := range s.Endpoints {
			here := to.node == "" || e.NodeName != nil && *e.NodeName == to.node
			is := e.Conditions
			if here && (ptr.Deref(is.Ready, true) || ptr.Deref(is.Serving, false) && ptr.Deref(is.Terminating, false)) {
				return true
			}
		}
	}
	return false
}

// explain counts which losses of a client began in an outage, and how long those took. It
// waits until nothing is followed any more.
func (r *readiness) explain(f *Flow, to reach) {
	<-r.ended
	for i, o := range r.outages[to] {
		if o.to.IsZero() {
			o.to = time.Now()
			r.outages[to][i] = o
		}
		f.Unready += o.to.Sub(o.from)
	}
	for _, at := range f.LostAt {
		if slices.ContainsFunc(r.outages[to], func(o outage) bool {
			return at.After(o.from.Add(-reportLag)) && at.Before(o.to.Add(reportLag))
		}) {
			f.LostUnready++
		}
	}
	f.LostAt = nil // of no use any more, and long
}

// unready says on the page how much of what was lost no proxy can route.
func (c *Change) unready() string {
	lost, longest := 0, time.Duration(0)
	for _, f := range c.Flows {
		lost += f.LostUnready
		if f.LostUnready > 0 {
			longest = max(longest, f.Unready)
		}
	}
	if lost == 0 {
		return ""
	}
	return fmt.Sprintf("%s %d in up to %s", c.setting(), lost, longest.Round(10*time.Millisecond))
}

// Part is one of Count parts of a Selection, counted from 1. They are of one size, for
// machines that take hours for all of it. The zero Part is all of it.
type Part struct{ Number, Count int }

// ParsePart reads a Part such as 2/3. Nothing is all of it.
func ParsePart(text string) (Part, error) {
	var p Part
	if text == "" {
		return p, nil
	}
	if _, err := fmt.Sscanf(text, "%d/%d", &p.Number, &p.Count); err != nil || text != p.String() || p.Number < 1 || p.Count < p.Number {
		return p, fmt.Errorf("there is no part %q; want one such as 2/3", text)
	}
	return p, nil
}

// String returns p as ParsePart reads it.
func (p Part) String() string {
	if p.Count == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", p.Number, p.Count)
}

// suffix is what follows the name of a selection.
func (p Part) suffix() string {
	if p.Count == 0 {
		return ""
	}
	return ", part " + p.String()
}

// of returns those of some names that belong to p. Specs with names that are alike, which
// take the same time, go to different parts.
func (p Part) of(names []string) []string {
	if p.Count == 0 {
		return names
	}
	var all []string
	for i, name := range slices.Sorted(slices.Values(names)) {
		if i%p.Count == p.Number-1 {
			all = append(all, name)
		}
	}
	return all
}

// narrow returns the part of s that is wanted. Ginkgo tells which specs there are.
func (p Part) narrow(ctx context.Context, s Selection, programs, folder string) (Selection, error) {
	if p.Count == 0 {
		return s, nil
	}
	args := s.command(programs, folder, []string{"--dry-run"}, []string{"--provider=skeleton"})
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return s, fmt.Errorf("list the specs of selection %s: %w\n%s", s.Name, err, out)
	}
	names, err := readNames(filepath.Join(folder, reportFile))
	if err != nil {
		return s, err
	}
	if names = p.of(names); len(names) == 0 { // an expression for none selects all
		return s, fmt.Errorf("selection %s has no part %s: it has fewer specs", s.Name, p)
	}
	s.Focus = focusOn(names)
	return s, nil
}

// labels are behind the name of a spec in a report.
var labels = regexp.MustCompile(` \[[^\]]*\]$`)

// focusOn returns an expression for ginkgo that selects specs by what reports call them.
func focusOn(names []string) string {
	var all []string
	for _, name := range names {
		all = append(all, regexp.QuoteMeta(labels.ReplaceAllString(name, "")))
	}
	return "(?:" + strings.Join(all, "|") + ")$"
}

// readNames returns the specs that a dry run selected.
func readNames(file string) ([]string, error) {
	in, err := openReport(file)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, c := range in.Cases {
		if name, spec := strings.CutPrefix(c.Name, specPrefix); spec && c.Status == "passed" {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New(file + ": no spec is selected")
	}
	return names, nil
}

// addUp puts the sum of all parts in the place of them, and of an older run, once a last
// part is there. Parts of other versions, or on other kernels, do not belong to it.
func addUp(runs []Run, last Run) []Run {
	same := func(r Run) bool {
		return r.key() == last.key() && r.Part.Count == last.Part.Count && r.Version == last.Version && r.Kubernetes == last.Kubernetes && r.Kernel == last.Kernel
	}
	sum := last
	sum.Part, sum.Results = Part{}, Results{}
	count := 0
	for _, r := range runs {
		if same(r) {
			count++
			sum.Passed += r.Passed
			sum.Failed = append(sum.Failed, r.Failed...)
			sum.Skipped = append(sum.Skipped, r.Skipped...)
			sum.Took += r.Took.Round(time.Second)
		}
	}
	if count < last.Part.Count {
		return runs
	}
	return append(slices.DeleteFunc(runs, func(r Run) bool { return r.key() == last.key() }), sum)
}
