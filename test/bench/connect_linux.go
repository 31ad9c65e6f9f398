// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/userspace"
)

// message is the size of a request and of its response.
const message = 64

// echo serves on the server's port, on all of its addresses, until the process ends.
func (n *network) echo() error {
	started := make(chan error, 1)
	go func() {
		err := n.server.Do(func() error {
			defer pin()()
			s, err := listen()
			started <- err
			if err != nil {
				return err
			}
			return s.serve()
		})
		if err != nil {
			started <- err
		}
	}()
	if err := <-started; err != nil {
		return fmt.Errorf("start echo server: %w", err)
	}
	return nil
}

// echoServer answers directly with system calls, so that the network dominates the
// measurement.
type echoServer struct{ listener, poll int }

func listen() (*echoServer, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: targetPort}); err != nil {
		return nil, err
	}
	if err := unix.Listen(fd, 1024); err != nil {
		return nil, err
	}
	poll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, err
	}
	s := &echoServer{fd, poll}
	return s, s.watch(fd)
}

func (s *echoServer) watch(fd int) error {
	return unix.EpollCtl(s.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

func (s *echoServer) serve() error {
	events := make([]unix.EpollEvent, 64)
	buf := make([]byte, 4*message)
	for {
		n, err := unix.EpollWait(s.poll, events, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for connections: %w", err)
		}
		for _, e := range events[:max(n, 0)] {
			if int(e.Fd) == s.listener {
				s.accept()
			} else {
				answer(int(e.Fd), buf)
			}
		}
	}
}

func (s *echoServer) accept() {
	for {
		fd, _, err := unix.Accept4(s.listener, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		if s.watch(fd) != nil {
			unix.Close(fd)
		}
	}
}

// answer echoes what has arrived, or closes a connection that has ended.
func answer(fd int, buf []byte) {
	n, err := unix.Read(fd, buf)
	if err == nil && n > 0 {
		_, err = unix.Write(fd, buf[:n])
	}
	if n == 0 || err != nil && !errors.Is(err, unix.EAGAIN) {
		unix.Close(fd)
	}
}

// pin keeps the calling thread on one processor, the same for all callers, until the
// returned function is called. A client and a server that wake each other take 20 us for a
// connection on one processor, and 130 us on two of a virtual machine, far more than any
// rule costs; where they are is chance otherwise.
func pin() (free func()) {
	var before, one unix.CPUSet
	if unix.SchedGetaffinity(0, &before) != nil {
		return func() {}
	}
	for i := range len(before) * 64 {
		if before.IsSet(i) {
			one.Zero()
			one.Set(i)
		}
	}
	if unix.SchedSetaffinity(0, &one) != nil {
		return func() {}
	}
	return func() { _ = unix.SchedSetaffinity(0, &before) }
}

// samples are the durations of connections: until they were established, and until the
// response arrived.
type samples struct{ made, answered []time.Duration }

// burst connects from the client again and again for d, and once at least.
func (t target) burst(d time.Duration) (samples, error) {
	const room = 16384
	s := samples{make([]time.Duration, 0, room), make([]time.Duration, 0, room)}
	if err := t.joinCgroup(); err != nil {
		return s, err
	}
	err := t.from.client.Do(func() error {
		defer pin()()
		to := &unix.SockaddrInet4{Port: int(t.to.Port()), Addr: t.to.Addr().As4()}
		buf := make([]byte, message)
		for began := time.Now(); time.Since(began) < d || len(s.made) == 0; {
			if t.among != nil {
				to.Addr = t.among(len(s.made)).As4()
			}
			made, answered, err := transact(to, buf, 2*time.Second)
			switch {
			case err == nil:
				s.made, s.answered = append(s.made, made), append(s.answered, answered)
			case !errors.Is(err, unix.EINTR): // which a busy Go runtime causes
				return fmt.Errorf("connect to %s: %w", t.to, err)
			}
		}
		return nil
	})
	return s, err
}

// answers waits for the first connection. A new network may lose the first packets, until
// the kernel has noticed that its links are up.
func (t target) answers() error {
	var err error
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		if _, err = t.burst(0); err == nil {
			return nil
		}
	}
	return err
}

// transact makes one connection, and ends it with a reset so that neither side keeps its
// port. No step may take longer than limit.
func transact(to unix.Sockaddr, buf []byte, limit time.Duration) (made, answered time.Duration, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	return talk(fd, to, buf, limit)
}

// talk connects fd, and sends and receives once.
func talk(fd int, to unix.Sockaddr, buf []byte, limit time.Duration) (made, answered time.Duration, err error) {
	tv := unix.NsecToTimeval(limit.Nanoseconds())
	err = errors.Join(
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
		unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv))
	if err != nil {
		return 0, 0, err
	}
	began := time.Now()
	if err := unix.Connect(fd, to); err != nil {
		return 0, 0, err
	}
	made = time.Since(began)
	if _, err := unix.Write(fd, buf); err != nil {
		return 0, 0, err
	}
	if n, err := unix.Read(fd, buf); err != nil || n != len(buf) {
		return 0, 0, fmt.Errorf("answer of %d bytes, want %d: %w", n, len(buf), err)
	}
	return made, time.Since(began), nil
}

const directName = "direct"

// compare records for each target the median of the rounds' medians, and of the ratios of
// a round's median to the direct one's.
func (t task) compare(f *figures, targets []target) error {
	p, err := takeTurns(targets, t.pick(15, 1), time.Duration(t.pick(60, 10))*time.Millisecond)
	if err != nil {
		return err
	}
	for _, x := range targets {
		p.set(f, x.name, directName)
	}
	return nil
}

// connections measures connections through n's Services against those in another network
// without any rule.
func (t task) connections(f *figures, n *network) error {
	t.logf("connections")
	bare, err := newNetwork()
	if err != nil {
		return err
	}
	defer bare.close()
	if err := errors.Join(n.shortenConntrackTimeouts(), n.echo(), bare.echo()); err != nil {
		return err
	}
	return t.compare(f, t.targets(n, bare))
}

// targets are a direct connection in the network without rules, one in n beside its
// rules, and those through its Services. The direct ones go to addresses without a
// Service: IPVS would take answers from an endpoint to a port of the client for those of
// an earlier connection through a Service.
func (t task) targets(n, bare *network) []target {
	direct := netip.AddrPortFrom(endpointIP(0, perService), targetPort)
	targets := []target{{name: directName, from: bare, to: direct}, {name: "beside", from: n, to: direct}}
	for i, s := range firstMiddleLast(t.Services) {
		name := [...]string{"first", "middle", "last"}[i]
		targets = append(targets, target{name: name, from: n, to: netip.AddrPortFrom(clusterIP(s), servicePort)})
	}
	return targets
}

// quantile returns the value below which a share of list lies, in seconds for durations.
// It sorts list.
func quantile[T float64 | time.Duration](list []T, share float64) float64 {
	if len(list) == 0 {
		return math.NaN()
	}
	slices.Sort(list)
	v := list[min(int(float64(len(list))*share), len(list)-1)]
	if d, ok := any(v).(time.Duration); ok {
		return d.Seconds()
	}
	return float64(v)
}

// sinkPort is where the server reads and never answers.
const sinkPort = targetPort + 1

// relay is the program in mode userspace, with two Services: the first leads to the echo
// server, the second to the sink.
type relay struct {
	task
	network *network
	process *process
}

// measureRelay measures the program t.Program in mode userspace.
func measureRelay(ctx context.Context, t task) (*figures, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer n.close()
	bare, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer bare.close()
	dir, err := os.MkdirTemp("", "bench-relay-")
	if err != nil {
		return nil, fmt.Errorf("make temporary directory: %w", err)
	}
	defer os.RemoveAll(dir)
	r := &relay{task: t, network: n}
	if err := errors.Join(n.shortenConntrackTimeouts(), n.echo(), n.sink(ctx), bare.echo(), r.start(ctx, dir)); err != nil {
		return nil, err
	}
	f := newFigures()
	for _, step := range []func(context.Context, *figures) error{r.flows, r.manyConnections, func(context.Context, *figures) error {
		t.logf("connections")
		return t.compare(f, t.targets(n, bare))
	}} {
		if err = step(ctx, f); err != nil {
			break
		}
	}
	_, stopErr := r.process.stop()
	return f, errors.Join(err, stopErr)
}

// start starts the program and waits until it serves.
func (r *relay) start(ctx context.Context, dir string) (err error) {
	var objects []any
	for i, port := range []int32{targetPort, sinkPort} {
		s := newSlice(i, numbers(1))
		*s.Ports[0].Port = port
		objects = append(objects, newService(i), s)
	}
	r.process, err = r.run(ctx, r.network, dir, objects, "--proxy-mode=userspace")
	return err
}

// run starts the program on n's node with objects, and waits until the first Service answers.
// Its files are in dir.
func (t task) run(ctx context.Context, n *network, dir string, objects []any, flags ...string) (*process, error) {
	var manifests bytes.Buffer
	for _, object := range objects {
		text, err := json.Marshal(object)
		if err != nil {
			return nil, err
		}
		manifests.WriteString("---\n" + string(text) + "\n")
	}
	file := filepath.Join(dir, "services.yaml")
	if err := os.WriteFile(file, manifests.Bytes(), 0o600); err != nil {
		return nil, fmt.Errorf("write manifests: %w", err)
	}
	// With a lock of its own, it does not wait for a firewall of the machine.
	if err := os.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock")); err != nil {
		return nil, err
	}
	p := &process{log: filepath.Join(dir, "log")}
	err := p.launch(n.node, t.Program.Path, append([]string{"--manifests=" + file,
		"--hostname-override=" + ownNode, "--cluster-cidr=" + clusterCIDR, "--iptables-localhost-nodeports=false", "--conntrack-max-per-core=0"}, flags...)...)
	if err != nil {
		return nil, err
	}
	deadline := time.Now().Add(servedLimit)
	for now := range ticks(ctx, 50*time.Millisecond) {
		switch {
		case n.serves():
			return p, nil
		case p.ended():
			return nil, fmt.Errorf("the program has ended: %w", p.logTail())
		case now.After(deadline):
			return nil, fmt.Errorf("no answer through the program: %w", errors.Join(errSlow, p.logTail()))
		}
	}
	return nil, ctx.Err()
}

// serves reports whether the first Service answers.
func (n *network) serves() bool {
	return n.client.Do(func() error {
		_, _, err := transact(firstService(), make([]byte, message), time.Second)
		return err
	}) == nil
}

// firstService is the Service whose endpoint answers.
func firstService() *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: servicePort, Addr: clusterIP(0).As4()}
}

// flows measures one long flow through the relay beside a direct one, in pairs.
func (r *relay) flows(ctx context.Context, f *figures) error {
	r.logf("flows")
	var direct, through, ratios, cpu []float64
	worst, long := math.Inf(1), time.Duration(r.pick(2000, 100))*time.Millisecond
	for range r.pick(16, 2) {
		d, err := r.network.flow(ctx, netip.AddrPortFrom(endpointIP(1, 0), sinkPort), long, net.Conn.Write)
		if err != nil {
			return err
		}
		before := r.process.usedCPU()
		x, err := r.network.flow(ctx, netip.AddrPortFrom(clusterIP(1), servicePort), long, net.Conn.Write)
		if err != nil {
			return err
		}
		if ratio := x.rate() / d.rate(); ratio < worst {
			worst = ratio
			f.set("flow.worst", ratio)
			f.set("flow.worst.direct", d.rate())
			f.set("flow.worst.through", x.rate())
		}
		direct, through, ratios = append(direct, d.rate()), append(through, x.rate()), append(ratios, x.rate()/d.rate())
		cpu = append(cpu, (r.process.usedCPU()-before).Seconds()/x.bytes*1e9)
	}
	f.set("flow.direct", quantile(direct, 0.5))
	f.set("flow.through", quantile(through, 0.5))
	f.set("flow.ratio", quantile(ratios, 0.5))
	f.set("flow.cpu", quantile(cpu, 0.5))
	return nil
}

// flow is the result of one flow.
type flow struct {
	bytes float64
	took  time.Duration
}

func (x flow) rate() float64 { return x.bytes / x.took.Seconds() }

// flow moves as much as it can, from the client or to it.
func (n *network) flow(ctx context.Context, to netip.AddrPort, long time.Duration, move func(net.Conn, []byte) (int, error)) (flow, error) {
	conn, err := n.client.Dial(ctx, "tcp", to.String())
	if err != nil {
		return flow{}, err
	}
	defer conn.Close()
	block := make([]byte, 1<<18)
	var x flow
	for began := time.Now(); x.took < long; x.took = time.Since(began) {
		n, err := move(conn, block)
		if err != nil {
			return x, fmt.Errorf("flow through %s: %w", to, err)
		}
		x.bytes += float64(n)
	}
	return x, nil
}

// manyConnections measures the memory of many connections at once, each of which has been
// answered.
func (r *relay) manyConnections(_ context.Context, f *figures) error {
	files, err := userspace.RaiseFileLimit()
	if err != nil {
		return err
	}
	// This process has both ends of each, and the relay has two files as well.
	count := min(r.pick(10000, 200), (files-1024)/2)
	r.logf("%d connections at once", count)
	if count < r.pick(10000, 200) {
		f.note("Connections at once are %s and no more, since a process may have %s open files here.", thousands(count), thousands(files))
	}
	before, err := r.readUsage()
	if err != nil {
		return err
	}
	var open []int
	defer func() {
		for _, fd := range open {
			unix.Close(fd)
		}
	}()
	err = r.network.client.Do(func() error {
		for len(open) < count {
			fd, err := dialAndTalk(firstService())
			if errors.Is(err, unix.EINTR) { // which a busy Go runtime causes
				continue
			}
			if err != nil {
				return fmt.Errorf("connection %d at once: %w", len(open)+1, err)
			}
			open = append(open, fd)
		}
		return nil
	})
	if err != nil {
		return err
	}
	after, err := r.readUsage()
	if err != nil {
		return err
	}
	f.set("many.count", float64(count))
	f.set("many.memory", (after.memory-before.memory)/float64(count))
	f.set("many.files", (after.files-before.files)/float64(count))
	return nil
}

// dialAndTalk opens a connection that has been answered once.
func dialAndTalk(to unix.Sockaddr) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if _, _, err = talk(fd, to, make([]byte, message), 10*time.Second); err != nil {
		unix.Close(fd)
	}
	return fd, err
}

// usage is the memory and the open files of the program at one time.
type usage struct{ memory, files float64 }

func (r *relay) readUsage() (usage, error) {
	kB, err := field("/proc/"+r.process.pid()+"/status", "VmRSS:")
	if err != nil {
		return usage{}, fmt.Errorf("memory of the program: %w", err)
	}
	files, err := os.ReadDir("/proc/" + r.process.pid() + "/fd")
	if err != nil {
		return usage{}, fmt.Errorf("open files of the program: %w", err)
	}
	return usage{kB * 1024, float64(len(files))}, nil
}

// measureUserspace measures mode userspace beside connections that bypass the proxy.
func (b *bench) measureUserspace(ctx context.Context, s *section) error {
	s.how = howRelayed
	ours, remove, err := buildProgram(ctx)
	if err != nil {
		return err
	}
	defer remove()
	f, err := b.child(ctx, task{Role: roleRelay, Services: 1, Program: ours})
	if err != nil {
		return err
	}
	t := table{services: 1, base: "direct", rows: relayRows()}
	t.add(roleOurs, f)
	s.add(b.out, t)
	return nil
}

func inGigabytes(v float64) string { return fmt.Sprintf("%.2f GB/s", v/1e9) }
func inKilobytes(v float64) string { return fmt.Sprintf("%.1f kB", v/1e3) }
func inWhole(v float64) string     { return thousands(int(v)) }

func relayRows() []row {
	return []row{
		{label: "one long flow, median", metric: "flow.through", floor: "flow.direct", ratio: "flow.ratio", unit: inGigabytes, aim: aim{least: 0.6},
			why: "Every packet passes through two more sockets, on the same processors as both its ends."},
		{label: "proxy's CPU for each GB", metric: "flow.cpu", unit: inSeconds},
		{label: "connection, p50", metric: "connect.first", floor: "connect.direct", ratio: "connect.first.ratio", unit: inSeconds, cited: true},
		{label: "connections at once", metric: "many.count", unit: inWhole},
		{label: "memory (RSS) for each of them", metric: "many.memory", unit: inKilobytes, cited: true},
	}
}

const howRelayed = `
The whole program between client, node and server, which share the processors. A **flow** is one TCP connection at full
speed for two seconds; its ratio is the median of 16 pairs. Connections **at once** are answered and silent.
`

// pairs are the medians that targets had in each round, by part and name of a target. The
// part "made." is until a connection was established, and "" until it was answered.
type pairs map[string][]float64

// takeTurns measures targets in a number of rounds. Each round has an order of its own.
func takeTurns(targets []target, rounds int, long time.Duration) (pairs, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	// With spare processors, the runtime does not take the processor from a thread that
	// waits in the kernel.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(runtime.NumCPU() + 4))
	for _, x := range targets {
		if err := x.answers(); err != nil {
			return nil, fmt.Errorf("%s: %w", x.name, err)
		}
	}
	p := pairs{}
	for range rounds {
		for _, i := range rand.Perm(len(targets)) {
			x := targets[i]
			if x.before != nil {
				x.before()
			}
			s, err := x.burst(long)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", x.name, err)
			}
			p["made."+x.name] = append(p["made."+x.name], quantile(s.made, 0.5))
			p[x.name] = append(p[x.name], quantile(s.answered, 0.5))
		}
	}
	return p, nil
}

// ratios returns the ratio of a target's median to another's in each round, sorted.
func (p pairs) ratios(part, name, base string) []float64 {
	var all []float64
	for i, v := range p[part+name] {
		all = append(all, v/p[part+base][i])
	}
	slices.Sort(all)
	return all
}

// set records for a target the median of the rounds' medians, and of their ratios to those
// of base.
func (p pairs) set(f *figures, name, base string) {
	for _, part := range []string{"made.", ""} {
		f.set("connect."+part+name, quantile(slices.Clone(p[part+name]), 0.5))
		f.spread("connect."+part+name+".ratio", p.ratios(part, name, base))
	}
}

// What follows the name of a metric for the limits between which it is.
const (
	lowEnd  = ".low"
	highEnd = ".high"
)

// spread records the median of sorted, and its limits.
func (f *figures) spread(metric string, sorted []float64) {
	low, high := interval(sorted)
	f.set(metric, quantile(sorted, 0.5))
	f.set(metric+lowEnd, low)
	f.set(metric+highEnd, high)
}

// interval returns the limits between which the true median is in 95 of 100 cases, if
// sorted is a sample. It makes no assumption on the distribution: the number of values
// below the true median is that of heads among as many coins. The normal distribution
// stands for theirs, which suits twenty values and more.
func interval(sorted []float64) (low, high float64) {
	n := float64(len(sorted))
	off := int(math.Floor(n/2-1.96*math.Sqrt(n)/2)) - 1
	if off < 0 {
		return math.NaN(), math.NaN()
	}
	return sorted[off], sorted[len(sorted)-1-off]
}

// joinCgroup moves this process into x's cgroup. A socket belongs to the cgroup of the
// process that makes it.
func (x target) joinCgroup() error {
	if x.cgroup == "" {
		return nil
	}
	if err := os.WriteFile(filepath.Join(x.cgroup, "cgroup.procs"), []byte("0"), 0); err != nil {
		return fmt.Errorf("join cgroup: %w", err)
	}
	return nil
}
