// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"math/bits"
)

// A size class is a power of two. A list of endpoints uses the rules of the smallest
// class that holds it. These rules draw a random slot below the class size. Slots past
// the end of the list are empty, and the next rule draws again. Adding or removing an
// endpoint within the class changes an element of a data map, but no rule and no verdict.
// That keeps changes cheap: a new goto in a verdict map makes the kernel validate the
// whole table from its base chains on, while a new element in a data map needs no
// validation (kernel: net/netfilter/nf_tables_api.c, nft_add_set_elem and
// nft_table_validate).

// maxClass is the size of the largest class.
const maxClass = 1 << 16

// classOf returns the size class for n endpoints, from 1 to maxClass.
func classOf(n int) uint32 {
	return 1 << bits.Len32(uint32(n-1))
}

// slotModuli returns, in order, the moduli for drawing slots of a class. More than half
// of the slots are filled, so fewer than 0.4 % of the connections remain after eight
// draws. The last draw uses the lower half only, which is full and cannot miss. It
// favours that half by no more than those 0.4 %.
func slotModuli(class uint32) []uint32 {
	n := 8
	switch class {
	case 1, 2:
		return []uint32{class}
	case 4: // at most a quarter is empty
		n = 4
	case 8: // at most three eighths are empty
		n = 6
	}
	var d []uint32
	for range n {
		d = append(d, class)
	}
	return append(d, class/2)
}

// picker is a family of chains, one per class, that pick an endpoint from a map.
type picker struct {
	name    string
	targets *set
	// entries are chains that run one statement and then go to this picker's chain. The
	// key is the chain's name. The function returns the statement.
	entries map[string]func(bit uint32) statement
}

func markAlways(bit uint32) statement { return mark{bit} }
func markUnlessPod(uint32) statement  { return jumpVerdict(markChain) }

var (
	pickAddr = &picker{"pick", endpoints, map[string]func(uint32) statement{
		"cluster": markUnlessPod, "external": markAlways,
	}}
	pickNodePort = &picker{"nodeport-pick", nodePortEndpoints, map[string]func(uint32) statement{
		"nodeport-external": markAlways,
	}}
	pickInternal         = &picker{"internal-pick", internalEndpoints, nil}
	pickNodePortInternal = &picker{"nodeport-internal-pick", nodePortInternalEndpoints, nil}
)

var pickers = [...]*picker{pickAddr, pickNodePort, pickInternal, pickNodePortInternal}

func classChain(name string, class uint32) string { return fmt.Sprintf("%s-%d", name, class) }

// chains returns the chains of p for one class.
func (p *picker) chains(class uint32, o Options) []*chain {
	pick := &chain{name: classChain(p.name, class)}
	for _, mod := range slotModuli(class) {
		pick.rules = append(pick.rules, rule{dnat{p.targets.key, mod, p.targets}})
	}
	chains := []*chain{pick}
	for _, entry := range []string{"cluster", "external", "nodeport-external"} {
		if first := p.entries[entry]; first != nil {
			chains = append(chains, &chain{
				name:  classChain(entry, class),
				rules: []rule{{first(o.mark())}, {gotoVerdict(pick.name)}},
			})
		}
	}
	return chains
}

// classes is a set of size classes for each picker. Bit i stands for class 1<<i.
type classes [len(pickers)]uint32

// baseClasses are always present, so that small Services never wait for a chain. Binding
// a new rule to a large map makes the kernel walk the whole map (kernel:
// net/netfilter/nf_tables_api.c, nf_tables_bind_set).
var baseClasses = classes{0b11111, 0b11111, 0b11, 0b11}

func (c *classes) add(p *picker, class uint32) {
	for i := range pickers {
		if pickers[i] == p {
			c[i] |= class
		}
	}
}

// union returns the classes in c or d.
func (c classes) union(d classes) classes {
	for i := range c {
		c[i] |= d[i]
	}
	return c
}

// without returns the classes in c that are not in d.
func (c classes) without(d classes) classes {
	for i := range c {
		c[i] &^= d[i]
	}
	return c
}

// chains returns the chains of every class in c.
func (c classes) chains(o Options) []*chain {
	var chains []*chain
	for i, p := range pickers {
		for left := c[i]; left != 0; left &= left - 1 {
			chains = append(chains, p.chains(left&-left, o)...)
		}
	}
	return chains
}
