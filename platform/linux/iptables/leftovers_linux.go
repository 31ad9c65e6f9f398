// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
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

// NodeVariant returns the variant that a Backend uses: the one of kubelet if there are
// commands for it, otherwise the one of the command iptables. It runs the command, and
// returns an error if that fails.
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
	Role    Role
}

// String returns the name of the tables, such as iptables-nft.
func (r Leftovers) String() string { return command(r.Family) + "-" + string(r.Variant) }

// Find describes the leftovers, "" if there are none. It asks the kernel, so that it
// works without the commands.
func (r Leftovers) Find(context.Context) (string, error) {
	list := legacyChains
	if r.Variant == NFT {
		list = nftChains
	}
	all, err := list(r.Family)
	if err != nil {
		return "", fmt.Errorf("look for chains of %s: %w", r, err)
	}
	return describeLeftovers(all, r.Role), nil
}

// Remove removes the chains and the rules of the built-in chains that jump there. A
// chain that rules of others refer to is flushed and kept, and is reported as an error.
func (r Leftovers) Remove(ctx context.Context) error {
	t, err := r.read(ctx)
	if err != nil {
		return err
	}
	if _, routed := t.chains[localnetMark]; routed {
		if err := disableRouteLocalnet(); err != nil {
			return fmt.Errorf("stop to route loopback addresses: %w", err)
		}
	}
	return errors.Join(r.restore(ctx, t.extraneous(nil).removal()), t.inUse())
}

// Disarm removes the chains of tables nat and mangle. After that nothing is marked,
// dropped or translated. Chains that rules of others refer to are flushed and kept.
func (r Leftovers) Disarm(ctx context.Context) error {
	t, err := r.read(ctx)
	if err != nil {
		return err
	}
	return r.restore(ctx, t.extraneous(nil).textOf([]string{nat, mangle}))
}

// read returns the contents of the tables.
func (r Leftovers) read(ctx context.Context) (*observed, error) {
	path, err := r.path()
	if err != nil {
		return nil, err
	}
	text, err := r.run(ctx, "", path+"-save")
	if err != nil {
		return nil, fmt.Errorf("read the tables of %s: %w", r, err)
	}
	return parse(text, r.Role), nil
}

// restore applies a text that removes chains. An empty text does nothing.
func (r Leftovers) restore(ctx context.Context, text string) error {
	path, err := r.path()
	if err != nil || text == "" {
		return err
	}
	if _, err := r.run(ctx, text, path+"-restore", "--noflush", "-w", lockSeconds); err != nil {
		return fmt.Errorf("remove the chains of %s: %w", r, err)
	}
	return nil
}

// path returns the name of the variant's commands without suffix. With a single variant
// installed, the commands may have only short names.
func (r Leftovers) path() (string, error) {
	long := r.String()
	if _, err := exec.LookPath(long + "-restore"); err == nil {
		return long, nil
	}
	short := command(r.Family)
	out, err := exec.Command(short, "--version").Output()
	if err == nil && variantOf(string(out)) == r.Variant {
		return short, nil
	}
	return "", fmt.Errorf("the command %s-restore is missing: install it to have the chains removed", long)
}

func (r Leftovers) run(ctx context.Context, text, name string, args ...string) (string, error) {
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
