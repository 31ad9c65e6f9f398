// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nftcommand runs the command nft on texts, in a network namespace of its own,
// and knows the kernels for which the command may be too old. Tests decide about the
// texts.
package nftcommand

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

// Check has nft check text against the kernel and install nothing. Where users
// may make namespaces it needs no rights.
func Check(text string) error {
	path, err := exec.LookPath("nft")
	if err != nil {
		path = "/usr/sbin/nft"
	}
	cmd := exec.Command(path, "-c", "-f", "-")
	cmd.Stdin = strings.NewReader(text)
	netlab.Isolate(cmd)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w\n%s", err, out)
	}
	return nil
}

// protocolInIntervals is all that nft 1.0.6 cannot say to new kernels: it puts
// a change of the byte order before the protocol, in words of two bytes, and
// the protocol has one. Kernel 6.18.0 takes that, and does nothing; 7.2 and
// 6.12.117 refuse it. nft 1.1.3 puts nothing there.
const protocolInIntervals = `table ip t {
	set s { typeof meta l4proto . th dport; flags interval; }
	chain c { meta l4proto . th dport @s; }
}
`

// protocol is the same without intervals, which every nft can say to every
// kernel.
const protocol = `table ip t {
	set s { typeof meta l4proto . th dport; }
	chain c { meta l4proto . th dport @s; }
}
`

// NeedTables skips t where nft is too old to load our tables into this kernel.
// The proxy itself does without nft.
func NeedTables(t *testing.T) {
	t.Helper()
	kit.Must(t, Check(protocol))
	refused := Check(protocolInIntervals)
	if refused == nil {
		return
	}
	var u unix.Utsname
	kit.Must(t, unix.Uname(&u))
	t.Skipf("kernel %s wants an nft newer than 1.0.6: %v", unix.ByteSliceToString(u.Release[:]), refused)
}
