// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"kubeproxy/platform/modes"
	"kubeproxy/test/toymode"
)

// withToy runs a command line in a program that has another mode.
func withToy(t *testing.T, toy *toymode.Toy, args ...string) outcome {
	t.Helper()
	var out, err bytes.Buffer
	code := execute(context.Background(), append(modes.All(), toy.Mode()), args, streams{&out, &err})
	return outcome{code, out.String(), err.String()}
}

// A mode that is only in the table is known to the command in every place.
func TestAModeIsOneRowOfTheTable(t *testing.T) {
	toy := toymode.New("toy")
	toy.Broken = errors.New("no toys on this node")
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--help"}, 0, "toy"},
		{[]string{"render", "--manifests", "../../docs/examples/shop", "--hostname-override", "node-a", "--proxy-mode", "toy"}, 0, "shop/web:http has 3 endpoints"},
		{[]string{"--proxy-mode", "toyy", "--write-config-to", "-"}, 1, "did you mean toy?"},
		{[]string{"--proxy-mode", "toy", "--write-config-to", "-"}, 0, "mode: toy"},
		{[]string{"--proxy-mode", "toy", "--manifests", "../../docs/examples/shop", "--hostname-override", "node-a"}, 1, "no toys on this node"},
		{[]string{"doctor", "--proxy-mode", "toy", "--manifests", "../../docs/examples/shop", "--hostname-override", "node-a", "--server", "127.0.0.1:1"}, 1, "no toys on this node"},
	} {
		got := withToy(t, toy, tc.args...)
		if got.Code != tc.code || !strings.Contains(got.Out+got.Err, tc.want) {
			t.Errorf("%q: code %d, want %d and %q in\n%s%s", tc.args, got.Code, tc.code, tc.want, got.Out, got.Err)
		}
	}
	if got := call(t, "", "--help"); strings.Contains(got.Out, "toy") {
		t.Errorf("without it in the table:\n%s", got.Out)
	}
}
