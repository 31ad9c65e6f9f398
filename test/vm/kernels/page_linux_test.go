// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/test/kit"
)

const someReport = `ok    kubeproxy/test/live                      50.51s  3 tests

skipped:
  kubeproxy/test/live  TestRendered  nft is too old
  kubeproxy/test/live  TestSCTP/udp  NOT ALLOWED: no sockets

1 packages in 67.46s
`

func TestPage(t *testing.T) {
	all := outcomes{
		"5.10": {
			"nftables": {Release: "5.10.0-46", Passed: 12, Ended: true, Took: 90 * time.Second},
			"bridge":   {Release: "5.10.0-46", Passed: 3, Failed: 2, Skipped: 1, Ended: true, Took: time.Second, Reasons: reasons(someReport)},
		},
		"6.1": {"nftables": {}},
	}
	file := filepath.Join(t.TempDir(), "folder", "kernels.json")
	kit.Must(t, all.save(file))
	all, err := loadOutcomes(file)
	kit.Must(t, err)
	var got []string
	for line := range strings.Lines(all.page()) {
		if strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "|-") {
			cells := strings.Split(line, "|")
			got = append(got, strings.TrimSpace(cells[2])+"|"+strings.TrimSpace(cells[3]))
		}
	}
	want := []string{
		"5.10.0-46|6.1", "12|no result", "not run|not run", "not run|not run", "not run|not run", "not run|not run",
		"3, **2 failed**, 1 skipped|not run",
	}
	kit.Same(t, "cells (-want +got)", want, got[:min(len(want), len(got))])
	const skipped = "|\n\nSkipped:\n\n- NOT ALLOWED: no sockets: TestSCTP/udp\n- nft is too old: TestRendered\n"
	if page := all.page(); !strings.HasSuffix(page, skipped) {
		t.Errorf("the page does not end with %q:\n%s", skipped, page)
	}
}

func TestSelectMode(t *testing.T) {
	known := []string{"a", "b", "c"}
	for list, want := range map[string][]string{"": known, "b": {"b"}, "c,a": {"c", "a"}} {
		got, err := choose("suite", list, known)
		kit.Check(t, err == nil && cmp.Equal(got, want), "choose %q: %v, %v; want %v", list, got, err, want)
	}
	_, err := choose("suite", "a,d", known)
	kit.Check(t, err != nil && strings.Contains(err.Error(), `suite "d": must be one of a, b, c`), "error %v", err)
}
