// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"net/netip"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
)

// The ports of the two servers where an address has none.
const (
	healthzPort = 10256
	metricsPort = 10249
)

// setDefaults fills in what is empty. A period of 0 counts as empty, except
// for a minSyncPeriod that was given: there 0 means no pause at all.
func setDefaults(c *v1alpha1.KubeProxyConfiguration, os OS, given func(path string) bool) {
	c.APIVersion, c.Kind = apiVersion, kind
	c.HostnameOverride = normalName(c.HostnameOverride)
	or(&c.BindAddress, "0.0.0.0")
	any4, loop4 := "0.0.0.0", "127.0.0.1"
	if a, err := netip.ParseAddr(c.BindAddress); err == nil && a.Is6() {
		any4, loop4 = "::", "::1"
	}
	or(&c.HealthzBindAddress, any4)
	or(&c.MetricsBindAddress, loop4)
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, healthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, metricsPort)

	or(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	or(&c.ClientConnection.QPS, 5)
	or(&c.ClientConnection.Burst, 10)
	or(&c.Logging.Format, "text")
	or(&c.Logging.FlushFrequency, logsapi.TimeOrMetaDuration{Duration: metav1.Duration{Duration: 5 * time.Second}, SerializeAsString: true})
	or(&c.ConfigSyncPeriod.Duration, 15*time.Minute)
	orNew(&c.OOMScoreAdj, -999)
	if os == Linux {
		or(&c.DetectLocalMode, ClusterCIDR)
	}
	setModeDefaults(c, given)
	setConntrackDefaults(&c.Conntrack)
}

func setModeDefaults(c *v1alpha1.KubeProxyConfiguration, given func(path string) bool) {
	orNew(&c.IPTables.MasqueradeBit, 14)
	orNew(&c.NFTables.MasqueradeBit, 14)
	orNew(&c.IPTables.LocalhostNodePorts, true)
	or(&c.IPTables.SyncPeriod.Duration, 30*time.Second)
	or(&c.NFTables.SyncPeriod.Duration, 30*time.Second)
	or(&c.IPVS.SyncPeriod.Duration, 30*time.Second)
	if !given("iptables.minSyncPeriod") {
		or(&c.IPTables.MinSyncPeriod.Duration, time.Second)
	}
	if !given("nftables.minSyncPeriod") {
		or(&c.NFTables.MinSyncPeriod.Duration, time.Second)
	}
	or(&c.Winkernel.RootHnsEndpointName, "cbr0")
}

// setConntrackDefaults minds that 0 means "leave the system's value" where
// null means "the default".
func setConntrackDefaults(c *v1alpha1.KubeProxyConntrackConfiguration) {
	orNew(&c.MaxPerCore, 32768)
	orNew(&c.Min, 131072)
	orNew(&c.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	orNew(&c.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
}

// or sets *p to v where it is zero.
func or[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// orNew sets *p to v where it is nil.
func orNew[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// withPort appends port to an IP address without one. What is neither stays,
// to be refused later.
func withPort(addr string, port int) string {
	ip, err := netip.ParseAddr(unbracket(addr))
	if err != nil {
		return addr
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(port))
}

// unbracket takes the brackets off "[::1]".
func unbracket(addr string) string {
	if n := len(addr); n > 2 && addr[0] == '[' && addr[n-1] == ']' {
		return addr[1 : n-1]
	}
	return addr
}
