// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	discovery "k8s.io/api/discovery/v1"
)

// Setting is what trials are made with.
type Setting struct {
	Chart Chart
	// Earlier is an earlier version of this proxy, for upgrades.
	Earlier Chart
	// Silence is how long the API server does not answer.
	Silence time.Duration
}

// Trial is a change that is made under load, in a cluster in which a proxy runs already.
type Trial struct {
	Name, About string
	// Tolerated says what may be lost, and Userspace what in mode userspace, if it is more:
	// there a process relays connections, and may end.
	Tolerated, Userspace Tolerated
	// OnlyN3 says that no other node is changed. Clients whose endpoints are on one of those
	// lose nothing.
	OnlyN3 bool
	// Drains says that virtual servers of mode ipvs go first, once no connection needs them.
	Drains bool
	// External has clients outside connect to external addresses, in place of all others.
	External bool
	// Patience is how long clients wait, if it is longer than answerTimeout.
	Patience time.Duration
	// Note explains for the page what is lost.
	Note string

	// change is made under load; prepare comes before it, and finish after it.
	prepare, change, finish step
}

type step func(context.Context, *Cluster, Setting) error

// Tolerated is what a trial may lose.
type Tolerated int

// Nothing may be lost; or what pods that end had: connections, and flows of clients that
// take a port again; or what no proxy can route, as the API server names no endpoint; or
// anything that has begun before the calm; or anything, as this proxy did not lose it.
const (
	Nothing Tolerated = iota
	Held
	Unreachable
	Anything
	OfOthers
)

// Judge returns an error if the change lost what it must not, or if clients did too little
// for that to say anything.
func (t Trial) Judge(c Change) error {
	for _, f := range c.Flows {
		if err := f.tried(); err != nil {
			return fmt.Errorf("%s: %w", t.About, err)
		}
		if n := f.intolerable(t.tolerates(c.Mode, f)); n > 0 {
			return fmt.Errorf("%s: %s lost %d new and %d held connections, %d of them without an excuse", t.About, f.Name, f.NewLost, f.HeldLost, n)
		}
		if err := t.judgeLate(f); err != nil {
			return err
		}
	}
	return nil
}

// tolerates returns what a flow may lose.
func (t Trial) tolerates(mode string, f Flow) Tolerated {
	switch {
	case t.OnlyN3 && f.Node != "" && f.Node != node(3):
		return Nothing
	case t.External && strings.HasSuffix(f.Name, ", UDP"): // nobody repeats a datagram
		return max(t.Tolerated, Anything)
	case mode == "userspace":
		return max(t.Tolerated, t.Userspace)
	}
	return t.Tolerated
}

// tried returns an error if a client did less than half of what it was meant to.
func (f Flow) tried() error {
	switch {
	case f.New == f.NewLost:
		return fmt.Errorf("no connection of %s succeeded", f.Name)
	case f.Held == 0:
		return fmt.Errorf("no request of %s on a held connection succeeded", f.Name)
	case f.New < f.Due/2:
		return fmt.Errorf("%s opened only %d of %d connections: the machine is too busy; a lower -rate helps", f.Name, f.New, f.Due)
	}
	return nil
}

// intolerable returns how much of what a flow lost it must not lose.
func (f Flow) intolerable(t Tolerated) int {
	switch t {
	case Nothing:
		return f.Lost()
	case Held:
		return f.NewLost - f.ReusedLost
	case Unreachable:
		return max(0, f.Lost()-f.LostUnready-f.ReusedLost)
	case OfOthers:
		return 0
	}
	return f.LostInCalm
}

// Sequence is what one cluster is for.
type Sequence struct {
	// Embedded clusters have the other proxy as a part of what runs on each node. Others
	// have kubeadm's.
	Embedded bool
	// Paired ones make the same change twice: with the other proxy, and with this one.
	Paired bool
	Trials []Trial
}

// Sequences find the cluster with another proxy. Their first trials replace it, and their
// last ones give it back, unless they are paired.
var Sequences = []Sequence{
	{Trials: []Trial{
		{Name: "install", About: "installed beside kubeadm's kube-proxy, as docs/install.md says", change: install},
		{Name: "upgrade", About: "an earlier version upgraded to this one", Userspace: Held, Note: relayNote, prepare: installEarlier, change: upgrade},
		{Name: "rollback", About: "helm rollback to the earlier version", Userspace: Held, Note: relayNote, change: rollback, finish: upgrade},
		{Name: "roll", About: "the DaemonSet rolled", Userspace: Held, Note: relayNote, change: roll},
		{Name: "drain", About: "a node drained, and back", Tolerated: Held, OnlyN3: true, Note: endsNote, change: drain, finish: rollApplication},
		{Name: "application", About: "all pods of the application replaced", Tolerated: Held, Note: endsNote, change: rollApplication},
		{
			Name: "reboot", About: "a node without power, and booted again", Tolerated: Anything, OnlyN3: true, change: reboot,
			Note: "until kubelet is back, or the API server misses it, the API server calls the pods of the node ready",
		},
		{
			Name: "api", About: "an API server that does not answer, and a proxy started anew meanwhile", Tolerated: Unreachable, Userspace: Anything, change: silence,
			Note: "when it is back, its controllers call nodes and their pods not ready for some seconds, because the leases are old: " +
				"a Service may have no ready endpoint then, or with policy Local none on the node; " +
				"in mode userspace, what leads to the killed process is refused until the next one has read the Services",
		},
		{
			Name: "cleanup", About: "uninstalled, cleaned up on each node, and installed again", Tolerated: Anything, change: reinstall,
			Note: "nothing serves between the cleanup and the installation",
		},
		{Name: "back", About: "back to kubeadm's kube-proxy, as docs/install.md says", Userspace: Held, Drains: true, Note: relayNote, change: goBack},
	}},
	{Embedded: true, Trials: []Trial{
		{Name: "embedded-install", About: "a kube-proxy within another process switched off, and this one installed, as docs/distributions.md says for k3s", change: installEmbedded},
		{Name: "embedded-back", About: "back to the kube-proxy within another process", Userspace: Held, Drains: true, Note: relayNote, change: goBackEmbedded},
	}},
	deadSequence, ingressSequence,
}

const relayNote = "in mode userspace, a process of the proxy relays what is held, and it ends"

const endsNote = "a client that holds a connection to a pod loses it when the pod ends"

// drainingLife is how long clients hold a connection that virtual servers wait for.
const drainingLife = 30 * time.Second

// Names returns the names of all trials, in order.
func Names() []string {
	var all []string
	for _, s := range Sequences {
		for _, t := range s.Trials {
			all = append(all, t.Name)
		}
	}
	return all
}

// Select returns the sequence with those trials that are wanted. A proxy that is to be
// given back must have been replaced.
func (s Sequence) Select(want func(name string) bool) (Sequence, error) {
	first, last := s.Trials[0].Name, s.Trials[len(s.Trials)-1].Name
	s.Trials = slices.DeleteFunc(slices.Clone(s.Trials), func(t Trial) bool { return !want(t.Name) })
	switch {
	case !s.Paired && want(last) && !want(first):
		return s, fmt.Errorf("%s goes back to what %s finds; add that", last, first)
	case s.Embedded && len(s.Trials) > 0 && !want(first):
		return s, fmt.Errorf("add %s, which the others of its cluster need", first)
	}
	return s, nil
}

// Try makes the change under load.
func (c *Cluster) Try(ctx context.Context, t Trial, s Setting) (Change, error) {
	result := Change{
		Name: t.Name, Mode: s.Chart.Mode, With: s.Chart.With, About: t.About,
		On: time.Now().UTC(), Version: s.Chart.Tag, Kernel: Kernel(),
	}
	switch t.Name {
	case "upgrade", "rollback":
		if s.Earlier.Tag == "" {
			return result, errors.New("no earlier version is named")
		}
		result.About += ", " + s.Earlier.Tag
	case "api":
		result.About += ", for " + s.Silence.String()
	}
	c.progress("== %s", t.About)
	if t.prepare != nil {
		if err := t.prepare(ctx, c, s); err != nil {
			return result, fmt.Errorf("prepare %s: %w", t.Name, err)
		}
	}
	life := time.Duration(0)
	if t.Drains && s.Chart.Mode == "ipvs" {
		life = drainingLife
	}
	var err error
	result.Flows, result.Took, err = c.Under(ctx, Load{Life: life, Patience: t.Patience, External: t.External}, func(ctx context.Context) error { return t.change(ctx, c, s) })
	if err == nil && t.finish != nil {
		err = t.finish(ctx, c, s)
	}
	if err != nil {
		err = fmt.Errorf("%s: %w", t.Name, err)
	}
	return result, err
}

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
// n2, and outside. Their Load is like the one that is given.
func (c *Cluster) flows(ctx context.Context, like Load) ([]*flow, error) {
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
	like.Rate = cmp.Or(c.Rate, DefaultRate)
	like.Held = max(1, 2*like.Rate/5)
	onNode, outside := c.Machine(node(2)).process(), c.Machine(control).process()
	client := func(network, name string, pid int, address string, to reach) *flow {
		f := &flow{name: name, pid: pid, load: like, reach: to}
		f.load.Network, f.load.Address = network, address
		return f
	}
	web, web6 := reach{service: "web", family: discovery.AddressTypeIPv4}, reach{service: "web", family: discovery.AddressTypeIPv6}
	local := func(i int) reach { return reach{"local", discovery.AddressTypeIPv4, node(i)} }
	if like.External {
		return externalFlows(client, outside, web, web6), nil
	}
	return []*flow{
		client("tcp", "pod to ClusterIP", pod, ips[0]+":80", web),
		client("tcp", "pod to ClusterIP, IPv6", pod, "["+ips[1]+"]:80", web6),
		client("tcp", "pod to ClusterIP, internal Local", pod, ips[2]+":80", local(1)),
		client("tcp", "node to ClusterIP", onNode, ips[0]+":80", web),
		client("tcp", "outside to NodePort", outside, NodeIPv4(1)+":30777", web),
		client("tcp", "outside to NodePort, external Local", outside, NodeIPv4(2)+":30778", local(2)),
		client("udp", "pod to ClusterIP, UDP", pod, ips[0]+":81", web),
		client("udp", "outside to NodePort, UDP", outside, NodeIPv4(2)+":30779", web),
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

// Under runs a change while clients connect, and returns what became of them. Their Load is
// like the one that is given.
func (c *Cluster) Under(ctx context.Context, like Load, change func(context.Context) error) ([]Flow, time.Duration, error) {
	all, err := c.flows(ctx, like)
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

// Load is what a client does: it opens connections at a steady rate, with one request on
// each, and holds some open, with a request on each twice a second. Over UDP, each request
// has a socket of its own, and those held ask again from the same one.
type Load struct {
	Network string // tcp or udp
	Address string
	Rate    int // new connections a second
	Held    int
	// Life is how long one is held before another takes its place; 0 holds it to the end.
	Life time.Duration
	// Patience is how long an answer may take; 0 is answerTimeout.
	Patience time.Duration
	// External says that clients are outside, and are to keep their endpoints, over UDP, too.
	External bool
}

// Counts are what became of a Load.
type Counts struct {
	New, NewLost    int // connections with one request
	Due             int `json:",omitempty"` // how many of them there are at the wanted rate
	Slow            int // of those answered, after more than half a second
	Over1s, Over3s  int `json:",omitempty"` // after more than 1.2 s or 3 s, or not at all, with Patience
	Hung            int `json:",omitempty"` // requests on held connections that had no answer after 5 s
	Reused          int // of those over UDP, from a port that was used shortly before
	ReusedLost      int // of these, also in NewLost
	Held, HeldLost  int // requests on held connections, and how often one broke
	Kinds           map[string]int
	FirstLost, Last time.Time   // when something was lost
	LostAt          []time.Time `json:",omitempty"` // when what was lost had begun
}

// Lost returns how many connections were lost, held ones included.
func (c Counts) Lost() int { return c.NewLost + c.HeldLost }

// lostSince returns how much of what was lost had begun at a time or later.
func (c Counts) lostSince(at time.Time) int {
	n := 0
	for _, lost := range c.LostAt {
		if !lost.Before(at) {
			n++
		}
	}
	return n
}

// answerTimeout is how long a client waits for an answer before it counts as lost.
const answerTimeout = 3 * time.Second

// load is a running Load.
type load struct {
	Load
	mu     sync.Mutex
	counts Counts
	ports  map[int]time.Time // when a port of a client was used last
}

// Run makes connections until ctx ends, and waits for the answers that are due. What it does
// until the first answer does not count: a Service that is new may not be in force yet.
func (l Load) Run(ctx context.Context) Counts {
	r := &load{Load: l, counts: Counts{Kinds: map[string]int{}}, ports: map[int]time.Time{}}
	interval, begin := time.Second/time.Duration(l.Rate), time.Now()
	for ; ctx.Err() == nil; pause(ctx, interval) {
		if _, err := r.try(); err == nil {
			break
		}
	}
	var all sync.WaitGroup
	for range l.Held {
		all.Go(func() { r.hold(ctx) })
	}
	ticks := time.NewTicker(interval) // it drops what is late on a busy machine
	defer ticks.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticks.C:
			all.Go(r.once)
		}
	}
	r.counts.Due = int(time.Since(begin) / interval)
	all.Wait()
	return r.counts
}

// try makes a connection with one request.
func (l *load) try() (net.Conn, error) {
	c, err := net.DialTimeout(l.Network, l.Address, l.patience())
	if err == nil {
		_, err = l.ask(c, bufio.NewReader(c))
		_ = c.Close() // the answer is there
	}
	return c, err
}

func (l *load) once() {
	begin := time.Now()
	c, err := l.try()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts.New++
	l.late(time.Since(begin), err)
	what := "new"
	if l.reusesPort(c) {
		what = "new from a port used before"
		l.counts.Reused++
		if err != nil {
			l.counts.ReusedLost++
		}
	}
	if err != nil {
		l.counts.NewLost++
		l.lost(what, begin, err)
	} else if time.Since(begin) > 500*time.Millisecond {
		l.counts.Slow++
	}
}

// trackedTime is how long the kernel knows a UDP flow that had an answer, and gives another
// one with the same ports the same endpoint, see nf_conntrack_udp_timeout in
// https://docs.kernel.org/networking/nf_conntrack-sysctl.html
const trackedTime = 30 * time.Second

// reusesPort notes the port of a UDP client, and returns whether it is that of a flow which
// the kernel knows. The caller holds the lock.
func (l *load) reusesPort(c net.Conn) bool {
	if l.Network != "udp" || c == nil {
		return false
	}
	port := c.LocalAddr().(*net.UDPAddr).Port
	last, used := l.ports[port]
	l.ports[port] = time.Now()
	return used && time.Since(last) < trackedTime+l.patience()
}

// hold keeps one connection, and opens another when it breaks, or after its Life.
func (l *load) hold(ctx context.Context) {
	for ctx.Err() == nil {
		opened := time.Now()
		begin := opened
		c, err := net.DialTimeout(l.Network, l.Address, l.patience())
		for r, first := bufio.NewReader(c), ""; err == nil && ctx.Err() == nil; {
			begin = time.Now()
			endpoint := ""
			if endpoint, err = l.ask(c, r); err == nil && l.External && first != "" && endpoint != first {
				err = errors.New("another endpoint")
			}
			if first = endpoint; err == nil {
				l.mu.Lock()
				l.counts.Held++
				l.mu.Unlock()
			}
			pause(ctx, 500*time.Millisecond)
			if l.Life > 0 && time.Since(opened) >= l.Life {
				break
			}
		}
		if c != nil {
			_ = c.Close() // it is of no use any more
		}
		if err != nil {
			l.mu.Lock()
			l.counts.HeldLost++
			if time.Since(begin) > hanging {
				l.counts.Hung++
			}
			l.lost("held", begin, err)
			l.mu.Unlock()
			pause(ctx, 200*time.Millisecond)
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

const request = "GET /hostname HTTP/1.1\r\nHost: web\r\n\r\n"

// ask sends a request that agnhost's netexec answers, over UDP with the name of the endpoint.
func (l *load) ask(c net.Conn, r *bufio.Reader) (endpoint string, err error) {
	if err := c.SetDeadline(time.Now().Add(l.patience())); err != nil {
		return "", err
	}
	if l.Network == "udp" {
		if _, err := io.WriteString(c, "hostname"); err != nil {
			return "", err
		}
		answer := make([]byte, 512)
		n, err := c.Read(answer)
		return string(answer[:n]), err
	}
	if _, err := io.WriteString(c, request); err != nil {
		return "", err
	}
	n := 0
	for first := true; ; first = false {
		line, err := r.ReadString('\n')
		if err != nil {
			return "", err
		}
		if status := strings.TrimSpace(line); first && status != "HTTP/1.1 200 OK" {
			return "", errors.New(status)
		}
		if line == "\r\n" {
			break
		}
		_, _ = fmt.Sscanf(line, "Content-Length: %d", &n) // other lines do not matter
	}
	_, err = io.CopyN(io.Discard, r, int64(n))
	return "", err
}

// lost notes how something was lost that had begun at a time. The caller holds the lock.
func (l *load) lost(what string, begin time.Time, err error) {
	now := time.Now()
	l.counts.LostAt = append(l.counts.LostAt, begin)
	if l.counts.FirstLost.IsZero() {
		l.counts.FirstLost = now
	}
	l.counts.Last = now
	l.counts.Kinds[what+": "+kind(err)]++
}

// kind returns an error without addresses, by which equal ones are counted.
func kind(err error) string {
	var number syscall.Errno
	var network net.Error
	switch {
	case errors.As(err, &number):
		return number.Error()
	case errors.As(err, &network) && network.Timeout():
		return "timeout"
	}
	return err.Error()
}

// drain takes a node that no client is on, or connects to.
func drain(ctx context.Context, c *Cluster, _ Setting) error {
	return c.kubectls(ctx,
		[]string{"drain", "n3", "--ignore-daemonsets", "--delete-emptydir-data", timeout()},
		[]string{"-n", loadNamespace, "rollout", "status", "deployment/web", timeout()},
		[]string{"uncordon", "n3"})
}

func reboot(ctx context.Context, c *Cluster, _ Setting) error {
	if err := c.Reboot(ctx, 3); err != nil {
		return err
	}
	// The API server calls the node ready until it hears otherwise, so ask the node.
	err := poll(ctx, patience, func() (bool, error) {
		rules, err := c.rules(ctx, 3)
		return rules != "", err
	})
	if err != nil {
		return fmt.Errorf("wait for rules on the node: %w", err)
	}
	return c.kubectls(ctx,
		[]string{"wait", "--for=condition=Ready", "node/n3", timeout()},
		[]string{"-n", loadNamespace, "rollout", "status", "deployment/web", timeout()})
}

// silence stops the API server without ending it, and a proxy that cannot ask it then.
// After it, the proxies must hear of a new Service.
func silence(ctx context.Context, c *Cluster, s Setting) error {
	proxy, err := c.proxyProcess(ctx, 2)
	if err != nil {
		return err
	}
	server, err := c.Machine(control).program("kube-apiserver")
	if err != nil {
		return err
	}
	if err := unix.Kill(server, syscall.SIGSTOP); err != nil {
		return fmt.Errorf("stop the API server: %w", err)
	}
	pause(ctx, s.Silence/2)
	endErr := unix.Kill(proxy, syscall.SIGKILL)
	pause(ctx, s.Silence/2)
	if err := errors.Join(endErr, unix.Kill(server, syscall.SIGCONT)); err != nil {
		return fmt.Errorf("end a proxy and continue the API server: %w", err)
	}
	begin := time.Now()
	if err := c.await(ctx, patience, "wait", "--for=condition=Ready", "node", "--all", "--timeout=10s"); err != nil {
		return err
	}
	if err := c.newService(ctx); err != nil {
		return err
	}
	c.progress("every node had a new Service %s after the API server was back", time.Since(begin).Round(time.Second))
	return nil
}

// proxyProcess returns the process of this proxy on a node, in the numbers of the host.
func (c *Cluster) proxyProcess(ctx context.Context, i int) (int, error) {
	pod, err := c.kubectl(ctx, "", "-n", system, "get", "pods", "-l", ofProxy, "--field-selector=spec.nodeName="+node(i), "-o", "jsonpath={.items[0].metadata.name}")
	if err != nil {
		return 0, err
	}
	return c.podProcess(ctx, system, pod)
}

// newService makes a Service and waits until every node serves it.
func (c *Cluster) newService(ctx context.Context) error {
	const name = "fresh"
	err := c.kubectls(ctx,
		[]string{"-n", loadNamespace, "delete", "service", name, "--ignore-not-found"},
		[]string{"-n", loadNamespace, "expose", "deployment", "web", "--name=" + name, "--port=80", "--target-port=" + loadPort})
	if err != nil {
		return err
	}
	address, err := c.kubectl(ctx, "", "-n", loadNamespace, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	if err != nil {
		return err
	}
	for i := 1; i <= c.Nodes; i++ {
		err := poll(ctx, patience, func() (bool, error) {
			text, err := c.onNode(ctx, i, "curl", "-s", "-f", "-m", "2", "http://"+address+"/hostname")
			return strings.HasPrefix(text, "web-"), err
		})
		if err != nil {
			return fmt.Errorf("wait for a new Service on %s: %w", node(i), err)
		}
	}
	return nil
}

func (c *Cluster) kubectls(ctx context.Context, commands ...[]string) error {
	for _, args := range commands {
		if _, err := c.kubectl(ctx, "", args...); err != nil {
			return err
		}
	}
	return nil
}
