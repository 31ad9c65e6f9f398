// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// logPatterns are where the log of a proxy is that a pod, a static pod or a unit runs. kubelet
// keeps logs in NAMESPACE_POD_UID/CONTAINER. Names of pods and containers are free to choose for
// whoever may create pods, so only the namespace of the proxy counts.
func logPatterns(namespace string) []string {
	return []string{"/var/log/pods/" + namespace + "_*/kube-proxy/*.log", "/var/log/kube-proxy*.log"}
}

// writeJournal writes the log of the unit kube-proxy. It reports whether there is one.
func writeJournal(ctx context.Context, w io.Writer) (bool, error) {
	var out strings.Builder
	err := run(ctx, &out, "journalctl", "--unit", "kube-proxy", "--lines", "5000", "--no-pager", "--quiet")
	var absent NotHere
	if errors.As(err, &absent) || err != nil || out.Len() == 0 {
		return false, nil // a node without systemd has no journal, or none that can be read
	}
	_, err = fmt.Fprintf(w, "==> journal of the unit kube-proxy <==\n%s", out.String())
	return true, err
}

func writeSystem(w io.Writer) error {
	for _, path := range []string{"/proc/version", "/etc/os-release", "/proc/loadavg", "/proc/meminfo", "/proc/self/cgroup"} {
		if _, err := fmt.Fprintf(w, "\n==> %s <==\n%s", path, content(path)); err != nil {
			return err
		}
	}
	return nil
}

// systemParts are the output of the kernel and of commands of a Linux node.
func systemParts(*collector) []Part {
	return []Part{
		{Name: "conntrack.txt", What: "counters of connection tracking", Collect: settings("/proc/net/stat/nf_conntrack", "/proc/sys/net/netfilter/nf_conntrack_*")},
		{Name: "sysctl.txt", What: "settings of the kernel", Collect: settings(
			"/proc/sys/net/ipv4/ip_forward", "/proc/sys/net/ipv4/conf/*/rp_filter", "/proc/sys/net/ipv4/conf/*/route_localnet",
			"/proc/sys/net/ipv4/conf/*/arp_*", "/proc/sys/net/ipv6/conf/*/forwarding", "/proc/sys/net/bridge/*", "/proc/sys/net/ipv4/vs/*")},
		{Name: "modules.txt", What: "modules of the kernel", Collect: settings("/proc/modules")},
		{Name: "softirq.txt", What: "packets that the processors dropped", Collect: settings("/proc/net/softnet_stat", "/proc/net/snmp", "/proc/net/netstat")},
		command("nft.txt", "all rules of nftables", "nft", "list", "ruleset"),
		command("iptables.txt", "all rules of iptables for IPv4, with counters", "iptables-save", "-c"),
		command("ip6tables.txt", "all rules of iptables for IPv6, with counters", "ip6tables-save", "-c"),
		{Name: "ipvs.txt", What: "virtual servers, with counters", Collect: func(ctx context.Context, w io.Writer) error {
			if _, err := os.Stat("/proc/net/ip_vs"); err != nil {
				return NotHere("the kernel has no IPVS loaded") // ipvsadm would load it
			}
			return run(ctx, w, "ipvsadm", "-Ln", "--stats")
		}},
		command("ipset.txt", "ipsets", "ipset", "save"),
		command("addresses.txt", "addresses of the node", "ip", "-details", "address"),
		command("routes.txt", "routes of the node", "ip", "route", "show", "table", "all"),
		command("routing.txt", "rules of routing", "ip", "rule"),
	}
}

// settings writes files of /proc, by patterns.
func settings(patterns ...string) func(context.Context, io.Writer) error {
	return func(_ context.Context, w io.Writer) error {
		found := false
		for _, pattern := range patterns {
			paths, _ := filepath.Glob(pattern) // the patterns are valid
			for _, path := range paths {
				text, err := os.ReadFile(path)
				if err != nil {
					continue // some can only be written, or are for the first namespace alone
				}
				found = true
				sep := " = "
				if strings.Count(string(text), "\n") > 1 {
					sep = ":\n"
				}
				if _, err := fmt.Fprintf(w, "%s%s%s", path, sep, text); err != nil {
					return err
				}
			}
		}
		if !found {
			return NotHere("the kernel has none of " + strings.Join(patterns, ", "))
		}
		return nil
	}
}
