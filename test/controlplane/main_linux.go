// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

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
