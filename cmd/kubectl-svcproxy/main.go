// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-svcproxy is a plugin of kubectl. It finds the pod of the proxy on a Node
// and runs a command of kube-proxy in it. It runs kubectl for that, and so has its contexts
// and its rights, and links nothing but the standard library and package printable.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

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

// plugin is one run.
type plugin struct {
	help      bool
	node      string
	namespace string // empty for all
	selector  string
	container string
	kubectl   []string // flags for kubectl
	command   []string // of kube-proxy
}

// passed are the flags that kubectl gets.
var passed = []string{"--context", "--kubeconfig", "--cluster", "--user", "--as", "--request-timeout"}

// parse reads the arguments. Flags behind the command belong to that, except for --node,
// which kube-proxy does not have.
func parse(args []string) (*plugin, error) {
	p := &plugin{selector: "app.kubernetes.io/name=kubeproxy", container: "kube-proxy"}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, given := strings.Cut(args[0], "=")
		args = args[1:]
		if name == "-h" || name == "--help" {
			p.help = true
			return p, nil
		}
		to := p.flag(name)
		if to == nil && !slices.Contains(passed, name) {
			return nil, fmt.Errorf("unknown flag %s ahead of the command: want --node, --namespace, --selector, --container, %s", name, strings.Join(passed, ", "))
		}
		if !given {
			if len(args) == 0 {
				return nil, fmt.Errorf("%s: want a value", name)
			}
			value, args = args[0], args[1:]
		}
		if to == nil {
			p.kubectl = append(p.kubectl, name+"="+value)
			continue
		}
		*to = value
	}
	err := p.setCommand(args)
	return p, err
}

// flag returns what a flag of the plugin sets, nil for another flag.
func (p *plugin) flag(name string) *string {
	switch name {
	case "--node":
		return &p.node
	case "-n", "--namespace":
		return &p.namespace
	case "-l", "--selector":
		return &p.selector
	case "-c", "--container":
		return &p.container
	}
	return nil
}

// setCommand takes --node out of the arguments of the command.
func (p *plugin) setCommand(args []string) error {
	for len(args) > 0 {
		a := args[0]
		args = args[1:]
		value, given := strings.CutPrefix(a, "--node=")
		switch {
		case given:
			p.node = value
		case a == "--node" && len(args) == 0:
			return fmt.Errorf("--node: want the name of a Node")
		case a == "--node":
			p.node, args = args[0], args[1:]
		default:
			p.command = append(p.command, a)
		}
	}
	if len(p.command) == 0 {
		return fmt.Errorf("want a command of kube-proxy, such as status; --help lists them")
	}
	return nil
}
