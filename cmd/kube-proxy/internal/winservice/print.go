// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winservice

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"kubeproxy/common/document"
	"kubeproxy/platform/windows/scm"
)

// Print prints the state of a service, as "text" or "json".
func Print(w io.Writer, format string, s scm.Status) error {
	if format == "json" {
		return document.WriteReadable(w, s)
	}
	state := string(s.State)
	switch {
	case s.PID != 0:
		state = fmt.Sprintf("%s, process %d", state, s.PID)
	case s.ExitCode != 0:
		state = fmt.Sprintf("%s, with exit code %d", state, s.ExitCode)
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range [][2]string{
		{"service", s.Name}, {"state", state}, {"start", s.StartType}, {"account", s.Account},
		{"needs", strings.Join(s.DependsOn, ", ")}, {"command", s.Command},
	} {
		if row[1] != "" {
			fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
		}
	}
	return t.Flush()
}

// RunsProxy returns whether a service with such a command line runs a service proxy: this
// program under any name, or kube-proxy.
func RunsProxy(command string) bool {
	command = strings.ToLower(command)
	path, _, _ := strings.Cut(command, ".exe")
	name := path[strings.LastIndexAny(path, `/\"`)+1:]
	return name == Name || strings.Contains(command, " --windows-service")
}
