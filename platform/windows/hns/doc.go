// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hns programs the Windows Host Networking Service (HNS). A service.Snapshot goes
// in. A plan comes out, which creates one load balancer for each frontend and remote
// endpoints for the pods of other nodes. The package decides nothing about Services: the
// snapshot already names the endpoints of each frontend. The network plugin creates
// networks and the endpoints of local pods. Only the driver calls Windows. All other
// files build, and are tested, on any system.
package hns
