// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command controlplane builds what the end-to-end tests run where it is missing: the
// control plane, the kube-proxy.exe that ours is compared with, and the Prometheus that
// reads our metrics. It prints the paths of the programs. Tests build them, too; here a
// person sees the progress, and no time limit of a test runs. Packages cluster and
// thirdparty know what is built and where it is kept.
//
// Each test starts a control plane of its own. A start took 2.3 s on two cores that
// others used as well, 1.3 s of processor time. Of the 27 starts of make check, 11 in
// test/apisource could be spared: 14 s of processor time in half an hour. The
// tests would then have to remove each other's Nodes, rights and ranges, and
// could not run in parallel, which saves more: test/apisource took 90 s
// instead of 186 s.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"

	"kubeproxy/test/cluster"
	"kubeproxy/test/thirdparty"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	programs, err := cluster.Build(ctx, os.Stderr)
	known := ""
	if err == nil {
		known, err = cluster.UpstreamProxy(ctx, os.Stderr)
	}
	scraper := ""
	if err == nil {
		scraper, err = thirdparty.Prometheus.Build(ctx, os.Stderr, "prometheus")
	}
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "controlplane:", err)
		os.Exit(1)
	}
	fmt.Printf("%s\n%s\n%s\n%s\n", programs.Etcd, programs.APIServer, known, filepath.Join(scraper, "prometheus"))
}
