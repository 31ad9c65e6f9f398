// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
)

// shop returns the snapshot of node-a for the example in the documents.
func shop(t *testing.T) *service.Snapshot {
	t.Helper()
	tracker := track.New(track.Options{NodeName: "node-a", NodePorts: service.AnyAddress(), Pods: service.LocalPods{
		Prefixes: []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00:10:244::/48")},
	}})
	m := source.Manifests{Paths: []string{"../../../docs/examples/shop"}, NodeName: "node-a"}
	if err := m.Load(context.Background(), tracker); err != nil {
		t.Fatalf("load the example: %v", err)
	}
	return tracker.Latest()
}

// example is a command of the README and its documented output.
type example struct {
	command string
	output  []string
}

// examples returns the indented lines that begin with a prompt, and the lines after each.
func examples(readme string) []example {
	var found []example
	open := false
	for line := range strings.SplitSeq(readme, "\n") {
		text, indented := strings.CutPrefix(line, "    ")
		command, prompt := strings.CutPrefix(text, "$ ")
		switch {
		case !indented:
			open = false
		case prompt:
			found, open = append(found, example{command: command}), true
		case open:
			last := &found[len(found)-1]
			last.output = append(last.output, text)
		}
	}
	return found
}

// TestReadme runs the commands of the README in a namespace with the example.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	list, want := examples(string(text)), shop(t)
	if len(list) < 10 {
		t.Fatalf("%d examples found, want at least 10", len(list))
	}
	inNamespace(t, func() {
		for _, f := range service.Families {
			b := newKernel(t, f)
			defer b.driver.(*kernel).close()
			apply(t, b, want)
		}
		for _, e := range list {
			out, err := exec.Command("sh", "-c", e.command).CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s", e.command, err, out)
				continue
			}
			if diff := cmp.Diff(plain(e.output), plain(strings.Split(string(out), "\n"))); diff != "" {
				t.Errorf("%s (-README +nft):\n%s", e.command, diff)
			}
		}
	})
}

// plain removes differences that do not matter: the order of elements, their separators
// and indentation, and empty lines.
func plain(lines []string) []string {
	var out []string
	for l := range strings.SplitSeq(strings.Join(lines, ",\n"), ",") {
		l = strings.TrimPrefix(strings.Join(strings.Fields(l), " "), "elements = { ")
		if l = strings.TrimRight(l, "} "); l != "" {
			out = append(out, l)
		}
	}
	slices.Sort(out)
	return out
}
