// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"math/bits"
)

// A size class is a power of two. A list of endpoints is spread by the rules
// of the smallest class that holds it: they draw a slot below the class size
// and, because slots past the end of the list are empty, draw again when
// they hit none. An endpoint that comes or goes within the class changes an
// element of a data map and no rule and no verdict, which is what makes a
// change cheap: the kernel re-validates everything reachable when a verdict
// map gets a new goto, and nothing when a data map gets a new element.

// maxClass is the size of the largest class.
const maxClass = 1 << 16

// classOf returns the class for n endpoints, 1 to maxClass.
func classOf(n int) uint32 {
	return 1 << bits.Len32(uint32(n-1))
}

// slotModuli returns the moduli to draw slots with, in order. More than half of a
// class's slots are filled, so after eight draws fewer than 0.4 % of the
// connections are left; the last draw is from the filled lower half, which
// cannot miss, and favours it by no more than that.
func slotModuli(class uint32) []uint32 {
	n := 8
	switch class {
	case 1, 2:
		return []uint32{class}
	case 4: // a quarter empty at most
		n = 4
	case 8: // three eighths empty at most
		n = 6
	}
	var d []uint32
	for range n {
		d = append(d, class)
	}
	return append(d, class/2)
}

// picker is a family of chains, one per class, that pick a target from a map.
type picker struct {
	name    string
	targets *set
	// entries are chains that go on to this picker's, by name and first
	// statement.
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

// chains returns p's chains for one class.
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

// classes is a set of size classes for each picker: bit i is class 1<<i.
type classes [len(pickers)]uint32

// baseClasses are there from the start, so that small Services never wait
// for a chain: binding a new rule to a full map walks the map.
var baseClasses = classes{0b11111, 0b11111, 0b11, 0b11}

func (c *classes) add(p *picker, class uint32) {
	for i := range pickers {
		if pickers[i] == p {
			c[i] |= class
		}
	}
}

// union returns the classes in either.
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

// chains returns the chains of all classes in c.
func (c classes) chains(o Options) []*chain {
	var chains []*chain
	for i, p := range pickers {
		for left := c[i]; left != 0; left &= left - 1 {
			chains = append(chains, p.chains(left&-left, o)...)
		}
	}
	return chains
}
