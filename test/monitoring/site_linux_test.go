// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/cluster"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
	"kubeproxy/test/thirdparty"
)

// site is a network with a control plane, pods that serve, a client, and nodes. The
// control plane's host runs Prometheus, too.
type site struct {
	*netlab.Lab
	*cluster.Cluster
	nodes []*node
	// withSignal is whether Service signal exists.
	withSignal atomic.Bool
}

// node is a host on the LAN with a proxy.
type node struct {
	*netlab.Host
	proxy *program.Proxy
	dir   string // for files of the test
}

const control = "control"

// newSite returns a site with a node for each name.
func newSite(t *testing.T, names ...string) *site {
	t.Helper()
	s := &site{Lab: netlab.Start(t, netlab.Config{Pods: []string{"web-1", "web-2"}, Clients: append([]string{control, "customer"}, names...)})}
	for _, h := range s.webs() {
		_, err := h.Echo("", target)
		kit.Must(t, err)
	}
	s.Cluster = cluster.Start(t, cluster.Options{Host: s.Host(control)})
	for _, name := range names {
		n := &node{Host: s.Host(name), dir: t.TempDir()}
		n.forward(t)
		s.nodes = append(s.nodes, n)
	}
	kit.Must(t, s.Set(t.Context(), s.objects(0)...))
	return s
}

func (s *site) webs() []*netlab.Host { return []*netlab.Host{s.Host("web-1"), s.Host("web-2")} }

// forward makes a host of the lab a router, as a node is.
func (n *node) forward(t *testing.T) { n.setForwarding(t, "1") }

func (n *node) setForwarding(t *testing.T, value string) {
	t.Helper()
	err := n.Do(func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte(value), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte(value), 0o644))
	})
	kit.Need(t, err == nil, "forward on %s: %v", n.Name, err)
}

func (s *site) node(name string) *node {
	return s.nodes[slices.IndexFunc(s.nodes, func(n *node) bool { return n.Name == name })]
}

// start starts the proxy of a node. Before it come the words of wrap, such as a program
// that starts others.
func (s *site) start(t *testing.T, n *node, wrap []string, args ...string) {
	t.Helper()
	kubeconfig, err := s.Kubeconfig(cluster.Login{})
	kit.Must(t, err)
	cmd := kubeProxy.Command(append([]string{
		"--kubeconfig=" + kubeconfig, "--hostname-override=" + n.Name, "--cluster-cidr=" + netlab.ClusterCIDR, "--metrics-bind-address=0.0.0.0:10249",
	}, args...)...)
	if len(wrap) > 0 {
		cmd.Args = slices.Concat(wrap, []string{cmd.Path}, cmd.Args[1:])
		if cmd.Path, err = exec.LookPath(wrap[0]); err != nil {
			t.Fatal(err)
		}
	}
	n.proxy = program.Start(t, n.Host, program.With(cmd, n.commands()))
}

// commands is a folder of the node with commands of its own, "" without.
func (n *node) commands() string {
	dir := filepath.Join(n.dir, "commands")
	if _, err := os.Stat(dir); err != nil {
		return ""
	}
	return dir
}

// write writes a file of a node in one step.
func (n *node) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(n.dir, name)
	kit.Must(t, errors.Join(os.WriteFile(path+".next", []byte(text), 0o755), os.Rename(path+".next", path)))
	return path
}

// run runs a command on a node.
func (n *node) run(ctx context.Context, stdin string, args ...string) error {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	out := &program.Log{}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), out, out
	if err := n.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s on %s: %w: %s", args[0], n.Name, err, out)
	}
	return nil
}

// nft runs a script of nft on a node.
func (n *node) nft(ctx context.Context, script string) error {
	return n.run(ctx, script, "nft", "-f", "-")
}

// churn changes objects of each kind that a proxy reads, until the test ends. Without
// changes the API server is silent for a minute, which is too long at this pace.
func (s *site) churn(t *testing.T) {
	t.Helper()
	repeat(t, 500*time.Millisecond, func(ctx context.Context, i int) error {
		change := s.Delete
		if s.withSignal.Load() {
			change = s.Set
		}
		if err := errors.Join(s.Set(ctx, s.objects(i)...), change(ctx, s.signal(i)...)); err != nil {
			return err
		}
		ranges, err := s.Client.NetworkingV1().ServiceCIDRs().Get(ctx, "kubernetes", metav1.GetOptions{})
		if err == nil {
			ranges.Annotations = map[string]string{"change": fmt.Sprint(i)}
			_, err = s.Client.NetworkingV1().ServiceCIDRs().Update(ctx, ranges, metav1.UpdateOptions{})
		}
		return err
	})
}

// repeat calls do with growing numbers until stop, which waits for its end, or the end of
// the test. An error fails the test.
func repeat(t *testing.T, every time.Duration, do func(ctx context.Context, i int) error) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticks := time.NewTicker(every)
		defer ticks.Stop()
		for i := 1; ; i++ {
			err := do(ctx, i)
			kit.Check(t, err == nil || ctx.Err() != nil, "%v", err)
			select {
			case <-ctx.Done():
				return
			case <-ticks.C:
			}
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// scrapeInterval is longer than that of the chart's PodMonitor at the pace of scaledRules,
// 0.5 s. On a busy machine scrapes would take longer, and after one that is missing an
// alert waits anew.
const scrapeInterval = time.Second

// prometheus is a running Prometheus.
type prometheus struct {
	host    *netlab.Host
	started time.Time
}

const prometheusAddr = "127.0.0.1:9090"

// startPrometheus starts a Prometheus on h that scrapes nodes and evaluates rules.
func startPrometheus(t *testing.T, h *netlab.Host, rules string, nodes ...*netlab.Host) *prometheus {
	t.Helper()
	programs, err := thirdparty.Prometheus.Build(t.Context(), os.Stderr, "prometheus")
	kit.Must(t, err)
	dir := t.TempDir()
	type target struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var targets []target
	for _, n := range nodes {
		// The PodMonitor of the chart makes the node's name the instance, too.
		targets = append(targets, target{[]string{n.IPv4.String() + ":10249"}, map[string]string{"instance": n.Name}})
	}
	config, err := json.Marshal(map[string]any{ // which is YAML
		"global":         map[string]any{"scrape_interval": scrapeInterval.String(), "scrape_timeout": scrapeInterval.String(), "evaluation_interval": scrapeInterval.String()},
		"rule_files":     []string{"rules.yaml"},
		"scrape_configs": []any{map[string]any{"job_name": "kubeproxy", "static_configs": targets}},
	})
	kit.Must(t, err)
	for name, text := range map[string]string{"prometheus.yaml": string(config), "rules.yaml": rules} {
		kit.WriteFile(t, filepath.Join(dir, name), text)
	}
	cmd := exec.Command(filepath.Join(programs, "prometheus"),
		"--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheusAddr)
	log := &program.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	kit.Must(t, h.Start(cmd))
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("log of Prometheus:\n%s", log)
		}
	})
	p := &prometheus{host: h, started: time.Now()}
	kit.Until(t, "Prometheus is ready", func() bool {
		page, err := program.Fetch(t.Context(), h, prometheusAddr, "/-/ready")
		return err == nil && page.Status == http.StatusOK
	})
	return p
}

// get asks the API of Prometheus, see https://prometheus.io/docs/prometheus/latest/querying/api/
func (p *prometheus) get(t *testing.T, path string, parameters url.Values, into any) {
	t.Helper()
	page, err := program.Fetch(t.Context(), p.host, prometheusAddr, "/api/v1/"+path+"?"+parameters.Encode())
	kit.Must(t, err)
	answer := struct {
		Data  any    `json:"data"`
		Error string `json:"error"`
	}{Data: into}
	if err := json.Unmarshal(page.Body, &answer); err != nil || page.Status != http.StatusOK {
		t.Fatalf("Prometheus, asked %s %v: status %d, %s, %v", path, parameters, page.Status, answer.Error, err)
	}
}

// series is what a query gives: labels, and pairs of a time and a value.
type series struct {
	Metric map[string]string `json:"metric"`
	Values [][2]any          `json:"values"`
}

// during returns the series of a query from the start until now.
func (p *prometheus) during(t *testing.T, query string) []series {
	t.Helper()
	var got struct{ Result []series }
	p.get(t, "query_range", url.Values{
		"query": {query}, "start": {seconds(p.started)}, "end": {seconds(time.Now())}, "step": {scrapeInterval.String()},
	}, &got)
	return got.Result
}

func seconds(at time.Time) string {
	return strconv.FormatFloat(float64(at.UnixMilli())/1000, 'f', 3, 64)
}

// firing returns the names of the alerts that fire now, for each node. Those of no node
// are under "".
func (p *prometheus) firing(t *testing.T) map[string]map[string]bool {
	t.Helper()
	var got struct {
		Alerts []struct {
			Labels map[string]string
			State  string
		}
	}
	p.get(t, "alerts", nil, &got)
	all := map[string]map[string]bool{}
	for _, a := range got.Alerts {
		if a.State == "firing" {
			add(all, a.Labels["instance"], a.Labels["alertname"])
		}
	}
	return all
}

// fired returns the alerts that ever fired, as firing does.
func (p *prometheus) fired(t *testing.T) map[string]map[string]bool {
	t.Helper()
	all := map[string]map[string]bool{}
	for _, s := range p.during(t, `ALERTS{alertstate="firing"}`) {
		add(all, s.Metric["instance"], s.Metric["alertname"])
	}
	return all
}

func add(all map[string]map[string]bool, node string, alerts ...string) {
	for _, a := range alerts {
		if all[node] == nil {
			all[node] = map[string]bool{}
		}
		all[node][a] = true
	}
}

// awaitFiring waits until these alerts fire and no others.
func (p *prometheus) awaitFiring(t *testing.T, want map[string]map[string]bool) {
	t.Helper()
	const longest = 2 * time.Minute // with some scrapes missing
	begin := time.Now()
	for {
		missing, extra := compare(want, p.firing(t))
		if len(missing)+len(extra) == 0 {
			t.Logf("after %s, %d nodes have alerts as they should", time.Since(begin).Round(time.Second), len(want))
			return
		}
		if time.Since(begin) > longest {
			t.Fatalf("waited %s in vain.\ndo not fire: %s\nfire, and should not: %s", longest, strings.Join(missing, ", "), strings.Join(extra, ", "))
		}
		time.Sleep(scrapeInterval / 2)
	}
}

// compare returns what only want and only got contain.
func compare(want, got map[string]map[string]bool) (missing, extra []string) {
	only := func(a, b map[string]map[string]bool) (all []string) {
		for node, alerts := range a {
			for name := range alerts {
				if !b[node][name] {
					all = append(all, fmt.Sprintf("%s on %q", name, node))
				}
			}
		}
		return all
	}
	return only(want, got), only(got, want)
}

// chartFile reads a file of the chart.
func chartFile(t *testing.T, name string) string {
	t.Helper()
	text := kit.ReadFile(t, filepath.Join("..", "..", "build", "chart", "files", name))
	return string(text)
}

// pace is how much faster than in a cluster the alerts pass.
const pace = 60

// patience is the most that an alert waits before it fires, in seconds.
const patience = 10

var (
	waits     = regexp.MustCompile(`\bfor: (\d+)s\b`)
	minutes   = regexp.MustCompile(`\b(\d+)m\b`)
	threshold = regexp.MustCompile(`_seconds > (\d+)`)
)

// scaledRules returns the alerts of the chart, in which a minute lasts a second, and none
// waits longer than patience.
func scaledRules(t *testing.T) string {
	t.Helper()
	text := minutes.ReplaceAllString(chartFile(t, "rules.yaml"), "${1}s")
	text = replaceNumbers(t, text, waits, func(n int) string { return fmt.Sprintf("for: %ds", min(n, patience)) })
	return replaceNumbers(t, text, threshold, func(n int) string { return fmt.Sprintf("_seconds > %d", n/pace) })
}

// replaceNumbers replaces each match of a pattern by what its number makes of it.
func replaceNumbers(t *testing.T, text string, pattern *regexp.Regexp, by func(int) string) string {
	t.Helper()
	return pattern.ReplaceAllStringFunc(text, func(match string) string {
		n, err := strconv.Atoi(pattern.FindStringSubmatch(match)[1])
		kit.Must(t, err)
		return by(n)
	})
}

// metricsOf returns the metrics of the proxy that a text names.
func metricsOf(text string) map[string]bool {
	all := map[string]bool{}
	for _, name := range regexp.MustCompile(`\b(kubeproxy|process)_\w+`).FindAllString(text, -1) {
		all[name] = true
	}
	return all
}

// alertsOf returns the names of the alerts in rules, which have some.
func alertsOf(t *testing.T, rules string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^  - alert: (\w+)$`).FindAllStringSubmatch(rules, -1) {
		all[m[1]] = true
	}
	kit.Need(t, len(all) != 0, "no alert is found in\n%s", rules)
	return all
}
