// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/explain"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// Variant is one of the two implementations of iptables. Neither lists the rules of the
// other (xtables-nft(8)).
type Variant string

// The variants. Their names are the suffixes of the commands.
const (
	Legacy Variant = "legacy"
	NFT    Variant = "nft"
)

// Variants lists both variants.
var Variants = [...]Variant{Legacy, NFT}

// NodeVariant returns the variant of a Backend: that of kubelet if there are commands for it,
// otherwise that of the command iptables, which it runs.
func NodeVariant(f service.Family) (Variant, error) {
	out, err := exec.Command(commandPrefix(f), "--version").Output()
	if err != nil {
		return "", fmt.Errorf("ask %s for its version: %w", commandPrefix(f), err)
	}
	return variantOf(string(out)), nil
}

// variantOf parses the version that a command prints.
func variantOf(version string) Variant {
	if strings.Contains(version, "nf_tables") {
		return NFT
	}
	return Legacy
}

// Leftovers are the chains of service proxies in the tables of one variant and family,
// in the network namespace of the calling thread. The tables may contain none.
type Leftovers struct {
	Variant Variant
	Family  service.Family
	Role    *Role
}

// String returns the name of the tables, such as iptables-nft.
func (l Leftovers) String() string { return command(l.Family) + "-" + string(l.Variant) }

// Find describes the leftovers, "" if there are none. It asks the kernel, so it needs no commands.
func (l Leftovers) Find(context.Context) (string, error) {
	list := legacyChains
	if l.Variant == NFT {
		list = nftChains
	}
	all, err := list(l.Family)
	if err != nil {
		return "", fmt.Errorf("look for chains of %s: %w", l, err)
	}
	return describeLeftovers(all, l.Role), nil
}

// Remove removes the chains and the rules of the built-in chains that jump there. A
// chain that rules of others refer to is flushed and kept, and is reported as an error.
func (l Leftovers) Remove(ctx context.Context) error {
	t, err := l.read(ctx)
	if err != nil {
		return err
	}
	if _, routed := t.chains[localnetMark]; routed {
		if err := disableRouteLocalnet(); err != nil {
			return fmt.Errorf("stop to route loopback addresses: %w", err)
		}
	}
	return errors.Join(l.restore(ctx, t.extraneous(nil).removal()), t.inUse())
}

// Disarm removes the chains of tables nat and mangle. After that nothing is marked,
// dropped or translated. Chains that rules of others refer to are flushed and kept.
func (l Leftovers) Disarm(ctx context.Context) error {
	t, err := l.read(ctx)
	if err != nil {
		return err
	}
	return l.restore(ctx, t.extraneous(nil).textOf([]string{nat, mangle}))
}

// read returns the contents of the tables.
func (l Leftovers) read(ctx context.Context) (*observed, error) {
	path, err := l.path()
	if err != nil {
		return nil, err
	}
	text, err := l.run(ctx, "", path+"-save")
	if err != nil {
		return nil, fmt.Errorf("read the tables of %s: %w", l, err)
	}
	return parse(text, l.Role), nil
}

// restore applies a text that removes chains. An empty text does nothing.
func (l Leftovers) restore(ctx context.Context, text string) error {
	path, err := l.path()
	if err != nil || text == "" {
		return err
	}
	if _, err := l.run(ctx, text, path+"-restore", "--noflush", "-w", lockSeconds); err != nil {
		return fmt.Errorf("remove the chains of %s: %w", l, err)
	}
	return nil
}

// path returns the variant's commands without suffix. A single variant may have only short names.
func (l Leftovers) path() (string, error) {
	long := l.String()
	if _, err := exec.LookPath(long + "-restore"); err == nil {
		return long, nil
	}
	short := command(l.Family)
	out, err := exec.Command(short, "--version").Output()
	if err == nil && variantOf(string(out)) == l.Variant {
		return short, nil
	}
	return "", fmt.Errorf("the command %s-restore is missing: install it to have the chains removed", long)
}

func (l Leftovers) run(ctx context.Context, text, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...)
	var out, stderr bytes.Buffer
	c.Stdin, c.Stdout, c.Stderr = strings.NewReader(text), &out, &stderr
	if err := c.Run(); err != nil {
		message := strings.Join(strings.Fields(stderr.String()), " ")
		if errors.Is(err, exec.ErrNotFound) || message == "" {
			return "", err
		}
		return "", fmt.Errorf("%w: %s", err, message)
	}
	return out.String(), nil
}

// NewCounters returns the Counters of one family. It uses only Dir and Role of o.
func NewCounters(f service.Family, o Options) *Counters {
	r := &runner{family: f, role: o.Role, dir: o.Dir}
	r.chooseName()
	r.resolvePrograms()
	return &Counters{family: f, list: r.saveCounters}
}

// saveCounters lists table nat with counters, without the lock, so that nobody finds that taken.
func (r *runner) saveCounters(ctx context.Context) (string, error) {
	c := r.command(ctx, "-save", "-c", "-t", nat)
	c.Env = append(os.Environ(), noLockEnv)
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return out.String(), nil
}

// tableTimeout limits the time that the kernel has for a reply about a table.
const tableTimeout = 10 * time.Second

func (r *runner) SavedTables() []string {
	if _, nft := r.monitor.(*nftMonitor); !nft {
		return []string{explain.LegacyTables}
	}
	var all []string
	for _, name := range []string{rawTable, mangle, nat, filter} {
		all = append(all, netlink.FamilyName(r.family)+" "+name)
	}
	return all
}

// Dormant implements Driver. Tables of iptables-legacy have no flags.
func (r *runner) Dormant() ([]string, error) {
	n, ok := r.monitor.(*nftMonitor)
	if !ok {
		return nil, nil
	}
	s, err := dialNetfilter()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	var dormant []string
	for _, table := range r.role.tables() {
		flags, err := tableFlags(context.Background(), s, n.family, table)
		if err != nil {
			return nil, fmt.Errorf("ask for the flags of table %s: %w", table, err)
		}
		if flags&unix.NFT_TABLE_F_DORMANT != 0 {
			dormant = append(dormant, table)
		}
	}
	return dormant, nil
}

func (r *runner) Activate(table string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, ok := r.monitor.(*nftMonitor)
	if !ok {
		return nil
	}
	s, err := dialNetfilter()
	if err != nil {
		return err
	}
	defer s.Close()
	flags, err := tableFlags(context.Background(), s, n.family, table)
	if err != nil || flags&unix.NFT_TABLE_F_DORMANT == 0 {
		return err
	}
	if err := n.beginRestore(int(s.PortID())); err != nil {
		return err
	}
	return errors.Join(setTableFlags(s, n.family, table, flags&^unix.NFT_TABLE_F_DORMANT), n.endRestore())
}

func dialNetfilter() (*netlink.Socket, error) {
	s, err := netlink.Dial(unix.NETLINK_NETFILTER, netlink.Options{Timeout: tableTimeout})
	if err != nil {
		return nil, fmt.Errorf("netfilter: %w", err)
	}
	return s, nil
}

// tableFlags returns the flags of a table, 0 if the table does not exist.
func tableFlags(ctx context.Context, s *netlink.Socket, family byte, table string) (uint32, error) {
	e := &netlink.Encoder{}
	e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_GETTABLE), 0, family, 0)
	e.Text(unix.NFTA_TABLE_NAME, table)
	e.EndMessage()
	var flags uint32
	err := s.Query(ctx, e.Buf, func(m netlink.Message) error {
		_, body := m.Netfilter()
		flags = netlink.Uint32(netlink.Attribute(body, unix.NFTA_TABLE_FLAGS))
		return nil
	})
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return flags, err
}

// setTableFlags sets the flags of an existing table, in a batch: nftables changes nothing else.
func setTableFlags(s *netlink.Socket, family byte, table string, flags uint32) error {
	e := &netlink.Encoder{}
	e.NetfilterMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	e.EndMessage()
	e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_NEWTABLE), unix.NLM_F_ACK, family, 0)
	e.Text(unix.NFTA_TABLE_NAME, table)
	e.Uint32(unix.NFTA_TABLE_FLAGS, flags)
	e.EndMessage()
	e.NetfilterMessage(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
	e.EndMessage()
	return s.Transact(e.Buf)
}
