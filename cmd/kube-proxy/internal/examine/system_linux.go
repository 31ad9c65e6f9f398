// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package examine

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
	"kubeproxy/config"
	linuxdoctor "kubeproxy/platform/linux/doctor"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/socketlb"
	"kubeproxy/platform/mode"
)

// setClockCommand sets the clock of the node.
const setClockCommand = "chronyc makestep"

// startAdvice says how to start a proxy on the node.
const startAdvice = "systemctl status kube-proxy, or kubectl -n kube-system get pods -o wide --field-selector spec.nodeName=%s, says why none runs; systemctl start kube-proxy starts it where it is a unit"

// systemChecks returns the checks of a Linux node, and adds what it has of a proxy that is silent.
func systemChecks(ctx context.Context, x *Examination, want services, silent *doctor.Silent) ([]doctor.Check, error) {
	targets, err := foreignTargets(ctx, x)
	if err != nil {
		return nil, err
	}
	n := &linuxdoctor.Node{
		Files: os.DirFS("/"), Proc: os.DirFS("/proc"), Writable: linuxdoctor.Writable, Kernel: linuxdoctor.Netlink{},
		Settings: host.Settings(x.config), ProxyName: x.config.ProxyName, Services: want, Holder: x.holder, Answered: x.proxy.Answer != nil, AnsweredAt: x.answeredAt(), BeforeStart: x.options.BeforeStart,
		Servers: serversOf(x.config), Targets: targets, CleanupCommand: ownCommand() + " --cleanup", IPTables: iptablesVariants,
		Acceleration: acceleration(x),
		Route: func(to netip.Addr) error {
			err := host.Route(to)
			return err
		},
	}
	for _, m := range x.modes {
		n.Modes = append(n.Modes, linuxdoctor.Mode{
			Name: string(m.Name), Primary: mode.PrimaryFamily(x.config), Optional: len(x.modes) > 1 && m.Name != x.config.Mode,
			Relays: m.Relays, XTables: m.XTables, Routes: m.Routes,
			Probe: func(f service.Family) error { return probeMode(x.config, m, f) },
		})
		if m.System != nil && m.System.SharedMark != nil {
			n.SharedMark = func(f service.Family) (string, error) { return m.System.SharedMark(x.config, f) }
		}
	}
	silent.Hung = n.Hung
	return n.Checks(), nil
}

// probeMode returns what the node lacks for a mode and family. It changes nothing.
func probeMode(c *config.Config, d mode.Descriptor, f service.Family) error {
	switch {
	case d.System == nil || d.System.Probe == nil:
		return nil
	case d.System.ProbeLeavesTraces:
		return linuxdoctor.InPrivateNetwork(func() error { return d.System.Probe(c, f) })
	}
	return d.System.Probe(c, f)
}

// acceleration returns what the check of socket acceleration reads.
func acceleration(x *Examination) linuxdoctor.Acceleration {
	o := socketlb.Options{Name: socketlb.NameOf(x.config.ProxyName)}
	a := linuxdoctor.Acceleration{
		Wanted:        x.config.SocketAcceleration != config.AccelerateNone || x.proxy.Answer != nil && len(x.proxy.Answer.Accelerated) > 0,
		Site:          socketlb.LookAtSite,
		Present:       func(f service.Family) (socketlb.Presence, error) { return socketlb.LookFor(f, o) },
		RemoveCommand: ownCommand() + " --init-only",
	}
	if x.config.ProxyName != "" {
		a.RemoveCommand += " --service-proxy-name=" + x.config.ProxyName
	}
	return a
}

// foreignTargets lists where others may have left rules, without socket acceleration's check.
func foreignTargets(ctx context.Context, x *Examination) ([]linuxdoctor.Target, error) {
	all, err := x.targets(ctx)
	if err != nil {
		return nil, err
	}
	var owned []string
	for _, d := range x.modes {
		owned = append(owned, x.owned(d)...)
	}
	var foreign []linuxdoctor.Target
	for _, t := range all {
		if _, layer := t.Leftovers.(socketlb.Leftovers); !layer && !slices.Contains(owned, t.String()) {
			foreign = append(foreign, linuxdoctor.Target{Name: t.String(), Upstream: t.Upstream, Find: t.Find})
		}
	}
	return foreign, nil
}

func iptablesVariants() (linuxdoctor.Variants, error) {
	used, err := iptables.NodeVariant(service.IPv4)
	if err != nil {
		return linuxdoctor.Variants{}, err
	}
	v := linuxdoctor.Variants{Used: string(used)}
	for _, k := range iptables.Variants {
		if iptables.UsedByKubelet(k) {
			v.Kubelet = append(v.Kubelet, string(k))
		}
	}
	return v, nil
}

// ownCommand returns how a shell starts this program.
func ownCommand() string {
	self, err := os.Executable()
	if err != nil {
		return "kube-proxy"
	}
	name := filepath.Base(self)
	if found, err := exec.LookPath(name); err == nil && found == self {
		return name
	}
	return self
}
