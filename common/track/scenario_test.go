// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"
	"sigs.k8s.io/yaml"

	"kubeproxy/common/service"
	"kubeproxy/common/source"
)

var update = flag.Bool("update", false, "rewrite what the scenarios in testdata expect")

// TestScenarios reads each archive in testdata: a cluster, the operator's settings, if
// any, and the expected snapshot of node-a.
func TestScenarios(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(paths) == 0 {
		t.Fatalf("scenarios = %v, %v, want some", paths, err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			got := runScenario(t, archive)
			if *update {
				archive.Files = append(inputs(archive), txtar.File{Name: "snapshot", Data: []byte(got)})
				if err := os.WriteFile(path, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(part(archive, "snapshot")), got); diff != "" {
				t.Errorf("snapshot (-want +got):\n%s", diff)
			}
		})
	}
}

func inputs(a *txtar.Archive) []txtar.File {
	var in []txtar.File
	for _, f := range a.Files {
		if f.Name != "snapshot" {
			in = append(in, f)
		}
	}
	return in
}

func part(a *txtar.Archive, name string) []byte {
	for _, f := range a.Files {
		if f.Name == name {
			return f.Data
		}
	}
	return nil
}

// choices are Options in the form of a scenario file.
type choices struct {
	NodeIPs           []string
	NodePorts         []string
	NodePortsPrimary  bool
	PodsFromNode      bool
	MasqueradeAll     bool
	IgnoreExternalIPs bool
	Explain           bool // show why each endpoint and address is used, or not
}

func (c choices) options() Options {
	o := Options{NodeName: "node-a", PodsFromNode: c.PodsFromNode, MasqueradeAll: c.MasqueradeAll,
		NodePortsPrimary: c.NodePortsPrimary, IgnoreExternalIPs: c.IgnoreExternalIPs}
	for _, s := range c.NodeIPs {
		o.NodeIPs = append(o.NodeIPs, netip.MustParseAddr(s))
	}
	for _, s := range c.NodePorts {
		o.NodePorts = append(o.NodePorts, netip.MustParsePrefix(s))
	}
	return o
}

func runScenario(t *testing.T, a *txtar.Archive) string {
	t.Helper()
	var c choices
	if err := yaml.UnmarshalStrict(part(a, "options.yaml"), &c); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "cluster.yaml")
	if err := os.WriteFile(path, part(a, "cluster.yaml"), 0o644); err != nil {
		t.Fatal(err)
	}
	tracker := New(c.options())
	m := source.Manifests{Paths: []string{path}, NodeName: "node-a"}
	if err := m.Load(context.Background(), tracker); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	s := tracker.Latest()
	printSnapshot(&b, s)
	if c.Explain {
		printChoices(&b, tracker, s)
	}
	for _, p := range tracker.Problems() {
		fmt.Fprintf(&b, "problem: %s\n", p)
	}
	checkSnapshot(t, s)
	return b.String()
}

// printSnapshot writes s in readable form, one fact per line.
func printSnapshot(b *bytes.Buffer, s *service.Snapshot) {
	n := s.Node
	fmt.Fprintf(b, "node %s", n.Name)
	printList(b, "addrs", n.Addrs)
	printList(b, "pods", n.Pods.Prefixes)
	printList(b, "nodeports", n.NodePorts)
	printList(b, "services", n.ServiceCIDRs)
	if n.MasqueradeAll {
		b.WriteString(" masquerade-all")
	}
	if s.Incomplete {
		b.WriteString(" incomplete")
	}
	b.WriteString("\n")
	for _, f := range service.Families {
		for p := range s.Ports(f) {
			printPort(b, p)
		}
	}
}

func printList[T fmt.Stringer](b *bytes.Buffer, name string, list []T) {
	if len(list) > 0 {
		fmt.Fprintf(b, " %s=%v", name, list)
	}
}

func printPort(b *bytes.Buffer, p *service.Port) {
	fmt.Fprintf(b, "%s %s/%s internal=%s external=%s", p.Family, p.Name, p.Name.Protocol, p.Internal, p.External)
	if p.Affinity > 0 {
		fmt.Fprintf(b, " affinity=%v", p.Affinity)
	}
	if p.KeepVIP {
		b.WriteString(" keep-vip")
	}
	if p.HealthCheck != 0 {
		fmt.Fprintf(b, " health check %d: %d here", p.HealthCheck, p.LocalReady)
	}
	b.WriteString("\n")
	for _, f := range p.Frontends {
		fmt.Fprintf(b, "\t%s", describe(p, f))
		if f.Sources != nil {
			fmt.Fprintf(b, " from %v", f.Sources)
		}
		b.WriteString("\n")
	}
	printEndpoints(b, "cluster", p.Cluster)
	if p.Internal == service.PolicyLocal || p.External == service.PolicyLocal {
		printEndpoints(b, "local", p.Local)
	}
	if len(p.Draining) > 0 {
		printEndpoints(b, "draining", p.Draining)
	}
}

// printChoices explains the endpoints of each Port, and who else claims its addresses.
func printChoices(b *bytes.Buffer, t *Tracker, s *service.Snapshot) {
	for p := range s.Ports(service.IPv4) {
		c := t.Choice(p.Family, p.Name)
		fmt.Fprintf(b, "choice of %s: %q\n", p.Name, c.Topology)
		for _, x := range c.Candidates {
			fmt.Fprintf(b, "\t%s %s: %t, %s", x.Address, x.State, x.Cluster.Used, x.Cluster.Why)
			if x.ForLocal != nil {
				fmt.Fprintf(b, "; Local %t, %s", x.ForLocal.Used, x.ForLocal.Why)
			}
			fmt.Fprintf(b, " (node %q, zone %q, local %t)\n", x.Node, x.Zone, x.Local)
		}
		for _, f := range p.Frontends {
			if c := t.Claimants(p, f); len(c.Others) > 0 || c.Holder != p.Name.Namespace+"/"+p.Name.Name {
				fmt.Fprintf(b, "\t%s: %s has it; %q\n", describe(p, f), c.Holder, c.Others)
			}
		}
	}
}

func printEndpoints(b *bytes.Buffer, name string, list []service.Endpoint) {
	fmt.Fprintf(b, "\t%s", name)
	if len(list) == 0 {
		b.WriteString(" none")
	}
	for _, e := range list {
		mark := "?"
		switch {
		case e.Local:
			mark = "*"
		case e.Remote:
			mark = ""
		}
		fmt.Fprintf(b, " %s%s", e.Addr, mark)
	}
	b.WriteString("\n")
}

// checkSnapshot checks the guarantees of package service about snapshots.
func checkSnapshot(t *testing.T, s *service.Snapshot) {
	t.Helper()
	taken := map[service.Address]*service.Port{}
	for _, family := range service.Families {
		for p := range s.Ports(family) {
			if err := checkPort(p, taken); err != "" {
				t.Errorf("port %s (%s): %s", p.Name, p.Family, err)
			}
		}
	}
}

func checkPort(p *service.Port, taken map[service.Address]*service.Port) string {
	for _, f := range p.Frontends {
		if f.Port == 0 {
			return "frontend with port 0"
		}
		if f.Kind != service.NodePort && (!f.Addr.IsValid() || service.FamilyOf(f.Addr) != p.Family) {
			return fmt.Sprintf("frontend address %v", f.Addr)
		}
		if other := taken[p.Address(f)]; other != nil {
			return fmt.Sprintf("%s also belongs to %s", describe(p, f), other.Name)
		}
		taken[p.Address(f)] = p
		if f.Sources != nil && f.Kind != service.LoadBalancerIP {
			return describe(p, f) + " has sources"
		}
		for i, x := range f.Sources {
			if x != x.Masked() || service.FamilyOf(x.Addr()) != p.Family || i > 0 && (f.Sources[i-1].Overlaps(x) || x.Addr().Less(f.Sources[i-1].Addr())) {
				return fmt.Sprintf("sources %v", f.Sources)
			}
		}
	}
	if p.Internal == service.PolicyCluster && p.External == service.PolicyCluster && p.Local != nil {
		return "local endpoints without a local policy"
	}
	for _, list := range [][]service.Endpoint{p.Cluster, p.Local} {
		for i, e := range list {
			if !e.Addr.IsValid() || e.Addr.Port() == 0 || service.FamilyOf(e.Addr.Addr()) != p.Family || e.Local && e.Remote {
				return fmt.Sprintf("endpoint %v", e)
			}
			if i > 0 && list[i-1].Addr.Compare(e.Addr) >= 0 {
				return fmt.Sprintf("endpoints %v, %v out of order", list[i-1].Addr, e.Addr)
			}
		}
	}
	if len(p.Frontends) == 0 {
		return "no frontend"
	}
	return ""
}
