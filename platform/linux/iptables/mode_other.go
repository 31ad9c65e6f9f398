// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package iptables

import "kubeproxy/platform/mode"

func system() *mode.System { return nil }
