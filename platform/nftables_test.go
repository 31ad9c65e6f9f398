// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package platform

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/document"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/nftables"
)

var nftablesOptions = nftables.Options{MasqueradeBit: 14}

// emptySnapshot has a node with default values, in a cluster without Services.
var emptySnapshot = service.New(1, &service.Node{NodePorts: service.AnyAddress()}, nil)

func renderNFTables(t *testing.T, want *service.Snapshot, format document.Format) []byte {
	t.Helper()
	var b bytes.Buffer
	all, doc := nftables.Render(want, nftablesOptions)
	if err := format.Write(&b, doc, func(w *bufio.Writer) { w.WriteString(all.String()) }); err != nil {
		t.Fatalf("render: %v", err)
	}
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
	if err := json.Unmarshal(renderNFTables(t, want, document.JSON), &tables); err != nil {
		t.Fatalf("read what was rendered: %v", err)
	}
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
