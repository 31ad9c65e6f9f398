// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlab

import "net"

// Serve calls talk for each connection to l, in parallel, and closes the connection when
// talk returns. It ends when l is closed. Calls of talk that are running then go on.
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
