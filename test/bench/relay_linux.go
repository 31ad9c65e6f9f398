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
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/userspace"
)

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
func (r *relay) start(ctx context.Context, dir string) error {
	var manifests bytes.Buffer
	for i, port := range []int32{targetPort, sinkPort} {
		s := newSlice(i, numbers(1))
		*s.Ports[0].Port = port
		for _, object := range []any{newService(i), s} {
			text, err := json.Marshal(object)
			if err != nil {
				return err
			}
			manifests.WriteString("---\n" + string(text) + "\n")
		}
	}
	file := filepath.Join(dir, "services.yaml")
	if err := os.WriteFile(file, manifests.Bytes(), 0o600); err != nil {
		return fmt.Errorf("write manifests: %w", err)
	}
	// With a lock of its own, it does not wait for a firewall of the machine.
	if err := os.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock")); err != nil {
		return err
	}
	r.process = &process{log: filepath.Join(dir, "log")}
	err := r.process.launch(r.network.node, r.Program.Path, "--manifests="+file, "--proxy-mode=userspace",
		"--hostname-override="+ownNode, "--cluster-cidr="+clusterCIDR, "--iptables-localhost-nodeports=false", "--conntrack-max-per-core=0")
	if err != nil {
		return err
	}
	deadline := time.Now().Add(servedLimit)
	for now := range ticks(ctx, 50*time.Millisecond) {
		switch {
		case r.answers():
			return nil
		case r.process.ended():
			return fmt.Errorf("the program has ended: %w", r.process.logTail())
		case now.After(deadline):
			return fmt.Errorf("no answer through the program: %w", errors.Join(errSlow, r.process.logTail()))
		}
	}
	return ctx.Err()
}

func (r *relay) answers() bool {
	return r.network.client.Do(func() error {
		_, _, err := transact(r.echoes(), make([]byte, message), time.Second)
		return err
	}) == nil
}

// echoes is the Service whose endpoint answers.
func (r *relay) echoes() *unix.SockaddrInet4 {
	return &unix.SockaddrInet4{Port: servicePort, Addr: clusterIP(0).As4()}
}

// flows measures one long flow through the relay beside a direct one, in pairs.
func (r *relay) flows(ctx context.Context, f *figures) error {
	r.logf("flows")
	var direct, through, ratios, cpu []float64
	worst := math.Inf(1)
	for range r.pick(16, 2) {
		d, err := r.flow(ctx, netip.AddrPortFrom(endpointIP(1, 0), sinkPort))
		if err != nil {
			return err
		}
		before := r.process.usedCPU()
		x, err := r.flow(ctx, netip.AddrPortFrom(clusterIP(1), servicePort))
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

// flow sends as much as it can from the client.
func (r *relay) flow(ctx context.Context, to netip.AddrPort) (flow, error) {
	conn, err := r.network.client.Dial(ctx, "tcp", to.String())
	if err != nil {
		return flow{}, err
	}
	defer conn.Close()
	block := make([]byte, 1<<18)
	long := time.Duration(r.pick(2000, 100)) * time.Millisecond
	var x flow
	for began := time.Now(); x.took < long; x.took = time.Since(began) {
		n, err := conn.Write(block)
		if err != nil {
			return x, fmt.Errorf("send to %s: %w", to, err)
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
			fd, err := dialAndTalk(r.echoes())
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
