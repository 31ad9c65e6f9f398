// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package foreign

// Tables are what the kernel has, without what this program follows elsewhere.
type Tables interface {
	// Bases returns the base chains of the family, in any order.
	Bases() []Base
	// Rules returns the rules of a chain.
	Rules(Chain) ([]Rule, error)
	// Set returns a set or map of a table. Its elements are those of now.
	Set(table Chain, name string) (*Set, error)
}

// Chain identifies a chain of nftables, or with an empty name its table.
type Chain struct{ Family, Table, Name string }

// Base is a base chain.
type Base struct {
	Chain
	Hook     Hook
	Priority int
	NAT      bool // of type nat
	Drops    bool // by its policy
	// Later means that the table is younger than the one of this program.
	Later bool
}

// Hook is a hook of netfilter.
type Hook uint8

// The hooks, numbered as in include/uapi/linux/netfilter.h.
const (
	Prerouting Hook = iota
	Input
	Forward
	Output
	Postrouting
)

// String returns the name that nft uses.
func (h Hook) String() string {
	return [...]string{"prerouting", "input", "forward", "output", "postrouting"}[h]
}

// Rule is a rule of nftables.
type Rule struct {
	Handle      uint64
	Comment     string
	Expressions []Expression
}

// Set is a set or map.
type Set struct {
	// Intervals means that an element with End ends an interval which the one before it
	// began, as in sets of one field.
	Intervals bool
	// Fields are the lengths of the fields of a key, in bytes. They are empty if there is
	// one field.
	Fields   []int
	Elements []Element
}

// Element is an element of a Set.
type Element struct {
	Key []byte
	// KeyEnd is the end of an interval in a set of several fields, else nil.
	KeyEnd        []byte
	End, CatchAll bool
	// Conditional means that the element has an expression, such as a limit.
	Conditional bool
	Data        []byte
	Verdict     *Verdict
}

// Expression is one of the types below. Those of the kernel that are not among them are
// Opaque or Chance.
type Expression any

// PayloadLoad loads bytes of the packet.
type PayloadLoad struct {
	Base         uint8 // link, network or transport header, from 0
	Offset, Size int
	To           uint32
}

// PayloadStore alters bytes of the packet.
type PayloadStore struct{ Base uint8 }

// MetaLoad loads what the kernel knows of the packet.
type MetaLoad struct{ Key, To uint32 }

// MetaStore sets it.
type MetaStore struct{ Key, From uint32 }

// ConntrackLoad loads a property of the connection.
type ConntrackLoad struct {
	Key, To   uint32
	Direction uint8
}

// ConntrackStore sets it.
type ConntrackStore struct{ Key, From uint32 }

// Compare compares a register. Op is one of the kernel's nft_cmp_ops.
type Compare struct {
	Op   uint32
	From uint32
	Data []byte
}

// Range compares a register with the limits of an interval.
type Range struct {
	Not       bool
	From      uint32
	Low, High []byte
}

// Bitwise computes From & Mask ^ Flip.
type Bitwise struct {
	From, To   uint32
	Size       int
	Mask, Flip []byte
}

// ByteOrder reverses groups of bytes.
type ByteOrder struct {
	From, To     uint32
	Length, Size int
}

// Immediate loads constant data.
type Immediate struct {
	To   uint32
	Data []byte
}

// Verdict ends the rule.
type Verdict struct {
	Code  int32 // of the kernel: 0 drop, 1 accept, and nft_verdicts
	Chain string
}

// Codes of Verdict.
const (
	Drop     = 0
	Accept   = 1
	Continue = -1
	Break    = -2
	Jump     = -3
	Goto     = -4
	Return   = -5
)

// Lookup looks for a key in a set, or for its value in a map.
type Lookup struct {
	Set  string
	From uint32
	Not  bool
	// To is the register for the value of a map. 0 is the verdict. It counts if Map is set.
	To  uint32
	Map bool
}

// Fib asks the routing tables.
type Fib struct {
	To                 uint32
	Source, Interfaces bool // of what; else the destination
	Type               bool // asks for the type of the address, else for the interface
	Name, Present      bool // of the interface, or only whether there is one
}

// Translate replaces the destination or the source of the connection.
type Translate struct {
	Source     bool   // replaces the source
	Redirect   bool   // to the node itself
	Addr, Port uint32 // registers, 0 for none
}

// Reject refuses the packet.
type Reject struct{}

// NoTrack exempts the packet from connection tracking.
type NoTrack struct{}

// Passive decides nothing.
type Passive struct{}

// Chance matches some packets, and may load a register.
type Chance struct {
	Name string
	To   uint32 // 0 for none
}

// Opaque may do anything with the packet.
type Opaque struct{ Name string }

// Extension is a match or target of iptables.
type Extension struct {
	Target   bool
	Name     string
	Revision uint32
	Info     []byte
}
