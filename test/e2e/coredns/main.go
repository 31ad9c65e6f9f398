// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command coredns is CoreDNS with the plugins that the DNS of a cluster needs.
package main

import (
	_ "github.com/coredns/coredns/core/dnsserver" // the server
	"github.com/coredns/coredns/coremain"
	_ "github.com/coredns/coredns/plugin/cache" // plugins register themselves
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
)

func main() { coremain.Run() }
