// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m.Run)) }

// build builds one of the module's programs for Windows.
func build(t *testing.T, pkg string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), filepath.Base(pkg)+".exe")
	kit.Must(t, BuildProgram(exe, pkg))
	return exe
}

func TestPrograms(t *testing.T) {
	w := Start(t, Options{Env: []string{"EVERYBODY=hears this"}})
	probe := build(t, "./probe")
	for name, tc := range map[string]struct {
		program Program
		code    int
		output  string
	}{
		"exit code":       {Program{Path: probe, Args: []string{"exit", "42"}}, 42, "said before the end\n"},
		"variable of all": {Program{Path: probe, Args: []string{"env", "EVERYBODY"}}, 0, "hears this\n"},
		"own variable":    {Program{Path: probe, Args: []string{"env", "OWN"}, Env: []string{"OWN=one"}}, 0, "one\n"},
		"Windows version": {Program{Path: "cmd", Args: []string{"/c", "ver"}}, 0, "Microsoft Windows 10.0.20348"},
	} {
		code, output, err := w.Run(t.Context(), tc.program)
		kit.Check(t, err == nil && code == tc.code && strings.Contains(output, tc.output),
			"%s: code %d, output %q, %v; want %d and %q", name, code, output, err, tc.code, tc.output)
	}
	got, want := File("/a/b"), `Z:\a\b`
	kit.Check(t, got == want, "File = %s, want %s", got, want)
}

func TestEnds(t *testing.T) {
	w := Start(t, Options{})
	probe := build(t, "./probe")
	begin := func() *Process {
		p, err := w.Start(Program{Path: probe, Args: []string{"wait"}})
		kit.Must(t, err)
		kit.Until(t, "the program runs", func() bool { return strings.Contains(p.Log(), "waiting") })
		return p
	}
	p := begin()
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := p.Wait(short); err == nil {
		t.Error("Wait returned before the end")
	}
	kit.Must(t, p.Interrupt())
	if code, err := p.Wait(t.Context()); err != nil || code != 3 || !strings.Contains(p.Tail(), "interrupted") {
		t.Errorf("interrupted: code %d, %v, log %q", code, err, p.Log())
	}
	p = begin()
	p.Kill()
	if code, err := p.Wait(t.Context()); err != nil || code != -1 || strings.Contains(p.Log(), "interrupted") {
		t.Errorf("killed: code %d, %v, log %q", code, err, p.Log())
	}
	if err := p.Interrupt(); err != nil {
		t.Errorf("interrupt of what has ended: %v", err)
	}
}

// TestNoRandomAddresses checks that no process of a Wine, services included, has
// randomized addresses.
func TestNoRandomAddresses(t *testing.T) {
	if setarchCommand() == nil {
		t.Skip("setarch -R does not work here")
	}
	w := Start(t, Options{})
	if code, output, err := w.Run(t.Context(), Program{Path: "cmd", Args: []string{"/c", "ver"}}); err != nil || code != 0 { // waits for services
		t.Fatalf("code %d, %v: %s", code, err, output)
	}
	paths, err := filepath.Glob("/proc/[0-9]*")
	kit.Must(t, err)
	found := 0
	for _, path := range paths { // which may end at any time
		env, _ := os.ReadFile(filepath.Join(path, "environ"))
		file, _ := os.Readlink(filepath.Join(path, "exe")) // not the server, nor a process that is about to become Wine
		text, err := os.ReadFile(filepath.Join(path, "personality"))
		if err != nil || filepath.Base(file) != filepath.Base(w.wine) || !strings.Contains(string(env), "WINEPREFIX="+w.prefix+"\x00") {
			continue
		}
		found++
		if flags, err := strconv.ParseUint(strings.TrimSpace(string(text)), 16, 32); err != nil || flags&0x40000 == 0 {
			name, _ := os.ReadFile(filepath.Join(path, "cmdline"))
			t.Errorf("%q: personality %s, %v", name, text, err)
		}
	}
	kit.Check(t, found >= 2, "%d programs found, want services, too", found)
}

// TestSplit has messages of Wine about programs, including one that did not start.
func TestSplit(t *testing.T) {
	const early, late = "err:virtual:virtual_alloc_first_teb wine: failed to map the shared user data: c0000018\n", "0128:err:ole:start_rpcss Failed to open\n"
	for text, want := range map[string][2]string{
		"":                            {"", ""},
		"one\r\ntwo\r\n":              {"one\ntwo\n", ""},
		early:                         {"", early},
		"one\n" + late + "two\n":      {"one\ntwo\n", late},
		"no err:or:other end\nerr: x": {"no err:or:other end\nerr: x", ""},
	} {
		said, errs := split(text)
		kit.Check(t, said == want[0] && errs == want[1], "split(%q) = %q, %q, want %q", text, said, errs, want)
	}
}

// TestHost puts Wine's sockets into a network namespace.
func TestHost(t *testing.T) {
	lab := netlab.Start(t, netlab.Config{Clients: []string{"server"}})
	host := lab.Host("server")
	l, err := host.Listen(t.Context(), "tcp", net.JoinHostPort(host.IPv4.String(), "80"))
	kit.Must(t, err)
	defer l.Close()
	w := Start(t, Options{Host: lab.Node})
	code, output, err := w.Run(t.Context(), Program{Path: build(t, "./probe"), Args: []string{"dial", l.Addr().String()}})
	kit.Check(t, err == nil && code == 0 && strings.Contains(output, "from "+lab.Node.IPv4.String()),
		"dial from the node: code %d, %v: %s", code, err, output)
}

// TestCloseRemovesEverything looks for what a Wine might leave behind: its folder, its
// server, and folders of programs that were killed.
func TestCloseRemovesEverything(t *testing.T) {
	windows, err := Build(t.Context(), os.Stderr)
	if err != nil {
		t.Skipf("%v", err)
	}
	dead := filepath.Join(windows.runs, "dead")
	kit.Must(t, os.MkdirAll(filepath.Join(dead, "drive_c"), 0o755))
	kit.Must(t, os.WriteFile(dead+".lock", nil, 0o644))
	w, err := New(t.Context(), windows, Options{})
	kit.Must(t, err)
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("the folder of a dead program: %v", err)
	}
	socket, err := socketOf(w.server)
	kit.Must(t, err)
	other, err := New(t.Context(), windows, Options{}) // must not remove running ones
	kit.Must(t, err)
	if _, err := os.Stat(w.prefix); err != nil {
		t.Errorf("the folder of another Wine: %v", err)
	}
	for _, w := range []*Wine{w, other} {
		err := w.Close()
		kit.Check(t, err == nil, "close: %v", err)
		_, err = os.Stat(w.prefix)
		kit.Check(t, os.IsNotExist(err), "folder after Close: %v", err)
	}
	_, err = os.Stat(socket)
	kit.Check(t, os.IsNotExist(err), "socket of the server after Close: %v", err)
}

func TestPatch(t *testing.T) {
	for _, tc := range []struct{ text, old, new, want string }{
		{"case A, B:", "A, ", "C, A, ", "case C, A, B:"},
		{"f(X)\nif err != nil {\nif err != nil {", "X", "", "f(X)\nif err != nil && err != syscall.Errno(10045) {\nif err != nil {"},
		{"f(Y)", "X", "", ""},
		{"f(X)", "X", "", ""},
	} {
		got, err := patch(tc.text, tc.old, tc.new)
		kit.Check(t, got == tc.want && (err != nil) == (tc.want == ""),
			"patch(%q, %q, %q) = %q, %v, want %q", tc.text, tc.old, tc.new, got, err, tc.want)
	}
}

// TestConcurrentCopies creates and removes many copies in parallel, as the tests of
// several packages do. No copy in use may be removed.
func TestConcurrentCopies(t *testing.T) {
	w := Windows{runs: t.TempDir()}
	dead := filepath.Join(w.runs, "dead")
	kit.Must(t, errors.Join(os.Mkdir(dead, 0o755), os.WriteFile(dead+".lock", nil, 0o644)))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 25 {
				folder, release, err := w.createCopy(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				err = errors.Join(os.Remove(folder), release())
				kit.Check(t, err == nil, "%v", err)
			}
		})
	}
	all.Wait()
	left, err := filepath.Glob(filepath.Join(w.runs, "*"))
	if err != nil || len(left) != 1 { // only the lock of lockCopies
		t.Errorf("left: %v, %v", left, err)
	}
}

// hcsshim is the module whose package hcn is the client of HNS.
const hcsshim = "github.com/Microsoft/hcsshim@v0.15.0"

// firstInterfaceTests are hcsshim's tests of HNS's first interface, of which the
// simulator has only the version request.
const firstInterfaceTests = "^(TestEndpoint|TestEndpointGetAll|TestEndpointStatsAll|TestNetwork|TestNetworkGetAll|TestAccelnetNnvManagementMacAddresses)$"

// modifyTest is hcsshim's test of a load balancer that changes, which works in 15.5 only.
const modifyTest = "|^TestCreateUpdateDeleteLoadBalancer$"

// TestConformance runs hcsshim's own tests for a real HNS, to show that the simulator
// behaves like one for hcsshim. They require the same spelling of identities in an object
// and in its references.
func TestConformance(t *testing.T) {
	exe := buildHcnTests(t)
	w := Start(t, Options{})
	for _, v := range hns.Versions() {
		for _, spelling := range []hns.Case{hns.LowerCase, hns.UpperCase} {
			o := hns.Options{Version: v, Case: spelling, Steady: true}
			t.Run(v.String()+string(spelling), func(t *testing.T) { conform(t, w, exe, o) })
		}
	}
}

func conform(t *testing.T, w *Wine, exe string, o hns.Options) {
	s := hns.Start(t, o)
	skip := firstInterfaceTests + modifyTest
	if o.Version == (hns.Version{Major: 15, Minor: 5}) {
		skip = firstInterfaceTests
	}
	code, output, err := w.Run(t.Context(), Program{
		Path: exe, Args: []string{"-test.v", "-test.skip=" + skip}, Env: []string{"HNS_SIM_ADDR=" + s.Addr},
	})
	if n := strings.Count(output, "--- PASS: "); err != nil || code != 0 || n < 70 || strings.Contains(output, "--- SKIP: ") {
		t.Errorf("exit code %d, %v, %d tests passed:\n%s", code, err, n, output)
	}
	for kind, objects := range s.State().Objects {
		kit.Check(t, len(objects) == 0, "%d objects left of kind %s", len(objects), kind)
	}
}

// buildHcnTests builds the tests in the module cache: the module has requirements of its
// own.
func buildHcnTests(t *testing.T) string {
	t.Helper()
	if _, err := installed(); err != nil {
		t.Skipf("%v", err)
	}
	text, err := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", hcsshim).Output()
	kit.Need(t, err == nil, "go mod download %s: %v", hcsshim, err)
	var module struct{ Dir string }
	kit.Must(t, json.Unmarshal(text, &module))
	exe := filepath.Join(t.TempDir(), "hcn.test.exe")
	cmd := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-tags=integration", "-o", exe, "./hcn")
	cmd.Dir = module.Dir
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0", "GOFLAGS=-mod=readonly", "GOWORK=off")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build hcsshim's tests: %v\n%s", err, text)
	}
	return exe
}

// TestHNSUnreachable runs a program without an HNS. It must get an error, not an empty
// list of objects.
func TestHNSUnreachable(t *testing.T) {
	exe := buildHcnTests(t)
	w := Start(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), awaitTimeout)
	defer cancel()
	for env, want := range map[string]string{
		"":                                   "(0x6ba)",
		"HNS_SIM_ADDR=sesame":                "(0x6ba)",
		"HNS_SIM_ADDR=127.0.0.1:1":           "(0x6ba)",
		"HNS_SIM_ADDR=" + closingListener(t): "(0x6be)",
		"HNS_SIM_ADDR=" + garbageListener(t): "(0x6be)",
	} {
		code, output, err := w.Run(ctx, Program{Path: exe, Args: []string{"-test.run=^TestListNetwork$"}, Env: []string{env}})
		kit.Check(t, err == nil && code == 1 && strings.Contains(output, want),
			"%q: exit code %d, %v, want %q:\n%s", env, code, err, want, output)
	}
}

// closingListener closes each connection; garbageListener first answers with bytes that
// are no frame.
func closingListener(t *testing.T) string { return answering(t, "") }
func garbageListener(t *testing.T) string { return answering(t, "\xff\xff\xff\xff") }

func answering(t *testing.T, answer string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	t.Cleanup(func() { l.Close() })
	go netlab.Serve(l, func(c net.Conn) {
		_, _ = c.Read(make([]byte, 4))
		_, _ = c.Write([]byte(answer))
	})
	return l.Addr().String()
}

// skippedUnderWine are tests that cannot pass under Wine, each with the reason. They run
// on Linux all the same.
var skippedUnderWine = []struct{ test, why string }{
	{"TestModesToCome", "it is about modes of Linux"},
	{"TestMistakes/value_out_of_range", "it is about modes of Linux"},
	{"TestMistakes/every_error_of_a_file", "it names the modes of Linux"},
	{"TestFileLinks", "Wine makes no symbolic links"},
	{"TestSwapped", "Wine renames no symbolic links"},
	{"TestRunVolume", "Wine renames no symbolic links"},
	{"TestRunKeepsTheLastGoodState/link_to_nowhere", "Wine renames no symbolic links"},
	{"TestRefreshNotices/same_time_and_size,_other_inode", "on Windows Go asks for a file's identity too late to compare it"},
}

// TestWindowsPackages runs the tests of all packages of the Windows program, built for
// Windows.
func TestWindowsPackages(t *testing.T) {
	w := Start(t, Options{})
	overlay, err := Overlay(t.Context(), t.TempDir())
	kit.Must(t, err)
	skip := []string{}
	for _, e := range skippedUnderWine {
		skip = append(skip, e.test)
	}
	slices.Sort(skip)
	args := []string{"test", "-json", "-vet=off", "-overlay=" + overlay, "-exec=" + strings.Join(w.Command(), " "), "-skip=" + skipping(skip)}
	if !kit.Nightly() {
		args = append(args, "-short") // random tests draw all their cases on this system
	}
	cmd := exec.CommandContext(t.Context(), "go", append(args, packages(t)...)...)
	cmd.Env = append(w.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	kit.Must(t, err)
	kit.Must(t, cmd.Start())
	report(t, read(t, out))
	err = cmd.Wait()
	kit.Check(t, err == nil, "go test for windows: %v", err)
}

// skipping joins tests to a pattern of go test. In it, slashes separate the patterns of
// each level.
func skipping(tests []string) string {
	for i, test := range tests {
		names := strings.Split(test, "/")
		for j, name := range names {
			names[j] = "^" + name + "$"
		}
		tests[i] = strings.Join(names, "/")
	}
	return strings.Join(tests, "|")
}

// packages are those packages of kube-proxy.exe that have tests, and platform, which has
// tests of all backends together.
func packages(t *testing.T) []string {
	t.Helper()
	const format = `{{with .Module}}{{if .Main}}{{if or $.TestGoFiles $.XTestGoFiles}}{{$.ImportPath}}{{end}}{{end}}{{end}}`
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", format, "kubeproxy/cmd/kube-proxy", "kubeproxy/platform")
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	text, err := cmd.Output()
	kit.Need(t, err == nil, "go list for windows: %v", err)
	list := strings.Fields(string(text))
	kit.Need(t, len(list) >= 10 && slices.Contains(list, "kubeproxy/cmd/kube-proxy"),
		"packages of kube-proxy.exe: %v", list)
	return list
}

// event is a line of go test -json.
type event struct{ Action, Package, ImportPath, Test, Output string }

// result is the result of a package.
type result struct {
	name, action string
	output       []string
	skipped      map[string]string // tests, with their output
	passed       int
}

func read(t *testing.T, events io.Reader) []*result {
	t.Helper()
	results := map[string]*result{}
	var order []*result
	for d := json.NewDecoder(events); ; {
		var e event
		if err := d.Decode(&e); errors.Is(err, io.EOF) {
			return order
		} else if err != nil {
			t.Fatalf("read what go test says: %v", err)
		}
		name, _, _ := strings.Cut(cmp.Or(e.Package, e.ImportPath), " ") // A package that does not build has only ImportPath.
		r := results[name]
		if r == nil {
			r = &result{name: name, skipped: map[string]string{}}
			results[name], order = r, append(order, r)
		}
		r.handle(e)
	}
}

func (r *result) handle(e event) {
	switch {
	case e.Action == "output" || e.Action == "build-output":
		r.output = append(r.output, e.Output)
	case e.Test == "" && (e.Action == "pass" || e.Action == "fail" || e.Action == "skip"):
		r.action = e.Action
	case e.Action == "skip":
		r.skipped[e.Test] = strings.Join(r.output[max(0, len(r.output)-3):], "")
	case e.Action == "pass":
		r.passed++
	}
}

// report shows the packages as subtests, and their skipped tests as skipped.
func report(t *testing.T, results []*result) {
	t.Helper()
	for _, r := range results {
		t.Run(strings.TrimPrefix(r.name, "kubeproxy/"), func(t *testing.T) {
			kit.Check(t, r.action == "pass" && r.passed != 0,
				"%s, %d tests passed:\n%s", r.action, r.passed, strings.Join(r.output, ""))
			t.Logf("%d tests passed", r.passed)
			for test, said := range r.skipped {
				t.Run(test, func(t *testing.T) { t.Skip(said) })
			}
		})
	}
}
