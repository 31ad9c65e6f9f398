// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"io"
)

// logPatterns returns none, because the service knows where its log is.
func logPatterns(string) []string { return nil }

func writeJournal(context.Context, io.Writer) (bool, error) { return false, nil }

func writeSystem(w io.Writer) error { return run(context.Background(), w, "cmd", "/c", "ver") }

// systemParts are the output of HNS and of commands of a Windows node.
func systemParts(x *collector) []Part {
	return []Part{
		{Name: "hns.json", What: "what HNS holds", Collect: func(_ context.Context, w io.Writer) error {
			for _, d := range x.Proxy.Modes {
				if d.System == nil || d.System.Dump == nil {
					continue
				}
				text, err := d.System.Dump()
				if err == nil {
					_, err = w.Write(text)
				}
				return err
			}
			return NotHere("no mode of this program uses HNS")
		}},
		command("services.txt", "Windows services", "sc.exe", "query"),
		command("ports.txt", "ports that are excluded for TCP", "netsh", "interface", "ipv4", "show", "excludedportrange", "tcp"),
		command("ports-udp.txt", "ports that are excluded for UDP", "netsh", "interface", "ipv4", "show", "excludedportrange", "udp"),
		command("dynamic-ports.txt", "the range of dynamic ports", "netsh", "interface", "ipv4", "show", "dynamicport", "tcp"),
		command("addresses.txt", "addresses of the node", "ipconfig", "/all"),
		command("routes.txt", "routes of the node", "route", "print"),
		command("listeners.txt", "listeners and connections", "netstat", "-ano"),
	}
}
