// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"kubeproxy/platform/windows/hns"
)

func hnsDump() ([]byte, error) {
	text, err := hns.Dump()
	if err != nil {
		return nil, fmt.Errorf("hns-state: %w", err)
	}
	return text, nil
}
