// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"kubeproxy/test/netlab"
)

const (
	fewest = 6   // questions to each address, so that a stray answer shows
	most   = 200 // questions until each of a handful of endpoints has answered

	// atOnce is how late a refusal may be: a client that heard of it only
	// when it tried again, after a second, was not refused at once.
	atOnce = 900 * time.Millisecond
)

// finding is what came of a row in one family.
type finding struct {
	outcome  netlab.Outcome
	backends []string     // those that answered, in order of name
	seen     []netip.Addr // clients as they saw them, sorted
	asked    int
}

// checkTable makes the table's connections, several at a time, and prints
// what came of them in the table's order.
func (d *demo) checkTable(ctx context.Context, table []group) error {
	for _, g := range table {
		found := make([][2]finding, len(g.rows))
		var asking errgroup.Group
		asking.SetLimit(8)
		for i, r := range g.rows {
			for f := range r.to {
				asking.Go(func() (err error) {
					found[i][f], err = d.ask(ctx, r, f)
					return err
				})
			}
		}
		if err := asking.Wait(); err != nil {
			return err
		}
		d.printGroup(g, found)
	}
	return nil
}

// ask asks row r's address of family f until everybody who should answer has.
func (d *demo) ask(ctx context.Context, r row, f int) (finding, error) {
	var found finding
	from := d.lab.Host(r.from)
	if from == nil {
		return found, fmt.Errorf("expectations name a client %q that is not in the demo's network", r.from)
	}
	q := netlab.Query{Proto: r.proto, To: r.to[f]}
	switch r.outcome {
	case netlab.TimedOut:
		q.Timeout = netlab.SilenceTimeout
	case netlab.Refused:
		q.Timeout = atOnce
	}
	for found.asked < most {
		a, err := from.Ask(ctx, q)
		if err != nil {
			return found, fmt.Errorf("%s connects to %s %s: %w", r.from, r.proto, q.To, err)
		}
		found.asked++
		found.outcome = a.Outcome
		if r.outcome == netlab.Refused && a.Outcome == netlab.TimedOut && found.asked < fewest {
			continue // on a busy machine any refusal may be late, but not all
		}
		if a.Outcome != netlab.Answered {
			break
		}
		found.backends = insert(found.backends, a.Backend, strings.Compare)
		found.seen = insert(found.seen, a.Client.Addr(), netip.Addr.Compare)
		if found.asked >= fewest && (r.sticky || covers(found.backends, r.backends)) {
			break
		}
	}
	return found, nil
}

// insert adds x to a sorted list that has no two alike.
func insert[T any](list []T, x T, compare func(T, T) int) []T {
	i, found := slices.BinarySearchFunc(list, x, compare)
	if found {
		return list
	}
	return slices.Insert(list, i, x)
}

func covers(have, want []string) bool {
	for _, w := range want {
		if !slices.Contains(have, w) {
			return false
		}
	}
	return true
}

// compare compares a finding with its row, nil if it is as expected.
func (d *demo) compare(r row, found finding) error {
	switch {
	case found.outcome != r.outcome:
		return fmt.Errorf("expected %s", r.expectation())
	case r.sticky && len(found.backends) != 1:
		return errors.New("expected always the same endpoint")
	case !covers(r.backends, found.backends), !r.sticky && !covers(found.backends, r.backends):
		return fmt.Errorf("expected %s", r.expectation())
	}
	for _, a := range found.seen {
		if whose := d.owner(r, a); whose != r.seen && !(whose == "itself" && r.seen == r.from) {
			return fmt.Errorf("expected the client to be seen as %s", r.seen)
		}
	}
	return nil
}

func (r row) expectation() string {
	if r.outcome != netlab.Answered {
		return outcomeText(r.outcome)
	}
	return strings.Join(r.backends, " ")
}

// outcomeText says an outcome in the table's words.
func outcomeText(o netlab.Outcome) string {
	if o == netlab.TimedOut {
		return "dropped"
	}
	return o.String()
}

// owner tells whose address an endpoint saw: the client's itself, a node's,
// or nobody's in particular.
func (d *demo) owner(r row, a netip.Addr) string {
	from := d.lab.Host(r.from)
	switch {
	case a == from.Addr(a):
		return "itself"
	case a == d.lab.Node.Addr(a), a == gateway(a):
		return netlab.NodeName
	}
	return "somebody else"
}

// gateway is node-a's address towards its own pods.
func gateway(like netip.Addr) netip.Addr {
	if like.Is4() {
		return netip.MustParseAddr("10.244.1.1")
	}
	return netip.MustParseAddr("fd00:10:244:1::1")
}

func (d *demo) printGroup(g group, found [][2]finding) {
	d.out.heading(g.title)
	rows := [][]string{{"FROM", "TO", "", "ADDRESS", "PROTO", "ANSWERED BY", "CLIENT SEEN AS", "VERDICT"}}
	for i, r := range g.rows {
		for f := range r.to {
			rows = append(rows, d.printRow(r, f, found[i][f]))
		}
	}
	d.out.table(rows)
}

func (d *demo) printRow(r row, f int, found finding) []string {
	answered, seen := outcomeText(found.outcome), ""
	if found.outcome == netlab.Answered {
		answered, seen = strings.Join(found.backends, " "), d.describe(r, found)
	}
	if r.sticky {
		answered += fmt.Sprintf(" (%d times)", found.asked)
	}
	verdict := d.out.good("ok")
	if err := d.compare(r, found); err != nil {
		verdict = d.out.bad("WRONG: " + err.Error())
		d.problems = append(d.problems, fmt.Sprintf("%s to %s %s %s (%s): %s %s: %v",
			r.from, r.kind, r.service, r.to[f], r.proto, answered, seen, err))
	}
	return []string{r.from, r.kind, r.service, r.to[f].String(), r.proto, answered, seen, verdict}
}

// describe names the addresses that the endpoints saw, and whose they are.
func (d *demo) describe(r row, found finding) string {
	var parts []string
	last := ""
	for _, a := range found.seen {
		whose := d.owner(r, a)
		if r.from == netlab.NodeName && whose == "itself" {
			whose = netlab.NodeName
		}
		if whose == last {
			parts = append(parts, a.String())
		} else {
			parts = append(parts, whose+" "+a.String())
		}
		last = whose
	}
	return strings.Join(parts, " ")
}

// How long the proxy may take, before the demo gives up on it, to start or to
// stop, and to follow a change.
const (
	awaitTimeout = time.Minute
	followTime   = 30 * time.Second
)

// backends are the echo servers, in the order of the table of hosts.
var backends = []string{"web-1", "web-2", "web-3", "web-4"}

// network has every host that the expectations name.
var network = netlab.Config{
	Pods:    []string{"web-1", "web-2", "shopper"},
	Remote:  []string{"web-3", "web-4"},
	Clients: []string{"customer", "visitor"},
}

// buildNetwork makes the lab and prints who is who.
func (d *demo) buildNetwork() error {
	lab, err := netlab.New(network)
	if err != nil {
		return fmt.Errorf("build the network: %w", err)
	}
	d.lab = lab
	for _, name := range backends {
		if _, err := lab.Host(name).Echo("", 8080); err != nil {
			return errors.Join(err, lab.Close())
		}
	}
	d.out.heading("The network: namespaces on this machine, removed at the end")
	var rows [][]string
	for _, h := range []struct{ name, what string }{
		{netlab.NodeName, "a node; the proxy runs here. To its pods: 10.244.1.1, fd00:10:244:1::1"},
		{"web-1", "pod on node-a, answers on port 8080, TCP and UDP"},
		{"web-2", "pod on node-a, the same"},
		{"shopper", "pod on node-a, a client"},
		{netlab.OtherName, "another node"},
		{"web-3", "pod on node-b, answers on port 8080, TCP and UDP"},
		{"web-4", "pod on node-b, the same"},
		{"customer", "a client outside the cluster"},
		{"visitor", "another one"},
	} {
		host := lab.Host(h.name)
		rows = append(rows, []string{h.name, host.IPv4.String(), host.IPv6.String(), h.what})
	}
	d.out.table(rows)
	return nil
}

// proxy is the program that is shown.
type proxy struct {
	cmd     *exec.Cmd
	logFile string
	ended   chan error // holds what Wait returned
}

// command prepares the proxy with the flags of every use in the demo.
func (d *demo) command(args ...string) *exec.Cmd {
	return exec.Command(d.options.proxy, append([]string{
		"--hostname-override=" + netlab.NodeName,
		"--proxy-mode=nftables",
	}, args...)...)
}

// startProxy shows that nothing is forwarded yet, starts the proxy, and waits
// for the first answer in each family.
func (d *demo) startProxy(ctx context.Context) error {
	d.out.heading("Start")
	before, err := d.lab.Host("shopper").Ask(ctx, dnsQuery(0))
	if err != nil {
		return fmt.Errorf("ask before the proxy runs: %w", err)
	}
	if before.Outcome == netlab.Answered {
		d.problemf("a Service answers before the proxy runs")
	}
	d.out.line("  before:  Services are %s", before.Outcome)
	cmd := d.command("--manifests="+d.live(), "--cluster-cidr="+netlab.ClusterCIDR, "--v=2")
	logFile := filepath.Join(d.dir, "log")
	file, err := os.Create(logFile)
	if err != nil {
		return fmt.Errorf("make log file: %w", err)
	}
	defer file.Close()
	cmd.Stdout, cmd.Stderr = file, file
	start := time.Now()
	if err := d.lab.Node.Start(cmd); err != nil {
		return fmt.Errorf("%w (make build makes it)", err)
	}
	d.proxy = &proxy{cmd: cmd, logFile: logFile, ended: make(chan error, 1)}
	go func() { d.proxy.ended <- cmd.Wait() }()
	for f := range 2 {
		if err := d.awaitAnswer(ctx, dnsQuery(f)); err != nil {
			return err
		}
	}
	d.changed = time.Now()
	d.out.line("  running: kube-proxy --manifests (a copy of) %s", d.manifests)
	d.out.line("  first connection in both families %d ms after the start of the program", time.Since(start).Milliseconds())
	return nil
}

// dnsQuery is a question over UDP, whose failures come back at once.
func dnsQuery(f int) netlab.Query {
	to := [2]string{"10.96.0.53:53", "[fd00:10:96::53]:53"}[f]
	return netlab.Query{Proto: "udp", To: netip.MustParseAddrPort(to), Timeout: netlab.SilenceTimeout}
}

// awaitAnswer asks until there is an answer or the proxy has ended.
func (d *demo) awaitAnswer(ctx context.Context, q netlab.Query) error {
	deadline := time.Now().Add(awaitTimeout)
	for {
		a, err := d.lab.Host("shopper").Ask(ctx, q)
		if err != nil || a.Outcome == netlab.Answered {
			return err
		}
		select {
		case err := <-d.proxy.ended:
			d.proxy.ended <- err
			return fmt.Errorf("the proxy ended: %w", orExit0(err))
		case <-time.After(2 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("no answer from %s %s within %s of the start", q.Proto, q.To, awaitTimeout)
		}
	}
}

func orExit0(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// stopProxy shows that a stop ends the program and leaves the traffic alone.
func (d *demo) stopProxy(ctx context.Context) error {
	d.out.heading("Stop")
	if err := d.proxy.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop the proxy: %w", err)
	}
	start := time.Now()
	select {
	case err := <-d.proxy.ended:
		if err != nil {
			d.problemf("stopped with SIGTERM the proxy ended with %v, expected exit status 0", err)
		}
	case <-time.After(awaitTimeout):
		return fmt.Errorf("the proxy did not end within %s of SIGTERM", awaitTimeout)
	}
	d.out.line("  SIGTERM: ended after %d ms", time.Since(start).Milliseconds())
	for f := range 2 {
		q := dnsQuery(f)
		q.Timeout = netlab.DefaultTimeout
		a, err := d.lab.Host("shopper").Ask(ctx, q)
		if err != nil {
			return fmt.Errorf("ask after the stop: %w", err)
		}
		if a.Outcome != netlab.Answered {
			d.problemf("after the stop %s is %s, expected that Services go on to work", q.To, a.Outcome)
		}
	}
	d.out.line("  the Services go on to work")
	return nil
}

// cleanUp shows that --cleanup removes everything.
func (d *demo) cleanUp(ctx context.Context) error {
	d.out.heading("Clean up")
	file, err := os.OpenFile(d.proxy.logFile, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("open log file: %w", err)
	}
	defer file.Close()
	cmd := d.command("--cleanup")
	cmd.Stdout, cmd.Stderr = io.Writer(file), file
	if err := d.lab.Node.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		d.problemf("kube-proxy --cleanup: %v, expected exit status 0", err)
	}
	for f := range 2 {
		q := dnsQuery(f)
		a, err := d.lab.Host("shopper").Ask(ctx, q)
		if err != nil {
			return fmt.Errorf("ask after the cleanup: %w", err)
		}
		if a.Outcome != netlab.Unreachable {
			d.problemf("after --cleanup %s is %s, expected that it is unreachable", q.To, a.Outcome)
		}
	}
	left, err := d.tables()
	if err != nil {
		return err
	}
	for _, name := range left {
		d.problemf("after --cleanup there is still an nftables table %q", name)
	}
	d.out.line("  kube-proxy --cleanup: Services are unreachable again, %d nftables tables left on the node", len(left))
	return nil
}

// tables lists the node's nftables tables.
func (d *demo) tables() ([]string, error) {
	var names []string
	err := d.lab.Node.Do(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := conn.ListTables()
		for _, t := range tables {
			names = append(names, t.Name)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the node's nftables tables: %w", err)
	}
	return names, nil
}

// printer writes for people, in colour where that is welcome.
type printer struct {
	to     io.Writer
	colour bool
}

func stdout() *printer {
	_, err := unix.IoctlGetTermios(int(os.Stdout.Fd()), unix.TCGETS)
	terminal := err == nil && os.Getenv("TERM") != "dumb"
	return &printer{to: os.Stdout, colour: terminal && os.Getenv("NO_COLOR") == ""}
}

func (p *printer) paint(code, text string) string {
	if !p.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p *printer) good(text string) string         { return p.paint("32", text) }
func (p *printer) bad(text string) string          { return p.paint("1;31", text) }
func (p *printer) heading(text string)             { fmt.Fprintf(p.to, "\n%s\n", p.paint("1", text)) }
func (p *printer) line(format string, args ...any) { fmt.Fprintf(p.to, format+"\n", args...) }

// table prints rows in aligned columns. Colours may stand in the last column
// only, where they do not count as width.
func (p *printer) table(rows [][]string) {
	w := tabwriter.NewWriter(p.to, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintf(w, "  %s\n", strings.Join(row, "\t"))
	}
	w.Flush()
}

// log prints the end of the proxy's log.
func (p *printer) log(file string) {
	const most = 40
	text, err := os.ReadFile(file)
	if err != nil {
		return // the proxy was not started
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	p.heading("The proxy's log")
	if n := len(lines) - most; n > 0 {
		p.line("  (%d lines before)", n)
		lines = lines[n:]
	}
	for _, line := range lines {
		p.line("  %s", line)
	}
}

// group is a part of the table of expectations.
type group struct {
	title string
	rows  []row
}

// row is one line of the table: a client, an address of a Service in both
// families, and what must come of connecting.
type row struct {
	from, kind, service string
	to                  [2]netip.AddrPort // IPv4, IPv6
	proto               string
	outcome             netlab.Outcome
	backends            []string // those that must answer
	sticky              bool     // only one of them, always the same
	seen                string   // whose address they see; "-" if none answers
}

// readTable reads expectations in the form explained at the head of the file.
func readTable(file string) ([]group, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("open table of expectations: %w", err)
	}
	defer f.Close()
	var groups []group
	lines := bufio.NewScanner(f)
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		title, isTitle := strings.CutPrefix(line, "[")
		switch {
		case line == "" || line[0] == '#':
		case isTitle:
			groups = append(groups, group{title: strings.TrimSuffix(title, "]")})
		case groups == nil:
			return nil, fmt.Errorf("%s:%d: a row before the first [title]", file, n)
		default:
			r, err := parseRow(line)
			if err != nil {
				return nil, fmt.Errorf("%s:%d: %w", file, n, err)
			}
			g := &groups[len(groups)-1]
			g.rows = append(g.rows, r)
		}
	}
	return groups, lines.Err()
}

func parseRow(line string) (row, error) {
	f := strings.Fields(line)
	if len(f) != 8 {
		return row{}, fmt.Errorf("%d columns, want 8", len(f))
	}
	r := row{from: f[0], kind: f[1], service: f[2], proto: f[5], seen: f[7]}
	for i := range r.to {
		to, err := netip.ParseAddrPort(f[3+i])
		if err != nil {
			return row{}, fmt.Errorf("address %q: %w", f[3+i], err)
		}
		r.to[i] = to
	}
	names, sticky := strings.CutPrefix(f[6], "one-of:")
	switch names {
	case "refused":
		r.outcome = netlab.Refused
	case "dropped":
		r.outcome = netlab.TimedOut
	default:
		r.backends, r.sticky = strings.Split(names, ","), sticky
	}
	if (r.seen == "-") != (r.backends == nil) {
		return row{}, fmt.Errorf("answered by %s but seen as %s", names, r.seen)
	}
	return r, nil
}
