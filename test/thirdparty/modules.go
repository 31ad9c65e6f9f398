// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package thirdparty builds programs of other projects for tests, from source and at the
// versions that modules of this tree pin, and keeps them in the user's cache folder:
// Kubernetes, etcd, containerd, CoreDNS, Helm and Prometheus.
//
// A module names its programs as tools in go.mod. So the requirements of those projects
// stay out of the product's go.mod. After a change of go.mod, go.sum or the version of
// Go, they are built again.
package thirdparty

import ()

// Module is a folder of this tree with a go.mod that pins programs.
type Module struct {
	folder  string // from the top of the tree, with slashes
	windows bool   // builds for windows/amd64, in place of this system
	tags    string // build tags, with commas
	// programs are the packages by the names of the programs. The one called e2e.test is
	// built from the tests of its package.
	programs map[string]string
}

// Kubernetes has the programs of a cluster, of one version, those of Kubernetes' own tests
// among them.
var Kubernetes = Module{folder: "test/e2e", programs: map[string]string{
	"etcd":                    "go.etcd.io/etcd/server/v3",
	"kube-apiserver":          "k8s.io/kubernetes/cmd/kube-apiserver",
	"kube-controller-manager": "k8s.io/kubernetes/cmd/kube-controller-manager",
	"kube-proxy":              "k8s.io/kubernetes/cmd/kube-proxy",
	"kube-scheduler":          "k8s.io/kubernetes/cmd/kube-scheduler",
	"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
	"kubelet":                 "k8s.io/kubernetes/cmd/kubelet",
	"agnhost":                 "k8s.io/kubernetes/test/images/agnhost",
	"regression-issue-74839":  "k8s.io/kubernetes/test/images/regression-issue-74839",
	"e2e.test":                "k8s.io/kubernetes/test/e2e",
	"ginkgo":                  "github.com/onsi/ginkgo/v2/ginkgo",
}}

// KubernetesForWindows has Kubernetes' own kube-proxy.exe.
var KubernetesForWindows = Module{folder: "test/e2e", windows: true, programs: map[string]string{
	"kube-proxy.exe": "k8s.io/kubernetes/cmd/kube-proxy",
}}

// Kubeadm has the program kubeadm, of the version of Kubernetes.
var Kubeadm = Module{folder: "test/e2e/kubeadm", programs: map[string]string{
	"kubeadm": "k8s.io/kubernetes/cmd/kubeadm",
}}

// Containerd has the container runtime, its shim and its command.
var Containerd = Module{folder: "test/e2e/containerd", programs: map[string]string{
	"containerd":              "github.com/containerd/containerd/v2/cmd/containerd",
	"containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
	"ctr":                     "github.com/containerd/containerd/v2/cmd/ctr",
}}

// CoreDNS has the DNS server of a cluster, with the plugins that one needs.
var CoreDNS = Module{folder: "test/e2e/coredns", programs: map[string]string{
	"coredns": "kubeproxy/test/e2e/coredns",
}}

// Flannel has the daemon of a network of pods, with what a cluster needs of it.
var Flannel = Module{folder: "test/e2e/flannel", programs: map[string]string{
	"flannel": "kubeproxy/test/e2e/flannel",
}}

// KubeRouter has the program of another network of pods.
var KubeRouter = Module{folder: "test/e2e/kuberouter", programs: map[string]string{
	"kube-router": "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
}}

// Release has the program helm, and ours that makes images and charts.
var Release = Module{folder: "build/release", programs: map[string]string{
	"helm": "helm.sh/helm/v3/cmd/helm",
}}

// Prometheus has the program prometheus, which finds nothing to scrape by itself: the
// clients of all clouds are most of it otherwise.
var Prometheus = Module{folder: "build/tools/prometheus", tags: "remove_all_sd", programs: map[string]string{
	"prometheus": "github.com/prometheus/prometheus/cmd/prometheus",
}}
