// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/iptables"
)

const (
	chainServices = 5000  // that are programmed and changed in mode iptables
	pathServices  = 10000 // that connections pass
	// wholeLimit is how long the known layout may take to load.
	wholeLimit = 2 * time.Minute
	// pieceSize is the number of Services in each piece of the known layout, if it does
	// not load as a whole.
	pieceSize = 100
)

// variants are the implementations of iptables.
var variants = []string{"legacy", "nft"}

// commands creates a folder in which iptables is the variant of t, with a lock of its
// own, so that other users of iptables do not delay it.
func (t task) commands() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "bench-iptables-"); err != nil {
		return "", fmt.Errorf("make temporary directory: %w", err)
	}
	for _, suffix := range []string{"", "-restore", "-save"} {
		program, err := exec.LookPath("iptables-" + t.Variant + suffix)
		if err != nil {
			return dir, err
		}
		if err := os.Symlink(program, filepath.Join(dir, "iptables"+suffix)); err != nil {
			return dir, err
		}
	}
	return dir, os.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock"))
}

// chains measures one layout of chains: how it is loaded and how a Service is changed in
// it.
type chains interface {
	load(ctx context.Context, t task, f *figures) error
	// change gives Service i the endpoints of the given numbers.
	change(ctx context.Context, i int, numbers []int) error
}

// withChains runs measure with a layout of t in a new network.
func (t task) withChains(measure func(*network, chains) error) error {
	n, err := newNetwork()
	if err != nil {
		return err
	}
	defer n.close()
	dir, err := t.commands()
	defer os.RemoveAll(dir)
	if err != nil {
		return err
	}
	if t.Role == roleKnown || t.Role == roleKnownPaths {
		return measure(n, &upstreamChains{network: n, dir: dir})
	}
	r := &pipeline{tracker: track.New(track.Options{
		NodeName: ownNode, NodePorts: service.AnyAddress(),
		Pods: service.LocalPods{Prefixes: []netip.Prefix{netip.MustParsePrefix(clusterCIDR)}},
	}), do: n.node.Do}
	err = n.node.Do(func() (err error) {
		r.backend, err = iptables.New(service.IPv4, iptables.Options{MasqueradeBit: masqueradeBy, DropInvalid: true, Dir: dir})
		return err
	})
	if err != nil {
		return err
	}
	return measure(n, &ownChains{pipeline: r})
}

// measureChains measures the first program and changes of one Service.
func measureChains(ctx context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withChains(func(_ *network, c chains) error {
		t.logf("iptables-%s: first program", t.Variant)
		if err := c.load(ctx, t, f); err != nil {
			return fmt.Errorf("first program: %w", err)
		}
		t.logf("iptables-%s: changes", t.Variant)
		return t.changes(ctx, f, c)
	})
}

// changes replaces one endpoint of one Service at a time, back and forth.
func (t task) changes(ctx context.Context, f *figures, c chains) error {
	var took []time.Duration
	var spent time.Duration
	to := changes()[0]
	rounds := t.pick(20, 2)
	for round := range rounds {
		numbers := to.a
		if round%2 == 1 {
			numbers = to.b
		}
		m := start()
		if err := c.change(ctx, serviceOfRound(round, t.Services), numbers); err != nil {
			return fmt.Errorf("change one Service: %w", err)
		}
		wall, cpu := m.stop()
		took, spent = append(took, wall), spent+cpu
	}
	f.set("change.p50", quantile(took, 0.5))
	f.seconds("change.cpu", spent/time.Duration(rounds))
	return nil
}

// measurePaths measures connections through many Services.
func measurePaths(ctx context.Context, t task) (*figures, error) {
	f := newFigures()
	return f, t.withChains(func(n *network, c chains) error {
		if err := c.load(ctx, t, newFigures()); err != nil {
			return fmt.Errorf("first program: %w", err)
		}
		return t.connections(f, n)
	})
}

// ownChains is our mode iptables.
type ownChains struct{ *pipeline }

func (c *ownChains) load(ctx context.Context, t task, f *figures) error {
	c.feed(t.Services)
	m := start()
	c.tracker.Synced()
	if _, err := c.apply(ctx); err != nil {
		return err
	}
	f.usage("first", m)
	return nil
}

func (c *ownChains) change(ctx context.Context, i int, numbers []int) error {
	c.tracker.SetSlice(newSlice(i, numbers))
	changed, err := c.apply(ctx)
	if err == nil && !changed {
		err = errors.New("nothing was changed")
	}
	return err
}

// measureWhole loads the known layout in one piece, up to wholeLimit.
func measureWhole(ctx context.Context, t task) (*figures, error) {
	t.Role = roleKnown
	f := newFigures()
	return f, t.withChains(func(_ *network, c chains) error {
		limit := wholeLimit
		if t.Quick {
			limit = time.Second
		}
		ctx, cancel := context.WithTimeout(ctx, limit)
		defer cancel()
		t.logf("iptables-%s: the known layout in one piece, for %s at most", t.Variant, limit)
		m := start()
		err := c.(*upstreamChains).restore(ctx, upstreamWhole(t.Services))
		if err == nil {
			f.usage("first", m)
			return nil
		}
		_, cpu := m.stop()
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			f.note("The known layout was not loaded in one piece after %s and %.0f s of CPU.", limit, cpu.Seconds())
			return nil
		}
		return err
	})
}

// knownLayout is the layout that mode iptables is compared with.
const knownLayout = "known layout"

// measureIPTables measures mode iptables with each installed variant, beside the known
// layout.
func (b *bench) measureIPTables(ctx context.Context, s *section) error {
	s.how = howChains
	for _, v := range variants {
		if _, err := exec.LookPath("iptables-" + v); err != nil {
			s.note(b.out, "iptables-%s was not measured: %v.", v, err)
			continue
		}
		for _, measure := range []func(context.Context, string) (table, error){b.measureProgram, b.measureTree} {
			t, err := measure(ctx, v)
			if err != nil {
				return err
			}
			s.add(b.out, t)
		}
	}
	return nil
}

// measureProgram measures the first program and changes: the known layout and ours in
// turn.
func (b *bench) measureProgram(ctx context.Context, variant string) (table, error) {
	services := task{Quick: b.quick}.pick(chainServices, 300)
	t := table{services: services, base: knownLayout, rows: programRows(variant)}
	t.title = fmt.Sprintf("iptables-%s, %s Services of %d endpoints", variant, thousands(services), perService)
	runs, err := b.alternate(ctx, task{Services: services, Variant: variant}, roleKnown, roleChains)
	known := runs[roleKnown]
	t.add(roleFloor, known)
	t.add(roleOurs, runs[roleChains])
	if err != nil || variant == "legacy" {
		return t, err
	}
	whole, err := b.child(ctx, task{Role: roleWhole, Services: services, Variant: variant})
	if err != nil {
		return t, err
	}
	for metric, v := range whole.Values {
		known.set(metric, v)
	}
	known.Notes = append(whole.Notes, known.Notes...)
	return t, nil
}

// alternate measures t in each of the roles, a few times, and returns the medians.
func (b *bench) alternate(ctx context.Context, t task, roles ...role) (map[role]*figures, error) {
	runs := map[role][]*figures{}
	for range b.repeats() {
		for _, r := range roles {
			t.Role = r
			f, err := b.child(ctx, t)
			if err != nil {
				return nil, err
			}
			runs[r] = append(runs[r], f)
		}
	}
	all := map[role]*figures{}
	for r, list := range runs {
		all[r] = medians(list)
	}
	return all, nil
}

// measureTree measures connections.
func (b *bench) measureTree(ctx context.Context, variant string) (table, error) {
	services := task{Quick: b.quick}.pick(pathServices, 300)
	t := table{services: services, base: knownLayout, rows: pathRows()}
	t.title = fmt.Sprintf("iptables-%s, connections through %s Services", variant, thousands(services))
	runs, err := b.alternate(ctx, task{Services: services, Variant: variant}, roleKnownPaths, roleChainsPaths)
	t.add(roleFloor, runs[roleKnownPaths])
	t.add(roleOurs, runs[roleChainsPaths])
	return t, err
}

const whyTable = "iptables-legacy reads and writes the whole table for each change."

func programRows(variant string) []row {
	rows := []row{
		{label: "first program, time", metric: "first.wall", unit: inSeconds},
		{label: "first program, CPU", metric: "first.cpu", unit: inSeconds},
		{label: "one endpoint replaced, time, p50", metric: "change.p50", unit: inSeconds},
		{label: "one endpoint replaced, CPU", metric: "change.cpu", unit: inSeconds},
	}
	if variant == "legacy" {
		rows[1].aim, rows[1].why = aim{times: 0.5}, whyTable
		rows[3].aim, rows[3].why = aim{times: 0.5}, whyTable
		return rows
	}
	rows[0].aim = aim{most: always(60)}
	rows[2].aim = aim{times: 1.0 / 3}
	return rows
}

func pathRows() []row {
	var rows []row
	for _, name := range []string{"first", "middle", "last"} {
		rows = append(rows, row{label: name + " Service, as a multiple of a direct one", metric: "connect." + name + ".ratio", unit: times})
	}
	rows[len(rows)-1].aim = aim{most: always(1.5)}
	return rows
}

const howChains = `
The **known layout** is one list of all Services, a chain for each, and a chain for each endpoint. Its figures are those of
iptables-restore, while **ours** begin at the tracker. The tables have the medians of three turns, CPU with all commands.
`

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

// floor is a table with the same entries as ours in its two large maps, and the fewest
// rules that use them, pushed by a bare loop.
type floor struct {
	conn                *nftables.Conn
	table               *nftables.Table
	services, endpoints *nftables.Set
}

const (
	floorName    = "floor"
	floorPick    = "pick"
	perMessage   = 500  // elements: the length of an attribute has 16 bits (kernel: include/uapi/linux/netlink.h, struct nlattr)
	perFlush     = 8000 // elements, as ours
	floorSockets = 64 << 20
)

// measureFloor measures the least costs of such a table with the library.
func measureFloor(_ context.Context, t task) (*figures, error) {
	n, err := newNetwork()
	if err != nil {
		return nil, err
	}
	defer n.close()
	f, l := newFigures(), &floor{}
	if err := n.node.Do(l.open); err != nil {
		return nil, fmt.Errorf("open nftables: %w", err)
	}
	t.logf("first program")
	before, err := t.kernelMemory()
	if err != nil {
		return nil, err
	}
	m := start()
	if err := l.program(t.Services); err != nil {
		return nil, fmt.Errorf("program the floor: %w", err)
	}
	f.usage("first", m)
	after, err := t.kernelMemory()
	if err != nil {
		return nil, err
	}
	f.set("kernel", after-before)
	t.logf("changes")
	if err := l.changes(t, f); err != nil {
		return nil, err
	}
	rss, err := peakRSS("self")
	f.set("rss", rss)
	return f, err
}

func (l *floor) open() (err error) {
	l.conn, err = nftables.New(nftables.AsLasting(), nftables.WithSockOptions(func(c *netlink.Conn) error {
		if err := c.SetWriteBuffer(floorSockets); err != nil {
			return err
		}
		return c.SetReadBuffer(floorSockets)
	}))
	return err
}

// program adds the sets, then the rules, then the elements: a rule that is bound to a
// full map makes the kernel walk it (kernel: nf_tables_bind_set in
// net/netfilter/nf_tables_api.c).
func (l *floor) program(services int) error {
	l.table = l.conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: floorName})
	key := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService)
	slotKey := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetProto, nftables.TypeInetService, nftables.TypeInteger)
	to := nftables.MustConcatSetType(nftables.TypeIPAddr, nftables.TypeInetService)
	l.services = &nftables.Set{Table: l.table, Name: "services", IsMap: true, Concatenation: true, KeyType: key, DataType: nftables.TypeVerdict}
	l.endpoints = &nftables.Set{Table: l.table, Name: "endpoints", IsMap: true, Concatenation: true, KeyType: slotKey, DataType: to}
	for _, s := range []*nftables.Set{l.services, l.endpoints} {
		if err := l.conn.AddSet(s, nil); err != nil {
			return err
		}
	}
	l.addRules()
	var dial, answer []nftables.SetElement
	for i := range services {
		dial = append(dial, serviceElement(i))
		for j := range perService {
			answer = append(answer, endpointElement(i, j, j))
		}
	}
	for _, step := range []struct {
		set      *nftables.Set
		elements []nftables.SetElement
	}{{l.endpoints, answer}, {l.services, dial}} {
		if err := l.push(step.set, step.elements); err != nil {
			return err
		}
	}
	return nil
}

// addRules adds the two chains that use the sets.
func (l *floor) addRules() {
	key := []expr.Any{
		&expr.Payload{DestRegister: unix.NFT_REG32_00, Base: expr.PayloadBaseNetworkHeader, Offset: 16, Len: 4},
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: unix.NFT_REG32_01},
		&expr.Payload{DestRegister: unix.NFT_REG32_02, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
	}
	pick := l.conn.AddChain(&nftables.Chain{Table: l.table, Name: floorPick})
	l.conn.AddRule(&nftables.Rule{Table: l.table, Chain: pick, Exprs: append(key[:3:3],
		&expr.Numgen{Register: unix.NFT_REG32_03, Modulus: perService, Type: unix.NFT_NG_RANDOM},
		&expr.Lookup{SetName: l.endpoints.Name, SourceRegister: unix.NFT_REG32_00, DestRegister: unix.NFT_REG32_00, IsDestRegSet: true},
		&expr.NAT{Type: expr.NATTypeDestNAT, Family: unix.NFPROTO_IPV4, RegAddrMin: unix.NFT_REG32_00, RegProtoMin: unix.NFT_REG32_01},
	)})
	enter := l.conn.AddChain(&nftables.Chain{
		Table: l.table, Name: "prerouting", Type: nftables.ChainTypeNAT,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	l.conn.AddRule(&nftables.Rule{Table: l.table, Chain: enter, Exprs: append(key[:3:3],
		&expr.Lookup{SetName: l.services.Name, SourceRegister: unix.NFT_REG32_00, IsDestRegSet: true},
	)})
}

// push adds elements in as many messages and transactions as necessary.
func (l *floor) push(s *nftables.Set, elements []nftables.SetElement) error {
	waiting := 0
	for len(elements) > 0 {
		n := min(len(elements), perMessage)
		if err := l.conn.SetAddElements(s, elements[:n]); err != nil {
			return err
		}
		elements = elements[n:]
		if waiting += n; waiting < perFlush && len(elements) > 0 {
			continue
		}
		if err := l.conn.Flush(); err != nil {
			return err
		}
		waiting = 0
	}
	return nil
}

func appendKey(key []byte, a netip.Addr, port uint16) []byte {
	ip := a.As4()
	return append(key, ip[0], ip[1], ip[2], ip[3], unix.IPPROTO_TCP, 0, 0, 0, byte(port>>8), byte(port), 0, 0)
}

func serviceElement(i int) nftables.SetElement {
	return nftables.SetElement{
		Key:         appendKey(nil, clusterIP(i), servicePort),
		VerdictData: &expr.Verdict{Kind: expr.VerdictGoto, Chain: floorPick},
		Comment:     commentOf(i),
	}
}

// endpointElement is the element of endpoint number of Service i in a slot.
func endpointElement(i, slot, number int) nftables.SetElement {
	ip, port := endpointIP(i, number).As4(), uint16(targetPort)
	return nftables.SetElement{
		Key: binary.NativeEndian.AppendUint32(appendKey(nil, clusterIP(i), servicePort), uint32(slot)),
		Val: []byte{ip[0], ip[1], ip[2], ip[3], byte(port >> 8), byte(port), 0, 0},
	}
}

// changes measures the smallest transactions with the same effect as ours.
func (l *floor) changes(t task, f *figures) error {
	const last = perService - 1
	for _, c := range []struct {
		metric string
		step   func(i, round int) error
	}{{"replace", func(i, round int) error {
		old, now := last+round%2, last+1-round%2
		return l.exchange([]nftables.SetElement{endpointElement(i, last, old)}, []nftables.SetElement{endpointElement(i, last, now)})
	}}, {"scale", func(i, round int) error {
		one := []nftables.SetElement{endpointElement(i, last, last)}
		if round%2 == 0 {
			return l.exchange(one, nil)
		}
		return l.exchange(nil, one)
	}}} {
		var took []time.Duration
		for round := range t.pick(changeRounds, 20) {
			i := serviceOfRound(round, t.Services)
			began := time.Now()
			if err := c.step(i, round); err != nil {
				return fmt.Errorf("change the floor: %w", err)
			}
			took = append(took, time.Since(began))
		}
		f.set(c.metric+".p50", quantile(took, 0.5))
		f.set(c.metric+".p99", quantile(took, 0.99))
	}
	return l.many(t, f)
}

// exchange removes and adds endpoints in one transaction.
func (l *floor) exchange(gone, come []nftables.SetElement) error {
	for part := range chunksOf(gone) {
		if err := l.conn.SetDeleteElements(l.endpoints, part); err != nil {
			return err
		}
	}
	for part := range chunksOf(come) {
		if err := l.conn.SetAddElements(l.endpoints, part); err != nil {
			return err
		}
	}
	return l.conn.Flush()
}

// many removes one endpoint from many Services at once, and adds it again.
func (l *floor) many(t task, f *figures) error {
	var took []time.Duration
	for round := range t.pick(manyRounds, 2) {
		began := time.Now()
		var list []nftables.SetElement
		for i := range min(manyServices, t.Services) {
			list = append(list, endpointElement(i, perService-1, perService-1))
		}
		gone, come := list, list
		if round%2 == 0 {
			come = nil
		} else {
			gone = nil
		}
		if err := l.exchange(gone, come); err != nil {
			return fmt.Errorf("change many Services of the floor: %w", err)
		}
		took = append(took, time.Since(began))
	}
	f.set("many", quantile(took, 0.5))
	return nil
}
