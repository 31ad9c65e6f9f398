// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package program runs the product's own program in tests: it builds it once
// for a process of tests, starts it on a host of a netlab network, reads its
// log, asks it over HTTP from that host, and looks at what it costs and at
// what it left in the kernel. What Services it is given, and what should come
// of them, is left to the tests.
//
// In a package of tests:
//
//	var kubeProxy program.Program
//
//	func TestMain(m *testing.M) { os.Exit(program.Main(m, &kubeProxy)) }
//
//	func TestSomething(t *testing.T) {
//		lab := netlab.Start(t, netlab.Config{})
//		p := kubeProxy.Start(t, lab.Node, "--manifests="+dir)
//		p.AwaitLog(t, `"Programmed"`, "IPv4")
//	}
package program
