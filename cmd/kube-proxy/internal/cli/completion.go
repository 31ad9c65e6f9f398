// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"kubeproxy/common/document"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/statusview"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// completedValues are the values of flags that shells complete, by the path of the command
// and the flag. The path "" is for every command that has the flag.
var completedValues = map[string]map[string][]string{
	"": {
		"detect-local-mode": {string(config.ClusterCIDR), string(config.NodeCIDR), string(config.BridgeInterface), string(config.InterfaceNamePrefix)},
		"logging-format":    {"text", "json"},
		"os":                {string(config.Linux), string(config.Windows)},
	},
	"diff":           {"output": {"plan", "diff", "json"}},
	"doctor":         {"output": {"text", "json"}},
	"explain":        {"output": {"text", "json"}},
	"render":         {"output": {string(document.Text), string(document.JSON)}},
	"service status": {"output": {"text", "json"}},
	"status":         {"output": {string(statusview.Table), string(statusview.Wide), string(statusview.JSON)}},
	"top":            {"output": {"table", "json"}, "sort": {"rate", "connections", "bytes", "name"}},
}

// RegisterCompletion makes shells complete the values of flags and arguments of cmd and its
// commands. Paths are completed by the shell itself. version is that of this program.
func RegisterCompletion(cmd *cobra.Command, table mode.Table, version string) {
	values := map[string][]string{"proxy-mode": table.Names()}
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	for _, p := range []string{"", path} {
		for flag, list := range completedValues[p] {
			values[flag] = list
		}
	}
	for flag, list := range values {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
		}
	}
	switch path {
	case "status", "top":
		cmd.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return services(c, "", version), cobra.ShellCompDirectiveNoFileComp
		}
	case "explain":
		cmd.ValidArgsFunction = func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return []string{"node", "outside"}, cobra.ShellCompDirectiveNoFileComp
			case 1:
				return destinations(c, begun, version), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, c := range cmd.Commands() {
		RegisterCompletion(c, table, version)
	}
}

// timeout bounds how long a shell waits for names. It is short, because the user waits.
const timeout = time.Second

// services returns the names of the Services of the running proxy after prefix.
func services(cmd *cobra.Command, prefix, version string) []string {
	var names []string
	for _, s := range ask(cmd, version) {
		names = append(names, prefix+s.Namespace+"/"+s.Name)
	}
	return names
}

// destinations returns Services, or the ports of the one whose name is complete.
func destinations(cmd *cobra.Command, begun, version string) []string {
	name, _, complete := strings.Cut(begun, ":")
	if !complete {
		return services(cmd, "svc/", version)
	}
	var names []string
	for _, s := range ask(cmd, version) {
		for _, p := range s.Ports {
			one := name + ":" + p.Port
			if p.Protocol != "TCP" {
				one += "/" + strings.ToLower(p.Protocol)
			}
			if "svc/"+s.Namespace+"/"+s.Name == name && p.Port != "" && !slices.Contains(names, one) {
				names = append(names, one)
			}
		}
	}
	return names
}

// ask returns the Services of the running proxy, none if it cannot be asked.
func ask(cmd *cobra.Command, version string) []servicestate.Service {
	server, err := statusview.DialAddress(cmd.Flags().Lookup("server").Value.String())
	if server == "" || err != nil {
		server = statusview.DefaultServer
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	answer, err := (&statusview.Query{Server: server, Version: version}).Ask(ctx)
	if err != nil {
		return nil
	}
	return answer.Services
}
