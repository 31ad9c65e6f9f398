// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/test/kit"
)

const junit = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites><testsuite name="Kubernetes e2e suite"><properties><property name="SpecialSuiteFailureReason" value=""></property></properties>
<testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
<testcase name="[It] [sig-network] Services should serve" status="passed" time="3"></testcase>
<testcase name="[It] [sig-network] Services should refuse" status="failed" time="3"><failure message="it answered&#xA;more" type="failed"></failure></testcase>
<testcase name="[It] [sig-network] Services should wait" status="timedout" time="3"><error message="" type="timedout"></error></testcase>
<testcase name="[It] [sig-network] Services in zones" status="skipped"><skipped message="skipped - want three zones"></skipped></testcase>
<testcase name="[It] [sig-storage] others" status="skipped"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>`

// TestReadReport checks that specs that were not selected do not count, and that others
// count once.
func TestReadReport(t *testing.T) {
	file := filepath.Join(t.TempDir(), "junit.xml")
	kit.WriteFile(t, file, junit)
	got, err := readReport(file)
	want := Results{
		Passed:  1,
		Failed:  []Spec{{"[sig-network] Services should refuse", "it answered"}, {"[sig-network] Services should wait", ""}},
		Skipped: []Spec{{"[sig-network] Services in zones", "want three zones"}},
	}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v, -want +got:\n%s", err, diff)
	}
	const suite, spec = `<testsuite name="Kubernetes e2e suite">`, `<testcase name="[It] one" status="passed"></testcase>`
	for text, want := range map[string]string{
		"": "no spec ran",
		suite + `<properties><property name="SpecialSuiteFailureReason" value="Suite Timeout Elapsed"></property></properties>` + spec + "</testsuite>": "Suite Timeout Elapsed",
		suite + spec + `<testcase name="[AfterSuite]" status="failed"><failure message="no room"></failure></testcase></testsuite>`:                     "[AfterSuite]: no room",
	} {
		kit.WriteFile(t, file, "<testsuites>"+text+"</testsuites>")
		if _, err := readReport(file); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// TestSelections checks which specs are selected.
func TestSelections(t *testing.T) {
	for name, want := range map[string]string{
		"[sig-network] Services should serve a basic endpoint from pods [Conformance]":          "network check short few",
		"[sig-network] Services should work after restarting kube-proxy [Disruptive]":           "serial",
		"[sig-network] DNS should provide DNS for services [Conformance]":                       "",
		"[sig-network] Conntrack should be able to preserve UDP traffic when server pod cycles": "network short",
		"[sig-network] Traffic Distribution should route traffic to an endpoint":                "network zones",
		"[sig-apps] Deployment should run":                                                      "",
	} {
		var got []string
		for _, s := range Selections {
			focus, skip := regexp.MustCompile(s.Focus), regexp.MustCompile(s.Skip)
			if focus.MatchString(name) && !skip.MatchString(name) {
				got = append(got, s.Name)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: selected by %q, want %q", name, got, want)
		}
	}
}

// TestUpdate checks that a newer run takes the place of the older one, and what the page
// says.
func TestUpdate(t *testing.T) {
	dir := t.TempDir()
	file, page := filepath.Join(dir, "c.json"), filepath.Join(dir, "c.md")
	day := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	run := Run{Proxy: "kubeproxy", Mode: "nftables", Selection: "network", Version: "v1", Kubernetes: "v1.36.3", Kernel: "6.1", On: day}
	for _, passed := range []int{1, 131} {
		run.Results = Results{Passed: passed, Failed: []Spec{{"one", "why"}}, Took: time.Minute}
		accelerated := run
		accelerated.SocketAcceleration, accelerated.Version = true, "v2"
		if err := errors.Join(Update(file, page, &run, nil), Update(file, page, &accelerated, nil)); err != nil {
			t.Fatal(err)
		}
	}
	change := Change{Name: "roll", Mode: "nftables", About: "rolled", Version: "v1", Kernel: "6.1", On: day, Flows: []Flow{
		{Name: "pod", Counts: Counts{New: 10, NewLost: 2, Slow: 3, Held: 5, Kinds: map[string]int{"new: timeout": 2}, FirstLost: day, Last: day.Add(time.Second)}},
		{Name: "node", Counts: Counts{New: 20}},
	}}
	accelerated := Change{Name: "roll", Mode: "nftables", SocketAcceleration: true, About: "rolled", On: day, Flows: []Flow{{Name: "pod", Counts: Counts{New: 40, Due: 50}}}}
	drained := Change{Name: "drain", Mode: "nftables", About: "drained", On: day, Flows: change.Flows}
	for _, c := range []*Change{&change, &accelerated, &drained} {
		if err := Update(file, page, nil, c); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| network | nftables                          | 131, 1, 0  |            | v1.36.3    | 6.1    | 2026-01-02 |",
		"| network | nftables with socket acceleration | 131, 1, 0  |            | v1.36.3    | 6.1    | 2026-01-02 |",
		"- why: `one` (kubeproxy in mode nftables, kubeproxy in mode nftables with socket acceleration)\n",
		"| the DaemonSet rolled     | 2 of 30; 0 | 0 of 40; 0                        |",
		"- the DaemonSet rolled, within this time: nftables 1s\n",
		"- a node drained, and back, within this time: nftables 1s: " + endsNote + "\n",
	} {
		if !strings.Contains(string(text), want) {
			t.Errorf("want %q in\n%s", want, text)
		}
	}
	if strings.Contains(string(text), relayNote) {
		t.Errorf("a note on mode userspace, which lost nothing, in\n%s", text)
	}
	if strings.Count(string(text), "| network | nftables  ") != 1 {
		t.Errorf("want one run in\n%s", text)
	}
}

// TestUnfit checks that a spec which one mode cannot pass counts in others.
func TestUnfit(t *testing.T) {
	spec := Spec{Name: "[sig-network] Services should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]"}
	for mode, want := range map[string]int{"userspace": 1, "iptables": 2} {
		r := Run{Mode: mode, Results: Results{Failed: []Spec{spec, {Name: "[sig-network] Services should serve"}}}}
		if got := r.Unexpected(); len(got) != want {
			t.Errorf("mode %s: unexpected are %v, want %d", mode, got, want)
		}
	}
}

// TestParts checks that all parts together are what was selected, once each, and that a
// part that nobody can run is refused.
func TestParts(t *testing.T) {
	for text, ok := range map[string]bool{"": true, "1/1": true, "3/3": true, "4/3": false, "0/3": false, "2": false, "a/b": false, "1/3x": false, "+1/3": false} {
		if p, err := ParsePart(text); (err == nil) != ok || ok && p.String() != text {
			t.Errorf("%q: %v, %v", text, p, err)
		}
	}
	names := []string{"f", "a", "c", "b", "e", "d", "g"}
	var got []string
	for i := 1; i <= 3; i++ {
		part := Part{i, 3}.of(names)
		if len(part) < 2 || len(part) > 3 {
			t.Errorf("part %d has %q", i, part)
		}
		got = append(got, part...)
	}
	if slices.Sort(got); strings.Join(got, "") != "abcdefg" || len(Part{}.of(names)) != len(names) {
		t.Errorf("the parts have %q", got)
	}
}

// TestFocusOn checks that the names in a report of a dry run select these specs alone.
func TestFocusOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), reportFile)
	kit.WriteFile(t, file, junit)
	names, err := readNames(file)
	if want := []string{"[sig-network] Services should serve"}; err != nil || !slices.Equal(names, want) {
		t.Fatalf("%q, %v; want %q", names, err, want)
	}
	focus := regexp.MustCompile(focusOn([]string{"[sig-network] Services should serve (a b) [Slow] [sig-network, Slow]"}))
	for text, want := range map[string]bool{
		"Kubernetes e2e suite [sig-network] Services should serve (a b) [Slow]":      true,
		"Kubernetes e2e suite [sig-network] Services should serve (a b)":             false,
		"Kubernetes e2e suite [sig-network] Services should serve (a b) [Slow] more": false,
	} {
		if focus.MatchString(text) != want {
			t.Errorf("%s: selected %v, want %v", text, !want, want)
		}
	}
}

// TestAddUp checks that parts count once all of one version are there.
func TestAddUp(t *testing.T) {
	dir := t.TempDir()
	file, page := filepath.Join(dir, "c.json"), filepath.Join(dir, "c.md")
	whole := Run{Proxy: "kubeproxy", Mode: "ipvs", Selection: "network", Version: "v1", Results: Results{Passed: 9, Took: time.Minute}}
	first := whole
	first.Part, first.Version, first.Passed = Part{1, 2}, "v2", 4
	second := first
	second.Part, second.Failed = Part{2, 2}, []Spec{{"one", "why"}}
	other := second
	other.Version = "v3"
	for i, step := range []struct {
		run  Run
		want string
	}{
		{whole, "9/0"}, {first, "9/0 4/0"}, {other, "9/0 4/0 4/1"}, {first, "9/0 4/0 4/1"}, {second, "8/1"}, {first, "8/1 4/0"}, {whole, "9/0"},
	} {
		if err := Update(file, page, &step.run, nil); err != nil {
			t.Fatal(err)
		}
		d, err := ReadDocument(file)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, r := range d.Runs {
			got = append(got, fmt.Sprintf("%d/%d", r.Passed, len(r.Failed)))
		}
		if s := strings.Join(got, " "); s != step.want {
			t.Errorf("step %d: %s, want %s", i, s, step.want)
		}
	}
}

// TestMerge checks that the newest of each key stays when two documents become one, and
// that parts from both add up.
func TestMerge(t *testing.T) {
	dir := t.TempDir()
	file, other, page := filepath.Join(dir, "c.json"), filepath.Join(dir, "d.json"), filepath.Join(dir, "c.md")
	run := func(selection string, hour, passed int, part Part) *Run {
		return &Run{Selection: selection, On: time.Date(2026, 1, 2, hour, 0, 0, 0, time.UTC), Part: part, Results: Results{Passed: passed}}
	}
	change := func(name string, hour int) *Change {
		return &Change{Name: name, Mode: "ipvs", Version: fmt.Sprint(hour), On: run("", hour, 0, Part{}).On}
	}
	err := errors.Join(
		Update(file, page, run("newer here", 2, 1, Part{}), change("roll", 2)), Update(file, page, run("newer there", 1, 2, Part{}), change("drain", 1)),
		Update(file, page, run("whole", 3, 3, Part{}), nil), Update(file, page, run("parts", 1, 4, Part{1, 2}), nil),
		Update(other, page, run("newer here", 1, 10, Part{}), change("roll", 1)), Update(other, page, run("newer there", 2, 20, Part{}), change("drain", 2)),
		Update(other, page, run("whole", 2, 30, Part{1, 2}), nil), Update(other, page, run("parts", 2, 40, Part{2, 2}), nil),
		Merge(file, page, other))
	if err != nil {
		t.Fatal(err)
	}
	d, err := ReadDocument(file)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range d.Runs {
		got = append(got, fmt.Sprintf("%s %d%s", r.Selection, r.Passed, r.Part.suffix()))
	}
	for _, c := range d.Changes {
		got = append(got, c.Name+" "+c.Version)
	}
	if want := "newer here 1, newer there 20, parts 44, whole 3, roll 2, drain 2"; strings.Join(got, ", ") != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestNarrow checks which specs a part selects, and that a part without any is refused,
// with a ginkgo that reports two specs.
func TestNarrow(t *testing.T) {
	folder := t.TempDir()
	script := "#!/bin/sh\ncat >" + filepath.Join(folder, reportFile) + " <<'END'\n" + `<testsuites><testsuite>
<testcase name="[It] one [a]" status="passed"></testcase><testcase name="[It] two [a]" status="passed"></testcase>
</testsuite></testsuites>` + "\nEND\n"
	if err := os.WriteFile(filepath.Join(folder, "ginkgo"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for part, want := range map[Part]string{{}: "all", {1, 2}: "(?:one)$", {2, 2}: "(?:two)$", {3, 3}: "has no part 3/3"} {
		s, err := part.narrow(t.Context(), Selection{Focus: "all"}, folder, folder)
		if got := s.Focus; err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("part %s: %q, %v; want %q", part, got, err, want)
		}
	}
}
