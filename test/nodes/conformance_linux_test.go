// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/crypto/ssh"

	"kubeproxy/test/authority"
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
	diff := cmp.Diff(want, got)
	kit.Check(t, err == nil && diff == "", "%v, -want +got:\n%s", err, diff)
	const suite, spec = `<testsuite name="Kubernetes e2e suite">`, `<testcase name="[It] one" status="passed"></testcase>`
	for text, want := range map[string]string{
		"": "no spec ran",
		suite + `<properties><property name="SpecialSuiteFailureReason" value="Suite Timeout Elapsed"></property></properties>` + spec + "</testsuite>": "Suite Timeout Elapsed",
		suite + spec + `<testcase name="[AfterSuite]" status="failed"><failure message="no room"></failure></testcase></testsuite>`:                     "[AfterSuite]: no room",
	} {
		kit.WriteFile(t, file, "<testsuites>"+text+"</testsuites>")
		_, err := readReport(file)
		kit.Check(t, err != nil && strings.Contains(err.Error(), want), "%s: %v, want %q", text, err, want)
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
		kit.Check(t, strings.Join(got, " ") == want, "%s: selected by %q, want %q", name, got, want)
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
		accelerated.With, accelerated.Version = Acceleration, "v2"
		kit.Must(t, errors.Join(Update(file, page, &run, nil), Update(file, page, &accelerated, nil)))
	}
	change := Change{Name: "roll", Mode: "nftables", About: "rolled", Version: "v1", Kernel: "6.1", On: day, Flows: []Flow{
		{Name: "pod", Counts: Counts{New: 10, NewLost: 2, Slow: 3, Held: 5, Kinds: map[string]int{"new: timeout": 2}, FirstLost: day, Last: day.Add(time.Second)}},
		{Name: "node", Counts: Counts{New: 20}},
	}}
	accelerated := Change{Name: "roll", Mode: "nftables", With: Acceleration, About: "rolled", On: day, Flows: []Flow{{Name: "pod", Counts: Counts{New: 40, Due: 50}}}}
	drained := Change{Name: "drain", Mode: "nftables", About: "drained", On: day, Flows: change.Flows}
	for _, c := range []*Change{&change, &accelerated, &drained} {
		kit.Must(t, Update(file, page, nil, c))
	}
	text := kit.ReadFile(t, page)
	for _, want := range []string{
		"| network | nftables                          | 131, 1, 0  |            | v1.36.3    |",
		"| network | nftables with socket acceleration | 131, 1, 0  |            | v1.36.3    |",
		"- why: `one` (kubeproxy in mode nftables, kubeproxy in mode nftables with socket acceleration)\n",
		"| roll: the DaemonSet rolled      | 2/30; 0 in 1s | 0/40; 0                           |",
		"- **roll**: no reason is known\n",
		"- **drain**: " + endsNote + "\n",
	} {
		kit.Check(t, strings.Contains(string(text), want), "want %q in\n%s", want, text)
	}
	kit.Check(t, !strings.Contains(string(text), relayNote),
		"a note on mode userspace, which lost nothing, in\n%s", text)
	kit.Check(t, strings.Count(string(text), "| network | nftables  ") == 1, "want one run in\n%s", text)
}

// TestUnfit checks that a spec which one mode cannot pass counts in others.
func TestUnfit(t *testing.T) {
	spec := Spec{Name: "[sig-network] Services should preserve source pod IP for traffic thru service cluster IP [LinuxOnly]"}
	for mode, want := range map[string]int{"userspace": 1, "iptables": 2} {
		r := Run{Mode: mode, Results: Results{Failed: []Spec{spec, {Name: "[sig-network] Services should serve"}}}}
		got := r.Unexpected()
		kit.Check(t, len(got) == want, "mode %s: unexpected are %v, want %d", mode, got, want)
	}
}

// TestParts checks that all parts together are what was selected, once each, and that a
// part that nobody can run is refused.
func TestParts(t *testing.T) {
	for text, ok := range map[string]bool{"": true, "1/1": true, "3/3": true, "4/3": false, "0/3": false, "2": false, "a/b": false, "1/3x": false, "+1/3": false} {
		p, err := ParsePart(text)
		kit.Check(t, (err == nil) == ok && (!ok || p.String() == text), "%q: %v, %v", text, p, err)
	}
	names := []string{"f", "a", "c", "b", "e", "d", "g"}
	var got []string
	for i := 1; i <= 3; i++ {
		part := Part{i, 3}.of(names)
		kit.Check(t, len(part) >= 2 && len(part) <= 3, "part %d has %q", i, part)
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
		kit.Must(t, Update(file, page, &step.run, nil))
		d, err := ReadDocument(file)
		kit.Must(t, err)
		var got []string
		for _, r := range d.Runs {
			got = append(got, fmt.Sprintf("%d/%d", r.Passed, len(r.Failed)))
		}
		kit.Equal(t, strings.Join(got, " "), step.want, "step %d", i)
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
	kit.Must(t, err)
	d, err := ReadDocument(file)
	kit.Must(t, err)
	var got []string
	for _, r := range d.Runs {
		got = append(got, fmt.Sprintf("%s %d%s", r.Selection, r.Passed, r.Part.suffix()))
	}
	for _, c := range d.Changes {
		got = append(got, c.Name+" "+c.Version)
	}
	want := "newer here 1, newer there 20, parts 44, whole 3, roll 2, drain 2"
	kit.Check(t, strings.Join(got, ", ") == want, "%q, want %q", got, want)
}

// TestNarrow checks which specs a part selects, and that a part without any is refused,
// with a ginkgo that reports two specs.
func TestNarrow(t *testing.T) {
	folder := t.TempDir()
	script := "#!/bin/sh\ncat >" + filepath.Join(folder, reportFile) + " <<'END'\n" + `<testsuites><testsuite>
<testcase name="[It] one [a]" status="passed"></testcase><testcase name="[It] two [a]" status="passed"></testcase>
</testsuite></testsuites>` + "\nEND\n"
	kit.Must(t, os.WriteFile(filepath.Join(folder, "ginkgo"), []byte(script), 0o700))
	for part, want := range map[Part]string{{}: "all", {1, 2}: "(?:one)$", {2, 2}: "(?:two)$", {3, 3}: "has no part 3/3"} {
		s, err := part.narrow(t.Context(), Selection{Focus: "all"}, folder, folder)
		if got := s.Focus; err == nil && got != want || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("part %s: %q, %v; want %q", part, got, err, want)
		}
	}
}

// TestJudge checks what each kind of trial may lose.
func TestJudge(t *testing.T) {
	all := []Tolerated{Nothing, Held, Unreachable, Anything}
	for name, c := range map[string]struct {
		lost   Flow
		passes []Tolerated
	}{
		"nothing":                     {Flow{}, all},
		"held connections":            {Flow{Counts: Counts{HeldLost: 1}}, []Tolerated{Held, Anything}},
		"a port that was used before": {Flow{Counts: Counts{NewLost: 1, Reused: 2, ReusedLost: 1}}, []Tolerated{Held, Unreachable, Anything}},
		"such a port and a new one":   {Flow{Counts: Counts{NewLost: 2, Reused: 2, ReusedLost: 1}}, []Tolerated{Anything}},
		"without an endpoint":         {Flow{Counts: Counts{NewLost: 2, HeldLost: 1}, LostUnready: 3}, []Tolerated{Unreachable, Anything}},
		"partly without an endpoint":  {Flow{Counts: Counts{NewLost: 2, HeldLost: 1}, LostUnready: 2}, []Tolerated{Anything}},
		"when all was over":           {Flow{Counts: Counts{NewLost: 1}, LostInCalm: 1}, nil},
		"every connection":            {Flow{Counts: Counts{NewLost: 9}}, nil},
		"what took over 3 s":          {Flow{Counts: Counts{Over3s: 1}}, nil},
	} {
		for _, tolerated := range all {
			f := c.lost
			f.New, f.Due, f.Held = 9, 9, 9
			err := Trial{Tolerated: tolerated}.Judge(Change{Flows: []Flow{{Counts: Counts{New: 1, Held: 1}}, f}})
			want := slices.Contains(c.passes, tolerated)
			kit.Check(t, want == (err == nil), "%s, tolerated %d: %v, want it to pass: %t", name, tolerated, err, want)
		}
	}
}

// TestJudgeEffort checks that a trial shows nothing if clients did not do what they are for.
func TestJudgeEffort(t *testing.T) {
	for name, c := range map[string]struct {
		counts Counts
		passes bool
	}{
		"no connection":           {Counts{}, false},
		"nothing held":            {Counts{New: 9, Due: 9}, false},
		"a third of what was due": {Counts{New: 3, Due: 9, Held: 9}, false},
		"most of what was due":    {Counts{New: 8, Due: 9, Held: 9}, true},
	} {
		err := (Trial{Tolerated: Anything}).Judge(Change{Flows: []Flow{{Counts: c.counts}}})
		kit.Check(t, c.passes == (err == nil), "%s: %v, want it to pass: %t", name, err, c.passes)
	}
}

// TestJudgeRelay checks that a relay may end with its process, and only in mode userspace.
func TestJudgeRelay(t *testing.T) {
	broken := []Flow{{Counts: Counts{New: 9, Held: 9, HeldLost: 1}}}
	for mode, relay := range map[string]bool{"userspace": true, "nftables": false} {
		err := (Trial{Userspace: Held}).Judge(Change{Mode: mode, Flows: broken})
		kit.Check(t, relay == (err == nil), "mode %s: %v", mode, err)
	}
	err := (Trial{}).Judge(Change{Mode: "userspace", Flows: broken})
	kit.Check(t, err != nil, "a trial in which no process ends lost a relay without an error")
}

// TestJudgeOtherNodes checks that a change of n3 excuses nothing elsewhere.
func TestJudgeOtherNodes(t *testing.T) {
	for _, c := range []struct {
		node   string
		passes bool
	}{{"", true}, {"n3", true}, {"n1", false}} {
		f := Flow{Node: c.node, Counts: Counts{New: 9, Held: 9, HeldLost: 1}}
		err := (Trial{Tolerated: Held, OnlyN3: true}).Judge(Change{Flows: []Flow{f}})
		kit.Check(t, c.passes == (err == nil), "endpoints on %q: %v, want it to pass: %t", c.node, err, c.passes)
	}
}

// TestSelect checks that a proxy is given back only after it was replaced.
func TestSelect(t *testing.T) {
	all := slices.Sorted(slices.Values(Names()))
	kit.Check(t, len(slices.Compact(slices.Clone(all))) == len(all), "two trials have the same name: %q", all)
	for only, want := range map[string]string{
		"roll":             "roll",
		"back,roll":        "error",
		"install,back":     "install,back",
		"embedded-back":    "error",
		"embedded-install": "embedded-install",
		"dead":             "dead",
		"roll,dead":        "roll,dead",
	} {
		var got []string
		for _, s := range Sequences {
			s, err := s.Select(func(name string) bool { return slices.Contains(strings.Split(only, ","), name) })
			if err != nil {
				got = []string{"error"}
				break
			}
			for _, trial := range s.Trials {
				got = append(got, trial.Name)
			}
		}
		kit.Check(t, strings.Join(got, ",") == want, "-only %s: %q, want %s", only, got, want)
	}
}

// TestReusedPorts checks that a lost request is recognized if its port was used before.
func TestReusedPorts(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	kit.Must(t, err)
	l := &load{Load: Load{Network: "udp", Address: server.LocalAddr().String()}, ports: map[int]time.Time{}}
	client, err := net.Dial("udp", l.Address)
	kit.Must(t, err)
	kit.Check(t, !l.reusesPort(client) && l.reusesPort(client),
		"want the first use of a port to be new, and the second one not to be")
	l.ports[client.LocalAddr().(*net.UDPAddr).Port] = time.Now().Add(-time.Hour)
	kit.Check(t, !l.reusesPort(client), "a port that was used an hour ago counts")
	kit.Must(t, client.Close())
	go func() {
		_, to, err := server.ReadFrom(make([]byte, 512))
		if err == nil {
			_, err = server.WriteTo([]byte("web"), to)
		}
		if err = errors.Join(err, server.Close()); err != nil { // nobody answers now
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	l.Rate = 100
	if got := l.Run(ctx); got.New == 0 || got.Due < got.New-1 || got.NewLost != got.New || got.ReusedLost > got.Reused {
		t.Errorf("with a server that has answered once: %+v", got)
	}
}

// TestUnreachable checks that what was never answered does not count as lost, but as due.
func TestUnreachable(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	kit.Must(t, err)
	l := Load{Network: "udp", Address: server.LocalAddr().String(), Rate: 100, Held: 1}
	kit.Must(t, server.Close())
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	got := l.Run(ctx)
	kit.Check(t, got.New <= 0 && got.Lost() <= 0 && got.Due >= 5, "without a server: %+v", got)
}

// TestLife checks that a held connection gives way to another after its life.
func TestLife(t *testing.T) {
	server, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	t.Cleanup(func() { _ = server.Close() }) // the test is over
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	go func() {
		defer cancel()
		for range 2 {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go answer(c)
		}
	}()
	l := &load{Load: Load{Network: "tcp", Address: server.Addr().String(), Life: time.Nanosecond}, counts: Counts{Kinds: map[string]int{}}}
	l.hold(ctx)
	if err := ctx.Err(); !errors.Is(err, context.Canceled) || l.counts.Held == 0 || l.counts.HeldLost > 0 {
		t.Errorf("%v, %+v; want a second connection, and none lost", err, l.counts)
	}
}

// TestRefusedRequest checks that an answer with another status is none.
func TestRefusedRequest(t *testing.T) {
	client, server := net.Pipe()
	go func() {
		_, _ = io.ReadFull(server, make([]byte, len(request))) // the client notices
		_, _ = io.WriteString(server, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
	}()
	l := &load{Load: Load{Network: "tcp"}}
	_, err := l.ask(client, bufio.NewReader(client))
	kit.Check(t, err != nil && strings.Contains(err.Error(), "503"), "%v, want an error with status 503", err)
}

// answer answers all requests of a connection as agnhost's netexec does.
func answer(c net.Conn) {
	defer c.Close()
	for r := bufio.NewReader(c); ; {
		line, err := r.ReadString('\n')
		if err != nil {
			return
		}
		if line == "\r\n" {
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nweb") // the client notices
		}
	}
}

// testKey returns a new key.
func testKey(t *testing.T) ssh.Signer {
	t.Helper()
	key, err := authority.NewKey()
	kit.Must(t, err)
	s, err := ssh.NewSignerFromKey(key)
	kit.Must(t, err)
	return s
}

// logIn returns a client on the machine's network with a key.
func logIn(t *testing.T, m *Machine, key ssh.Signer) (client *ssh.Client, err error) {
	t.Helper()
	var c net.Conn
	kit.Must(t, m.inside(func() (err error) { c, err = net.Dial("tcp", "127.0.0.1"+sshPort); return err }))
	t.Cleanup(func() { _ = c.Close() }) // the client closes it, too
	conn, channels, requests, err := ssh.NewClientConn(c, m.Name, &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		return nil, err
	}
	return ssh.NewClient(conn, channels, requests), nil
}

// TestLogin checks that commands run on the machine, with their output and how they
// ended, and that the key counts.
func TestLogin(t *testing.T) {
	m, key := testMachine(t, Step{"up", []string{"sh", "-c", "echo up >/var/tmp/up"}, Once}), testKey(t)
	startMachine(t, m, nil)
	awaitFile(t, m.path("var/tmp/up"), 1) // it has its name
	kit.Must(t, newLogin(m, key).listen(t.Context()))
	client, err := logIn(t, m, key)
	kit.Must(t, err)
	session, err := client.NewSession()
	kit.Must(t, err)
	var said strings.Builder
	session.Stderr = &said
	out, err := session.Output("sudo hostname; echo worse >&2; exit 3")
	if want := m.Name + "\n"; string(out) != want || said.String() != "worse\n" {
		t.Errorf("said %q and complained %q, want %q and worse", out, said.String(), want)
	}
	end := (*ssh.ExitError)(nil)
	kit.Check(t, errors.As(err, &end) && end.ExitStatus() == 3, "the command ended with %v, want status 3", err)
	_, err = logIn(t, m, testKey(t))
	kit.Check(t, err != nil, "another key may log in")
}

// TestNetworks checks what a node has and runs for each network of pods.
func TestNetworks(t *testing.T) {
	for network, want := range map[string]struct {
		plugin string
		files  []string
		steps  int
	}{
		"":         {"ptp", []string{"cni/10-pods.conflist"}, 0},
		Flannel:    {"bridge", []string{"cni/10-flannel.conflist", "net-conf.json"}, 1},
		KubeRouter: {"bridge", []string{"cni/10-kuberouter.conflist"}, 2},
	} {
		c := &Cluster{Network: network, folder: t.TempDir()}
		kit.Must(t, c.configureNode(2))
		cni, err := filepath.Glob(c.path("n2", "cni", "*"))
		kit.Check(t, err == nil && len(cni) == 1,
			"network %q: %v, want one file in folder cni, have %q", network, err, cni)
		var config struct { // of all files
			Plugins              []struct{ Type string }
			Network, IPv6Network string
		}
		for _, file := range want.files {
			text, err := os.ReadFile(c.path("n2", file))
			if err = errors.Join(err, json.Unmarshal(text, &config)); err != nil {
				t.Fatalf("network %q, %s: %v\n%s", network, file, err, text)
			}
		}
		kit.Same(t, fmt.Sprintf("network %q: plugin, -want +got", network), want.plugin, config.Plugins[0].Type)
		kit.Check(t, network != Flannel || config.Network+","+config.IPv6Network == PodCIDR,
			"flannel has the ranges %+v, want %s", config, PodCIDR)
		got := len(c.networkSteps(c.Machine("n2")))
		kit.Check(t, got == want.steps, "network %q: %d steps, want %d", network, got, want.steps)
	}
}

// TestOpenParts checks that a cluster of packed parts has as many nodes as are asked for,
// and finds the parts.
func TestOpenParts(t *testing.T) {
	folder := t.TempDir()
	text := `{"Nodes": 0, "Programs": "/disk/programs", "Tests": "/disk/programs", "Store": "/disk/containerd"}`
	kit.WriteFile(t, filepath.Join(folder, partsFile), text)
	c, err := OpenParts(io.Discard, folder, 3)
	kit.Must(t, err)
	kit.Check(t, c.Nodes == 3 && c.Programs == "/disk/programs" && c.Store == "/disk/containerd",
		"the cluster is %+v", c)
	_, err = OpenParts(io.Discard, t.TempDir(), 3)
	kit.Check(t, err != nil, "a folder without parts is no error")
}

// TestFillStoreLeavesNothing checks that a network namespace goes whose settings fail.
func TestFillStoreLeavesNothing(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a machine needs root")
	}
	forwarding["none"] = "1"
	t.Cleanup(func() { delete(forwarding, "none") })
	c := &Cluster{Name: "test", folder: t.TempDir()}
	if err := c.fillStore(t.Context(), t.TempDir()); err == nil {
		t.Error("a setting that does not exist is no error")
	}
	left, err := filepath.Glob("/run/netns/kubeproxy-test-store*")
	kit.Check(t, err == nil && len(left) == 0, "left behind: %v, %v", left, err)
}

// TestJoin checks that clusters keep their programs, when others come or the folder that
// they were built in goes.
func TestJoin(t *testing.T) {
	cache := t.TempDir()
	program := func(folder, name string) string {
		file := filepath.Join(cache, folder, name)
		kit.Must(t, errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(folder), 0o755)))
		return file
	}
	var folders []string
	for _, version := range []string{"old", "new", "new"} {
		folder, err := join(t.Context(), io.Discard, []string{program(version, "containerd"), program("other", "helm")})
		kit.Must(t, err)
		folders = append(folders, folder)
	}
	kit.Check(t, folders[0] != folders[1] && folders[1] == folders[2], "the folders are %v", folders)
	kit.Must(t, os.RemoveAll(filepath.Join(cache, "old")))
	if text, err := os.ReadFile(filepath.Join(folders[0], "containerd")); err != nil || string(text) != "old" {
		t.Errorf("the old cluster has containerd %q, %v", text, err)
	}
}
