// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"

	"kubeproxy/test/kit"
)

// TestListenOnATakenPort checks that the error names the process that has the port.
func TestListenOnATakenPort(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		l, err := net.Listen("tcp4", at)
		kit.Must(t, err)
		defer l.Close()
		_, err = listenOn(t.Context(), "tcp4", fmt.Sprintf("127.0.0.1:%d", l.Addr().(*net.TCPAddr).Port))
		want := fmt.Sprintf("address already in use, by process %d (", os.Getpid())
		kit.Check(t, err != nil && strings.Contains(err.Error(), want), "listen where %s does: %v, want %s", at, err, want)
	}
}
