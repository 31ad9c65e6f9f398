// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"

	"kubeproxy/common/printable"
)

const help = `Run a command of kube-proxy on a Node, in the pod of the proxy there.

Usage:
  kubectl svcproxy [FLAGS] [--node NODE] COMMAND [ARGUMENT...]

Examples:
  kubectl svcproxy --node node-a status
  kubectl svcproxy explain pod/shop/cart-0 svc/shop/web:http
  kubectl svcproxy doctor --node node-a
  kubectl svcproxy top shop/web --watch --node node-a
  kubectl svcproxy support-dump dump.tar.gz --node node-a

COMMAND is status, top, explain, diff, doctor, support-dump or another command of
kube-proxy; kubectl svcproxy COMMAND --help --node NODE describes it. diff, doctor,
explain and support-dump get the flags of the proxy. The archive of support-dump is
written here and not in the pod.

Without --node, the Node is that of the pod in explain pod/NAMESPACE/NAME, or the
only one that has the proxy. The pod is one with the labels that a DaemonSet controls,
in the network of the node and with the service account of the release; standard error
names it. Where such pods run in two namespaces, --namespace selects one.

You need the rights to list pods in the namespace of the proxy, in all namespaces without
--namespace, to get the pod of the proxy and that in explain pod/NAMESPACE/NAME, and to
create pods/exec.

The exit code is that of the command, and 2 if it could not be run.

Flags ahead of COMMAND:
      --node NODE            the Node; it may stand behind COMMAND, too
  -n, --namespace NAMESPACE  of the pods of the proxy (all namespaces)
  -l, --selector LABELS      of the pods of the proxy (app.kubernetes.io/name=kubeproxy)
  -c, --container NAME       of the proxy (kube-proxy)
      --context, --kubeconfig, --cluster, --user, --as, --request-timeout
                             are given to kubectl
  -h, --help                 print this text
`

// exitFailed is the exit code if no command ran.
const exitFailed = 2

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, out, problems io.Writer) int {
	p, err := parse(args)
	if err == nil && p.help {
		fmt.Fprint(out, help)
		return 0
	}
	if err == nil {
		err = p.run(out, problems)
	}
	var ended *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errInPod) && errors.As(err, &ended) && ended.Exited():
		return ended.ExitCode() // kubectl has printed it
	}
	fmt.Fprintln(problems, "kubectl svcproxy:", printable.Error(err))
	return exitFailed
}
