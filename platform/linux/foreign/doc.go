// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package foreign follows the first packet of a connection through the rules of others:
// the base chains of every table of nftables that is not this program's, those of iptables
// included, and the chains of iptables-legacy. Tables and a Connection go in, an
// explain.Other for each base chain comes out, in the order in which the kernel runs them.
//
// Rules are evaluated as the kernel stores them, as expressions, with what is known of the
// packet. Each bit of a register is known or not. So a rule matches, does not match, or may
// match. A rule that may match decides nothing; it is named if that could end the packet.
//
// The interface by which a client enters is the one of a route to it, unless the user names
// one. The port of the client is not known.
//
// Tables of the families netdev, bridge and arp are not followed.
package foreign
