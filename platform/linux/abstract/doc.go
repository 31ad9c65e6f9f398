// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package abstract implements lease.Transport with an abstract unix socket, by which the
// service proxies of one network namespace find each other. Like the rules, the socket
// belongs to the network namespace, whatever file systems and PIDs a container has. It
// disappears with its process (unix(7)). Package lease defines what the proxies exchange.
package abstract
