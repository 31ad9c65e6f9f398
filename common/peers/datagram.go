// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package peers

import (
	"crypto/rand"
	"encoding/binary"
)

// version is that of what peers agree on: the datagrams, the selection of endpoints and the
// form of the tunnel.
const version = 1

// A datagram is a header, which is the same in all versions, and the sender's name if it is a
// probe. So an answer is never larger than what it answers.
const (
	magic      = "kprx"
	headerSize = 28 // magic, version, kind, 2 of zero, key, nonce
	maxName    = 253
	maxSize    = headerSize + maxName
)

// kind says what a datagram is.
type kind byte

const (
	probe    kind = 1 + iota
	answer        // to the probe with the same nonce
	farewell      // of a peer that is none from now on, after that probe
	gone          // never sent: a probe that came back, because nobody listens
)

// nonce is chosen at random for each probe. Whoever knows it has seen the probe.
type nonce [16]byte

func newNonce() (n nonce) {
	rand.Read(n[:]) // never fails
	return n
}

type datagram struct {
	version byte
	kind    kind
	key     uint32
	nonce   nonce
	name    string
}

func (d datagram) encode() []byte {
	b := append(make([]byte, 0, headerSize+len(d.name)), magic...)
	b = append(b, d.version, byte(d.kind), 0, 0)
	b = binary.BigEndian.AppendUint32(b, d.key)
	b = append(b, d.nonce[:]...)
	return append(b, d.name...)
}

// decode returns false if b is no datagram of a peer.
func decode(b []byte) (d datagram, is bool) {
	if len(b) < headerSize || len(b) > maxSize || string(b[:4]) != magic || b[5] == 0 || kind(b[5]) >= gone {
		return d, false
	}
	d = datagram{version: b[4], kind: kind(b[5]), key: binary.BigEndian.Uint32(b[8:]), nonce: nonce(b[12:]), name: string(b[headerSize:])}
	return d, d.nonce != nonce{} && (d.kind == probe) == (d.name != "")
}
