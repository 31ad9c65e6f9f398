// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/platform/linux/proc"
)

// otherProxies checks that at most one service proxy runs.
func (n *Node) otherProxies(ctx context.Context) (doctor.Seen, error) {
	var holder *lease.Identity
	if who, ok := n.Holder(ctx); ok {
		holder = &who
	}
	running := n.running()
	if holder == nil && n.Answered && len(running) == 1 {
		return doctor.Seen{Note: fmt.Sprintf("one runs, process %d", running[0].PID)}, nil
	}
	return proxySeen(running, holder, n.ProxyName), nil
}

// running lists the processes of service proxies, except this one.
func (n *Node) running() []proc.Process {
	return slices.DeleteFunc(proc.ByName(n.Proc, proxyName), isAnotherCommand)
}

// isAnotherCommand returns whether a process of the program runs a command such as
// status.
func isAnotherCommand(p proc.Process) bool {
	words := strings.Fields(p.Command)
	return len(words) > 1 && !strings.HasPrefix(words[1], "-")
}

// proxySeen decides what the processes of service proxies mean. holder is the proxy that
// holds the lease of this node, nil for none.
func proxySeen(running []proc.Process, holder *lease.Identity, name string) doctor.Seen {
	var others []proc.Process
	for _, p := range running {
		if holder == nil || p.PID != holder.PID {
			others = append(others, p)
		}
	}
	switch {
	case holder == nil && len(others) == 0:
		return doctor.Seen{Note: "none runs"}
	case len(others) == 0:
		return doctor.Seen{Note: fmt.Sprintf("one runs, process %d", cmp.Or(holder.PID, holder.OwnPID))}
	case name != "" || len(others) == 1 && holder == nil && namedProxy(others[0]):
		return doctor.Seen{Note: "each serves Services of its own"} // distinguished by labels of Services
	}
	f := doctor.Finding{Topic: doctor.OtherProxy, Subject: doctor.SubjectOtherProxy, Fix: fmt.Sprintf("kill %d", others[0].PID)}
	what := others[0].String()
	for _, p := range others[1:] {
		what += "; " + p.String()
		f.Fix += fmt.Sprintf(" %d", p.PID)
	}
	f.What = "another service proxy runs on this node: " + what
	if holder != nil {
		f.What = fmt.Sprintf("%s programs this node, and another service proxy runs: %s", holder, what)
	}
	f.Advice = "wait if a rolling update is under way; what starts it must stop, too: kubectl -n kube-system get daemonset lists the DaemonSets, systemctl the units"
	return doctor.Seen{Findings: []doctor.Finding{f}}
}

// namedProxy returns whether a proxy serves labelled Services only.
func namedProxy(p proc.Process) bool { return strings.Contains(p.Command, "--service-proxy-name") }

// Target is a place where a service proxy may have left rules.
type Target struct {
	Name string
	// Upstream is whether only kube-proxy of Kubernetes leaves something there.
	Upstream bool
	Find     func(context.Context) (string, error)
}

// leftovers checks for rules of earlier proxies. While a proxy runs, it removes them
// itself, and its conditions say what it cannot.
func (n *Node) leftovers(ctx context.Context) (doctor.Seen, error) {
	if _, runs := n.Holder(ctx); runs || n.Answered {
		return doctor.NothingToSee("the running proxy removes them; its conditions say what stays"), nil
	}
	if len(n.running()) > 0 {
		return doctor.NothingToSee("the rules are those of a proxy that runs"), nil
	}
	var seen doctor.Seen
	for _, t := range n.Targets {
		what, err := t.Find(ctx)
		if err != nil {
			return seen, fmt.Errorf("%s: %w", t.Name, err)
		}
		if what == "" {
			continue
		}
		f := doctor.Finding{Topic: doctor.Leftovers, Subject: t.Name, What: fmt.Sprintf("%s has what an earlier proxy left: %s", t.Name, what),
			Fix: n.CleanupCommand, Advice: "it removes the rules of every mode; to lose no connection, start the proxy in place of it, which removes them when its own rules are in force"}
		if t.Upstream {
			f.Fix, f.Advice = "", "start the proxy once: it removes them when its own rules are in force"
		}
		seen.Findings = append(seen.Findings, f)
	}
	seen.Note = fmt.Sprintf("%d places", len(n.Targets))
	return seen, nil
}
