// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package program runs the product's own program in tests. It builds it once for a
// process of tests, starts it on a host of a netlab network, reads its log, sends HTTP
// requests to it from that host, and reads its costs and the state that it left in the
// kernel. The tests define the Services, and the expected results.
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
