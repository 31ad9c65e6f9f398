// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/platform/mode"
)

const hnsStateText = `Print what the HNS of this Windows node holds, as JSON.

The output is for render --hns-state, on any machine. It has all networks,
endpoints and load balancers, including those of other programs. The command
changes nothing. It needs the rights of an administrator.`

const hnsStateExample = `  kube-proxy hns-state > node-a.json
  kube-proxy render --proxy-mode kernelspace --manifests ./services --hostname-override node-a --hns-state node-a.json`

var errNoHNS = errors.New("hns-state: HNS is a service of Windows: run this on the Windows node it is about")

func newHNSState(to streams, table mode.Table) *cobra.Command {
	return &cobra.Command{
		Use:     "hns-state",
		Short:   "Print what the HNS of this Windows node holds",
		Long:    hnsStateText,
		Example: hnsStateExample,
		Args:    cli.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			stopNotice := cli.NoticeIfSlow(to.err, "kube-proxy: still asking HNS ...")
			text, err := hnsDump(table)
			stopNotice()
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(to.out, "%s\n", text); err != nil {
				return fmt.Errorf("print the state: %w", err)
			}
			return nil
		},
	}
}

// hnsDump returns what the HNS of this node holds.
func hnsDump(table mode.Table) ([]byte, error) {
	for _, d := range table {
		if d.System == nil || d.System.Dump == nil {
			continue
		}
		text, err := d.System.Dump()
		if err != nil {
			return nil, fmt.Errorf("hns-state: %w", err)
		}
		return text, nil
	}
	return nil, errNoHNS
}
