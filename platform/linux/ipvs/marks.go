// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"fmt"
	"math"

	"kubeproxy/common/service"
)

// markRule is a rule of policy routing that asks for the mark of packets, see ip-rule(8).
type markRule struct {
	priority   int
	inverted   bool // it is for packets with another mark
	mark, mask uint32
	table      int
}

// uses reports whether the program that made the rule marks packets with bit. A mask of
// all bits says nothing about those that the mark does not have.
func (r markRule) uses(bit uint32) bool {
	return r.mark&r.mask&bit != 0 || r.mask != math.MaxUint32 && r.mask&bit != 0
}

// String returns r in the words of ip-rule(8).
func (r markRule) String() string {
	not, mask := "", ""
	if r.inverted {
		not = "not "
	}
	if r.mask != math.MaxUint32 {
		mask = fmt.Sprintf("/%#x", r.mask)
	}
	return fmt.Sprintf("%d: %sfwmark %#x%s lookup %d", r.priority, not, r.mark, mask, r.table)
}

// sharedMark says by which rule another program uses the masquerade bit, empty if none
// does. What IPVS translated is known by this bit alone, so a packet that carries it for
// other reasons is masqueraded, too: wg-quick's 0xca6c has 0x4000.
func (o Options) sharedMark(f service.Family, rules []markRule) string {
	bit, command := uint32(1)<<o.MasqueradeBit, "ip rule"
	if f == service.IPv6 {
		command = "ip -6 rule"
	}
	for _, r := range rules {
		if r.uses(bit) {
			return fmt.Sprintf("another program marks packets with the masquerade bit %#x (%s has %q), and mode ipvs masquerades them though they go to no Service: "+
				"set iptables.masqueradeBit to a bit that no program of the node uses", bit, command, r)
		}
	}
	return ""
}

// lookAtMarks shows whether another program uses the masquerade bit, if that can be read.
func (b *Backend) lookAtMarks(ctx context.Context) {
	if b.showSharedMark == nil {
		return
	}
	if rules, err := b.driver.MarkRules(ctx); err == nil {
		b.showSharedMark(b.options.sharedMark(b.family, rules))
	}
}
