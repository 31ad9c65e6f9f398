// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/platform/linux/ipvs"
)

// TestQuickRunOfIPVS requires a figure in every row of all tables.
func TestQuickRunOfIPVS(t *testing.T) {
	if !ipvs.Installed() {
		t.Skip("the kernel has no IPVS; make vm runs this on one that has")
	}
	var out bytes.Buffer
	o := options{quick: true, only: "ipvs", kernel: ownKernel, out: filepath.Join(t.TempDir(), "benchmarks.md")}
	if err := run(t.Context(), o, &out); err != nil {
		t.Fatalf("run: %v\n%s", err, &out)
	}
	document, err := os.ReadFile(o.out)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range virtualTables(newFigures(), task{Quick: true}) {
		if !strings.Contains(string(document), "\n### "+x.title+"\n") {
			t.Errorf("the document has no table %q:\n%s", x.title, document)
		}
		_, text, _ := strings.Cut(out.String(), "\n"+x.title+"\n")
		for _, r := range x.rows {
			column := 2
			if x.base != "" {
				column = 3
			}
			if found := rowOf(text, r.label); len(found) <= column || found[2] == "" || found[column] == "" {
				t.Errorf("%s: row %q = %q, want figures", x.title, r.label, found)
			}
		}
	}
}

// TestVirtualTables checks that each ratio is of the right two figures.
func TestVirtualTables(t *testing.T) {
	f := newFigures()
	for name, v := range map[string]float64{
		"library.first.wall": 1.2, "mode ipvs.first.wall": 1.8,
		"many.replace.cpu":  11e-3,
		"many.connect.last": 3e-3, "many.connect.last.ratio": 1.5, "many.nftables.connect.last": 2e-3,
	} {
		f.set(name, v)
	}
	tables := virtualTables(f, task{})
	for i, want := range map[int]string{
		0: "| first program, time |  1.20 s | 1.80 s |        1.50x | <= 1.3x library | missed |\n",
		1: "| one endpoint replaced, CPU | 11.0 ms | <= 10.0 ms | missed |\n",
		2: "| connection, last Service, p50                           |   2.0 ms | 3.0 ms |         1.50x |     |    |\n",
	} {
		if text := tables[i].text(); !strings.Contains(text, want) {
			t.Errorf("table %d has no row %q:\n%s", i, want, text)
		}
	}
}
