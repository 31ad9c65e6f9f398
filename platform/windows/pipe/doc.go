// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pipe implements lease.Transport with a named pipe, by which the service proxies
// of a Windows node find each other. The pipe disappears with its process. Package lease
// defines what the proxies exchange.
//
// The system keeps others out, so that no proof is exchanged that could be sent back or
// passed on: only administrators can create a pipe with its prefix, and its access list
// lets only them connect. Bounds for a holder that hangs or keeps the name are those of
// package lease.
package pipe
