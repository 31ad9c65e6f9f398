// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"testing"

	"github.com/Microsoft/go-winio"

	"kubeproxy/test/kit"
)

// The library does not export the type of its connections, so no assertion at compile time
// shows that they have the handle that peerPID needs.
func TestConnectionsHaveHandles(t *testing.T) {
	const name = `\\.\pipe\kubeproxy-test-handles`
	l, err := winio.ListenPipe(name, nil)
	kit.Must(t, err)
	defer l.Close()
	go func() { _, _ = l.Accept() }()
	c, err := winio.DialPipeContext(t.Context(), name)
	kit.Must(t, err)
	defer c.Close()
	f, ok := c.(handled)
	kit.Check(t, ok && f.Fd() != 0, "%T has no handle", c)
}
