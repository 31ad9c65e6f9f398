// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/test/kit"
)

// measured is a section with one aim met and one missed.
func measured(title, date string, during load) *section {
	took, err := time.Parse(time.DateOnly, date)
	if err != nil {
		panic(err)
	}
	t := table{services: 10, rows: []row{
		{label: "good", metric: "good", unit: inSeconds, aim: aim{most: always(2)}},
		{label: "bad", metric: "bad", unit: inSeconds, aim: aim{most: always(2)}, why: "It is slow."},
		{label: "printed while it runs", metric: "good", unit: inSeconds},
	}}
	t.add(roleOurs, &figures{Values: map[string]float64{"good": 1, "bad": 3}})
	return &section{
		title: title, tables: []table{t}, how: "\nHow of " + date + ".\n",
		facts: facts{date: took, commit: "0123456789ab", kernel: "Linux", cpu: "2", loadBefore: "0.50", loadDuring: during},
	}
}

// TestDocumentKeepsOtherParts measures two parts, then one of them again.
func TestDocumentKeepsOtherParts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "benchmarks.md")
	for _, s := range []*section{
		measured("Mode iptables", "2026-01-03", "9.50"),
		measured("Through the API server", "2026-01-01", "1.00"),
		measured("Through the API server", "2026-01-02", "1.00"),
	} {
		d, err := openDocument(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.put(s); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	intro, rest, _ := strings.Cut(string(text), "\n**")
	if intro != strings.TrimSuffix(documentIntro, "\n")+"\n" {
		t.Errorf("the document begins with\n%s", intro)
	}
	section := func(title, date, during, note string) string {
		return "\n## " + title + "\n\n```\ndate    " + date + " 00:00 UTC\ncommit  0123456789ab\nkernel  Linux\ncpu     2\nload    0.50 before, at most " + during + "\n```\n" + note + "\nHow of " + date + ".\n\n" +
			"|      |   ours |       aim |        |\n" +
			"|------|-------:|----------:|-------:|\n" +
			"| good | 1.00 s | <= 2.00 s |    met |\n" +
			"| bad  | 3.00 s | <= 2.00 s | missed |\n" +
			"\n### Missed aims\n\n- **bad**: It is slow.\n"
	}
	want := "2 aims met, 2 missed.**\n" +
		section("Through the API server", "2026-01-02", "1.00", "") +
		section("Mode iptables", "2026-01-03", "9.50", "\nOther work shared the processors, with a load of up to 9.5: read the times as upper bounds.\n")
	if diff := cmp.Diff(want, rest); diff != "" {
		t.Errorf("the document (-want +got):\n%s", diff)
	}
}

// TestDocumentOfOthers checks that a foreign file is refused before anything is measured.
func TestDocumentOfOthers(t *testing.T) {
	for text, want := range map[string]string{
		"# Notes\n": `begins with something else than "# Benchmarks"`,
		"# Benchmarks\n\n## Mode iptables\n\n## By hand\n": `section "By hand" is of no part that is measured`,
	} {
		path := filepath.Join(t.TempDir(), "benchmarks.md")
		kit.WriteFile(t, path, text)
		b := &bench{options: options{out: path}}
		if err := b.measure(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("measure with a document %q: %v, want an error with %q", text, err, want)
		}
		if now, err := os.ReadFile(path); err != nil || string(now) != text {
			t.Errorf("the document became %q, %v", now, err)
		}
	}
}

func TestChosen(t *testing.T) {
	if all, err := chosen(""); err != nil || len(all) != len(parts) {
		t.Errorf("no name chooses %d of %d parts, %v", len(all), len(parts), err)
	}
	if one, err := chosen("iptables"); err != nil || len(one) != 1 || one[0].title != "Mode iptables" {
		t.Errorf("iptables chooses %d parts, %v", len(one), err)
	}
	if _, err := chosen("iptable"); err == nil || !strings.Contains(err.Error(), "want one of "+partNames()) {
		t.Errorf("iptable: %v, want an error with all names", err)
	}
}

var update = flag.Bool("update", false, "rewrite the overview of the kept document")

// TestDocumentOfTheProject checks that the tool would write the project's document
// unchanged, so that it can replace parts of it.
func TestDocumentOfTheProject(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "benchmarks.md")
	d, err := openDocument(path)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := d.write(); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d.text(), string(text)); diff != "" {
		t.Errorf("the overview is not of the sections below (-want +got), run make update:\n%s", diff)
	}
}
