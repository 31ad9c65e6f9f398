// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"slices"
	"strings"
)

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

// parse reads the arguments. Flags behind the command belong to that, except for --node,
// which kube-proxy does not have.
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
