// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

// A relay ends one connection and begins another, so what ends a loop of routers,
// the hop limit of IP (TTL in IPv4), would begin anew with each. An endpoint that is
// a Service of another node, whose endpoint is a Service of this one, would then have
// one connection go round for ever. So the relay passes on what is left of the hop
// limit of a client's first packet in the first packet to the endpoint. Nothing else
// that a client sends comes through to the next relay: rules translate its address
// and port. Rules of the other modes forward packets and leave the hop limit to the
// kernel, so loops through nodes in several modes end as well.
//
// A relay costs more than a router, as each pass takes two open files.
const (
	defaultHops  = 64 // that a relay passes on at most; no endpoint is farther away
	hopsPerRelay = 8
	minHops      = 4 // as far as an endpoint in the cluster may be away
)

// nextHops returns the hop limit to send with if in was received with, 0 if that
// is not known. It is false if a relay is not to pass that on.
func nextHops(in int) (int, bool) {
	if in == 0 {
		return defaultHops - hopsPerRelay, true
	}
	out := min(in, defaultHops) - hopsPerRelay
	return out, out >= minHops
}
