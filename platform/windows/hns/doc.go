// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hns plans and programs the Windows Host Networking Service: one load
// balancer for each address of a Service, and endpoints for the pods of other
// nodes. It decides nothing about Services: which endpoints serve is settled
// before. Only the driver calls Windows; everything else is ordinary code that
// builds and is tested on any system.
package hns
