// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
	"kubeproxy/test/thirdparty"
)

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
	if err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"prometheus.yaml": string(config), "rules.yaml": rules} {
		kit.WriteFile(t, filepath.Join(dir, name), text)
	}
	cmd := exec.Command(filepath.Join(programs, "prometheus"),
		"--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+prometheusAddr)
	log := &program.Log{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := h.Start(cmd); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
