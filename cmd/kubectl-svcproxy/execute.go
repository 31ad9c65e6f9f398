// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

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

// flagsFor returns those flags of the proxy that a command of kube-proxy needs to see the
// node as the proxy does.
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
