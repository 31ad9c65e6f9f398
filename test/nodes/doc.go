// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodes runs a real Kubernetes cluster on one machine, without a container engine
// and without a registry: a control plane, and nodes with containerd and kubelet.
//
//	 pods              pods              pods
//	10.244.1.0/24     10.244.2.0/24     10.244.3.0/24
//	┌─┴──────────┐    ┌─┴──────────┐    ┌─┴──────────┐
//	│     n1     │    │     n2     │    │     n3     │ containerd, kubelet, kube-proxy
//	│ 172.30.0.11│    │ 172.30.0.12│    │ 172.30.0.13│
//	└─┬──────────┘    └─┬──────────┘    └─┬──────────┘
//	──┴────────────┬────┴─────────────────┴── 172.30.0.0/24, fd30::/64
//	         ┌─────┴──────┐
//	         │  control   │ etcd, API server, controllers, scheduler; and a client
//	         │ 172.30.0.1 │ outside of the cluster
//	         └────────────┘
//
// Each box is a Machine: namespaces for network, mounts, processes, host name, IPC and
// cgroups. Its process 1 is this program, which starts what the machine runs. Whatever
// happens to it, the kernel ends all processes of the machine with it, see
// pid_namespaces(7). The host's own network stays as it is: the API server is reached
// through a port on loopback.
//
// The cluster outlives the program that started it. Its files are in one folder, and Down
// removes the folder with everything else.
package nodes
