// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// requirement is a feature that our rules use.
type requirement struct{ name, table, rule string }

// requirements are what the rules of any node need. With a relay, only the first
// relayRequirements of them are needed. Session affinity also needs the match recent;
// without it, only Services with affinity are refused.
var requirements = []requirement{
	{"match comment (kernel module xt_comment)", nat, "-m comment --comment probe -j RETURN"},
	{"match tcp (kernel module xt_tcpudp)", nat, "-p tcp -m tcp --dport 1 -j RETURN"},
	{"match conntrack (kernel module xt_conntrack)", filter, "-m conntrack --ctstate NEW -j RETURN"},
	{"match addrtype (kernel module xt_addrtype)", nat, "-m addrtype --dst-type LOCAL -j RETURN"},
	{"match mark (kernel module xt_mark)", filter, "-m mark --mark 0x1/0x1 -j RETURN"},
	{"target DNAT (kernel module xt_nat)", nat, "-p tcp -j DNAT --to-destination :1"},
	{"target REJECT (kernel module ipt_REJECT or ip6t_REJECT)", filter, "-p tcp -j REJECT --reject-with tcp-reset"},
	{"match statistic (kernel module xt_statistic)", nat, "-m statistic --mode random --probability 0.5 -j RETURN"},
	{"match bpf (kernel module xt_bpf)", nat, "-m bpf --bytecode \"1,6 0 0 0\" -j RETURN"},
	{"target MARK (kernel module xt_mark)", nat, "-j MARK --set-xmark 0x1/0x1"},
	{"target MASQUERADE with --random-fully (kernel module xt_MASQUERADE)", nat, "-j MASQUERADE --random-fully"},
}

// relayRequirements is the number of requirements that apply with a relay.
const relayRequirements = 7

// requirements returns those of l's rules.
func (l layout) requirements() []requirement {
	switch {
	case l.relays():
		return requirements[:relayRequirements]
	case l.isIPVS():
		return append(requirements[:len(requirements):len(requirements)], requirement{"match set (kernel module xt_set)", nat, l.inSet(SetVirtualIPs, "dst") + "-j RETURN"})
	}
	return requirements
}

// probeTimeout limits the run time of a command.
const probeTimeout = 30 * time.Second

// Probe checks whether the node has an iptables that accepts our rules for f. It changes
// nothing. The error is one sentence that describes what is missing. Probe tries the
// rules in a network namespace of its own. If it cannot create one, only the command
// checks the rules, not the kernel.
func Probe(f service.Family, o Options) error {
	return ProbeWith(f, o, func() error { return nil })
}

// ProbeWith is Probe for rules that refer to objects which prepare creates first, in the
// private network namespace. Without such a namespace it does not try them.
func ProbeWith(f service.Family, o Options, prepare func() error) error {
	r := &runner{family: f, role: o.Role, isolated: true}
	if err := r.open(); err != nil {
		return fmt.Errorf("iptables for %s: %w", f, err)
	}
	defer r.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		done <- r.probeIsolated(layout{family: f, options: o}, prepare)
	}()
	return <-done
}

// probeIsolated runs probe in a network namespace of its own thread.
func (r *runner) probeIsolated(l layout, prepare func() error) error {
	args := []string{"--noflush", "-w", lockSeconds}
	if unix.Unshare(unix.CLONE_NEWNET) != nil {
		if l.isIPVS() {
			return nil // the test would need sets outside of a private namespace
		}
		args = append(args, "--test")
	} else if err := prepare(); err != nil {
		return err
	}
	if err := r.probe(l, args); err != nil {
		return fmt.Errorf("iptables for %s: %w", l.family, err)
	}
	return nil
}

// probe restores the rules that any node has. If they are refused, it finds the cause.
func (r *runner) probe(l layout, args []string) error {
	needs := l.requirements()
	rules := Document(r.family, service.New(0, &service.Node{NodePorts: service.AnyAddress()}, nil), l.options).Objects().String()
	for _, n := range needs {
		rules += n.text()
	}
	allErr := r.tryRestore(rules, args)
	if allErr == nil || errors.Is(allErr, ErrBusy) || errors.Is(allErr, errNoSocket) {
		return allErr
	}
	var missing []string
	var first error // the error for all rules would contain a word about each
	for _, n := range needs {
		if err := r.tryRestore(n.text(), args); err != nil {
			missing = append(missing, n.name)
			first = cmp.Or(first, err)
		}
	}
	if first == nil {
		return fmt.Errorf("the command refuses the rules: %w", allErr)
	}
	return fmt.Errorf("there is no %s: %w", strings.Join(missing, ", no "), first)
}

func (r *runner) tryRestore(text string, args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	return r.run(ctx, text, args...)
}

// text returns the iptables-restore input that tests n, in a chain that nothing uses.
func (n requirement) text() string {
	return "*" + n.table + "\n:KUBE-PROBE - [0:0]\n-A KUBE-PROBE " + n.rule + "\nCOMMIT\n"
}
