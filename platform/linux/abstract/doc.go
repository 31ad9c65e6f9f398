// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package abstract is how the service proxies of one network namespace find each
// other: an abstract unix socket, which belongs to the network namespace as the rules
// do, whatever file systems and process numbers a container has, and goes with its
// process (unix(7)). See package lease.
package abstract
