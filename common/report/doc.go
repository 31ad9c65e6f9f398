// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report passes what happens in the proxy to everything that shows it: health,
// metrics, states of Services, Events, health checks of Services and the log. Objects,
// rounds and states of the lease go in. Each reporter has one subject. Reports.Sequence
// lists them in the order in which they receive a round. It decides nothing about
// traffic.
package report
