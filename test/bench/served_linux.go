// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
