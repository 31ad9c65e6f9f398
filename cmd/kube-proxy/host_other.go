// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package main

import "kubeproxy/common/track"

// listeningSockets knows of no program: a load balancer of HNS and a socket on one port
// exclude each other already.
func listeningSockets() ([]track.Socket, error) { return nil, nil }
