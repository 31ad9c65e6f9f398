// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import "net"

// Serve has talk serve each that connects to l, at the same time, and closes
// the connection when talk returns. It ends when l is closed. What talk is still
// busy with then goes on.
func Serve(l net.Listener, talk func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			talk(c)
		}()
	}
}
