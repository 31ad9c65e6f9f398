// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// The demo shows the proxy at work on real connections: it makes a small network of
// namespaces, starts the proxy on a node in it, connects to every kind of Service
// address, and compares the answers with a table in the folder of the manifests. Only
// that table says what the proxy should do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"kubeproxy/test/netlab"
)

// options are the command line.
type options struct {
	proxy     string // the program
	manifests string // directory; its sister with "-rollout" has what changes
	showLog   bool
}

func main() {
	var o options
	flag.StringVar(&o.proxy, "proxy", "bin/kube-proxy", "the proxy's program")
	flag.StringVar(&o.manifests, "manifests", "docs/examples/shop", "directory of the manifests and of expected.txt")
	flag.BoolVar(&o.showLog, "log", false, "print the proxy's log at the end in any case")
	flag.Parse()
	if err := netlab.Enter(); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	d := &demo{options: o, out: stdout()}
	err := d.run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
	}
	if err != nil || len(d.problems) > 0 {
		os.Exit(1)
	}
}

// demo is one run.
type demo struct {
	options
	out      *printer
	lab      *netlab.Lab
	dir      string // temporary: the manifests in use, and the log
	proxy    *proxy
	changed  time.Time // when the manifests in use were last touched
	problems []string  // what was not as it should be, a line each
}

// problemf notes something that was not as it should be.
func (d *demo) problemf(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	d.problems = append(d.problems, line)
	d.out.line("  %s %s", d.out.bad("WRONG"), line)
}

// run goes through the whole demo. The error is something that made it stop;
// what was merely wrong is in d.problems.
func (d *demo) run(ctx context.Context) error {
	begin := time.Now()
	table, err := readTable(filepath.Join(d.manifests, "expected.txt"))
	if err != nil {
		return err
	}
	if d.dir, err = os.MkdirTemp("", "kube-proxy-demo-"); err != nil {
		return fmt.Errorf("make temporary directory: %w", err)
	}
	defer os.RemoveAll(d.dir)
	if err := copyManifests(d.manifests, d.live()); err != nil {
		return err
	}
	if err := d.buildNetwork(); err != nil {
		return err
	}
	err = d.show(ctx, table)
	if d.proxy != nil && (err != nil || len(d.problems) > 0 || d.showLog) {
		d.out.log(d.proxy.logFile)
	}
	if closeErr := d.lab.Close(); err == nil && closeErr != nil {
		err = fmt.Errorf("remove the network: %w", closeErr)
	}
	if ctx.Err() != nil {
		return errors.New("interrupted; everything was removed")
	}
	if err == nil {
		d.summarize(time.Since(begin))
	}
	return err
}

// show is what happens between building the network and removing it.
func (d *demo) show(ctx context.Context, table []group) error {
	for _, step := range []func(context.Context) error{
		d.startProxy,
		func(ctx context.Context) error { return d.checkTable(ctx, table) },
		d.rollOut,
		d.stopProxy,
		d.cleanUp,
	} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// live is the directory the proxy watches.
func (d *demo) live() string { return filepath.Join(d.dir, "manifests") }

func (d *demo) summarize(took time.Duration) {
	d.out.heading("Result")
	if len(d.problems) == 0 {
		d.out.line("  %s: everything was as the manifests say, in %.1f s. Nothing is left behind.", d.out.good("ok"), took.Seconds())
		return
	}
	for _, line := range d.problems {
		d.out.line("  %s %s", d.out.bad("WRONG"), line)
	}
	d.out.line("  %d of the things shown were not as the manifests say.", len(d.problems))
}

// copyManifests copies the YAML files of a directory.
func copyManifests(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("make directory of manifests: %w", err)
	}
	files, err := filepath.Glob(filepath.Join(from, "*.yaml"))
	if err != nil {
		return fmt.Errorf("list manifests: %w", err)
	}
	if len(files) == 0 {
		return fmt.Errorf("directory %s: no manifest (*.yaml) in it", from)
	}
	for _, file := range files {
		if err := replaceFile(file, filepath.Join(to, filepath.Base(file))); err != nil {
			return err
		}
	}
	return nil
}

// replaceFile puts a copy of from in the place of to in one step, as careful
// editors and deployment tools do.
func replaceFile(from, to string) error {
	text, err := os.ReadFile(from)
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	next := to + ".next"
	if err := os.WriteFile(next, text, 0o644); err != nil {
		return fmt.Errorf("write manifest: %w", err)
	}
	if err := os.Rename(next, to); err != nil {
		return fmt.Errorf("replace manifest: %w", err)
	}
	return nil
}

// goneAfter is how many connections in a row must miss an endpoint that has left
// before it counts as gone.
const goneAfter = 300

// changeInterval is the time between two changes. By its default setting the proxy
// takes changes together that come within a second, to save work; what is
// shown here is how it follows a single one.
const changeInterval = 1200 * time.Millisecond

// rollOut changes manifests under traffic and shows when the traffic followed.
func (d *demo) rollOut(ctx context.Context) error {
	d.out.heading("Change the manifests while connections are made")
	for _, step := range []func(context.Context) error{d.rollWeb, d.moveDNS, d.addFirstEndpoint} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// change puts the changed manifest in place of the one in use, and returns
// when it did.
func (d *demo) change(ctx context.Context, name string) (time.Time, error) {
	select {
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	case <-time.After(time.Until(d.changed.Add(changeInterval))):
	}
	from := filepath.Join(filepath.Clean(d.manifests)+"-rollout", name)
	err := replaceFile(from, filepath.Join(d.live(), name))
	d.changed = time.Now()
	return d.changed, err
}

// rollWeb lets one endpoint leave and another come, under a steady load in
// both families.
func (d *demo) rollWeb(ctx context.Context) error {
	var loads [2]*netlab.Load
	for f, to := range [2]string{"10.96.0.10:80", "[fd00:10:96::10]:80"} {
		loads[f] = d.lab.Host("shopper").Load(ctx, netlab.LoadConfig{
			Query:   netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort(to)},
			Workers: 2,
		})
		defer loads[f].Stop()
	}
	for _, l := range loads {
		if err := poll(ctx, func() bool { return l.Report().Backends["web-2"] != nil }); err != nil {
			return fmt.Errorf("web-2 before the change: %w", err)
		}
	}
	changed, err := d.change(ctx, "web.yaml")
	if err != nil {
		return err
	}
	d.out.line("  web.yaml: web-2 leaves, web-4 comes")
	for f, l := range loads {
		err := poll(ctx, func() bool { return followed(l) })
		r := l.Stop()
		family := [2]string{"IPv4", "IPv6"}[f]
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			d.problemf("web over %s did not follow the change: %v: %s", family, err, r)
			continue
		case r.Lost() > 0:
			d.problemf("web over %s lost connections during the change: %s", family, r)
		}
		d.out.line("    %s  web-4 first answered after %s, web-2 last after %s; %d connections, %d lost", family,
			after(changed, r.Backends["web-4"].First), after(changed, r.Backends["web-2"].Last), r.Connections, r.Lost())
	}
	return nil
}

// followed reports that web-4 has come and web-2 has not been seen for long.
func followed(l *netlab.Load) bool {
	r := l.Report()
	return r.Backends["web-4"] != nil && r.Connections-r.Backends["web-2"].LastAt >= goneAfter
}

// after is the time between two moments, for people.
func after(from, to time.Time) string {
	if to.Before(from) {
		return "0 ms"
	}
	return fmt.Sprintf("%.1f ms", float64(to.Sub(from).Microseconds())/1000)
}

// moveDNS moves the only endpoint of a UDP Service under two clients that
// keep their source ports.
func (d *demo) moveDNS(ctx context.Context) error {
	var conns [2]*netlab.Conn
	for f := range conns {
		// A UDP socket opens whoever is at the other end.
		c, _, err := d.lab.Host("shopper").Open(ctx, dnsQuery(f))
		if err != nil {
			return fmt.Errorf("open UDP socket: %w", err)
		}
		defer c.Close()
		conns[f] = c
		a, err := c.AskFor(ctx, netlab.DefaultTimeout)
		if err != nil {
			return fmt.Errorf("ask dns before the change: %w", err)
		}
		if a.Backend != "web-1" {
			d.problemf("dns before the change: %s %s, expected web-1", a.Outcome, a.Backend)
		}
	}
	changed, err := d.change(ctx, "dns.yaml")
	if err != nil {
		return err
	}
	d.out.line("  dns.yaml: from web-1 to web-2, for a UDP client that keeps its source port")
	var took [2]time.Time
	var asking errgroup.Group
	for f, c := range conns {
		asking.Go(func() error {
			return poll(ctx, func() bool {
				a, err := c.Ask(ctx)
				took[f] = time.Now()
				return err == nil && a.Backend == "web-2"
			})
		})
	}
	if err := asking.Wait(); err != nil && ctx.Err() == nil {
		d.problemf("dns did not follow the change: %v", err)
		return nil
	}
	for f, at := range took {
		d.out.line("    %s  web-2 answered after %s", [2]string{"IPv4", "IPv6"}[f], after(changed, at))
	}
	return nil
}

// addFirstEndpoint gives a Service its first endpoint.
func (d *demo) addFirstEndpoint(ctx context.Context) error {
	changed, err := d.change(ctx, "sold-out.yaml")
	if err != nil {
		return err
	}
	d.out.line("  sold-out.yaml: the first endpoint, web-3, comes")
	for f, to := range [2]string{"10.96.0.80:80", "[fd00:10:96::80]:80"} {
		family := [2]string{"IPv4", "IPv6"}[f]
		q := netlab.Query{Proto: "tcp", To: netip.MustParseAddrPort(to)}
		err := poll(ctx, func() bool {
			a, err := d.lab.Host("shopper").Ask(ctx, q)
			return err == nil && a.Backend == "web-3"
		})
		if err != nil && ctx.Err() == nil {
			d.problemf("sold-out over %s did not get its endpoint: %v", family, err)
			continue
		}
		d.out.line("    %s  web-3 answered after %s", family, after(changed, time.Now()))
	}
	return ctx.Err()
}

// poll waits until ok.
func poll(ctx context.Context, ok func() bool) error {
	deadline := time.Now().Add(followTime)
	for !ok() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited for %s", followTime)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}
