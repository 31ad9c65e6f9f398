// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/test/program"
)

// TestModesThatCannotWork checks a node on which no mode can work: the program prints
// what each mode lacks, one line each, and exits with status 1.
func TestModesThatCannotWork(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	const right, noCommand = "the right CAP_NET_ADMIN is needed", "the command iptables is missing: install iptables"
	for _, tc := range []struct {
		name, commands string
		flags          []string
		want           []string // what each mode lacks
	}{
		{"no right, legacy", program.IPTables(t, "legacy"), nil, []string{"nftables: " + right, "iptables: " + right, "userspace: " + right}},
		{"no right, nft", program.IPTables(t, "nft"), nil, []string{"nftables: " + right, "iptables: " + right, "userspace: " + right}},
		{"no right, no commands", t.TempDir(), nil, []string{"nftables: " + right, "iptables: " + noCommand, "userspace: " + noCommand}},
		{"asked for", program.IPTables(t, "legacy"), []string{"--proxy-mode=userspace"}, []string{"userspace: " + right}},
	} {
		cmd := exec.Command("/usr/bin/setpriv", append([]string{"--bounding-set=-net_admin", "--inh-caps=-net_admin", kubeProxy.Path, "--manifests=" + c.dir}, tc.flags...)...)
		cmd.Env = append(os.Environ(), "PATH="+tc.commands)
		out, err := program.Run(t, c.Node, cmd)
		if err == nil || err.Error() != "exit status 1" {
			t.Errorf("%s: ended with %v, want exit status 1", tc.name, err)
		}
		_, last, _ := strings.Cut(out, "kube-proxy: ")
		lines := strings.Split(strings.TrimSpace(last), "\n")
		if len(lines) != len(tc.want) {
			t.Errorf("%s: %d lines, want %d:\n%s", tc.name, len(lines), len(tc.want), out)
			continue
		}
		for i, want := range tc.want {
			mode, lack, _ := strings.Cut(want, ": ")
			if !strings.HasPrefix(lines[i], "mode "+mode+" cannot work here: ") || !strings.HasSuffix(lines[i], lack) || strings.Contains(lines[i], "kernel module") {
				t.Errorf("%s: %q, want that mode %s lacks this: %s", tc.name, lines[i], mode, lack)
			}
		}
	}
}

// TestModeWithFewCommands checks that the command iptables is not sufficient without
// those that read and write whole tables.
func TestModeWithFewCommands(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	for _, suffix := range []string{"-save", "-restore"} {
		dir := program.IPTables(t, "nft")
		if err := os.Remove(filepath.Join(dir, "iptables"+suffix)); err != nil {
			t.Fatal(err)
		}
		for _, mode := range []string{"iptables", "userspace"} {
			cmd := kubeProxy.Command("--manifests="+c.dir, "--proxy-mode="+mode)
			cmd.Env = append(os.Environ(), "PATH="+dir)
			out, err := program.Run(t, c.Node, cmd)
			if err == nil || err.Error() != "exit status 1" || !strings.Contains(out, "mode "+mode+" cannot work here") ||
				!strings.Contains(out, "the command iptables"+suffix+" is missing: install iptables") {
				t.Errorf("without iptables%s, mode %s ended with %v:\n%s", suffix, mode, err, out)
			}
		}
	}
}
