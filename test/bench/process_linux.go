// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
	discoveryv1 "k8s.io/api/discovery/v1"

	"kubeproxy/test/netlab"
)

// process is a running peer.
type process struct {
	cmd   *exec.Cmd
	began time.Time
	log   string       // file
	rules *generations // nil if they are not used
}

// peerConfig makes a proxy work at once and leave the node's sysctls alone.
const peerConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: ` + ownNode + `
clusterCIDR: ` + clusterCIDR + `
detectLocalMode: ClusterCIDR
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clientConnection:
  kubeconfig: %s
  contentType: application/json
nftables:
  minSyncPeriod: 1ms
  syncPeriod: 1h
conntrack:
  maxPerCore: 0
  min: 0
  tcpEstablishedTimeout: 0s
  tcpCloseWaitTimeout: 0s
`

const peerKubeconfig = `apiVersion: v1
kind: Config
current-context: bench
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
clusters: [{name: bench, cluster: {server: "http://%s"}}]
users: [{name: bench, user: {}}]
`

// startProcess starts program on n's node, with an API server at addr. Its files are in
// dir.
func startProcess(n *network, program, addr, dir string) (*process, error) {
	kubeconfig, config := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "config.yaml")
	p := &process{log: filepath.Join(dir, "log"), rules: &generations{}}
	for file, text := range map[string]string{
		kubeconfig: fmt.Sprintf(peerKubeconfig, addr),
		config:     fmt.Sprintf(peerConfig, kubeconfig),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("write the peer's configuration: %w", err)
		}
	}
	if err := n.node.Do(p.rules.open); err != nil {
		return nil, fmt.Errorf("ask for the generation of the rules: %w", err)
	}
	return p, p.launch(n.node, program, "--config", config)
}

// launch starts program on h.
func (p *process) launch(h *netlab.Host, program string, args ...string) error {
	log, err := os.Create(p.log)
	if err != nil {
		return fmt.Errorf("make the log of %s: %w", program, err)
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to end with its child processes
	p.began = time.Now()
	return h.Start(p.cmd)
}

// stop ends the process and returns the peak resident set of it or of one of its child
// processes.
func (p *process) stop() (float64, error) {
	if p.rules != nil {
		p.rules.close()
	}
	kill := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, errors.Join(fmt.Errorf("stop the peer: %w", err), p.logTail())
	}
	// Neither its exit code nor a remaining child process matters here.
	_ = p.cmd.Wait()
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	u, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0, errors.New("no resource usage of the peer")
	}
	return float64(u.Maxrss) * 1024, nil
}

// logTail returns the end of the process's log as an error.
func (p *process) logTail() error {
	const most = 2000
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	return fmt.Errorf("the peer's log ends with:\n%s", text[max(0, len(text)-most):])
}

func (p *process) pid() string { return strconv.Itoa(p.cmd.Process.Pid) }

// ended returns whether the process has ended by itself.
func (p *process) ended() bool {
	text, err := os.ReadFile("/proc/" + p.pid() + "/stat")
	return err != nil || bytes.Contains(text, []byte(") Z "))
}

// usedCPU returns the CPU time of the process and of the children that it has waited for.
func (p *process) usedCPU() time.Duration {
	text, err := os.ReadFile("/proc/" + p.pid() + "/stat")
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), ") ")
	words := strings.Fields(after)
	const utime, tick = 11, 10 * time.Millisecond // USER_HZ, the unit of times in /proc
	ticks := 0
	for i := utime; i < utime+4 && i < len(words); i++ {
		n, err := strconv.Atoi(words[i])
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * tick
}

// children returns whether the process is running programs, if the kernel shows them.
func (p *process) children() bool {
	lists, err := filepath.Glob("/proc/" + p.pid() + "/task/*/children")
	if err != nil {
		return false
	}
	for _, file := range lists {
		if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
			return true
		}
	}
	return false
}

// waitForChildren waits until the CPU time of the process includes that of its child
// processes.
func (p *process) waitForChildren(ctx context.Context) error {
	for range ticks(ctx, time.Millisecond) {
		if !p.children() || p.ended() {
			return nil
		}
	}
	return ctx.Err()
}

// errSlow means that the peer took too long.
var errSlow = errors.New("the peer took too long")

// awaitIdle waits until the process is idle and returns when it last changed the rules.
func (p *process) awaitIdle(ctx context.Context, limit time.Duration) (time.Time, error) {
	const quiet = 500 * time.Millisecond
	deadline := time.Now().Add(limit)
	cpu, since := p.usedCPU(), time.Now()
	for tick := range ticks(ctx, 10*time.Millisecond) {
		busy := p.usedCPU()
		if busy > cpu+10*time.Millisecond || p.children() || tick.Sub(p.rules.changed()) < quiet {
			cpu, since = busy, tick
		}
		switch {
		case tick.Sub(since) >= quiet:
			return p.rules.changed(), nil
		case p.ended():
			return time.Time{}, fmt.Errorf("the peer has ended: %w", p.logTail())
		case tick.After(deadline):
			return time.Time{}, errSlow
		}
	}
	return time.Time{}, ctx.Err()
}

// generations follows the generation number of a namespace's nftables rules.
type generations struct {
	conn *netlink.Conn
	last atomic.Int64 // time of the last change, in Unix nanoseconds
	done chan struct{}
}

// open opens a socket in the calling thread's namespace.
func (g *generations) open() (err error) {
	if g.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		return err
	}
	g.done = make(chan struct{})
	go g.follow()
	return nil
}

func (g *generations) close() {
	close(g.done)
	g.conn.Close()
}

func (g *generations) changed() time.Time { return time.Unix(0, g.last.Load()) }

// follow polls: with a subscription to changes, the kernel would write a message for
// each.
func (g *generations) follow() {
	last := uint32(0)
	for {
		select {
		case <-g.done:
			return
		case <-time.After(200 * time.Microsecond):
		}
		id, err := g.ask()
		if err != nil || id == last {
			continue
		}
		if last != 0 {
			g.last.Store(time.Now().UnixNano())
		}
		last = id
	}
}

func (g *generations) ask() (uint32, error) {
	answers, err := g.conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN),
			Flags: netlink.Request,
		},
		Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, err
	}
	for _, m := range answers {
		if len(m.Data) < 4 {
			continue
		}
		a, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return 0, err
		}
		a.ByteOrder = binary.BigEndian
		for a.Next() {
			if a.Type() == unix.NFTA_GEN_ID {
				return a.Uint32(), a.Err()
			}
		}
	}
	return 0, errors.New("the kernel reported no generation")
}

// role is what a child measures.
type role string

const (
	roleFloor role = "floor"
	roleOurs  role = "ours"
	rolePeer  role = "peer"
	roleFew   role = "few" // only connections, with few Services
	// roleServed measures a whole program that reads a real API server.
	roleServed role = "served"
	// iptables chains: ours and the known layout, the latter in one piece, and
	// connections through each.
	roleChains      role = "chains"
	roleKnown       role = "known layout"
	roleWhole       role = "known layout, whole"
	roleChainsPaths role = "chains, connections"
	roleKnownPaths  role = "known layout, connections"
	// roleRelay measures a whole program in mode userspace.
	roleRelay role = "userspace"
	// roleConnect measures socket acceleration.
	roleConnect role = "connect"
	// roleCounting measures what it costs to count connections.
	roleCounting role = "traffic"
	// roleEvidence measures what it costs to know who does not answer.
	roleEvidence role = "evidence"
	// roleIngress measures connections with direct return, and roleSlots its tables.
	roleIngress role = "ingress"
	roleSlots   role = "slots"
	// Mode ipvs. roleIPVS runs the other roles, each in a process of its own: the
	// library's calls, a whole backend, changes after its first round, and connections.
	roleIPVS           role = "ipvs"
	roleLibrary        role = "library"
	roleVirtual        role = "mode ipvs"
	roleVirtualChanges role = "mode ipvs, changes"
	roleVirtualPaths   role = "mode ipvs, connections"
)

// fewServices is the number of Services with which other sizes are compared.
const fewServices = 10

// task is the input of a child.
type task struct {
	Role     role
	Services int
	Quick    bool
	Peer     string
	Program  program // a whole one
	Mode     string  // of it, for roleEvidence
	Variant  string  // of iptables
	Group    string  // cgroup of version 1 to join, "" for none
	Cgroup   string  // of version 2, for roleConnect
}

// program is a proxy to measure.
type program struct{ Name, Path string }

// taskVariable holds a child's task.
const taskVariable = "BENCH_TASK"

// assigned returns the task of this process, if it has one.
func assigned() (task, bool) {
	var t task
	text, ok := os.LookupEnv(taskVariable)
	return t, ok && json.Unmarshal([]byte(text), &t) == nil
}

// figures are the measurements of a child, by metric, in seconds and bytes, and its
// notes.
type figures struct {
	Values map[string]float64
	Notes  []string
}

func newFigures() *figures { return &figures{Values: map[string]float64{}} }

// set records a figure, unless it is NaN.
func (f *figures) set(metric string, value float64) {
	if !math.IsNaN(value) {
		f.Values[metric] = value
	}
}

func (f *figures) seconds(metric string, value time.Duration) { f.set(metric, value.Seconds()) }
func (f *figures) note(format string, args ...any) {
	f.Notes = append(f.Notes, fmt.Sprintf(format, args...))
}

// medians returns the median of each metric over several runs of one task.
func medians(runs []*figures) *figures {
	f := newFigures()
	f.Notes = runs[0].Notes
	for metric := range runs[0].Values {
		var list []float64
		for _, r := range runs {
			if v, ok := r.Values[metric]; ok {
				list = append(list, v)
			}
		}
		f.set(metric, quantile(list, 0.5))
	}
	return f
}

// usage records the time and CPU time since m began.
func (f *figures) usage(metric string, m meter) {
	wall, cpu := m.stop()
	f.seconds(metric+".wall", wall)
	f.seconds(metric+".cpu", cpu)
}

// child runs t in a process of its own and returns its figures.
func (b *bench) child(ctx context.Context, t task) (*figures, error) {
	t.Quick, t.Peer = b.quick, b.peer
	group, remove := memoryGroup(t)
	defer remove()
	t.Group = group
	text, err := json.Marshal(t)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if t.Role == roleConnect { // its mounts end with it
		cmd.SysProcAttr.Unshareflags = syscall.CLONE_NEWNS
	}
	err = cmd.Start() // by this thread, whose end would be the child's
	if err == nil {
		err = b.await(cmd.Wait)
	}
	if err != nil {
		return nil, fmt.Errorf("measure %s with %d Services: %w", t.Role, t.Services, err)
	}
	f := newFigures()
	if err := json.Unmarshal(out.Bytes(), f); err != nil {
		return nil, fmt.Errorf("read what was measured of %s with %d Services: %w", t.Role, t.Services, err)
	}
	return f, nil
}

// await waits for measure, and samples the load meanwhile.
func (b *bench) await(measure func() error) error {
	done := make(chan error, 1)
	go func() { done <- measure() }()
	often := time.NewTicker(5 * time.Second)
	defer often.Stop()
	for {
		select {
		case err := <-done:
			b.facts.sampleLoad()
			return err
		case <-often.C:
			b.facts.sampleLoad()
		}
	}
}

// work measures what t describes and writes the figures to out.
func (t task) work(ctx context.Context, out io.Writer) error {
	if err := t.joinGroup(); err != nil {
		return err
	}
	measure := map[role]func(context.Context, task) (*figures, error){
		roleFloor: measureFloor, roleOurs: measureOurs, rolePeer: measurePeer, roleFew: measureFew,
		roleServed: measureServed, roleRelay: measureRelay, roleCounting: measureCounted, roleEvidence: measureEvidence, roleIngress: measureIngress, roleSlots: measureSlots,
		roleConnect: measureConnect, roleChains: measureChains, roleKnown: measureChains, roleWhole: measureWhole,
		roleChainsPaths: measurePaths, roleKnownPaths: measurePaths,
		roleIPVS: measureIPVS, roleLibrary: measureLibrary,
		roleVirtual: measureVirtual, roleVirtualChanges: measureVirtualChanges, roleVirtualPaths: measureVirtualPaths,
	}[t.Role]
	if measure == nil {
		return fmt.Errorf("role %q: want one of the constants", t.Role)
	}
	f, err := measure(ctx, t)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(f)
}

// logf prints progress.
func (t task) logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "%s, %d Services: %s\n", t.Role, t.Services, fmt.Sprintf(format, args...))
}

// pick returns much, or few for a quick run.
func (t task) pick(much, few int) int {
	if t.Quick {
		return few
	}
	return much
}

var errNotEmpty = errors.New("a restart would change the table it finds")

// Limits keep a slow peer from taking the whole day.
const (
	peerStart   = 45 * time.Second // until the first program is complete
	peerChange  = 30 * time.Second // for one change
	peerChanges = 6 * time.Second  // for all changes of one kind
	peerRounds  = 20               // of changes of one kind
)

// peer is another proxy, with all that it needs.
type peer struct {
	task
	network *network
	server  *apiServer
	addr    string
	dir     string
	process atomic.Pointer[process]
}

// measurePeer measures the program that the environment names.
func measurePeer(ctx context.Context, t task) (*figures, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer n.close()
	p := &peer{task: t, network: n}
	if p.dir, err = os.MkdirTemp("", "bench-peer-"); err != nil {
		return nil, fmt.Errorf("make temporary directory: %w", err)
	}
	defer os.RemoveAll(p.dir)
	if err := errors.Join(p.serve(ctx), n.echo()); err != nil {
		return nil, err
	}
	f := newFigures()
	version, err := exec.CommandContext(ctx, t.Peer, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("ask the peer for its version: %w", err)
	}
	f.note("Peer: %s.", strings.TrimSpace(string(version)))
	err = p.measure(ctx, f)
	if errors.Is(err, errSlow) { // keep the figures so far
		f.note("Peer: gave up while measuring the %v.", err)
		err = nil
	}
	return f, err
}

// serve starts the API server.
func (p *peer) serve(ctx context.Context) error {
	l, err := p.network.node.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen for the peer: %w", err)
	}
	p.addr = l.Addr().String()
	p.server = newAPIServer(p.Services, func() time.Duration {
		if running := p.process.Load(); running != nil {
			return running.usedCPU()
		}
		return 0
	})
	go func() { _ = http.Serve(l, p.server) }() // ends with this process
	return nil
}

func (p *peer) measure(ctx context.Context, f *figures) error {
	kernel, err := p.kernelMemory()
	if err != nil {
		return err
	}
	running, err := p.start()
	if err != nil {
		return err
	}
	err = p.first(ctx, f, running)
	if err == nil {
		var after float64
		after, err = p.kernelMemory()
		f.set("kernel", after-kernel) // with the page tables of its processes
	}
	if err == nil {
		err = p.changes(ctx, f, running)
	}
	rss, stopErr := running.stop()
	f.set("rss", rss)
	if err = errors.Join(err, stopErr); err != nil {
		return err
	}
	return p.again(ctx, f)
}

func (p *peer) start() (*process, error) {
	running, err := startProcess(p.network, p.Peer, p.addr, p.dir)
	if err != nil {
		return nil, err
	}
	p.process.Store(running)
	return running, nil
}

// first measures the time until the change of the rules after which connections work.
func (p *peer) first(ctx context.Context, f *figures, running *process) error {
	p.logf("first program")
	var tried time.Time
	for now := range ticks(ctx, time.Millisecond) {
		delivered, before, ok := p.server.whenDelivered()
		changed := running.rules.changed()
		switch {
		case running.ended():
			return fmt.Errorf("the peer has ended: %w", running.logTail())
		case now.Sub(running.began) > peerStart:
			return fmt.Errorf("first program, not in after %s and %s of CPU: %w", peerStart, running.usedCPU(), errSlow)
		case !ok || changed.Equal(tried):
			continue
		}
		if !p.answers() {
			tried = changed
			continue
		}
		f.seconds("start.wall", changed.Sub(running.began))
		f.seconds("first.wall", changed.Sub(delivered))
		if err := running.waitForChildren(ctx); err != nil {
			return err
		}
		cpu := running.usedCPU()
		f.seconds("start.cpu", cpu)
		f.seconds("first.cpu", cpu-before)
		_, err := running.awaitIdle(ctx, peerStart)
		return wrap("work after the first program", err)
	}
	return ctx.Err()
}

// answers returns whether connections through Services work.
func (p *peer) answers() bool {
	err := p.network.client.Do(func() error {
		for _, i := range firstMiddleLast(p.Services) {
			to := &unix.SockaddrInet4{Port: servicePort, Addr: clusterIP(i).As4()}
			if _, _, err := transact(to, make([]byte, message), 50*time.Millisecond); err != nil {
				return err
			}
		}
		return nil
	})
	return err == nil
}

// changes measures from the write of a watch event to the next generation of the kernel's
// rules.
func (p *peer) changes(ctx context.Context, f *figures, running *process) error {
	p.logf("changes")
	var counts []string
	for _, c := range changes() {
		var took []time.Duration
		began := time.Now()
		for round := 0; round < p.pick(peerRounds, 2) && time.Since(began) < peerChanges; round++ {
			to := [][]int{c.a, c.b}[round%2]
			one, err := p.change(ctx, running, newSlice(serviceOfRound(round, p.Services), to))
			if err != nil {
				return wrap("change of one Service", err)
			}
			took = append(took, one)
		}
		f.set(c.metric+".p50", quantile(took, 0.5))
		counts = append(counts, fmt.Sprintf("%s %d", c.metric, len(took)))
	}
	f.note("Peer: changes measured: %s.", strings.Join(counts, ", "))
	return p.many(ctx, f, running)
}

// change returns how long the peer took for one change.
func (p *peer) change(ctx context.Context, running *process, s *discoveryv1.EndpointSlice) (time.Duration, error) {
	send, err := p.server.update(s)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	send()
	for now := range ticks(ctx, 200*time.Microsecond) {
		changed := running.rules.changed()
		if changed.After(began) {
			_, err := running.awaitIdle(ctx, peerChange)
			return changed.Sub(began), err
		}
		if now.Sub(began) > peerChange {
			return 0, errSlow
		}
	}
	return 0, ctx.Err()
}

// many changes many Services at once, and waits for the last commit.
func (p *peer) many(ctx context.Context, f *figures, running *process) error {
	var list []*discoveryv1.EndpointSlice
	for i := range min(manyServices, p.Services) {
		list = append(list, newSlice(i, numbers(perService-2)))
	}
	send, err := p.server.update(list...)
	if err != nil {
		return err
	}
	began := time.Now()
	send()
	last, err := running.awaitIdle(ctx, peerStart)
	if err == nil {
		f.seconds("many", last.Sub(began))
	}
	return wrap("change of many Services", err)
}

// again measures a second process that finds the rules of the first, then connections.
// All Services have all endpoints again.
func (p *peer) again(ctx context.Context, f *figures) (err error) {
	p.logf("restart")
	p.server.forget()
	running, err := p.start()
	if err != nil {
		return err
	}
	defer func() {
		_, stopErr := running.stop()
		err = errors.Join(err, stopErr)
	}()
	for range ticks(ctx, 5*time.Millisecond) {
		if _, _, ok := p.server.whenDelivered(); ok || running.ended() {
			break
		}
	}
	last, err := running.awaitIdle(ctx, peerStart)
	if err != nil {
		return wrap("restart", err)
	}
	if delivered, before, _ := p.server.whenDelivered(); last.After(delivered) {
		f.seconds("restart.wall", last.Sub(delivered))
		f.seconds("restart.cpu", running.usedCPU()-before)
	}
	p.logf("connections")
	bare, err := newNetwork()
	if err != nil {
		return err
	}
	defer bare.close()
	if err := errors.Join(p.network.shortenConntrackTimeouts(), bare.echo()); err != nil {
		return err
	}
	return p.compare(f, p.targets(p.network, bare))
}

func wrap(what string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", what, err)
}

// ticks yields the time at an interval, until ctx ends.
func ticks(ctx context.Context, every time.Duration) iter.Seq[time.Time] {
	return func(yield func(time.Time) bool) {
		t := time.NewTicker(every)
		defer t.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case now := <-t.C:
				if !yield(now) {
					return
				}
			}
		}
	}
}
