// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/nftables"

	"kubeproxy/test/netlab"
)

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
