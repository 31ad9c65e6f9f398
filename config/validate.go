// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"math"
	"mime"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/service"
	"kubeproxy/common/suggest"
)

// The ways to detect pods of this node.
const (
	ClusterCIDR         v1alpha1.LocalMode = "ClusterCIDR"
	NodeCIDR            v1alpha1.LocalMode = "NodeCIDR"
	BridgeInterface     v1alpha1.LocalMode = "BridgeInterface"
	InterfaceNamePrefix v1alpha1.LocalMode = "InterfaceNamePrefix"
)

// validate checks every value, also of unused sections: readers make no file valid.
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

// portRange parses "first-last", "first+count" and "port". "" and 0 mean no range.
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

// orColon returns question, or a colon, between a fault and the expected value.
func orColon(question string) string {
	if question == "" {
		return ":"
	}
	return question
}

// noteFamilies notes settings that omit an IP family, no error: a cluster may have one.
func (b *build) noteFamilies() {
	primary := familyName(b.BindAddress)
	b.noteNodePorts()
	if all, _ := clusterCIDRs(b.ClusterCIDR); len(all) > 0 && b.DetectLocalMode == ClusterCIDR && !hasFamily(all, primary) {
		b.notef("clusterCIDR", "has no prefix of the primary family %s, so pods of that family cannot be distinguished from other clients", primary)
	}
	if excluded := prefixes(b.IPVS.ExcludeCIDRs); len(excluded) > 0 && b.Mode == IPVS && !hasFamily(excluded, primary) {
		b.notef("ipvs.excludeCIDRs", "has no prefix of the primary family %s", primary)
	}
	if vip := b.Winkernel.SourceVip; vip != "" && b.os == Windows && familyName(vip) != primary {
		b.notef("winkernel.sourceVip", "is not of the primary family %s", primary)
	}
	b.noteListener("healthzBindAddress", b.HealthzBindAddress, primary)
	b.noteListener("metricsBindAddress", b.MetricsBindAddress, primary)
}

// noteListener notes a server that the primary family does not reach; [::] and loopback are fine.
func (b *build) noteListener(path, addr, primary string) {
	at, err := netip.ParseAddrPort(addr)
	if err != nil || at.Port() == 0 || at.Addr().IsLoopback() || at.Addr() == netip.IPv6Unspecified() || familyOf(at.Addr()) == primary {
		return
	}
	b.notef(path, "%s answers %s only, while the primary family is %s", addr, familyOf(at.Addr()), primary)
}

func (b *build) noteNodePorts() {
	words := b.NodePortAddresses
	if b.os == Windows {
		if len(words) > 0 {
			b.notef("nodePortAddresses", "applies on %s to health checks of Services only: NodePorts answer on every address of the node", b.os)
		}
		return
	}
	if len(words) == 0 && !usesNFTables(b.Mode, b.os) {
		b.notef("nodePortAddresses", "is not set: every address of the node answers NodePorts; %q restricts that to the node's own", wordPrimary)
	}
	all := prefixes(words)
	if len(all) == 0 || slices.Contains(words, wordPrimary) || slices.Contains(words, wordAll) || slices.Contains(words, wordLocalhost) {
		return
	}
	for _, f := range []string{ipv4, ipv6} {
		if !hasFamily(all, f) {
			b.notef("nodePortAddresses", "has no prefix of %s, so every %s address of the node answers NodePorts", f, f)
		}
	}
}

// The families, as people write them.
const (
	ipv4 = "IPv4"
	ipv6 = "IPv6"
)

func familyOf(a netip.Addr) string {
	if a.Unmap().Is4() {
		return ipv4
	}
	return ipv6
}

// familyName returns the family of an address that passed the checks.
func familyName(s string) string {
	a, _ := service.ParseAddr(s)
	return familyOf(a)
}

func prefixes(words []string) []netip.Prefix {
	var all []netip.Prefix
	for _, w := range words {
		if p, err := parsePrefix(w); err == nil {
			all = append(all, p)
		}
	}
	return all
}

func hasFamily(all []netip.Prefix, family string) bool {
	return slices.ContainsFunc(all, func(p netip.Prefix) bool { return familyOf(p.Addr()) == family })
}

const sourceRangesFlag = "ignore-source-ranges"

// registerSourceRanges adds a flag without a field in the file. It opens Services that
// their owners restricted, so each Windows node must set it on its own.
func (f *Flags) registerSourceRanges(fs *pflag.FlagSet) {
	fs.BoolVar(&f.IgnoreSourceRanges, sourceRangesFlag, false,
		"serve addresses of load balancers that have loadBalancerSourceRanges to every client, as HNS has no source ranges; otherwise they are not served")
	group(fs, sourceRangesFlag, groupWindows)
}

// noteSourceRanges adds a note about the flag on systems that implement source ranges.
func (b *build) noteSourceRanges(f *Flags) {
	if f.IgnoreSourceRanges && b.os != Windows {
		b.notes = append(b.notes, Note{Origin: "--" + sourceRangesFlag, Text: "has no effect on " + string(b.os) + ": source ranges apply there"})
	}
}

// udpIdlePath is the removed field for what is now a flag only.
const udpIdlePath = "udpIdleTimeout"

const udpIdleText = "is not a field any more; it has an effect in mode userspace, like --udp-timeout, and elsewhere conntrack.udpTimeout has"

const defaultUDPIdle = 250 * time.Millisecond

func (f *Flags) registerUDPIdle(fs *pflag.FlagSet) {
	const name = "udp-timeout"
	fs.DurationVar(&f.udpIdle, name, defaultUDPIdle, "`TIME` that mode userspace keeps a UDP client which is silent, more than 0")
	group(fs, name, groupTraffic)
}

// applyUDPIdle determines the timeout. The mode must be known.
func (b *build) applyUDPIdle(f *Flags) {
	_, inFile := b.file.Lines[udpIdlePath]
	b.udpIdle = defaultUDPIdle
	if inFile {
		b.udpIdle = b.file.UDPIdleTimeout
	}
	if f.changed("udp-timeout") {
		if inFile && b.udpIdle != f.udpIdle {
			b.overrides = append(b.overrides, Override{"udp-timeout", udpIdlePath, b.udpIdle.String(), f.udpIdle.String()})
		}
		b.udpIdle = f.udpIdle
		b.flagged[udpIdlePath] = "udp-timeout"
		if !b.mode().uses(udpIdlePath) {
			b.notes = append(b.notes, Note{Origin: "--udp-timeout", Text: fmt.Sprintf("has an effect in mode %s only, see --conntrack-udp-timeout", b.usersOf(udpIdlePath, Linux))})
		}
	}
	b.period(udpIdlePath, b.udpIdle)
}

// Listeners returns the ports for listeners of mode userspace, 0 and 0 for any.
func (c *Config) Listeners() (first, last uint16) {
	from, to, _ := portRange(c.PortRange) // validated when it was read
	return uint16(from), uint16(to)
}

// ListenAddr returns the address of the node for the listeners of mode userspace of its
// family. It is invalid if they have an address of their own. That is so without a range
// of ports, because it would be unknown which ports of the node's address are theirs.
func (c *Config) ListenAddr() netip.Addr {
	if first, _ := c.Listeners(); first == 0 || !listenable(c.NodeIP()) {
		return netip.Addr{}
	}
	return c.NodeIP()
}

// listenable reports whether rules can lead packets from any source to a.
func listenable(a netip.Addr) bool {
	return a.IsValid() && a.Zone() == "" && !a.IsLoopback() && !a.IsMulticast() && (a.Is4() || !a.IsLinkLocalUnicast())
}

// The words that nodePortAddresses accepts besides prefixes.
const (
	wordPrimary   = "primary"
	wordAll       = "all"
	wordLocalhost = "localhost"
)

// normalName converts a node's name to the form that the API uses.
func normalName(name string) string { return strings.ToLower(strings.TrimSpace(name)) }

// NodeName returns the name of the node. host is the system's host name.
func (c *Config) NodeName(host string) string {
	if c.HostnameOverride != "" {
		return c.HostnameOverride
	}
	return normalName(host)
}

// NodeIP returns the address that the operator set for the node, invalid for the Node's.
func (c *Config) NodeIP() netip.Addr {
	a, _ := service.ParseAddr(c.BindAddress)
	if a.IsUnspecified() {
		return netip.Addr{}
	}
	return a
}

// ClusterCIDRs returns the prefixes of all pods, at most one per family.
func (c *Config) ClusterCIDRs() []netip.Prefix {
	all, _ := clusterCIDRs(c.ClusterCIDR)
	return all
}

// NodePortRange selects the addresses of the node that serve NodePorts.
type NodePortRange struct {
	Prefixes []netip.Prefix // length zero means all addresses
	Primary  bool           // the node's primary addresses too
}

// NodePorts returns nodePortAddresses, resolved. Without the word primary, a family
// without a prefix serves on all addresses. If the setting is empty, mode nftables uses
// the primary addresses, unlike the other modes:
// https://kubernetes.io/docs/reference/networking/virtual-ips/.
func (c *Config) NodePorts() NodePortRange {
	words := c.NodePortAddresses
	if len(words) == 0 && usesNFTables(c.Mode, c.OS) {
		words = []string{wordPrimary}
	}
	r, _ := nodePorts(words)
	if !r.Primary {
		r.Prefixes = service.OrAnyAddress(r.Prefixes)
	}
	return r
}

func (b *build) validateAddresses() {
	if _, err := service.ParseAddr(b.BindAddress); err != nil {
		b.errorf("bindAddress", "%q is no IP address: want one such as 192.0.2.1, or 0.0.0.0 or :: for the node's own", b.BindAddress)
	}
	b.hostPort("healthzBindAddress", b.HealthzBindAddress, "0.0.0.0:10256 or [::]:10256")
	b.hostPort("metricsBindAddress", b.MetricsBindAddress, "127.0.0.1:10249 or [::1]:10249")
	b.checkServersDiffer()
	if _, err := clusterCIDRs(b.ClusterCIDR); err != nil {
		b.errorf("clusterCIDR", "%v", err)
	}
	if _, err := nodePorts(b.NodePortAddresses); err != nil {
		b.errorf("nodePortAddresses", "%v", err)
	}
	for i, s := range b.IPVS.ExcludeCIDRs {
		if _, err := parsePrefix(s); err != nil {
			b.errorf(fmt.Sprintf("ipvs.excludeCIDRs[%d]", i), "%v", err)
		}
	}
	if vip := b.Winkernel.SourceVip; vip != "" {
		if _, err := service.ParseAddr(vip); err != nil {
			b.errorf("winkernel.sourceVip", "%q is no IP address: want one such as 192.0.2.1", vip)
		}
	}
}

// hostPort validates an address with a port. Port 0 means no server.
func (b *build) hostPort(path, s, example string) {
	if _, err := netip.ParseAddrPort(s); err != nil {
		b.errorf(path, "%.80q is no IP address with a port: want one such as %s, port 0 for none", s, example)
	}
}

// checkServersDiffer checks for two servers at one address, as units from the time of one server
// have. The health server serves, and the other one waits.
func (b *build) checkServersDiffer() {
	health, err1 := netip.ParseAddrPort(b.HealthzBindAddress)
	metrics, err2 := netip.ParseAddrPort(b.MetricsBindAddress)
	if err1 != nil || err2 != nil || health.Port() != metrics.Port() || health.Port() == 0 {
		return
	}
	x, y := health.Addr(), metrics.Addr()
	all := netip.IPv6Unspecified()
	if x != y && x != all && y != all && (x.Is4() != y.Is4() || !x.IsUnspecified() && !y.IsUnspecified()) {
		return
	}
	if b.BindAddressHardFail {
		b.errorf("metricsBindAddress", "%s is taken by healthzBindAddress %s: want another port", metrics, health)
		return
	}
	b.warnf("metricsBindAddress", "%s is taken by healthzBindAddress %s, so metrics are not served: want another port", metrics, health)
}

func clusterCIDRs(s string) ([]netip.Prefix, error) {
	if strings.TrimSpace(s) == "" {
		return nil, nil
	}
	var all []netip.Prefix
	for _, part := range strings.Split(s, ",") {
		p, err := parsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if len(all) > 2 || len(all) == 2 && all[0].Addr().Is4() == all[1].Addr().Is4() {
		return nil, fmt.Errorf("%q holds more than one prefix of a family: want one, or one IPv4 and one IPv6", s)
	}
	return all, nil
}

func nodePorts(words []string) (NodePortRange, error) {
	var r NodePortRange
	var errs []error
	seen := map[string]bool{}
	for _, word := range words {
		canon := word
		switch word {
		case wordPrimary:
			r.Primary = true
		case wordAll:
			r.Prefixes = append(r.Prefixes, netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0"))
		case wordLocalhost:
			r.Prefixes = append(r.Prefixes, netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
		default:
			p, err := parsePrefix(word)
			if err != nil {
				errs = append(errs, fmt.Errorf("%w, or one of the words %s, %s, %s", err, wordPrimary, wordAll, wordLocalhost))
				continue
			}
			canon = p.String()
			r.Prefixes = append(r.Prefixes, p)
		}
		if seen[canon] {
			errs = append(errs, fmt.Errorf("%q is there twice: want it once", word))
		}
		seen[canon] = true
	}
	slices.SortFunc(r.Prefixes, netip.Prefix.Compare)
	return r, oneLine(errs)
}

// parsePrefix returns the prefix with its host bits cleared.
func parsePrefix(s string) (netip.Prefix, error) {
	p, err := service.ParsePrefix(s)
	switch {
	case err != nil:
		return p, fmt.Errorf("%.80q is no prefix: want one such as 10.0.0.0/8 or fd00::/48", s)
	case p.Addr().Is4In6():
		return p, fmt.Errorf("%q is IPv4 inside IPv6: want the IPv4 form", s)
	}
	return p.Masked(), nil
}

// oneLine joins errs with semicolons.
func oneLine(errs []error) error {
	var all []string
	for _, err := range errs {
		all = append(all, err.Error())
	}
	if len(all) == 0 {
		return nil
	}
	return errors.New(strings.Join(all, "; "))
}

// checkProxyName rejects a name that is invalid as a label value.
func (b *build) checkProxyName(f *Flags) {
	const flag = "service-proxy-name"
	switch {
	case f.changed(flag) && f.ProxyName == "":
		b.errs = append(b.errs, fmt.Errorf("--%s: is empty: want the value of a label such as my-proxy, or leave it out", flag))
	case validation.IsValidLabelValue(f.ProxyName) != nil:
		b.errs = append(b.errs, fmt.Errorf("--%s: %.80q is no value of a label: want at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends", flag, f.ProxyName))
	}
}
