// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m.Run)) }

// build builds one of the module's programs for Windows.
func build(t *testing.T, pkg string) string {
	t.Helper()
	exe := filepath.Join(t.TempDir(), filepath.Base(pkg)+".exe")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-buildvcs=false", "-o", exe, pkg)
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build %s: %v\n%s", pkg, err, text)
	}
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
		if err != nil || code != tc.code || !strings.Contains(output, tc.output) {
			t.Errorf("%s: code %d, output %q, %v; want %d and %q", name, code, output, err, tc.code, tc.output)
		}
	}
	if got, want := File("/a/b"), `Z:\a\b`; got != want {
		t.Errorf("File = %s, want %s", got, want)
	}
}

func TestEnds(t *testing.T) {
	w := Start(t, Options{})
	probe := build(t, "./probe")
	begin := func() *Process {
		p, err := w.Start(Program{Path: probe, Args: []string{"wait"}})
		if err != nil {
			t.Fatal(err)
		}
		kit.Until(t, "the program runs", func() bool { return strings.Contains(p.Log(), "waiting") })
		return p
	}
	p := begin()
	short, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := p.Wait(short); err == nil {
		t.Error("Wait returned before the end")
	}
	if err := p.Interrupt(); err != nil {
		t.Fatal(err)
	}
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
	if err != nil {
		t.Fatal(err)
	}
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
	if found < 2 {
		t.Errorf("%d programs found, want services, too", found)
	}
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
		if said, errs := split(text); said != want[0] || errs != want[1] {
			t.Errorf("split(%q) = %q, %q, want %q", text, said, errs, want)
		}
	}
}

// TestHost puts Wine's sockets into a network namespace.
func TestHost(t *testing.T) {
	lab := netlab.Start(t, netlab.Config{Clients: []string{"server"}})
	host := lab.Host("server")
	l, err := host.Listen(t.Context(), "tcp", net.JoinHostPort(host.IPv4.String(), "80"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := Start(t, Options{Host: lab.Node})
	code, output, err := w.Run(t.Context(), Program{Path: build(t, "./probe"), Args: []string{"dial", l.Addr().String()}})
	if err != nil || code != 0 || !strings.Contains(output, "from "+lab.Node.IPv4.String()) {
		t.Errorf("dial from the node: code %d, %v: %s", code, err, output)
	}
}

// TestCloseRemovesEverything looks for what a Wine might leave behind: its folder, its
// server, and folders of programs that were killed.
func TestCloseRemovesEverything(t *testing.T) {
	windows, err := Build(t.Context(), os.Stderr)
	if err != nil {
		t.Skipf("%v", err)
	}
	dead := filepath.Join(windows.runs, "dead")
	if err := os.MkdirAll(filepath.Join(dead, "drive_c"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dead+".lock", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	w, err := New(t.Context(), windows, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dead); !os.IsNotExist(err) {
		t.Errorf("the folder of a dead program: %v", err)
	}
	socket, err := socketOf(w.server)
	if err != nil {
		t.Fatal(err)
	}
	other, err := New(t.Context(), windows, Options{}) // must not remove running ones
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(w.prefix); err != nil {
		t.Errorf("the folder of another Wine: %v", err)
	}
	for _, w := range []*Wine{w, other} {
		if err := w.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		if _, err := os.Stat(w.prefix); !os.IsNotExist(err) {
			t.Errorf("folder after Close: %v", err)
		}
	}
	if _, err := os.Stat(socket); !os.IsNotExist(err) {
		t.Errorf("socket of the server after Close: %v", err)
	}
}

func TestPatch(t *testing.T) {
	for _, tc := range []struct{ text, old, new, want string }{
		{"case A, B:", "A, ", "C, A, ", "case C, A, B:"},
		{"f(X)\nif err != nil {\nif err != nil {", "X", "", "f(X)\nif err != nil && err != syscall.Errno(10045) {\nif err != nil {"},
		{"f(Y)", "X", "", ""},
		{"f(X)", "X", "", ""},
	} {
		got, err := patch(tc.text, tc.old, tc.new)
		if got != tc.want || (err != nil) != (tc.want == "") {
			t.Errorf("patch(%q, %q, %q) = %q, %v, want %q", tc.text, tc.old, tc.new, got, err, tc.want)
		}
	}
}
