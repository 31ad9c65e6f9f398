// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
)

// data is a file into which the answers to the dashboard's queries are written.
var data = flag.String("data", "", "write what the panels of the dashboard show to this `file`")

// panel is a part of the dashboard, and what it shows.
type panel struct {
	Title, Type string
	GridPos     struct{ X, Y, W, H int }
	Targets     []query

	FieldConfig struct {
		Defaults struct{ Unit string }
	}
}

type query struct {
	Expr, LegendFormat string
	Series             []series
}

// testMetrics checks that Prometheus has every metric that alerts and dashboard name.
func testMetrics(t *testing.T, p *prometheus) {
	names := metricsOf(chartFile(t, "rules.yaml") + chartFile(t, "dashboard.json"))
	if len(names) < 20 {
		t.Errorf("only %d metrics are named", len(names))
	}
	for name := range names {
		if len(p.during(t, name)) == 0 {
			t.Errorf("no node has metric %s", name)
		}
	}
}

// testDashboard checks that every query of the dashboard gives data.
func testDashboard(t *testing.T, p *prometheus) {
	panels := ask(t, p)
	if len(panels) < 10 {
		t.Errorf("only %d panels", len(panels))
	}
	for _, panel := range panels {
		for _, q := range panel.Targets {
			if len(q.Series) == 0 {
				t.Errorf("panel %q shows nothing for %s", panel.Title, q.Expr)
			}
		}
	}
}

// ask returns the panels with what they show.
func ask(t *testing.T, p *prometheus) []panel {
	t.Helper()
	var board struct{ Panels []panel }
	if err := json.Unmarshal([]byte(chartFile(t, "dashboard.json")), &board); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Error(err)
	}
}
