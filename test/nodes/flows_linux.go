// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	discovery "k8s.io/api/discovery/v1"
)

// flow is a client and what it connects to.
type flow struct {
	name  string
	pid   int // a process in the client's network
	load  Load
	reach reach
	cmd   *exec.Cmd
	out   bytes.Buffer
}

// loadNamespace has what clients connect to.
const loadNamespace = "load"

// loadPort is the port of its pods for TCP, in load.yaml.
const loadPort = "8080"

// DefaultRate is how many connections a second each client makes: six clients over TCP
// make 300.
const DefaultRate = 50

// flows deploys what clients connect to, and returns the clients: in a pod on n1, on node
// n2, and outside. Each connection that they hold has a life, see Load.
func (c *Cluster) flows(ctx context.Context, life time.Duration) ([]*flow, error) {
	if err := c.applyFile(ctx, "load.yaml"); err != nil {
		return nil, err
	}
	for _, args := range [][]string{
		{"rollout", "status", "deployment/web", timeout()},
		{"wait", "--for=condition=Ready", "pod/client", timeout()},
	} {
		if _, err := c.kubectl(ctx, "", append([]string{"-n", loadNamespace}, args...)...); err != nil {
			return nil, err
		}
	}
	text, err := c.kubectl(ctx, "", "-n", loadNamespace, "get", "services", "web", "local", "-o", "jsonpath={.items[*].spec.clusterIPs[*]}")
	if err != nil {
		return nil, err
	}
	ips := strings.Fields(text)
	if len(ips) != 3 {
		return nil, fmt.Errorf("the Services have the addresses %q, want three", text)
	}
	pod, err := c.podProcess(ctx, loadNamespace, "client")
	if err != nil {
		return nil, err
	}
	rate := cmp.Or(c.Rate, DefaultRate)
	held := max(1, 2*rate/5)
	onNode, outside := c.Machine(node(2)).process(), c.Machine(control).process()
	tcp := func(name string, pid int, address string, to reach) *flow {
		return &flow{name: name, pid: pid, load: Load{"tcp", address, rate, held, life}, reach: to}
	}
	udp := func(name string, pid int, address string, to reach) *flow {
		return &flow{name: name, pid: pid, load: Load{"udp", address, rate, held, life}, reach: to}
	}
	web, web6 := reach{service: "web", family: discovery.AddressTypeIPv4}, reach{service: "web", family: discovery.AddressTypeIPv6}
	local := func(i int) reach { return reach{"local", discovery.AddressTypeIPv4, node(i)} }
	return []*flow{
		tcp("pod to ClusterIP", pod, ips[0]+":80", web),
		tcp("pod to ClusterIP, IPv6", pod, "["+ips[1]+"]:80", web6),
		tcp("pod to ClusterIP, internal Local", pod, ips[2]+":80", local(1)),
		tcp("node to ClusterIP", onNode, ips[0]+":80", web),
		tcp("outside to NodePort", outside, NodeIPv4(1)+":30777", web),
		tcp("outside to NodePort, external Local", outside, NodeIPv4(2)+":30778", local(2)),
		udp("pod to ClusterIP, UDP", pod, ips[0]+":81", web),
		udp("outside to NodePort, UDP", outside, NodeIPv4(2)+":30779", web),
	}, nil
}

// forgetConnections removes what the nodes know of connections of earlier clients to pods
// that have ended: in state CLOSE_WAIT, without an answer, five minutes long (kernel:
// net/netfilter/nf_conntrack_proto_tcp.c, TCP_CONNTRACK_UNACK). A client that takes such a
// port again reaches that pod and no other. For UDP the proxy does this.
func (c *Cluster) forgetConnections(ctx context.Context) error {
	for i := 1; i <= c.Nodes; i++ {
		for _, family := range []string{"ipv4", "ipv6"} {
			_, err := c.onNode(ctx, i, "conntrack", "-D", "-f", family, "-p", "tcp", "--reply-port-src", loadPort)
			if err != nil && !strings.Contains(err.Error(), " 0 flow entries") {
				return err
			}
		}
	}
	return nil
}

// podProcess returns the first process of a pod, in the numbers of the host.
func (c *Cluster) podProcess(ctx context.Context, namespace, name string) (int, error) {
	id, err := c.kubectl(ctx, "", "-n", namespace, "get", "pod", name, "-o", "jsonpath={.status.containerStatuses[0].containerID}")
	if err != nil {
		return 0, err
	}
	id = strings.TrimPrefix(id, "containerd://")
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return 0, err
	}
	first := 0
	for _, file := range files {
		text, err := os.ReadFile(file) // the process may end meanwhile
		if err != nil || id == "" || !strings.Contains(string(text), id) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/", &pid); err != nil {
			return 0, err
		}
		if first == 0 || pid < first {
			first = pid
		}
	}
	if first == 0 {
		return 0, fmt.Errorf("no process of pod %s/%s, container %q", namespace, name, id)
	}
	return first, nil
}

// LoadCommand is the command by which a program runs a Load that it reads from standard
// input, until a signal ends it, and writes the Counts.
const LoadCommand = "load"

// RunLoad is LoadCommand.
func RunLoad(ctx context.Context) error {
	var l Load
	if err := json.NewDecoder(os.Stdin).Decode(&l); err != nil {
		return fmt.Errorf("read the load: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(l.Run(ctx))
}

func (f *flow) start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	text, err := json.Marshal(f.load)
	if err != nil {
		return err
	}
	// A client that does not run takes an answer that is there for one that is late.
	f.cmd = exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--target=%d", f.pid), "--net", "nice", "-n", "-10", self, LoadCommand)
	f.cmd.Stdin, f.cmd.Stdout, f.cmd.Stderr = bytes.NewReader(text), &f.out, os.Stderr
	return f.cmd.Start()
}

// result waits for a flow that got the signal to end.
func (f *flow) result() (Flow, error) {
	r := Flow{Name: f.name, Node: f.reach.node}
	err := f.cmd.Wait()
	if err == nil {
		err = json.Unmarshal(f.out.Bytes(), &r.Counts)
	}
	if err != nil {
		return r, fmt.Errorf("load %s: %w", f.name, err)
	}
	return r, nil
}

// before and after are how long clients run without the change, and calm the part of that
// in which no trial may lose anything.
const (
	before = 5 * time.Second
	after  = 15 * time.Second
	calm   = 10 * time.Second
)

// Under runs a change while clients connect, and returns what became of them. What they
// hold has a life, see Load.
func (c *Cluster) Under(ctx context.Context, life time.Duration, change func(context.Context) error) ([]Flow, time.Duration, error) {
	all, err := c.flows(ctx, life)
	if err == nil {
		err = c.forgetConnections(ctx)
	}
	if err != nil {
		return nil, 0, err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	ready, err := c.watchReadiness(watching, all)
	if err != nil {
		return nil, 0, err
	}
	running, end := context.WithCancel(ctx)
	defer end() // of those that started before one that did not
	for _, f := range all {
		if err := f.start(running); err != nil {
			return nil, 0, err
		}
	}
	pause(ctx, before)
	begin := time.Now()
	err = change(ctx)
	took := time.Since(begin)
	pause(ctx, after)
	calmFrom := time.Now().Add(-calm)
	var results []Flow
	for _, f := range all {
		err = errors.Join(err, f.cmd.Process.Signal(syscall.SIGTERM))
	}
	for _, f := range all {
		r, loadErr := f.result()
		err = errors.Join(err, loadErr)
		stop()
		r.LostInCalm = r.lostSince(calmFrom)
		ready.explain(&r, f.reach)
		results = append(results, r)
		c.progress("%-36s new %5d of %5d, lost %d; held %5d, broken %d %v; no endpoint for %s, %d lost then",
			r.Name, r.New, r.Due, r.NewLost, r.Held, r.HeldLost, r.Kinds, r.Unready.Round(10*time.Millisecond), r.LostUnready)
	}
	return results, took, err
}
