// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubectl-svcproxy is a plugin of kubectl. It finds the pod of the proxy on a Node
// and runs a command of kube-proxy in it. It runs kubectl for that, and so has its contexts
// and its rights, and links nothing but the standard library and package printable.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

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

// parse reads the arguments. Flags behind the command are its own, but --node is ours.
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

// pod is what is read of a Pod.
type pod struct {
	Metadata struct {
		Namespace         string            `json:"namespace"`
		Name              string            `json:"name"`
		Labels            map[string]string `json:"labels"`
		CreationTimestamp time.Time         `json:"creationTimestamp"`
		DeletionTimestamp *string           `json:"deletionTimestamp"`
		OwnerReferences   []struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		NodeName           string      `json:"nodeName"`
		HostNetwork        bool        `json:"hostNetwork"`
		ServiceAccountName string      `json:"serviceAccountName"`
		Containers         []container `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase  string `json:"phase"`
		PodIPs []struct {
			IP string `json:"ip"`
		} `json:"podIPs"`
	} `json:"status"`
}

type container struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
}

func (p *pod) String() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// notOurs returns why a pod with the proxy's labels, which anybody can set, is not one of the
// chart's. In the node's network it needs Pod Security's level "privileged".
func (p *pod) notOurs() string {
	account := p.Metadata.Labels["app.kubernetes.io/name"] // the chart names both after the release
	switch {
	case len(p.Metadata.OwnerReferences) == 0:
		return "no DaemonSet controls it"
	case !p.Spec.HostNetwork:
		return "it is not in the network of the node"
	case account != "" && p.Spec.ServiceAccountName != account:
		return fmt.Sprintf("its service account is %q, not %q", p.Spec.ServiceAccountName, account)
	}
	for _, o := range p.Metadata.OwnerReferences {
		if o.Controller && o.Kind == "DaemonSet" && strings.HasPrefix(o.APIVersion, "apps/") {
			return ""
		}
	}
	return "no DaemonSet controls it"
}

// container returns the one of that name, and the path of the proxy's program in it, no other.
func (p *pod) container(name string) (*container, string, error) {
	i := slices.IndexFunc(p.Spec.Containers, func(c container) bool { return c.Name == name })
	if i < 0 {
		return nil, "", fmt.Errorf("pod %s has no container %s: want --container NAME", p, name)
	}
	c := &p.Spec.Containers[i]
	if len(c.Command) == 0 {
		return c, "kube-proxy", nil
	}
	exe := c.Command[0]
	if base := exe[strings.LastIndexAny(exe, `/\`)+1:]; base != "kube-proxy" && base != "kube-proxy.exe" {
		return nil, "", fmt.Errorf("container %s of pod %s runs %q: want one that runs kube-proxy; --selector, --namespace or --container select another", name, p, exe)
	}
	return c, exe, nil
}

// ask runs kubectl and returns what it prints.
func (p *plugin) ask(args ...string) ([]byte, error) {
	cmd := exec.Command("kubectl", append(slices.Clone(p.kubectl), args...)...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(problems.String()))
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

// find returns the pod of the proxy on the Node.
func (p *plugin) find(problems io.Writer) (*pod, error) {
	args := []string{"get", "pods", "--output=json", "--selector=" + p.selector}
	if p.namespace == "" {
		args = append(args, "--all-namespaces")
	} else {
		args = append(args, "--namespace="+p.namespace)
	}
	if p.node != "" {
		args = append(args, "--field-selector=spec.nodeName="+p.node)
	}
	out, err := p.ask(args...)
	switch {
	case err != nil && p.namespace == "" && strings.Contains(err.Error(), "(Forbidden)"):
		return nil, fmt.Errorf("%w: want the right to list pods in all namespaces, or --namespace with that of the proxy", err)
	case err != nil:
		return nil, err
	}
	var list struct {
		Items []pod `json:"items"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("read the pods of the proxy: %w", err)
	}
	return p.pick(list.Items, problems)
}

// pick returns the pod that runs on the Node, the newest one during an update.
func (p *plugin) pick(all []pod, problems io.Writer) (*pod, error) {
	nodes, namespaces := map[string]bool{}, map[string]bool{}
	var best *pod
	for i := range all {
		x := &all[i]
		if x.Status.Phase != "Running" || x.Metadata.DeletionTimestamp != nil {
			continue
		}
		if why := x.notOurs(); why != "" {
			fmt.Fprintf(problems, "kubectl svcproxy: warning: pod %s is not asked, though it has labels %s: %s\n", x, p.selector, why)
			continue
		}
		nodes[x.Spec.NodeName], namespaces[x.Metadata.Namespace] = true, true
		if best == nil || x.Metadata.CreationTimestamp.After(best.Metadata.CreationTimestamp) {
			best = x
		}
	}
	switch {
	case best == nil && p.node != "":
		return nil, fmt.Errorf("no pod with labels %s runs on node %s: want --node with a Node that has the proxy, or --selector, --namespace", p.selector, p.node)
	case best == nil:
		return nil, fmt.Errorf("no pod with labels %s runs in %s: want --selector, --namespace of the proxy", p.selector, cmp.Or(p.namespace, "any namespace"))
	case len(namespaces) > 1:
		return nil, errors.New("pods with labels " + p.selector + " run in more than one namespace: want --namespace NAMESPACE of the proxy, one of " + someOf(namespaces))
	case len(nodes) > 1:
		return nil, errors.New("want --node NODE, one of " + someOf(nodes))
	}
	return best, nil
}

// someOf lists names, not all of a large cluster.
func someOf(set map[string]bool) string {
	const most = 20
	var names []string
	for n := range set {
		names = append(names, n)
	}
	slices.Sort(names)
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}

// errInPod marks that kubectl exec failed. Its exit code is that of the command.
var errInPod = errors.New("kubectl exec")

// run finds the pod and runs the command in it.
func (p *plugin) run(out, problems io.Writer) (err error) {
	asked, err := p.askedPod()
	switch {
	case err != nil && p.node == "":
		return err
	case err != nil: // the proxy may know the pod
		fmt.Fprintln(problems, "kubectl svcproxy: warning:", printable.Error(err))
	case asked != nil && p.node == "":
		p.node = asked.Spec.NodeName
	}
	at, err := p.find(problems)
	if err != nil {
		return err
	}
	c, exe, err := at.container(p.container)
	if err != nil {
		return err
	}
	file, args, err := p.archive()
	if err != nil {
		return err
	}
	fmt.Fprintf(problems, "kubectl svcproxy: pod %s on node %s\n", at, at.Spec.NodeName)
	command := append([]string{exe, args[0]}, flagsFor(args[0], c, at.Spec.NodeName)...)
	command = slices.Concat(command, flagsOfPod(asked), args[1:])
	flags := []string{"exec", "--namespace=" + at.Metadata.Namespace, "--container=" + p.container}
	terminal := file == nil && isTerminal(os.Stdin) && isTerminal(os.Stdout)
	if terminal { // for colours, and so that an interrupt ends the command in the pod
		flags = append(flags, "--stdin", "--tty")
	}
	cmd := exec.Command("kubectl", slices.Concat(p.kubectl, flags, []string{at.Metadata.Name, "--"}, command)...)
	cmd.Stdout, cmd.Stderr = printable.Writer(out), printable.Writer(problems)
	switch {
	case file != nil:
		cmd.Stdout = file
		defer func() { err = errors.Join(err, p.keep(file, out)) }()
	case args[0] == "support-dump" && args[len(args)-1] == "-": // an archive, no text
		cmd.Stdout = out
	case terminal:
		cmd.Stdin, cmd.Stdout = os.Stdin, printable.Terminal(out)
	}
	if err = cmd.Run(); err != nil {
		return fmt.Errorf("%w: %w", errInPod, err)
	}
	return nil
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
	args := slices.Clone(p.command)
	last := args[len(args)-1]
	if args[0] != "support-dump" || last == "-" || slices.Contains(args, "--help") || slices.Contains(args, "-h") {
		return nil, args, nil
	}
	name := last
	if len(args) == 1 || strings.HasPrefix(last, "-") {
		name, args = "kube-proxy-support.tar.gz", append(args, "-")
	} else {
		args[len(args)-1] = "-"
	}
	file, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("write the archive: %w", err)
	}
	return file, args, nil
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

// isTerminal reports whether a person reads or types.
func isTerminal(f *os.File) bool {
	stat, err := f.Stat()
	return err == nil && stat.Mode()&os.ModeCharDevice != 0
}
