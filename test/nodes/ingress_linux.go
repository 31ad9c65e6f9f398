// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// What external.yaml has.
const externalIPv4, externalIPv6 = "203.0.113.80", "2001:db8:203::80"

// ingressSequence has a router that turns clients outside from node to node. Nodes n1 and n2 have the
// pods, and n3 only takes packets.
var ingressSequence = Sequence{Paired: true, Trials: []Trial{
	{
		Name: "ingress-known", About: "a node by which clients come in without power, then added, then drained, with kubeadm's kube-proxy",
		External: true, Tolerated: OfOthers, Note: ingressNote, prepare: spareNode, change: turnAround(awaitRules),
	},
	{
		Name: "ingress", About: "a node by which clients come in without power, then added, then drained, with direct return",
		External: true, Note: datagramNote, prepare: replaceAndLead, change: turnAround(awaitLead),
	},
}}

const (
	ingressNote  = "the node that the router turns to does not know the connections"
	datagramNote = "the router turns away from the node without power after 0.3 seconds, and nobody repeats a datagram"
)

// externalFlows are clients outside, each of which is to keep its endpoint.
func externalFlows(client func(network, name string, pid int, address string, to reach) *flow, pid int, web, web6 reach) []*flow {
	return []*flow{
		client("tcp", "outside to external IP", pid, externalIPv4+":80", web),
		client("tcp", "outside to external IP, IPv6", pid, "["+externalIPv6+"]:80", web6),
		client("udp", "outside to external IP, UDP", pid, externalIPv4+":81", web),
		client("udp", "outside to external IP, IPv6, UDP", pid, "["+externalIPv6+"]:81", web6),
	}
}

// spareNode keeps the pods off n3, and has the router send to all nodes.
func spareNode(ctx context.Context, c *Cluster, _ Setting) error {
	if err := c.kubectls(ctx, []string{"cordon", node(3)}); err != nil {
		return err
	}
	if err := c.applyFile(ctx, "load.yaml"); err != nil {
		return err
	}
	if err := c.applyFile(ctx, "external.yaml"); err != nil {
		return err
	}
	err := c.Machine(control).inside(func() error {
		for _, family := range []string{"ipv4", "ipv6"} { // addresses and ports choose the way
			if err := os.WriteFile("/proc/sys/net/"+family+"/fib_multipath_hash_policy", []byte("1"), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return c.turn(1, 2, 3)
}

func replaceAndLead(ctx context.Context, c *Cluster, s Setting) error {
	if err := spareNode(ctx, c, s); err != nil {
		return err
	}
	if err := replaceKnown(ctx, c, s); err != nil {
		return err
	}
	for i := 1; i <= c.Nodes; i++ {
		if err := awaitLead(ctx, c, i); err != nil {
			return err
		}
	}
	return nil
}

// turn has the router send packets for the external addresses to some nodes.
func (c *Cluster) turn(nodes ...int) error {
	v4, v6 := "route replace "+externalIPv4, "route replace "+externalIPv6
	for _, i := range nodes {
		v4, v6 = v4+" nexthop via "+NodeIPv4(i), v6+" nexthop via "+NodeIPv6(i)
	}
	return c.Machine(control).ips(v4, v6)
}

// turnAround has n3 go, come, be drained and come back, and the router follow. ready waits until the
// node that comes serves.
func turnAround(ready func(context.Context, *Cluster, int) error) step {
	const missed, long = 300 * time.Millisecond, 5 * time.Second
	return func(ctx context.Context, c *Cluster, _ Setting) error {
		if err := c.disconnectNode(3); err != nil {
			return err
		}
		pause(ctx, missed)
		if err := c.turn(1, 2); err != nil {
			return err
		}
		if err := c.Machine(node(3)).remove(); err != nil {
			return err
		}
		pause(ctx, long)
		if err := c.startNode(ctx, 3); err != nil {
			return err
		}
		if err := ready(ctx, c, 3); err != nil {
			return err
		}
		for _, next := range []func() error{
			func() error { return c.turn(1, 2, 3) },
			func() error {
				return c.kubectls(ctx, []string{"drain", node(3), "--ignore-daemonsets", "--delete-emptydir-data", timeout()})
			},
			func() error { return c.turn(1, 2) },
			func() error { return c.turn(1, 2, 3) },
		} {
			pause(ctx, long)
			if err := next(); err != nil {
				return err
			}
		}
		return nil
	}
}

func awaitRules(ctx context.Context, c *Cluster, i int) error {
	err := poll(ctx, patience, func() (bool, error) {
		text, err := c.onNode(ctx, i, "nft", "list", "ruleset")
		return strings.Contains(text, externalIPv4) && strings.Contains(text, externalIPv6), err
	})
	if err != nil {
		return fmt.Errorf("wait for rules on %s: %w", node(i), err)
	}
	return nil
}

// awaitLead waits until a node leads packets to the nodes of their endpoints.
func awaitLead(ctx context.Context, c *Cluster, i int) error {
	err := poll(ctx, patience, func() (bool, error) {
		for _, family := range []string{"ip", "ip6"} {
			text, err := c.onNode(ctx, i, "nft", "list", "map", family, "kube-direct", "marks")
			if err != nil || !strings.Contains(text, " : 0x6b64") {
				return false, err
			}
		}
		return true, nil
	})
	if err != nil {
		return fmt.Errorf("wait until %s leads packets: %w", node(i), err)
	}
	return nil
}
