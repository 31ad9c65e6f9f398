// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package collect makes the parts of the archive of kube-proxy support-dump: answers of
// the running proxy, what the node has installed, the state of the system, and the log.
// The configuration goes in; parts come out, which Dump writes without secrets, bounded in
// size, with a list of what is in the archive and of what is not.
package collect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/examine"
	"kubeproxy/common/doctor"
	"kubeproxy/common/files"
	"kubeproxy/common/plandiff"
	"kubeproxy/common/statusview"
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
func (o Options) Dump(c *config.Config, folder string) *Dump {
	x := &collector{Options: o, config: c, query: statusview.Query{Server: o.Server, Version: o.Version}, client: newAPIClient(c, o.Version)}
	d := &Dump{Folder: folder, Timeout: o.Timeout, Secrets: x.client.secrets()}
	d.Parts = []Part{
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

func (c *collector) version(_ context.Context, w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s\n%s/%s, processors: %d, time: %s\n", c.Build, runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), time.Now().Format(time.RFC3339))
	return errors.Join(err, writeSystem(w))
}

// page is a part that the running proxy serves.
func (c *collector) page(name, what, path string) Part {
	return Part{Name: name, What: what, Collect: func(ctx context.Context, w io.Writer) error {
		body, err := c.query.Page(ctx, path)
		if errors.Is(err, statusview.ErrNoPage) {
			return NotHere(err.Error())
		}
		if err != nil {
			return err
		}
		_, err = w.Write(body)
		return err
	}}
}

func (c *collector) status(ctx context.Context, w io.Writer) error {
	a, err := c.query.Ask(ctx)
	if err != nil {
		return err
	}
	view := statusview.View{Format: statusview.Wide, Now: time.Now()}
	return view.Print(w, a)
}

// difference compares what the node has with what it should have.
func (c *collector) difference(ctx context.Context, w io.Writer) (*plandiff.Difference, error) {
	o := examine.Diff{
		Proxy: c.Proxy, Version: c.Version, From: []string{examine.FromNode}, Server: c.Server, Timeout: c.Timeout,
		Report: func(line string) { fmt.Fprintln(w, line) },
	}
	return o.Run(ctx, c.config)
}

func (c *collector) plan(ctx context.Context, w io.Writer) error {
	d, err := c.difference(ctx, w)
	if err != nil {
		return err
	}
	v := plandiff.View{All: true}
	if err := v.Print(w, d); err != nil {
		return err
	}
	return v.PrintText(w, d)
}

func (c *collector) rules(ctx context.Context, w io.Writer) error {
	o := examine.Diff{Proxy: c.Proxy, Version: c.Version, Server: c.Server, Timeout: c.Timeout}
	text, err := o.Installed(ctx, c.config)
	var absent examine.NotReadable
	if errors.As(err, &absent) {
		return NotHere(absent.Error())
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}

func (c *collector) doctor(ctx context.Context, w io.Writer) error {
	found, err := examine.Find(ctx, examine.Options{Proxy: c.Proxy, Version: c.Version, Server: c.Server, Timeout: c.Timeout}, c.config)
	if err != nil {
		return err
	}
	checks, err := found.Checks(ctx)
	if err != nil {
		return err
	}
	r := doctor.Runner{Checks: checks, Timeout: c.Timeout, Patience: c.Timeout, Progress: func(string) {}}
	report := found.Report()
	report.Checks, report.Findings = r.Run(ctx)
	return doctor.View{}.Text(w, report)
}

// command is a part that a program of the system prints. It is left out if the program
// does not exist.
func command(name, what, program string, args ...string) Part {
	return Part{Name: name, What: what, Collect: func(ctx context.Context, w io.Writer) error {
		return run(ctx, w, program, args...)
	}}
}

func run(ctx context.Context, w io.Writer, program string, args ...string) error {
	var stderr bytes.Buffer
	c := exec.CommandContext(ctx, program, args...)
	c.Stdout, c.Stderr = w, &stderr
	err := c.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return NotHere("the command " + program + " is missing")
	case err != nil:
		return fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return nil
}

// Write writes to a new file that only its owner reads, to a device or named pipe, or to out.
func Write(ctx context.Context, d *Dump, path string, out io.Writer) (*Result, error) {
	if path == "-" || isStdout(path) {
		return d.Write(ctx, out)
	}
	f, err := files.Create(path, 0o600)
	if err != nil {
		return nil, err
	}
	r, err := d.Write(ctx, f)
	if err != nil {
		return r, errors.Join(err, f.Discard()) // an incomplete archive looks like a complete one
	}
	return r, f.Close()
}

// isStdout returns whether path, such as /dev/stdout, is a link to standard output.
func isStdout(path string) bool {
	link, lstatErr := os.Lstat(path)
	to, err := os.Stat(path)
	own, ownErr := os.Stdout.Stat()
	return errors.Join(lstatErr, err, ownErr) == nil && link.Mode()&fs.ModeSymlink != 0 && os.SameFile(to, own)
}
