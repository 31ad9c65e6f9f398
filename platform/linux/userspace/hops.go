// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package userspace

// The hop limit (TTL in IPv4) ends a routing loop. A relay ends one connection and
// begins another, so each would start with a full hop limit. If the endpoint of a
// Service is a Service of another node, whose endpoint is a Service of this node, one
// connection would loop forever. Therefore the relay takes the hop limit of the first
// packet of a client, reduces it, and uses it for its first packet to the endpoint. The
// next relay receives nothing else that identifies the client: rules translate its
// address and port. Rules of the other modes forward packets, and the kernel handles the
// hop limit. So loops through nodes in different modes end as well.
//
// A relay counts as several hops, because each pass uses two open files.
const (
	defaultHops  = 64 // maximum that a relay uses; no endpoint is more distant
	hopsPerRelay = 8
	minHops      = 4 // maximum distance of an endpoint in the cluster
)

// nextHops returns the hop limit for sending. in is the received one, 0 if it is not
// known. The result is false if the relay must refuse the client.
func nextHops(in int) (int, bool) {
	if in == 0 {
		return defaultHops - hopsPerRelay, true
	}
	out := min(in, defaultHops) - hopsPerRelay
	return out, out >= minHops
}
