// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"context"
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"kubeproxy/common/document"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/track"
	"kubeproxy/test/kit"
)

var update = flag.Bool("update", false, "rewrite what the scenarios in testdata expect")

// inputs are the files of a scenario that do not belong to a backend.
var inputs = []string{"options.yaml", "cluster.yaml"}

func scenarioPaths(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/*.txtar")
	kit.Need(t, err == nil && len(paths) != 0, "scenarios = %v, %v, want some", paths, err)
	return paths
}

func scenarioName(path string) string { return strings.TrimSuffix(filepath.Base(path), ".txtar") }

// TestScenarios reads each archive in testdata: a description, options of the operator
// if there are any, a cluster, and what each backend renders for it.
func TestScenarios(t *testing.T) {
	for _, path := range scenarioPaths(t) {
		t.Run(scenarioName(path), func(t *testing.T) {
			a, want, c := openScenarioWithOptions(t, path)
			for _, b := range backends {
				got := b.write(t, want, c)
				if *update {
					setPart(a, b.name, got)
				} else if diff := cmp.Diff(string(part(a, b.name)), got); diff != "" {
					t.Errorf("%s (-want +got):\n%s", b.name, diff)
				}
			}
			if *update {
				kit.Must(t, os.WriteFile(path, txtar.Format(a), 0o644))
			}
		})
	}
}

// TestScenariosHaveNoOtherFiles finds misspelt or obsolete files.
func TestScenariosHaveNoOtherFiles(t *testing.T) {
	known := slices.Clone(inputs)
	for _, b := range backends {
		known = append(known, b.name)
	}
	for _, path := range scenarioPaths(t) {
		a, _ := openScenario(t, path)
		kit.Check(t, len(strings.TrimSpace(string(a.Comment))) != 0, "%s does not say what it shows", path)
		for _, f := range a.Files {
			kit.Check(t, slices.Contains(known, f.Name), "%s has a file %s; want one of %v", path, f.Name, known)
		}
	}
}

func part(a *txtar.Archive, name string) []byte {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

func setPart(a *txtar.Archive, name, text string) {
	for i := range a.Files {
		if a.Files[i].Name == name {
			a.Files[i].Data = []byte(text)
			return
		}
	}
	a.Files = append(a.Files, txtar.File{Name: name, Data: []byte(text)})
}

// scenarioOptions are the operator's options in a scenario.
type scenarioOptions struct {
	NodeName         string
	Pods             []string // prefixes
	NodePorts        []string // prefixes
	NodePortsPrimary bool
	MasqueradeAll    bool
	HNS              hnsScenarioOptions
}

func (so scenarioOptions) options() track.Options {
	o := track.Options{NodeName: so.NodeName, NodePortsPrimary: so.NodePortsPrimary, MasqueradeAll: so.MasqueradeAll}
	for _, s := range so.Pods {
		o.Pods.Prefixes = append(o.Pods.Prefixes, netip.MustParsePrefix(s))
	}
	for _, s := range so.NodePorts {
		o.NodePorts = append(o.NodePorts, netip.MustParsePrefix(s))
	}
	if !so.NodePortsPrimary {
		o.NodePorts = service.OrAnyAddress(o.NodePorts)
	}
	return o
}

// openScenario reads a scenario and the snapshot of its node.
func openScenario(t *testing.T, path string) (*txtar.Archive, *service.Snapshot) {
	t.Helper()
	a, want, _ := openScenarioWithOptions(t, path)
	return a, want
}

// openScenarioWithOptions also returns the operator's options.
func openScenarioWithOptions(t *testing.T, path string) (*txtar.Archive, *service.Snapshot, scenarioOptions) {
	t.Helper()
	a, err := txtar.ParseFile(path)
	kit.Must(t, err)
	c := scenarioOptions{NodeName: "node-a"}
	kit.Must(t, yaml.UnmarshalStrict(part(a, "options.yaml"), &c))
	dir := t.TempDir()
	kit.Must(t, os.WriteFile(filepath.Join(dir, "cluster.yaml"), part(a, "cluster.yaml"), 0o644))
	tracker := track.New(c.options())
	m := source.Manifests{Paths: []string{dir}, NodeName: c.NodeName}
	kit.Must(t, m.Load(context.Background(), tracker))
	return a, tracker.Latest(), c
}

// backend is what the scenarios know of a backend. A new one adds a row to backends.
type backend struct {
	name string
	// write returns what the backend makes of a cluster and its node, without what is in
	// the skeleton. A scenario has it in the file with the backend's name.
	write func(*testing.T, *service.Snapshot, scenarioOptions) string
	// skeleton is the file with what every node has, "" if that is nothing. render
	// returns all that a node has.
	skeleton string
	render   func(*testing.T, *service.Snapshot) []byte
}

var backends = []backend{
	{"nftables", writeNFTables, skeletonPath, func(t *testing.T, s *service.Snapshot) []byte { return renderNFTables(t, s, document.Text) }},
	{"iptables", writeIPTables, "testdata/skeleton.iptables", renderIPTables},
	{"ipvs", writeIPVS, "testdata/skeleton.ipvs", renderIPVS},
	{"userspace", writeUserspace, "testdata/skeleton.userspace", renderUserspace},
	{"kernelspace", writeKernelspace, "", nil},
}

const skeletonPath = "testdata/skeleton.nft"

// TestSkeleton shows what every node has in each mode.
func TestSkeleton(t *testing.T) {
	for _, b := range backends {
		if b.skeleton == "" {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			path, got := b.skeleton, b.render(t, emptySnapshot)
			if *update {
				kit.Must(t, os.WriteFile(path, got, 0o644))
				return
			}
			want, err := os.ReadFile(path)
			kit.Must(t, err)
			kit.Same(t, "skeleton (-want +got)", string(want), string(got))
		})
	}
}
