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

	"kubeproxy/common/service"
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
