// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
)

const hnsStateText = `Print what the HNS of this Windows node holds, as JSON.

It is what render takes with --hns-state, on any machine. Networks, endpoints
and load balancers of everybody are in it, as HNS has them; nothing is changed.
It takes the rights of an administrator.`

const hnsStateExample = `  kube-proxy hns-state > node-a.json
  kube-proxy render --proxy-mode kernelspace --manifests ./services --hostname-override node-a --hns-state node-a.json`

var errNoHNS = errors.New("hns-state: HNS is a service of Windows: run this on the Windows node it is about")

func newHNSState(to streams) *cobra.Command {
	return &cobra.Command{
		Use:     "hns-state",
		Short:   "Print what the HNS of this Windows node holds",
		Long:    hnsStateText,
		Example: hnsStateExample,
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			stopNotice := noticeIfSlow(to.err, "kube-proxy: still asking HNS ...")
			text, err := hnsDump()
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
