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
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"kubeproxy/cmd/kube-proxy/internal/agent"
	"kubeproxy/cmd/kube-proxy/internal/examine"
	"kubeproxy/common/doctor"
	"kubeproxy/common/document"
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
	return doctor.View{All: true}.Text(w, report)
}

// command is a part that a program of the system prints, if it exists.
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

// apiClient is the way to the API server, if the configuration has one.
type apiClient struct {
	to   *rest.Config
	err  error  // why there is none
	file string // the kubeconfig, empty for none
}

func newAPIClient(c *config.Config, version string) *apiClient {
	to, err := agent.KubeClient(c, version).Config()
	return &apiClient{to, err, c.ClientConnection.Kubeconfig}
}

// secrets returns what gives access to the API server.
func (a *apiClient) secrets() *Secrets {
	s := &Secrets{}
	for _, secret := range inKubeconfig(a.file) {
		s.Add(secret)
	}
	if a.err != nil {
		return s
	}
	tls := a.to.TLSClientConfig
	for _, secret := range [][]byte{
		[]byte(a.to.BearerToken), []byte(a.to.Password), tls.KeyData, tls.CertData, tls.CAData,
		content(a.to.BearerTokenFile), content(tls.KeyFile), content(tls.CertFile), content(tls.CAFile),
	} {
		s.Add(secret)
	}
	return s
}

// inKubeconfig returns the secrets of all users of a kubeconfig, also of an unusable one.
func inKubeconfig(path string) [][]byte {
	var file struct {
		Clusters []struct{ Cluster map[string]any }
		Users    []struct{ User map[string]any }
	}
	if yaml.Unmarshal(content(path), &file) != nil {
		return nil
	}
	var all [][]byte
	add := func(fields map[string]any, names ...string) {
		for _, name := range names {
			if text, is := fields[name].(string); is {
				all = append(all, []byte(text))
			}
		}
	}
	for _, u := range file.Users {
		add(u.User, "token", "password", "client-key-data", "client-certificate-data")
	}
	for _, c := range file.Clusters {
		add(c.Cluster, "certificate-authority-data")
	}
	return all
}

// content returns what a file holds, nothing if it cannot be read.
func content(path string) []byte {
	if path == "" {
		return nil
	}
	text, _ := os.ReadFile(path)
	return text
}

// mostEvents bounds how many Events are read.
const mostEvents = "500"

// events reads Events of service proxies, which the rights of the proxy do not include.
func (a *apiClient) events(ctx context.Context, w io.Writer) error {
	if a.err != nil {
		return NotHere("there is no API server to ask: " + a.err.Error())
	}
	c := rest.CopyConfig(a.to)
	c.APIPath, c.GroupVersion = "/api", &corev1.SchemeGroupVersion
	c.NegotiatedSerializer = serializer.NewCodecFactory(k8sruntime.NewScheme()).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return fmt.Errorf("set up the API client: %w", err)
	}
	text, err := client.Get().Resource("events").Param("fieldSelector", "reportingComponent=kube-proxy").Param("limit", mostEvents).
		SetHeader("Accept", "application/json").Do(ctx).Raw()
	switch {
	case apierrors.IsForbidden(err):
		return NotHere("the user of the kubeconfig may not list them: add the output of kubectl get events -A --field-selector reportingComponent=kube-proxy")
	case err != nil:
		return fmt.Errorf("list Events: %w", err)
	}
	var list any
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("list Events: %w", err)
	}
	return document.WriteJSON(w, list)
}

const (
	// mostLog bounds what is read of each log file, from its end.
	mostLog = 4 << 20
	// mostLogs bounds what is read of all together, which get equal shares.
	mostLogs = 12 << 20
)

// logPart is the part with all logs. The list of contents names them.
func (c *collector) logPart() Part {
	details := func() string { return strings.Join(c.logs, ", ") }
	return Part{Name: "log.txt", What: "the last lines of the log", Tail: true, Collect: c.log, Details: details}
}

// log writes the end of each log file that is found, the newest last.
func (c *collector) log(ctx context.Context, w io.Writer) error {
	var errs []error
	found, times := []string{}, map[string]time.Time{}
	for _, path := range c.logFiles() {
		info, err := os.Stat(path)
		switch {
		case err == nil && times[path].IsZero():
			found, times[path] = append(found, path), info.ModTime()
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	slices.SortStableFunc(found, func(a, b string) int { return times[a].Compare(times[b]) })
	share := int64(min(mostLog, mostLogs/max(len(found), 1)))
	for _, path := range found {
		if err := writeEnd(w, path, share); err != nil {
			errs = append(errs, err)
			continue
		}
		c.logs = append(c.logs, path)
	}
	journal, err := writeJournal(ctx, w)
	if journal {
		c.logs = append(c.logs, "journal of the unit kube-proxy")
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	if len(c.logs) == 0 {
		return NotHere("no log file was found: name it with --log-file, or add the output of kubectl logs")
	}
	return nil
}

// logFiles returns where the log may be.
func (c *collector) logFiles() []string {
	namespace := "kube-system"
	if text := strings.TrimSpace(string(content("/var/run/secrets/kubernetes.io/serviceaccount/namespace"))); text != "" {
		namespace = text
	}
	paths := slices.DeleteFunc(slices.Clone(c.LogFiles), func(path string) bool { return path == "" })
	for _, pattern := range logPatterns(namespace) {
		found, _ := filepath.Glob(pattern) // the patterns are valid
		paths = append(paths, found...)
	}
	return paths
}

// writeEnd writes the end of a file.
func writeEnd(w io.Writer, path string, most int64) error {
	if err := files.Check(path, math.MaxInt64); err != nil { // a pipe would block
		return err
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "==> %s, %d bytes <==\n", path, info.Size()); err != nil {
		return err
	}
	if skip := info.Size() - most; skip > 0 {
		if _, err := f.Seek(skip, io.SeekStart); err != nil {
			return err
		}
	}
	_, err = io.Copy(w, io.LimitReader(f, most))
	return err
}
