// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/platform/modes"
)

// lineMutator generates command lines, correct ones and mistaken ones.
type lineMutator struct {
	*rand.Rand
	commands [][]string
	flags    map[string][]*pflag.Flag // by command
	dir      string
}

func newLineMutator(seed uint64, dir string) *lineMutator {
	m := &lineMutator{Rand: rand.New(rand.NewPCG(seed, seed)), flags: map[string][]*pflag.Flag{}, dir: dir}
	m.addCommand(newRoot(streams{&bytes.Buffer{}, &bytes.Buffer{}}, modes.All()), nil)
	return m
}

// addCommand adds a command and its subcommands.
func (m *lineMutator) addCommand(c *cobra.Command, path []string) {
	m.commands = append(m.commands, path)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		key := strings.Join(path, " ")
		m.flags[key] = append(m.flags[key], f)
	})
	for _, below := range c.Commands() {
		m.addCommand(below, append(slices.Clip(path), below.Name()))
	}
}

// hostileValues are inserted where a value belongs.
var hostileValues = []string{
	"", "0", "-1", "1", "true", "false", "99999999999999999999", "1e309", "NaN", "0x10", "1s", "-5m", "9999999h", "::", "0.0.0.0:0", "127.0.0.1:70000", "[::1]:1",
	"10.0.0.0/8", "10.0.0.0/99", "fe80::1%lo", "a=b", "=", ",", "a,,b", "*", "primary,all", "\x1b[31m", "a\nFORGED", "\xff", "../..", "-", "--", "größe", strings.Repeat("x", 5000),
	"nftables", "iptables", "ipvs", "userspace", "kernelspace", "AllAlpha", "KubeProxyIPVS=false", "text", "json", "linux", "windows",
}

// line returns a command line. Its last arguments keep it from running a proxy, from
// changing the system, and from connecting to a server.
func (m *lineMutator) line() []string {
	path := m.commands[m.IntN(len(m.commands))]
	args := slices.Clone(path)
	flags := m.flags[strings.Join(path, " ")]
	for range m.IntN(4) {
		args = append(args, m.argument(flags)...)
	}
	for range m.IntN(3) {
		m.mutate(args, len(path))
	}
	return args
}

func (m *lineMutator) argument(flags []*pflag.Flag) []string {
	if m.IntN(6) == 0 || len(flags) == 0 {
		return []string{m.value()}
	}
	f := flags[m.IntN(len(flags))]
	name := "--" + f.Name
	if f.Shorthand != "" && m.IntN(2) == 0 {
		name = "-" + f.Shorthand
	}
	switch m.IntN(4) {
	case 0:
		return []string{name}
	case 1:
		return []string{name, m.value()}
	case 2:
		return []string{name + "=" + f.DefValue}
	}
	return []string{name + "=" + m.value()}
}

func (m *lineMutator) value() string {
	if m.IntN(5) == 0 {
		return m.dir
	}
	return hostileValues[m.IntN(len(hostileValues))]
}

// mutate changes one argument after the first n: a letter more, less or another one.
func (m *lineMutator) mutate(args []string, n int) {
	if len(args) <= n {
		return
	}
	i := n + m.IntN(len(args)-n)
	b := []byte(args[i])
	at := m.IntN(len(b) + 1)
	switch letter := byte(m.IntN(256)); {
	case letter == 0:
	case at == len(b):
		b = append(b, letter)
	case m.IntN(2) == 0:
		b[at] = letter
	default:
		b = slices.Delete(b, at, at+1)
	}
	args[i] = string(b)
}

// harmless returns whether args neither change the node nor look at it, nor connect to a
// server. It recognizes the flags that would by their first letters.
func harmless(args []string) bool {
	for _, a := range args {
		name := strings.ToLower(strings.ReplaceAll(strings.TrimLeft(a, "-"), "_", "-"))
		for _, dangerous := range []string{"cleanup", "dry-run", "init-only", "master", "kubeconfig", "server", "metrics-bind-address", "write-config-to", "windows-service", "manifests"} {
			if strings.HasPrefix(a, "-") && strings.HasPrefix(name, dangerous) {
				return false
			}
		}
	}
	return len(args) == 0 || args[0] != "status" && args[0] != "diff" && args[0] != "support-dump" && args[0] != "doctor" && args[0] != "service" && args[0] != "hns-state"
}

// TestCommandLines runs mutated command lines. None may panic, hang, print foreign text
// unescaped, or fail without one line that gives the reason.
func TestCommandLines(t *testing.T) {
	lines, seed := 400, uint64(1)
	if os.Getenv("KUBEPROXY_NIGHTLY") == "1" {
		lines = 5000
	}
	t.Setenv("KUBERNETES_SERVICE_HOST", "") // there is no API server
	t.Chdir(t.TempDir())
	m := newLineMutator(seed, t.TempDir())
	codes := map[int]int{}
	for tried := 0; tried < lines; {
		args := m.line()
		if !harmless(args) {
			continue
		}
		tried++
		got, ended := runWithin(20*time.Second, args)
		if !ended {
			t.Fatalf("%q hangs", args)
		}
		codes[got.Code]++
		checkLine(t, args, got)
	}
	t.Logf("%d command lines, by exit code: %v", lines, codes)
	if codes[0] == 0 || codes[1] == 0 {
		t.Errorf("exit codes %v: the campaign tries one kind of line only", codes)
	}
}

// runWithin runs args unless that takes longer than d.
func runWithin(d time.Duration, args []string) (outcome, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	done := make(chan outcome, 1)
	go func() {
		var out, err bytes.Buffer
		defer func() {
			if r := recover(); r != nil {
				done <- outcome{-1, "", fmt.Sprint("panic: ", r)}
			}
		}()
		code := execute(ctx, modes.All(), args, streams{&out, &err})
		done <- outcome{code, out.String(), err.String()}
	}()
	select {
	case got := <-done:
		return got, true
	case <-time.After(2 * d):
		return outcome{}, false
	}
}

func checkLine(t *testing.T, args []string, got outcome) {
	t.Helper()
	where := fmt.Sprintf("%.300q", args)
	checkPrinted(t, where+": out", got.Out)
	checkPrinted(t, where+": err", got.Err)
	lastLine := lastLines(got.Err)
	switch {
	case got.Code == 0:
	case got.Code != exitNotOK && got.Code != exitUnreachable:
		t.Errorf("%s: exit %d: %s", where, got.Code, got.Err)
	case !strings.HasPrefix(lastLine, "kube-proxy: ") && !strings.HasPrefix(lastLine, "note: ") && !strings.HasPrefix(lastLine, "problem: "):
		t.Errorf("%s: exit %d without a reason: %q", where, got.Code, got.Err)
	case len(args) == 1 && strings.Count(lastLine, "\n") > 1:
		t.Errorf("%s: more than one line for one mistake: %q", where, lastLine)
	}
}
