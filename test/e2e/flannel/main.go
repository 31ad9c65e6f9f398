// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command flannel is flannel for a node of a cluster, with backend vxlan and the objects of
// nodes in place of etcd. The program flanneld has backends that Go's module proxy lacks a
// part of, and one in C.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"sync"

	"github.com/flannel-io/flannel/pkg/backend"
	_ "github.com/flannel-io/flannel/pkg/backend/vxlan" // backends register themselves
	"github.com/flannel-io/flannel/pkg/ipmatch"
	"github.com/flannel-io/flannel/pkg/subnet/kube"
	"github.com/flannel-io/flannel/pkg/trafficmngr/iptables"
)

func main() {
	login := flag.String("kubeconfig-file", "", "how to reach the API server")
	file := flag.String("net-config-path", "", "ranges of the pods, and the backend")
	card := flag.String("iface", "", "network interface to the other nodes")
	flag.Parse()
	log.Fatal(run(context.Background(), *login, *file, *card))
}

// Those of flanneld.
const (
	annotations = "flannel.alpha.coreos.com"
	result      = "/run/flannel/subnet.env"
	resync      = 5 // seconds
)

// run connects the pods of this node with those of others, and does not return without an
// error.
func run(ctx context.Context, login, file, card string) error {
	nodes, err := kube.NewSubnetManager(ctx, "", login, annotations, file, true)
	if err != nil {
		return err
	}
	config, err := nodes.GetNetworkConfig(ctx)
	if err != nil {
		return err
	}
	families, err := ipmatch.GetIPFamily(config.EnableIPv4, config.EnableIPv6)
	if err != nil {
		return err
	}
	at, err := ipmatch.LookupExtIface(card, "", "", families, ipmatch.PublicIPOpts{})
	if err != nil {
		return fmt.Errorf("interface %s: %w", card, err)
	}
	b, err := backend.NewManager(ctx, nodes, at).GetBackend(config.BackendType)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	network, err := b.RegisterNetwork(ctx, &wg, config)
	if err != nil {
		return err
	}
	lease, rules := network.Lease(), &iptables.IPTablesManager{}
	err = errors.Join(rules.Init(ctx), rules.SetupAndEnsureMasqRules(ctx,
		config.Network, lease.Subnet, config.Network, config.IPv6Network, lease.IPv6Subnet, config.IPv6Network, lease, resync, false))
	if err != nil {
		return err
	}
	rules.SetupAndEnsureForwardRules(ctx, config.Network, config.IPv6Network, resync)
	if err := nodes.HandleSubnetFile(result, config, true, lease.Subnet, lease.IPv6Subnet, network.MTU()); err != nil {
		return err
	}
	go network.Run(ctx)
	err = nodes.CompleteLease(ctx, lease, &wg)
	wg.Wait()
	return fmt.Errorf("the network has ended: %w", err)
}
