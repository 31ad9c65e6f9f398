// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/compare"
	"kubeproxy/cmd/kube-proxy/internal/examine"
	"kubeproxy/common/doctor"
	"kubeproxy/common/plandiff"
	"kubeproxy/common/statusview"
	"kubeproxy/common/support"
	"kubeproxy/config"
)

// Options are what the caller knows.
type Options struct {
	Proxy    *agent.Options // as the proxy gets them
	Build    string         // describes this program
	Version  string
	Server   string   // HOST:PORT of the running proxy
	LogFiles []string // where the log may be, beside the usual places
	Timeout  time.Duration
}

// collector makes the parts.
type collector struct {
	Options
	config *config.Config
	query  statusview.Query
	client *apiClient
	logs   []string // that the part log.txt has
}

// Dump returns the parts that there are on this system.
func (o Options) Dump(c *config.Config, folder string) *support.Dump {
	x := &collector{Options: o, config: c, query: statusview.Query{Server: o.Server, Version: o.Version}, client: newAPIClient(c, o.Version)}
	d := &support.Dump{Folder: folder, Timeout: o.Timeout, Secrets: x.client.secrets()}
	d.Parts = []support.Part{
		{Name: "version.txt", What: "this program and its system", Collect: x.version},
		{Name: "config.yaml", What: "the configuration of this command", Collect: func(_ context.Context, w io.Writer) error { return c.Write(w) }},
		x.page("configz.json", "the configuration of the running proxy", "/configz"),
		x.page("flagz.txt", "the flags of the running proxy", "/flagz"),
		{Name: "status.txt", What: "what kube-proxy status says", Collect: x.status},
		x.page("services.json", "health and the state of each Service", "/services"),
		x.page("metrics.txt", "metrics of the running proxy", "/metrics"),
		x.page("goroutines.txt", "what the running proxy does at the moment", "/debug/pprof/goroutine?debug=1"),
		{Name: "rules.txt", What: "what the node has installed, read back", Collect: x.rules},
		{Name: "plan.txt", What: "what kube-proxy diff says would change", Collect: x.plan},
		{Name: "events.json", What: "Events that the proxy reported", Collect: x.client.events},
		x.logPart(),
		{Name: "doctor.txt", What: "what kube-proxy doctor finds", Collect: x.doctor},
	}
	d.Parts = append(d.Parts, systemParts(x)...)
	return d
}

func (x *collector) version(_ context.Context, w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%s/%s, processors: %d, time: %s\n", x.Build, runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), time.Now().Format(time.RFC3339))
	return errors.Join(err, writeSystem(w))
}

// page is a part that the running proxy serves.
func (x *collector) page(name, what, path string) support.Part {
	return support.Part{Name: name, What: what, Collect: func(ctx context.Context, w io.Writer) error {
		body, err := x.query.Page(ctx, path)
		if errors.Is(err, statusview.ErrNoPage) {
			return support.NotHere(err.Error())
		}
		if err != nil {
			return err
		}
		_, err = w.Write(body)
		return err
	}}
}

func (x *collector) status(ctx context.Context, w io.Writer) error {
	a, err := x.query.Ask(ctx)
	if err != nil {
		return err
	}
	view := statusview.View{Format: statusview.Wide, Now: time.Now()}
	return view.Print(w, a)
}

// difference compares what the node has with what it should have.
func (x *collector) difference(ctx context.Context, w io.Writer) (*plandiff.Difference, error) {
	o := compare.Options{
		Proxy: x.Proxy, Version: x.Version, From: []string{compare.Node}, Server: x.Server, Timeout: x.Timeout,
		Report: func(line string) { fmt.Fprintln(w, line) },
	}
	return o.Run(ctx, x.config)
}

func (x *collector) plan(ctx context.Context, w io.Writer) error {
	d, err := x.difference(ctx, w)
	if err != nil {
		return err
	}
	v := plandiff.View{All: true}
	if err := v.Print(w, d); err != nil {
		return err
	}
	return v.PrintText(w, d)
}

func (x *collector) rules(ctx context.Context, w io.Writer) error {
	o := compare.Options{Proxy: x.Proxy, Version: x.Version, Server: x.Server, Timeout: x.Timeout}
	text, err := o.Installed(ctx, x.config)
	var absent compare.NotReadable
	if errors.As(err, &absent) {
		return support.NotHere(absent.Error())
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}

func (x *collector) doctor(ctx context.Context, w io.Writer) error {
	found, err := examine.Find(ctx, examine.Options{Proxy: x.Proxy, Version: x.Version, Server: x.Server, Timeout: x.Timeout}, x.config)
	if err != nil {
		return err
	}
	checks, err := found.Checks(ctx)
	if err != nil {
		return err
	}
	r := doctor.Runner{Checks: checks, Timeout: x.Timeout, Patience: x.Timeout, Progress: func(string) {}}
	report := found.Report()
	report.Checks, report.Findings = r.Run(ctx)
	return doctor.View{}.Text(w, report)
}
