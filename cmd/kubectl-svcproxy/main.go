// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-svcproxy is a plugin of kubectl. It finds the pods of the proxy and runs a
// command of kube-proxy in them. It runs kubectl for that, and so has its contexts and its
// rights. What many nodes answer is put together by the packages that print it on each.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"

	"kubeproxy/common/explain"
	"kubeproxy/common/printable"
	"kubeproxy/common/terminal"
)

const help = `Run a command of kube-proxy on Nodes, in the pods of the proxy there.

Usage:
  kubectl svcproxy [FLAGS] [--node NODE | --nodes LABELS] COMMAND [ARGUMENT...]

Examples:
  kubectl svcproxy status
  kubectl svcproxy status shop/web --nodes pool=blue
  kubectl svcproxy status --wait --timeout 5m
  kubectl svcproxy status --node node-a
  kubectl svcproxy explain pod/shop/cart-0 svc/shop/web:http
  kubectl svcproxy top shop/web --watch --node node-a
  kubectl svcproxy support-dump dump.tar.gz --nodes pool=blue

COMMAND is status, top, explain, diff, doctor, support-dump or another command of
kube-proxy; kubectl svcproxy COMMAND --help --node NODE describes it. diff, doctor,
explain and support-dump get the flags of the proxy. The archive of support-dump is
written here and not in the pod.

Without --node, status, doctor, top and support-dump ask all Nodes, or those with labels.
status prints a line for each: the worst first, then those whose version or number of
endpoints differs from most; --failing lists these alone. doctor prints equal findings
once, top adds up, support-dump writes FILE-NODE for each. With -o json, an object has
each node's answer or error. For other commands, the Node is that of the pod in explain
pod/NAMESPACE/NAME, or the only one that has the proxy. Where endpoints are on
other Nodes, explain goes on there, on three at most, with what arrives.

A pod is asked if the labels fit, and a DaemonSet that is there controls it in the same
namespace, with the network of the node and with the service account and the images of
that DaemonSet. Where such pods run in two namespaces, --namespace selects one.

You need the rights to list pods and daemonsets in the namespace of the proxy, in all
namespaces without --namespace, to get the pod of the proxy and that in explain
pod/NAMESPACE/NAME, to create pods/exec, and to list nodes, which tells those without
the proxy.

The exit code is that of the command, the highest of many, and 2 if it could not be run.

Flags ahead of COMMAND:
      --node NODE            the Node; it may stand behind COMMAND, too
  -l, --nodes LABELS         Nodes; it may stand behind COMMAND, too, where -l of status is
                             about Services
  -n, --namespace NAMESPACE  of the pods of the proxy (all namespaces)
      --pods LABELS          of the pods of the proxy (app.kubernetes.io/name=kubeproxy)
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
	code := 0
	if err == nil {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
		defer stop()
		code, err = p.run(ctx, out, problems)
	}
	if err != nil {
		fmt.Fprintln(problems, "kubectl svcproxy:", printable.Error(err))
		return exitFailed
	}
	return code
}

// warn prints what does not end the command.
func (*plugin) warn(problems io.Writer, err error) {
	fmt.Fprintln(problems, "kubectl svcproxy: warning:", printable.Error(err))
}

// plugin is one run.
type plugin struct {
	help      bool
	node      string
	nodes     string // the labels of Nodes
	namespace string // empty for all
	pods      string // the labels of pods
	container string
	kubectl   []string // flags for kubectl
	command   []string // of kube-proxy
}

// passed are the flags that kubectl gets.
var passed = []string{"--context", "--kubeconfig", "--cluster", "--user", "--as", "--request-timeout"}

// parse reads the arguments. Flags behind the command are its own, but --node is ours.
func parse(args []string) (*plugin, error) {
	p := &plugin{pods: "app.kubernetes.io/name=kubeproxy", container: "kube-proxy"}
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		name, value, given := strings.Cut(args[0], "=")
		args = args[1:]
		if name == "-h" || name == "--help" {
			p.help = true
			return p, nil
		}
		to := p.flag(name)
		if to == nil && !slices.Contains(passed, name) {
			return nil, fmt.Errorf("unknown flag %s ahead of the command: want --node, --nodes, --namespace, --pods, --container, %s", name, strings.Join(passed, ", "))
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
	case "-l", "--nodes":
		return &p.nodes
	case "--pods":
		return &p.pods
	case "-c", "--container":
		return &p.container
	}
	return nil
}

// setCommand takes --node and --nodes out of the arguments of the command.
func (p *plugin) setCommand(args []string) error {
	for len(args) > 0 {
		name, value, given := strings.Cut(args[0], "=")
		nodes := name == "--nodes" || (name == "-l" || name == "--selector") && len(p.command) > 0 && p.command[0] != "status"
		if nodes {
			name = "--nodes"
		}
		if name != "--node" && !nodes {
			p.command, args = append(p.command, args[0]), args[1:]
			continue
		}
		args = args[1:]
		if !given && len(args) == 0 {
			return fmt.Errorf("%s: want %s", name, map[string]string{"--node": "the name of a Node", "--nodes": "labels of Nodes"}[name])
		}
		if !given {
			value, args = args[0], args[1:]
		}
		*p.flag(name) = value
	}
	if len(p.command) == 0 {
		return fmt.Errorf("want a command of kube-proxy, such as status; --help lists them")
	}
	if p.node != "" && p.nodes != "" {
		return fmt.Errorf("--node is one Node, and --nodes are those with labels: want one of them")
	}
	return nil
}

// ask runs kubectl and returns what it prints.
func (p *plugin) ask(args ...string) ([]byte, error) {
	cmd := exec.Command("kubectl", append(slices.Clone(p.kubectl), args...)...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, lastLine(problems.Bytes(), "no reason is given"))
	}
	return out, nil
}

// askedPod returns the pod that explain asks about, nil if it asks about none.
func (p *plugin) askedPod() (*pod, error) {
	if p.command[0] != "explain" {
		return nil, nil
	}
	i := slices.IndexFunc(p.command, func(arg string) bool { return strings.HasPrefix(arg, "pod/") })
	if i < 0 {
		return nil, nil
	}
	id := strings.TrimPrefix(p.command[i], "pod/")
	namespace, name, whole := strings.Cut(id, "/")
	if !whole {
		return nil, nil // kube-proxy says how to write it
	}
	out, err := p.ask("get", "pod", "--namespace="+namespace, "--output=json", "--", name)
	if err != nil {
		return nil, err
	}
	var found pod
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("read pod %s: %w", id, err)
	}
	if len(found.Status.PodIPs) == 0 {
		return nil, fmt.Errorf("pod %s has no address yet: its phase is %s", id, found.Status.Phase)
	}
	return &found, nil
}

// flagsOfPod returns what explain would look up of a pod that is no endpoint. In the pod of
// the proxy, it has the rights of the proxy, who may not read pods.
func flagsOfPod(asked *pod) []string {
	if asked == nil {
		return nil
	}
	var all []string
	for _, x := range asked.Status.PodIPs {
		all = append(all, "--pod-address="+x.IP)
	}
	return append(all, "--pod-node="+asked.Spec.NodeName)
}

// run runs the command where it belongs, and returns its exit code.
func (p *plugin) run(ctx context.Context, out, problems io.Writer) (int, error) {
	if fleets[p.command[0]] != nil && p.node == "" && !slices.ContainsFunc(p.command, isHelp) {
		return p.all(ctx, out, problems)
	}
	if p.nodes != "" {
		return 0, fmt.Errorf("%s runs on one Node: want --node in place of --nodes", p.command[0])
	}
	return p.one(ctx, out, problems)
}

func isHelp(arg string) bool { return arg == "--help" || arg == "-h" }

// one finds the pod and runs the command in it.
func (p *plugin) one(ctx context.Context, out, problems io.Writer) (code int, err error) {
	asked, err := p.askedPod()
	switch {
	case err != nil && p.node == "":
		return 0, err
	case err != nil: // the proxy may know the pod
		p.warn(problems, err)
	case asked != nil && p.node == "":
		p.node = asked.Spec.NodeName
	}
	ours, _, err := p.find(problems)
	if err != nil {
		return 0, err
	}
	at, err := p.pick(ours)
	if err != nil {
		return 0, err
	}
	file, args, err := p.archive()
	if err != nil {
		return 0, err
	}
	if file != nil {
		defer func() { err = errors.Join(err, p.keep(file, out)) }()
	}
	settings := flagsOfPod(asked)
	if code, err = p.attach(at, args, settings, streams{out, problems, file}); err != nil || args[0] != "explain" {
		return code, err
	}
	second, err := p.secondHalf(ctx, at, settings, streams{out, problems, nil})
	return max(code, second), err
}

// streams are what a command writes to.
type streams struct {
	out, problems io.Writer
	archive       *os.File // in place of out, unless nil
}

// attach runs a command in a pod, and gives it the terminal.
func (p *plugin) attach(at *pod, args, settings []string, to streams) (int, error) {
	var flags []string
	attached := to.archive == nil && terminal.Attached(os.Stdin) && terminal.Attached(os.Stdout)
	if attached { // for colours, and so that an interrupt ends the command in the pod
		flags = append(flags, "--stdin", "--tty")
	}
	cmd, err := p.exec(at, args, flags, settings)
	if err != nil {
		return 0, err
	}
	fmt.Fprintf(to.problems, "kubectl svcproxy: pod %s on node %s\n", at, at.Spec.NodeName)
	cmd.Stdout, cmd.Stderr = printable.Writer(to.out), printable.Writer(to.problems)
	switch {
	case to.archive != nil:
		cmd.Stdout = to.archive
	case args[0] == "support-dump" && args[len(args)-1] == "-": // an archive, no text
		cmd.Stdout = to.out
	case attached:
		cmd.Stdin, cmd.Stdout = os.Stdin, printable.Terminal(to.out)
	}
	err = cmd.Run()
	if ended, is := errors.AsType[*exec.ExitError](err); is && ended.Exited() {
		return ended.ExitCode(), nil // kubectl has printed why
	}
	return 0, err
}

// mostHalves is on how many other nodes explain goes on.
const mostHalves = 3

// secondHalf explains, on the other nodes that have endpoints, what becomes of the translated
// connection to the first one there.
func (p *plugin) secondHalf(ctx context.Context, at *pod, settings []string, to streams) (code int, err error) {
	format, args := option(p.command, "--output", "-o")
	_, args = given(args, "--probe", "--probe=true")
	cmd, err := p.exec(at, append(args, "--output=json"), nil, settings)
	if err != nil {
		return 0, err
	}
	answer, problems := &bounded{most: mostAnswer}, &bounded{most: 1 << 16}
	err = runFor(ctx, cmd, timeOf(args), answer, problems)
	var x explain.Explanation
	text, _, why := read(answer.text, problems.text, err)
	if why != "" || json.Unmarshal(text, &x) != nil {
		return 0, nil // the first half says why
	}
	seen := map[string]bool{"": true, at.Spec.NodeName: true}
	for _, e := range x.Endpoints {
		if !e.Chosen || seen[e.Node] || len(seen) == 2+mostHalves {
			continue
		}
		seen[e.Node] = true
		half := []string{"explain", sourceThere(&x, &e, at), strings.TrimSuffix(e.Address+"/"+strings.ToLower(x.Protocol), "/tcp")}
		if format != "" {
			half = append(half, "--output="+format)
		}
		second, err := p.goOn(e, half, to)
		if err != nil {
			return 0, err
		}
		code = max(code, second)
	}
	return code, nil
}

// goOn explains on the node of an endpoint, if that has the proxy.
func (p *plugin) goOn(e explain.Endpoint, half []string, to streams) (int, error) {
	fmt.Fprintf(to.problems, "kubectl svcproxy: endpoint %s is on node %s, which gets this:\n", printable.Text(e.Address), printable.Text(e.Node))
	p.node = e.Node
	ours, _, err := p.find(to.problems)
	var there *pod
	if err == nil {
		there, err = p.pick(ours)
	}
	if err != nil {
		p.warn(to.problems, err)
		return 0, nil
	}
	fmt.Fprintln(to.out)
	return p.attach(there, half, nil, to)
}

// sourceThere is the address that the endpoint sees: of the client, or of the client's node.
func sourceThere(x *explain.Explanation, e *explain.Endpoint, at *pod) string {
	target, err := netip.ParseAddrPort(e.Address)
	for _, own := range at.Status.PodIPs {
		if a, bad := netip.ParseAddr(own.IP); e.Client != "kept" && err == nil && bad == nil && a.Is4() == target.Addr().Is4() {
			return own.IP
		}
	}
	return x.Source
}

// exec returns kubectl exec, with flags, of a command in a pod, with settings behind its name.
func (p *plugin) exec(at *pod, args, flags, settings []string) (*exec.Cmd, error) {
	c, exe, err := at.container(p.container)
	if err != nil {
		return nil, err
	}
	settings = append(flagsFor(args[0], c, at.Spec.NodeName), settings...)
	command := slices.Concat([]string{at.Metadata.Name, "--", exe, args[0]}, settings, args[1:])
	flags = append([]string{"exec", "--namespace=" + at.Metadata.Namespace, "--container=" + p.container}, flags...)
	return exec.Command("kubectl", slices.Concat(p.kubectl, flags, command)...), nil
}

// flagsFor returns the proxy's flags that a command needs to see the node as the proxy does.
func flagsFor(command string, c *container, node string) []string {
	var all []string
	for _, a := range c.Args {
		a = strings.ReplaceAll(a, "$(NODE_NAME)", node)
		switch command {
		case "status", "top": // the address of the proxy
			if strings.HasPrefix(a, "--config=") {
				all = append(all, a)
			}
		case "explain", "diff", "doctor", "support-dump":
			all = append(all, a)
		}
	}
	return all
}

// archive returns the file here that takes the archive of support-dump, nil for other
// commands, and the arguments of the command in the pod.
func (p *plugin) archive() (*os.File, []string, error) {
	if p.command[0] != "support-dump" || slices.ContainsFunc(p.command, isHelp) {
		return nil, p.command, nil
	}
	name, args := p.archiveName()
	if name == "" {
		return nil, args, nil
	}
	file, err := create(name)
	return file, args, err
}

// archiveName returns the FILE of support-dump, "" for standard output, and the arguments
// that have the archive written to standard output in the pod.
func (p *plugin) archiveName() (string, []string) {
	args := slices.Clone(p.command)
	switch last := args[len(args)-1]; {
	case last == "-":
		return "", args
	case len(args) == 1 || strings.HasPrefix(last, "-"):
		return "kube-proxy-support.tar.gz", append(args, "-")
	default:
		args[len(args)-1] = "-"
		return last, args
	}
}

// create makes a file that was not there, for its owner alone.
func create(name string) (*os.File, error) {
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("write the archive: %w", err)
	}
	return file, nil
}

// keep names the archive, or removes it if it is empty.
func (p *plugin) keep(file *os.File, out io.Writer) error {
	stat, err := file.Stat()
	if err = errors.Join(err, file.Close()); err != nil {
		return err
	}
	if stat.Size() == 0 {
		return os.Remove(file.Name())
	}
	fmt.Fprintln(out, file.Name())
	return nil
}
