// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package foreign

import "strconv"

// Names of properties that are often not known, as nft writes them.
var (
	metaNames = map[uint32]string{
		0: "length", 2: "priority", metaMark: "mark", metaIn: "iif", metaOut: "oif", metaInName: "iifname", metaOutName: "oifname",
		8: "iiftype", 9: "oiftype", 10: "skuid", 11: "skgid", 13: "rtclassid", 17: "ibrname", 18: "obrname", 20: "cpu",
		21: "iifgroup", 22: "oifgroup", 23: "cgroup", 24: "random", 26: "iifkind", 27: "oifkind",
	}
	ctNames = map[uint32]string{
		ctStatus: "status", ctMarkKey: "mark", 4: "secmark", 5: "expiration", 6: "helper", ctSource: "saddr", ctSourceIP: "saddr", ctSourceIP6: "saddr",
		ctDest: "daddr", ctDestIP: "daddr", ctDestIP6: "daddr", 11: "proto-src", 13: "label", 14: "packets", 15: "bytes", 16: "avgpkt", 17: "zone",
	}
)

func nameOf(prefix string, names map[uint32]string, key uint32) string {
	if name := names[key]; name != "" {
		return prefix + " " + name
	}
	return prefix + " key " + strconv.Itoa(int(key))
}

// payloadName names a part of a header.
func payloadName(x PayloadLoad) string {
	switch {
	case x.Base == transportBase && x.Offset == 0 && x.Size == 2:
		return "the port of the client"
	case x.Base == transportBase:
		return "the transport header"
	case x.Base == networkBase:
		return "the network header"
	}
	return "bytes of the packet"
}
