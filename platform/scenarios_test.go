// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
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
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/platform/windows/hns"
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

var userspaceOptions = userspace.Options{Rules: iptablesOptions}

func renderUserspace(t *testing.T, want *service.Snapshot) []byte {
	t.Helper()
	all, _ := userspace.Render(want, userspaceOptions)
	return []byte(all.String())
}

// writeUserspace writes the chains that are not in the skeleton or differ there.
func writeUserspace(_ *testing.T, want *service.Snapshot, _ scenarioOptions) string {
	return writeChains(want, func(f service.Family, s *service.Snapshot) iptables.Tables {
		return userspace.Document(f, s, userspaceOptions)
	})
}

// hnsScenarioOptions are the operator's options for Windows, and the assumed network.
type hnsScenarioOptions struct {
	Kind                hns.Kind // L2Bridge by default
	SourceVIP           string
	DSR                 bool
	ForwardHealthChecks bool
}

// writeKernelspace writes what a Windows node would hold.
func writeKernelspace(t *testing.T, want *service.Snapshot, c scenarioOptions) string {
	t.Helper()
	o := hns.Options{DSR: c.HNS.DSR, ForwardHealthChecks: c.HNS.ForwardHealthChecks, RootEndpoint: "cbr0", HealthzPort: 10256}
	if c.HNS.SourceVIP != "" {
		o.SourceVIP = netip.MustParseAddr(c.HNS.SourceVIP)
	}
	kind := hns.L2Bridge
	if c.HNS.Kind != "" {
		kind = c.HNS.Kind
	}
	all, _, err := hns.Render(want, hns.AssumedListing(kind, want, o), o)
	kit.Need(t, err == nil, "render: %v", err)
	return all.String()
}

var ipvsOptions = ipvs.Options{MasqueradeBit: 14}

func renderIPVS(t *testing.T, want *service.Snapshot) []byte {
	t.Helper()
	all, _ := ipvs.Render(want, ipvsOptions)
	return []byte(all.String())
}

// writeIPVS writes addresses and virtual servers, the elements of all sets, and the
// chains that are not in the skeleton or differ there.
func writeIPVS(_ *testing.T, want *service.Snapshot, _ scenarioOptions) string {
	var b strings.Builder
	for _, f := range service.Families {
		d := ipvs.NewDocument(f, want, ipvsOptions)
		var addrs []string
		for _, a := range d.Addresses {
			addrs = append(addrs, fmt.Sprintf("%s from %s", a.Addr, a.Source))
		}
		writeLines(&b, f.String()+" addresses", addrs)
		for _, s := range d.Servers {
			var to []string
			for _, a := range s.Destinations {
				to = append(to, a.String())
			}
			writeLines(&b, s.String(), to)
		}
		for _, s := range d.Sets {
			var elements []string
			for _, e := range s.Elements {
				elements = append(elements, e.Element)
			}
			writeLines(&b, s.Name, elements)
		}
		writeAdded(&b, f, ipvs.NewDocument(f, emptySnapshot, ipvsOptions).Chains, d.Chains)
	}
	return orSkeletonOnly(&b)
}

var iptablesOptions = iptables.Options{MasqueradeBit: 14, LocalhostNodePorts: true, DropInvalid: true}

func renderIPTables(t *testing.T, want *service.Snapshot) []byte {
	t.Helper()
	all, _ := iptables.Render(want, iptablesOptions)
	return []byte(all.String())
}

// writeIPTables writes the chains that are not in the skeleton or differ there: what a
// cluster and its node add to it.
func writeIPTables(_ *testing.T, want *service.Snapshot, _ scenarioOptions) string {
	return writeChains(want, func(f service.Family, s *service.Snapshot) iptables.Tables {
		return iptables.Document(f, s, iptablesOptions)
	})
}

func writeChains(want *service.Snapshot, document func(service.Family, *service.Snapshot) iptables.Tables) string {
	var b strings.Builder
	for _, f := range service.Families {
		writeAdded(&b, f, document(f, emptySnapshot), document(f, want))
	}
	return orSkeletonOnly(&b)
}

// writeAdded writes the chains of t that are not in skeleton or differ there.
func writeAdded(b *strings.Builder, f service.Family, skeleton, t iptables.Tables) {
	for i, table := range t.Tables {
		for _, c := range changedChains(skeleton.Tables[i], table) {
			writeLines(b, f.String()+" "+table.Name+" "+c.Name, c.Rules)
		}
	}
}

// changedChains returns the chains of t that are not in skeleton or differ there.
func changedChains(skeleton, t iptables.Table) []iptables.Chain {
	return slices.DeleteFunc(slices.Clone(t.Chains), func(c iptables.Chain) bool {
		return slices.ContainsFunc(skeleton.Chains, func(s iptables.Chain) bool { return s.Name == c.Name && slices.Equal(s.Rules, c.Rules) })
	})
}

var nftablesOptions = nftables.Options{MasqueradeBit: 14}

// emptySnapshot has a node with default values, in a cluster without Services.
var emptySnapshot = service.New(1, &service.Node{NodePorts: service.AnyAddress()}, nil)

func renderNFTables(t *testing.T, want *service.Snapshot, format document.Format) []byte {
	t.Helper()
	var b bytes.Buffer
	all, doc := nftables.Render(want, nftablesOptions)
	kit.Must(t, format.Write(&b, doc, func(w *bufio.Writer) { w.WriteString(all.String()) }))
	return b.Bytes()
}

// nftTables is the JSON output of Render.
type nftTables struct {
	Tables []struct {
		Family, Name string
		Sets, Chains []nftObject
	}
}

type nftObject struct {
	Name, Type      string
	Elements, Rules []string
}

func nftablesOf(t *testing.T, want *service.Snapshot) nftTables {
	t.Helper()
	var tables nftTables
	kit.Must(t, json.Unmarshal(renderNFTables(t, want, document.JSON), &tables))
	return tables
}

// writeNFTables writes the elements of all sets, and the chains that are not in the
// skeleton or differ there: what a cluster and its node add to it.
func writeNFTables(t *testing.T, want *service.Snapshot, _ scenarioOptions) string {
	t.Helper()
	skeleton := nftablesOf(t, emptySnapshot)
	var b strings.Builder
	for i, table := range nftablesOf(t, want).Tables {
		for _, s := range table.Sets {
			writeLines(&b, table.Family+" "+s.Name, s.Elements)
		}
		for _, c := range table.Chains {
			if !slices.ContainsFunc(skeleton.Tables[i].Chains, c.equal) {
				writeLines(&b, table.Family+" chain "+c.Name, c.Rules)
			}
		}
	}
	return orSkeletonOnly(&b)
}

func orSkeletonOnly(b *strings.Builder) string {
	if b.Len() == 0 {
		return "nothing but the skeleton\n"
	}
	return b.String()
}

func (o nftObject) equal(x nftObject) bool {
	return o.Name == x.Name && o.Type == x.Type && slices.Equal(o.Rules, x.Rules)
}

func writeLines(b *strings.Builder, title string, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintf(b, "%s\n", title)
	for _, l := range lines {
		fmt.Fprintf(b, "\t%s\n", l)
	}
}
