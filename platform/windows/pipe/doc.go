// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pipe implements lease.Transport with a named pipe, by which the service proxies
// of a Windows node find each other. The pipe disappears with its process. Package lease
// defines what the proxies exchange.
package pipe
