// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"math"
	"mime"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/suggest"
)

// The ways to detect pods of this node.
const (
	ClusterCIDR         v1alpha1.LocalMode = "ClusterCIDR"
	NodeCIDR            v1alpha1.LocalMode = "NodeCIDR"
	BridgeInterface     v1alpha1.LocalMode = "BridgeInterface"
	InterfaceNamePrefix v1alpha1.LocalMode = "InterfaceNamePrefix"
)

// validate checks every value, including sections that the mode or the system does not
// use: whether a file is valid does not depend on its reader.
func (b *build) validate() {
	b.validateNames()
	b.validateAddresses()
	b.validateDetectLocal()
	b.validateGates()
	b.validateLogging()
	b.validatePeriods()
	b.validateConntrack()
	b.intRange("iptables.masqueradeBit", *b.IPTables.MasqueradeBit, 0, 31)
	b.intRange("nftables.masqueradeBit", *b.NFTables.MasqueradeBit, 0, 31)
	b.intRange("oomScoreAdj", *b.OOMScoreAdj, -1000, 1000)
	b.validateClient()
	if _, _, ok := portRange(b.PortRange); !ok {
		b.errorf("portRange", "%q is no range of ports: want first-last, first+count or one port", b.PortRange)
	}
}

func (b *build) validateNames() {
	if modes := ModesOf(b.modes, b.os); b.Mode != "" && !slices.Contains(modes, b.Mode) {
		b.errorf("mode", "%.80q is no mode on %s%s want %s or nothing", b.Mode, b.os, orColon(didYouMean(suggest.Closest(string(b.Mode), texts(modes)))), strings.Join(texts(modes), ", "))
	}
	if v := b.ShowHiddenMetricsForVersion; v != "" {
		major, minor, ok := strings.Cut(v, ".")
		_, err1 := strconv.ParseUint(major, 10, 16)
		_, err2 := strconv.ParseUint(minor, 10, 16)
		if !ok || err1 != nil || err2 != nil {
			b.errorf("showHiddenMetricsForVersion", "%q is no minor version: want one such as 1.36", v)
		}
	}
}

// validateClient does not check acceptContentTypes, from which the API server selects.
func (b *build) validateClient() {
	c := &b.ClientConnection
	b.intRange("clientConnection.burst", c.Burst, 0, math.MaxInt32)
	if c.QPS < 0 {
		b.warnf("clientConnection.qps", "%v is negative, so requests to the API server are not limited: want a number above 0, or 0 for the default", c.QPS)
	}
	if media, _, err := mime.ParseMediaType(c.ContentType); err != nil || !slices.Contains(mediaTypes, media) {
		b.errorf("clientConnection.contentType", "%.80q is no media type of the API%s want %s",
			c.ContentType, orColon(didYouMean(suggest.Closest(c.ContentType, mediaTypes))), list(mediaTypes))
	}
}

// mediaTypes lists the types that the API client can decode.
var mediaTypes = []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON}

func (b *build) validateDetectLocal() {
	modes := []v1alpha1.LocalMode{ClusterCIDR, NodeCIDR, BridgeInterface, InterfaceNamePrefix}
	switch m := b.DetectLocalMode; {
	case m == "":
	case !slices.Contains(modes, m):
		b.errorf("detectLocalMode", "%q is unknown%s want %s", m, orColon(didYouMean(suggest.Closest(string(m), texts(modes)))), list(modes))
	case m == BridgeInterface && b.DetectLocal.BridgeInterface == "":
		b.errorf("detectLocal.bridgeInterface", "is empty: detectLocalMode %s wants the name of a bridge, here or by --pod-bridge-interface", m)
	case m == InterfaceNamePrefix && b.DetectLocal.InterfaceNamePrefix == "":
		b.errorf("detectLocal.interfaceNamePrefix", "is empty: detectLocalMode %s wants the beginning of interface names, here or by --pod-interface-name-prefix", m)
	}
	b.interfaceName("detectLocal.bridgeInterface", b.DetectLocal.BridgeInterface)
	b.interfaceName("detectLocal.interfaceNamePrefix", b.DetectLocal.InterfaceNamePrefix)
}

// interfaceName applies the kernel's rules for names of network devices that hold for the
// beginnings of names, too (kernel: net/core/dev.c, dev_valid_name).
func (b *build) interfaceName(path, name string) {
	const most = 15 // IFNAMSIZ without the terminating zero, see netdevice(7)
	if len(name) > most || strings.ContainsAny(name, "/: \t\n\v\f\r\x00") {
		b.errorf(path, "%.80q cannot name an interface: want at most %d letters, no /, : or space", name, most)
	}
}

func (b *build) validateLogging() {
	l := &b.Logging
	if l.Format != "text" && l.Format != "json" {
		b.errorf("logging.format", "%q is unknown: want text or json", l.Format)
	}
	if l.FlushFrequency.Duration.Duration < 0 {
		b.errorf("logging.flushFrequency", "%s is negative: want 0s or more", l.FlushFrequency.Duration.Duration)
	}
	if l.Verbosity > math.MaxInt32 {
		b.errorf("logging.verbosity", "%d is too large: want 0 to %d", l.Verbosity, math.MaxInt32)
	}
	if len(l.VModule) > 0 && l.Format == "json" {
		b.errorf("logging.vmodule", "works in format text only")
	}
	for i, m := range l.VModule {
		path := fmt.Sprintf("logging.vmodule[%d]", i)
		if m.FilePattern == "" || strings.ContainsAny(m.FilePattern, "=,") {
			b.errorf(path, "%q is no file pattern: want a file's name without .go, * allowed, without = and comma", m.FilePattern)
		}
		if m.Verbosity > math.MaxInt32 {
			b.errorf(path, "%d is too large: want 0 to %d", m.Verbosity, math.MaxInt32)
		}
	}
}

func (b *build) validatePeriods() {
	b.period("configSyncPeriod", b.ConfigSyncPeriod.Duration)
	b.syncPeriods("iptables", b.IPTables.MinSyncPeriod, b.IPTables.SyncPeriod)
	b.syncPeriods("nftables", b.NFTables.MinSyncPeriod, b.NFTables.SyncPeriod)
	b.syncPeriods("ipvs", b.IPVS.MinSyncPeriod, b.IPVS.SyncPeriod)
	b.sessionTimeout("ipvs.tcpTimeout", b.IPVS.TCPTimeout.Duration)
	b.sessionTimeout("ipvs.tcpFinTimeout", b.IPVS.TCPFinTimeout.Duration)
	b.sessionTimeout("ipvs.udpTimeout", b.IPVS.UDPTimeout.Duration)
}

func (b *build) syncPeriods(section string, minPeriod, maxPeriod metav1.Duration) {
	ok := b.period(section+".syncPeriod", maxPeriod.Duration)
	ok = b.notNegative(section+".minSyncPeriod", &minPeriod) && ok
	if ok && minPeriod.Duration > maxPeriod.Duration {
		b.errorf(section+".minSyncPeriod", "%s is more than %s.syncPeriod: want at most %s", minPeriod.Duration, section, maxPeriod.Duration)
	}
}

func (b *build) period(path string, d time.Duration) bool {
	if d <= 0 {
		b.errorf(path, "%s is too short: want more than 0s", d)
	}
	return d > 0
}

// sessionTimeout checks the limits of IPVS. IPVS counts in kernel ticks, up to a thousand
// per second, in 31 bits (kernel: net/netfilter/ipvs/ip_vs_ctl.c, ip_vs_set_timeout).
func (b *build) sessionTimeout(path string, d time.Duration) {
	const most = math.MaxInt32 / 1000 * time.Second
	if d < 0 || d > most {
		b.errorf(path, "%s is out of range: want 0s to %s", d, most)
	}
}

func (b *build) notNegative(path string, d *metav1.Duration) bool {
	if d.Duration < 0 {
		b.errorf(path, "%s is negative: want 0s or more", d.Duration)
	}
	return d.Duration >= 0
}

func (b *build) validateConntrack() {
	c := &b.Conntrack
	b.intRange("conntrack.maxPerCore", *c.MaxPerCore, 0, math.MaxInt32)
	b.intRange("conntrack.min", *c.Min, 0, math.MaxInt32)
	b.notNegative("conntrack.tcpEstablishedTimeout", c.TCPEstablishedTimeout)
	b.notNegative("conntrack.tcpCloseWaitTimeout", c.TCPCloseWaitTimeout)
	b.notNegative("conntrack.udpTimeout", &c.UDPTimeout)
	b.notNegative("conntrack.udpStreamTimeout", &c.UDPStreamTimeout)
}

func (b *build) intRange(path string, v, minValue, maxValue int32) {
	switch {
	case v < minValue && maxValue == math.MaxInt32:
		b.errorf(path, "%d is too small: want %d or more", v, minValue)
	case v < minValue || v > maxValue:
		b.errorf(path, "%d is out of range: want %d to %d", v, minValue, maxValue)
	}
}

// portRange parses "first-last", "first+count" and "port". An empty string and 0 mean no
// range.
func portRange(s string) (first, last int, ok bool) {
	from, to, single := s, s, true
	plus := 0
	if a, z, found := strings.Cut(s, "-"); found {
		from, to, single = a, z, false
	} else if a, z, found := strings.Cut(s, "+"); found {
		from, to, single = a, z, false
		plus = 1
	}
	if s == "" {
		return 0, 0, true
	}
	first, err1 := strconv.Atoi(strings.TrimSpace(from))
	last, err2 := strconv.Atoi(strings.TrimSpace(to))
	last += plus * first
	ok = err1 == nil && err2 == nil && first >= 0 && first <= last && last <= math.MaxUint16
	return first, last, ok && (single || first > 0 || last == 0)
}

func texts[T ~string](names []T) []string {
	all := make([]string, len(names))
	for i, n := range names {
		all[i] = string(n)
	}
	return all
}

// list renders names as "a, b or c".
func list[T ~string](names []T) string {
	all := texts(names)
	if n := len(all); n > 1 {
		return strings.Join(all[:n-1], ", ") + " or " + all[n-1]
	}
	return strings.Join(all, "")
}

// orColon returns the separator between a fault and the expected value: question, or a
// colon if that is empty.
func orColon(question string) string {
	if question == "" {
		return ":"
	}
	return question
}
