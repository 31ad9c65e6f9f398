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

	"kubeproxy/common/ipaddr"
)

// The default ports of the two servers.
const (
	healthzPort = 10256
	metricsPort = 10249
)

// setDefaults sets empty fields. A period of 0 counts as empty, except for a
// minSyncPeriod that was given, where 0 means no pause.
func setDefaults(c *v1alpha1.KubeProxyConfiguration, os OS, given func(path string) bool) {
	c.APIVersion, c.Kind = apiVersion, kind
	c.HostnameOverride = normalName(c.HostnameOverride)
	setIfZero(&c.BindAddress, "0.0.0.0")
	any4, loop4 := "0.0.0.0", "127.0.0.1"
	if a, err := ipaddr.Parse(c.BindAddress); err == nil && a.Is6() {
		any4, loop4 = "::", "::1"
	}
	setIfZero(&c.HealthzBindAddress, any4)
	setIfZero(&c.MetricsBindAddress, loop4)
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, healthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, metricsPort)

	setIfZero(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	setIfZero(&c.ClientConnection.QPS, 5)
	setIfZero(&c.ClientConnection.Burst, 10)
	setIfZero(&c.Logging.Format, "text")
	setIfZero(&c.Logging.FlushFrequency, logsapi.TimeOrMetaDuration{Duration: metav1.Duration{Duration: 5 * time.Second}, SerializeAsString: true})
	setIfZero(&c.ConfigSyncPeriod.Duration, 15*time.Minute)
	setIfNil(&c.OOMScoreAdj, -999)
	if os == Linux {
		setIfZero(&c.DetectLocalMode, ClusterCIDR)
	}
	setModeDefaults(c, given)
	setConntrackDefaults(&c.Conntrack)
}

func setModeDefaults(c *v1alpha1.KubeProxyConfiguration, given func(path string) bool) {
	setIfNil(&c.IPTables.MasqueradeBit, 14)
	setIfNil(&c.NFTables.MasqueradeBit, 14)
	setIfNil(&c.IPTables.LocalhostNodePorts, true)
	setIfZero(&c.IPTables.SyncPeriod.Duration, 30*time.Second)
	setIfZero(&c.NFTables.SyncPeriod.Duration, 30*time.Second)
	setIfZero(&c.IPVS.SyncPeriod.Duration, 30*time.Second)
	if !given("iptables.minSyncPeriod") {
		setIfZero(&c.IPTables.MinSyncPeriod.Duration, time.Second)
	}
	if !given("nftables.minSyncPeriod") {
		setIfZero(&c.NFTables.MinSyncPeriod.Duration, time.Second)
	}
	setIfZero(&c.Winkernel.RootHnsEndpointName, "cbr0")
}

// setConntrackDefaults distinguishes 0, which keeps the system's value, from null, which
// means the default.
func setConntrackDefaults(c *v1alpha1.KubeProxyConntrackConfiguration) {
	setIfNil(&c.MaxPerCore, 32768)
	setIfNil(&c.Min, 131072)
	setIfNil(&c.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	setIfNil(&c.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
}

// setIfZero sets *p to v if it is zero.
func setIfZero[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// setIfNil sets *p to v if it is nil.
func setIfNil[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// withPort appends port to an IP address without one. Any other string remains as it is,
// and is rejected later.
func withPort(addr string, port int) string {
	ip, err := netip.ParseAddr(unbracket(addr))
	if err != nil {
		return addr
	}
	return net.JoinHostPort(ip.String(), strconv.Itoa(port))
}

// unbracket removes the brackets of "[::1]".
func unbracket(addr string) string {
	if n := len(addr); n > 2 && addr[0] == '[' && addr[n-1] == ']' {
		return addr[1 : n-1]
	}
	return addr
}
