// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// upstreamChains is the layout of kube-proxy's iptables mode for many years: a list of
// all Services, a chain for each Service, and one for each endpoint. The bench generates
// and loads it itself, without the costs of a proxy. See pkg/proxy/iptables in
// kubernetes/kubernetes.
type upstreamChains struct {
	network *network
	dir     string
	list    string        // of all Services
	now     map[int][]int // the endpoints of Services that were changed, by number
}

// restore adds text to the present rules with iptables-restore(8).
func (c *upstreamChains) restore(ctx context.Context, text string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(c.dir, "iptables-restore"), "--noflush", "-w", "5", "--counters")
	var stderr bytes.Buffer
	cmd.Stdin, cmd.Stderr = strings.NewReader(text), &stderr
	if err := c.network.node.Start(cmd); err != nil {
		return err
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("iptables-restore: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

// load loads all Services, in pieces if they do not load as a whole. Connections only
// need the chains of three Services: the list is what takes time.
func (c *upstreamChains) load(ctx context.Context, t task, f *figures) error {
	c.now, c.list = map[int][]int{}, upstreamList(t.Services)
	switch {
	case t.Role == roleKnownPaths:
		return c.restore(ctx, upstreamPaths(t.Services))
	case t.Variant == "legacy":
		text := upstreamWhole(t.Services)
		m := start()
		err := c.restore(ctx, text)
		f.usage("first", m)
		return err
	}
	for first := 0; first < t.Services; first += pieceSize {
		if err := c.restore(ctx, upstreamPiece(first, min(first+pieceSize, t.Services))); err != nil {
			return err
		}
	}
	f.note("For the changes, the known layout was loaded in pieces of %d Services.", pieceSize)
	return c.restore(ctx, upstreamBase+"*nat\n"+c.list+"COMMIT\n")
}

// change rewrites the list, as with every change in this layout, and the chains of the
// Service, and removes those of former endpoints.
func (c *upstreamChains) change(ctx context.Context, i int, to []int) error {
	had := c.now[i]
	if had == nil {
		had = numbers(perService)
	}
	c.now[i] = to
	var b strings.Builder
	b.WriteString("*nat\n" + c.list)
	upstreamService(&b, i, to)
	for _, j := range had {
		if !slices.Contains(to, j) {
			fmt.Fprintf(&b, ":%[1]s - [0:0]\n-X %[1]s\n", upstreamName("KUBE-SEP-", i, j))
		}
	}
	b.WriteString("COMMIT\n")
	return c.restore(ctx, b.String())
}

// upstreamName returns the name of a chain of Service i.
func upstreamName(prefix string, i, j int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d/%d", prefix, i, j))
	return prefix + base32.StdEncoding.EncodeToString(sum[:])[:16]
}

// upstreamBase is the part that does not depend on Services.
const upstreamBase = `*filter
:KUBE-SERVICES - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODEPORTS - [0:0]
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
-A KUBE-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A INPUT -j KUBE-NODEPORTS
-A FORWARD -m conntrack --ctstate NEW -j KUBE-SERVICES
-A FORWARD -m conntrack --ctstate NEW -j KUBE-EXTERNAL-SERVICES
-A FORWARD -j KUBE-FORWARD
-A OUTPUT -m conntrack --ctstate NEW -j KUBE-SERVICES
COMMIT
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --xor-mark 0x4000
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
-A PREROUTING -j KUBE-SERVICES
-A OUTPUT -j KUBE-SERVICES
-A POSTROUTING -j KUBE-POSTROUTING
COMMIT
`

// upstreamList is the list of all Services.
func upstreamList(services int) string {
	var b strings.Builder
	b.WriteString(":KUBE-SERVICES - [0:0]\n")
	for i := range services {
		upstreamEntry(&b, i, upstreamName("KUBE-SVC-", i, 0))
	}
	b.WriteString("-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS\n")
	return b.String()
}

func upstreamEntry(b *strings.Builder, i int, to string) {
	fmt.Fprintf(b, "-A KUBE-SERVICES -m comment --comment \"%s cluster IP\" -d %s/32 -p tcp -m tcp --dport %d -j %s\n",
		commentOf(i), clusterIP(i), servicePort, to)
}

// upstreamService writes the chains of Service i.
func upstreamService(b *strings.Builder, i int, endpoints []int) {
	name := upstreamName("KUBE-SVC-", i, 0)
	fmt.Fprintf(b, ":%s - [0:0]\n", name)
	for _, j := range endpoints {
		fmt.Fprintf(b, ":%s - [0:0]\n", upstreamName("KUBE-SEP-", i, j))
	}
	fmt.Fprintf(b, "-A %s -m comment --comment \"%s cluster IP\" ! -s %s -d %s/32 -p tcp -m tcp --dport %d -j KUBE-MARK-MASQ\n",
		name, commentOf(i), clusterCIDR, clusterIP(i), servicePort)
	for n, j := range endpoints {
		draw := fmt.Sprintf("-m statistic --mode random --probability %.10f ", 1/float64(len(endpoints)-n))
		if n == len(endpoints)-1 {
			draw = ""
		}
		endpoint := upstreamName("KUBE-SEP-", i, j)
		fmt.Fprintf(b, "-A %s %s-j %s\n", name, draw, endpoint)
		fmt.Fprintf(b, "-A %s -s %s/32 -j KUBE-MARK-MASQ\n", endpoint, endpointIP(i, j))
		fmt.Fprintf(b, "-A %s -m tcp -p tcp -j DNAT --to-destination %s:%d\n", endpoint, endpointIP(i, j), targetPort)
	}
}

// upstreamPiece returns the chains of some Services.
func upstreamPiece(first, end int) string {
	var b strings.Builder
	b.WriteString("*nat\n:KUBE-MARK-MASQ - [0:0]\n-A KUBE-MARK-MASQ -j MARK --or-mark 0x4000\n")
	for i := first; i < end; i++ {
		upstreamService(&b, i, numbers(perService))
	}
	b.WriteString("COMMIT\n")
	return b.String()
}

// upstreamWhole returns the whole layout.
func upstreamWhole(services int) string {
	var b strings.Builder
	b.WriteString(upstreamBase + "*nat\n")
	for i := range services {
		upstreamService(&b, i, numbers(perService))
	}
	b.WriteString(upstreamList(services) + "COMMIT\n")
	return b.String()
}

// upstreamPaths is the list of all Services, most of which have no chains.
func upstreamPaths(services int) string {
	const nowhere = "KUBE-SVC-NOWHERE"
	var b strings.Builder
	b.WriteString(upstreamBase + "*nat\n:" + nowhere + " - [0:0]\n")
	measured := firstMiddleLast(services)
	for _, i := range measured {
		upstreamService(&b, i, numbers(perService))
	}
	for i := range services {
		to := nowhere
		if slices.Contains(measured[:], i) {
			to = upstreamName("KUBE-SVC-", i, 0)
		}
		upstreamEntry(&b, i, to)
	}
	b.WriteString("COMMIT\n")
	return b.String()
}
