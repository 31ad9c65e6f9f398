// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !windows

package main

func hnsDump() ([]byte, error) { return nil, errNoHNS }
