// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package agent is the running proxy: it selects a mode, connects source, Tracker, loops,
// reports and servers, starts them, reloads the configuration and stops them. The
// configuration and a System go in. What the parts do is decided in the parts.
package agent
