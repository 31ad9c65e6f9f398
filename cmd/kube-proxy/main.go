// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kube-proxy forwards the traffic of Kubernetes Services on one node.
// This package reads the command line and wires the parts together; each part
// does its work elsewhere.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"
)

func main() {
	// A second signal ends the process at once, as stop gives signals back.
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	code := execute(ctx, os.Args[1:], streams{os.Stdout, os.Stderr})
	klog.Flush()
	os.Exit(code)
}

// streams is where a command writes: results to out, everything else to err.
type streams struct{ out, err io.Writer }

// execute runs the command line args and returns the exit code.
func execute(ctx context.Context, args []string, to streams) int {
	root := newRoot(to)
	root.SetArgs(args)
	return codeOf(root.ExecuteContext(ctx), to.err)
}

// codeOf tells err, if there is something to tell, and returns the exit code.
func codeOf(err error, w io.Writer) int {
	end, coded := errors.AsType[*exit](err)
	if err != nil && (!coded || end.err != nil) {
		fmt.Fprintf(w, "kube-proxy: %v\n", err)
	}
	switch {
	case err == nil:
		return 0
	case coded:
		return end.code
	}
	return 1
}
