// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/service"
	own "kubeproxy/platform/linux/nftables"
	"kubeproxy/test/cluster"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftmonitor"
	"kubeproxy/test/scale"
)

// extent is how much is measured through an API server.
type extent struct {
	services int // at first
	samples  int // of single changes
	together int // Services created at once
	rate     int // changes a second
	long     time.Duration
	most     int // Services at last
	churns   int // changes of everything
}

func (t task) extent() extent {
	if t.Quick {
		return extent{services: 200, samples: 5, together: 50, rate: 100, long: 2 * time.Second, most: 400, churns: 2}
	}
	return extent{services: 5000, samples: 60, together: 1000, rate: 200, long: time.Minute, most: 10000, churns: 10}
}

const (
	// spacing keeps a proxy's pause between two rounds from combining single changes.
	spacing = 1100 * time.Millisecond
	// servedLimit is how long anything may take, slow peers included.
	servedLimit = 2 * time.Minute
	// rest lets a proxy release memory that it does not need.
	rest = 3 * time.Second
)

// served is a program, the API server that it reads, and the objects in it.
type served struct {
	task
	extent
	network  *netlab.Lab
	api      *cluster.Cluster
	workload *scale.Workload
	latency  scale.ProgrammingLatency
	process  *process
}

// measureServed measures the program t.Program, with its default configuration, through a
// real API server.
func measureServed(ctx context.Context, t task) (*figures, error) {
	dir, err := os.MkdirTemp("", "bench-served-")
	if err != nil {
		return nil, fmt.Errorf("make temporary directory: %w", err)
	}
	defer os.RemoveAll(dir)
	s := &served{task: t, extent: t.extent()}
	if s.network, err = netlab.New(netlab.Config{Clients: []string{"control"}}); err != nil {
		return nil, fmt.Errorf("build network: %w", err)
	}
	defer s.network.Close()
	if err := s.prepare(ctx, dir); err != nil {
		return nil, err
	}
	defer s.api.Close()
	listener, err := nftmonitor.Listen(s.network.Node, s.latency.Observe)
	if err != nil {
		return nil, err
	}
	defer listener.Close()
	if err := s.start(dir); err != nil {
		return nil, err
	}
	f := newFigures()
	err = s.measure(ctx, f)
	if errors.Is(err, errSlow) { // keep the figures so far
		f.note("%s: gave up while measuring %v.", t.Program.Name, err)
		err = nil
	}
	if _, lost := listener.Counts(); lost != nil {
		err = errors.Join(err, fmt.Errorf("hear what the kernel tells: %w", lost))
	}
	_, stopErr := s.process.stop()
	return f, errors.Join(err, stopErr)
}

// prepare starts an API server and fills it.
func (s *served) prepare(ctx context.Context, dir string) error {
	s.logf("API server")
	programs, err := cluster.Build(ctx, os.Stderr)
	if err != nil {
		return fmt.Errorf("control plane: %w", err)
	}
	if s.api, err = cluster.New(ctx, programs, cluster.Options{Host: s.network.Host("control"), Dir: dir}); err != nil {
		return fmt.Errorf("control plane: %w", err)
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: ownNode},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: s.network.Node.IPv4.String()},
		}},
	}
	s.workload = scale.New(s.api.Client, "service", s.services)
	return errors.Join(s.api.Set(ctx, node), s.workload.Create(ctx))
}

// servedConfig sets what is necessary, and leaves the defaults otherwise.
const servedConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: ` + ownNode + `
clusterCIDR: ` + clusterCIDR + `
detectLocalMode: ClusterCIDR
clientConnection:
  kubeconfig: %s
conntrack:
  maxPerCore: 0
  min: 0
  tcpEstablishedTimeout: 0s
  tcpCloseWaitTimeout: 0s
`

func (s *served) start(dir string) error {
	kubeconfig, err := s.api.Kubeconfig(cluster.Login{})
	if err != nil {
		return err
	}
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, servedConfig, kubeconfig), 0o600); err != nil {
		return err
	}
	s.process = &process{log: filepath.Join(dir, "log")}
	return s.process.launch(s.network.Node, s.Program.Path, "--config", config)
}

// measure goes from few objects to many.
func (s *served) measure(ctx context.Context, f *figures) error {
	if _, err := s.inForce(ctx, "the first program"); err != nil {
		return err
	}
	for _, step := range []func(context.Context, *figures) error{s.singles, s.atOnce, s.steady, s.memory} {
		if err := step(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// inForce waits until everything that was written is in force, and returns how long each
// write took.
func (s *served) inForce(ctx context.Context, what string) ([]time.Duration, error) {
	writes := s.workload.Writes()
	deadline := time.Now().Add(servedLimit)
	every := 2 * time.Millisecond
	if len(writes) > 1000 {
		every = 250 * time.Millisecond // a check takes its time
	}
	for now := range ticks(ctx, every) {
		switch {
		case s.latency.Missing(writes) == 0:
			return s.latency.Delays(writes), nil
		case s.process.ended():
			return nil, fmt.Errorf("the program has ended: %w", s.process.logTail())
		case now.After(deadline):
			return nil, fmt.Errorf("%s: %w", what, errSlow)
		}
	}
	return nil, ctx.Err()
}

func (s *served) spread(f *figures, metric string, values []time.Duration) {
	x := scale.PercentilesOf(values)
	f.seconds(metric+".p50", x.P50)
	f.seconds(metric+".p90", x.P90)
	f.seconds(metric+".p99", x.P99)
	f.seconds(metric+".max", x.Max)
}

// measureServed measures our program, and the peer, through an API server.
func (b *bench) measureServed(ctx context.Context, s *section) error {
	ours, remove, err := buildProgram(ctx)
	if err != nil {
		return err
	}
	defer remove()
	x := task{Quick: b.quick}.extent()
	s.how = fmt.Sprintf(howServed, thousands(x.services), x.samples, thousands(x.most), x.churns)
	b.notePeer(s, "")
	t := table{services: x.services, rows: servedRows()}
	programs := map[role]program{roleOurs: ours}
	if b.peer != "" {
		programs[rolePeer] = program{"Peer", b.peer}
	}
	for _, r := range []role{roleOurs, rolePeer} {
		p, ok := programs[r]
		if !ok {
			continue
		}
		f, err := b.child(ctx, task{Role: roleServed, Services: x.services, Program: p})
		if err != nil {
			return err
		}
		t.add(r, f)
	}
	s.add(b.out, t)
	return nil
}

// buildProgram builds the proxy; remove deletes it.
func buildProgram(ctx context.Context) (ours program, remove func() error, err error) {
	dir, err := os.MkdirTemp("", "bench-program-")
	if err != nil {
		return ours, nil, fmt.Errorf("make temporary directory: %w", err)
	}
	remove = func() error { return os.RemoveAll(dir) }
	ours = program{"Ours", filepath.Join(dir, "kube-proxy")}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", ours.Path, "kubeproxy/cmd/kube-proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		return ours, nil, errors.Join(fmt.Errorf("build the proxy: %w\n%s", err, text), remove())
	}
	return ours, remove, nil
}

// servedRows are the lines of the table, with the aims for the whole extent.
func servedRows() []row {
	const (
		whySingle = "It has the API server's own write in it."
		whyMemory = "It grows with what was programmed last."
	)
	return []row{
		{label: "one endpoint changed, p50", metric: "served.single.p50", unit: inSeconds, aim: aim{most: always(20e-3)}, why: whySingle},
		{label: "one endpoint changed, p99", metric: "served.single.p99", unit: inSeconds, aim: aim{most: always(250e-3)}, why: whySingle},
		{label: "changes of one endpoint", metric: "served.single.count", unit: inWhole},
		{label: "Services made at once, by the API server", metric: "served.together.written", unit: inSeconds},
		{label: "Services made at once, p50", metric: "served.together.p50", unit: inSeconds},
		{label: "Services made at once, p99", metric: "served.together.p99", unit: inSeconds},
		{label: "steady changes in a second", metric: "served.steady.rate", unit: inWhole},
		{label: "steady changes, CPU for each", metric: "served.steady.cpu", unit: inSeconds},
		{label: "steady changes, p50", metric: "served.steady.p50", unit: inSeconds},
		{label: "steady changes, p99", metric: "served.steady.p99", unit: inSeconds},
		{label: "memory (RSS) with all Services", metric: "served.rss", unit: inMegabytes, aim: aim{most: always(110e6)}, why: whyMemory},
		{label: "memory after changes of everything", metric: "served.after", unit: inMegabytes},
		{label: "peak memory", metric: "served.peak", unit: inMegabytes},
		{label: "growth from the first to the last of them", metric: "served.growth", unit: inPercent, aim: aim{most: always(0.1)}, why: whyMemory},
	}
}

const howServed = `
The whole program reads a real kube-apiserver on the same machine. A time begins with the request to it and ends when the
kernel reports the change. A peer has the same configuration and objects.

- **one endpoint changed**: with %s Services of 10 endpoints, %d changes, 1.1 s apart.
- **memory**: with %s Services of 10 endpoints, at rest; then every endpoint is replaced, %d times. Growth is
  between the first and the last of these.
`

// singles changes one endpoint at a time, each after a pause.
func (s *served) singles(ctx context.Context, f *figures) error {
	s.logf("single changes")
	var took []time.Duration
	next := time.Now()
	for i, end := 0, time.Now().Add(servedLimit); i < s.samples && time.Now().Before(end); i++ {
		pause(ctx, time.Until(next))
		next = time.Now().Add(spacing)
		if err := s.workload.ReplaceOne(ctx, i*7919); err != nil {
			return err
		}
		one, err := s.inForce(ctx, "a single change")
		if err != nil {
			return err
		}
		took = append(took, one...)
	}
	s.spread(f, "served.single", took)
	f.set("served.single.count", float64(len(took)))
	return nil
}

// atOnce creates many Services as fast as the API server can.
func (s *served) atOnce(ctx context.Context, f *figures) error {
	s.logf("Services made at once")
	began := time.Now()
	if err := s.workload.Grow(ctx, s.together); err != nil {
		return err
	}
	written := time.Since(began)
	took, err := s.inForce(ctx, "Services made at once")
	if err != nil {
		return err
	}
	s.spread(f, "served.together", took)
	f.seconds("served.together.written", written)
	return nil
}

// steady changes endpoints at a rate.
func (s *served) steady(ctx context.Context, f *figures) error {
	s.logf("steady changes")
	cpu := s.process.usedCPU()
	n, err := s.workload.ReplaceAtRate(ctx, s.rate, s.long)
	if err != nil {
		return err
	}
	took, err := s.inForce(ctx, "steady changes")
	if err != nil {
		return err
	}
	f.seconds("served.steady.cpu", (s.process.usedCPU()-cpu)/time.Duration(n))
	s.spread(f, "served.steady", took)
	f.set("served.steady.rate", float64(n)/s.long.Seconds())
	return nil
}

// memory changes everything, again and again.
func (s *served) memory(ctx context.Context, f *figures) error {
	s.logf("memory")
	if err := s.workload.Grow(ctx, max(0, s.most-s.workload.Len())); err != nil {
		return err
	}
	if _, err := s.inForce(ctx, "the last Services"); err != nil {
		return err
	}
	first, err := s.resident(ctx)
	if err != nil {
		return err
	}
	f.set("served.rss", first)
	last := first
	for i := range s.churns {
		if last, err = s.churn(ctx); err != nil {
			return err
		}
		if i == 0 { // by then everything has been done once
			first = last
		}
	}
	peak, err := peakRSS(s.process.pid())
	f.set("served.growth", last/first-1)
	f.set("served.peak", peak)
	f.set("served.after", last)
	return err
}

// churn changes everything once and returns the memory afterwards.
func (s *served) churn(ctx context.Context) (float64, error) {
	if err := s.workload.ReplaceAll(ctx); err != nil {
		return 0, err
	}
	if _, err := s.inForce(ctx, "a change of everything"); err != nil {
		return 0, err
	}
	return s.resident(ctx)
}

// resident returns the resident set of the program when it is idle.
func (s *served) resident(ctx context.Context) (float64, error) {
	pause(ctx, rest)
	kB, err := field("/proc/"+s.process.pid()+"/status", "VmRSS:")
	if err != nil {
		return 0, fmt.Errorf("memory of %s: %w", s.Program.Name, err)
	}
	return kB * 1024, nil
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(max(d, 0)):
	}
}

// measureCounting measures connections through rules that count them, beside the same
// connections through rules that do not.
func (b *bench) measureCounting(ctx context.Context, s *section) error {
	s.how = howCounting
	t := table{services: 10, base: "not counted", rows: countingRows()}
	f, err := b.child(ctx, task{Role: roleCounting, Services: t.services})
	if err != nil {
		return err
	}
	t.add(roleOurs, f)
	s.add(b.out, t)
	return nil
}

// measureCounted compares two networks with the same Services.
func measureCounted(ctx context.Context, t task) (*figures, error) {
	plain, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer plain.close()
	counting, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer counting.close()
	err = errors.Join(t.program(ctx, plain, own.Options{MasqueradeBit: masqueradeBy}),
		t.program(ctx, counting, own.Options{MasqueradeBit: masqueradeBy, CountConnections: true}))
	if err != nil {
		return nil, err
	}
	t.logf("connections")
	to := netip.AddrPortFrom(clusterIP(0), servicePort)
	f := newFigures()
	return f, t.compare(f, []target{{name: directName, from: plain, to: to}, {name: "counted", from: counting, to: to}, {name: "again", from: plain, to: to}})
}

// program programs the Services of t in n, and starts a server there.
func (t task) program(ctx context.Context, n *network, o own.Options) error {
	r, err := newPipeline(n)
	if err != nil {
		return err
	}
	err = n.node.Do(func() (err error) {
		r.backend, err = own.New(service.IPv4, o)
		return err
	})
	if err != nil {
		return err
	}
	r.feed(t.Services)
	r.tracker.Synced()
	if _, err := r.apply(ctx); err != nil {
		return fmt.Errorf("program Services: %w", err)
	}
	return errors.Join(n.shortenConntrackTimeouts(), n.echo())
}

func countingRows() []row {
	const why = "Each first packet of a connection makes one more lookup, and adds to a counter."
	all := []row{}
	for _, r := range []struct{ label, name string }{{"counted", "counted"}, {"not counted, a second time", "again"}} {
		a := aim{}
		if r.name == "counted" {
			a = aim{times: 1.03}
		}
		all = append(all, row{label: "connection " + r.label + ", p50", metric: "connect." + r.name, unit: inSeconds, aim: a,
			floor: "connect.direct", ratio: "connect." + r.name + ".ratio", cited: true, why: why})
	}
	return all
}

const howCounting = `
Two networks in mode nftables: the rules of one count connections (` + "`--count-traffic`" + `). A second turn without counting
shows what is chance.
`

// measureSilence measures connections with all that helps when an endpoint dies, beside the
// same ones without.
func (b *bench) measureSilence(ctx context.Context, s *section) error {
	s.how = howSilence
	ours, remove, err := buildProgram(ctx)
	if err != nil {
		return err
	}
	defer remove()
	for _, mode := range []string{"nftables", "iptables"} {
		t := table{services: fewServices, base: "off", head: "on", rows: silenceRows(), title: "Mode " + mode}
		f, err := b.child(ctx, task{Role: roleEvidence, Services: t.services, Program: ours, Mode: mode})
		if err != nil {
			return err
		}
		t.add(roleOurs, f)
		s.add(b.out, t)
	}
	return nil
}

// measureEvidence runs the program in two networks, and stops the one that is not measured.
func measureEvidence(ctx context.Context, t task) (*figures, error) {
	var objects []any
	for i := range t.Services {
		objects = append(objects, newService(i), newSlice(i, numbers(perService)))
	}
	var targets []target
	var running []*process
	for _, x := range []struct {
		name  string
		flags []string
	}{{directName, []string{"--silent-endpoints=off", "--second-draw=false"}}, {"on", nil}} {
		n, err := newNetwork()
		if err != nil {
			return nil, err
		}
		defer n.close()
		dir, err := os.MkdirTemp("", "bench-silence-")
		if err != nil {
			return nil, fmt.Errorf("make temporary directory: %w", err)
		}
		defer os.RemoveAll(dir)
		if err := errors.Join(n.shortenConntrackTimeouts(), n.echo()); err != nil {
			return nil, err
		}
		p, err := t.run(ctx, n, dir, objects, append(x.flags, "--proxy-mode="+t.Mode)...)
		if err != nil {
			return nil, err
		}
		defer p.stop()
		running = append(running, p)
		targets = append(targets, target{name: x.name, from: n, to: netip.AddrPortFrom(clusterIP(0), servicePort), before: func() {
			for _, other := range running {
				_ = other.cmd.Process.Signal(unix.SIGSTOP)
			}
			_ = p.cmd.Process.Signal(unix.SIGCONT)
		}})
	}
	again := targets[0]
	again.name = "again"
	targets = append(targets, again)
	t.logf("mode %s: connections", t.Mode)
	f := newFigures()
	turns, err := takeTurns(targets, t.pick(300, 6), time.Duration(t.pick(30, 5))*time.Millisecond)
	for _, p := range running {
		_ = p.cmd.Process.Signal(unix.SIGCONT)
	}
	for _, x := range targets {
		turns.set(f, x.name, directName)
	}
	return f, err
}

// silenceLimit is what it may cost, as a multiple.
const silenceLimit = 1.01

func silenceRows() []row {
	var all []row
	for _, part := range []struct{ label, name string }{{"connect", "made."}, {"request", ""}} {
		for _, x := range []struct {
			label, name string
			aim         aim
		}{{part.label, "on", aim{times: silenceLimit}}, {part.label + ", off a second time", "again", aim{}}} {
			metric := "connect." + part.name + x.name
			all = append(all, row{label: x.label, metric: metric, unit: inSeconds, spread: true, aim: x.aim, cited: true,
				floor: "connect." + part.name + directName, ratio: metric + ".ratio"})
		}
	}
	return all
}

const howSilence = `
Two networks with the whole program, in turns: **on** is the default, **off** has ` + "`--silent-endpoints=off --second-draw=false`" + `,
and a second turn of it shows what is chance. Medians do not show the looks at connection tracking, which may take 1 % of a
processor. A ratio is the median of 300 rounds, and 95 % is where the true one is with that probability.
`
