// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the lists of linked packages")

// program is the package whose dependencies are listed.
const program = "./cmd/kube-proxy"

// maxLinked is how many packages outside the standard library a binary may link, our own
// included.
const maxLinked = 600

// TestLinkedPackages makes a new dependency visible in review.
func TestLinkedPackages(t *testing.T) {
	for _, system := range []string{"linux", "windows"} {
		t.Run(system, func(t *testing.T) {
			linked, err := linkedPackages(system)
			if err != nil {
				t.Fatal(err)
			}
			file := "deps-" + system + ".txt"
			text := strings.Join(linked, "\n") + "\n"
			if *update {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			committed, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(committed), text); diff != "" {
				t.Errorf("build/%s is not what %s links; if that is meant, run make deps (-committed +linked):\n%s", file, program, diff)
			}
			if len(linked) > maxLinked {
				t.Errorf("%s links %d packages on %s, limit %d", program, len(linked), system, maxLinked)
			}
		})
	}
}

// linkedPackages lists the packages outside the standard library that the program links
// on system, sorted.
func linkedPackages(system string) ([]string, error) {
	const outside = "{{if not .Standard}}{{.ImportPath}}{{end}}"
	list := exec.Command("go", "list", "-deps", "-f", outside, program)
	list.Dir = ".."
	list.Env = append(os.Environ(), "GOOS="+system, "GOARCH=amd64", "CGO_ENABLED=0")
	var problems bytes.Buffer
	list.Stderr = &problems
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("list what %s links on %s: %w\n%s", program, system, err, &problems)
	}
	linked := strings.Fields(string(out))
	slices.Sort(linked)
	return linked, nil
}
