// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package config reads, completes and validates the configuration of the proxy. A
// KubeProxyConfiguration file and flags go in, a complete Config comes out, or an error
// with everything that is wrong. The package reads no other file and neither kernel nor
// network. The effect of a setting is left to the packages that use it.
package config

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/errtree"
	"kubeproxy/common/files"
	"kubeproxy/common/printable"
	"kubeproxy/common/service"
)

// OS is the system a configuration is for, maybe not the one that reads it.
type OS string

// The supported systems.
const (
	Linux   OS = "linux"
	Windows OS = "windows"
)

// Config is a complete configuration that passed every check.
type Config struct {
	v1alpha1.KubeProxyConfiguration
	OS OS

	// Master is the address of the API server. It has a flag but no field.
	Master string
	// ProxyName is the label value of the Services to serve. Empty selects those without
	// the label. It has a flag but no field.
	ProxyName string
	// IgnoreSourceRanges applies to Windows. It serves load balancer addresses with
	// loadBalancerSourceRanges to every client. It has a flag but no field.
	IgnoreSourceRanges bool
	// UDPIdleTimeout is how long mode userspace keeps a silent UDP client. Its field was removed.
	UDPIdleTimeout time.Duration
	Switches
	// Overrides lists the flags that replaced a value of the file.
	Overrides []Override
	// Notes lists settings that were accepted but have no effect.
	Notes []Note
	// Warnings lists mistakes that are tolerated without --strict-config.
	Warnings []*FieldError
}

// Override is a flag that replaced a value of the file.
type Override struct{ Flag, Path, From, To string }

// String describes the override in a sentence.
func (o Override) String() string {
	return fmt.Sprintf("--%s overrides %s of the configuration file: %s, not %s", o.Flag, o.Path, o.To, o.From)
}

// Note is a remark about a setting that is accepted but has no effect.
type Note struct {
	Origin string // as in FieldError
	Path   string // empty for a flag without a field
	Text   string
}

// String returns "origin: path: text", without the parts that are unknown.
func (n Note) String() string { return join(n.Origin, n.Path, n.Text) }

// FieldError is a fault of one setting.
type FieldError struct {
	Origin string // "file:line", "--flag", or empty for a default
	Path   string // such as iptables.masqueradeBit
	Text   string
}

// Error returns "origin: path: text", without the parts that are unknown.
func (e *FieldError) Error() string { return join(e.Origin, e.Path, e.Text) }

func join(parts ...string) string {
	return printable.Text(strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ": "))
}

// Load combines defaults, the file that flags name, if any, and flags: what comes later wins. The
// error joins everything that is wrong.
func Load(flags *Flags, os OS) (*Config, error) {
	data, err := flags.ReadFile()
	if err != nil {
		return nil, err
	}
	return LoadFrom(flags, os, data)
}

// LoadFrom is Load with data that was read before, such as by ReadFile.
func LoadFrom(flags *Flags, os OS, data []byte) (*Config, error) {
	file := &File{}
	var malformed error
	if flags.Config != "" {
		if file, malformed = Parse(flags.Config, data); file == nil {
			return nil, malformed
		}
		if flags.StrictConfig {
			malformed = file.Strict()
		}
	}
	c, err := complete(file, flags, os, malformed)
	if malformed != nil {
		return nil, errors.Join(malformed, err)
	}
	return c, err
}

// Refusal says what err, all faults of a configuration file with data, leads to: a proxy refuses
// the file, or only warns unless it runs with --strict-config.
func Refusal(flags Flags, os OS, data []byte, err error) error {
	flags.StrictConfig = false
	if _, fatal := LoadFrom(&flags, os, data); fatal == nil && data != nil {
		return fmt.Errorf("the configuration has mistakes that the proxy only warns of without --strict-config:\n%w", err)
	}
	return fmt.Errorf("the configuration cannot be used on %s:\n%w", os, err)
}

// build is the intermediate state between a file and a Config.
type build struct {
	v1alpha1.KubeProxyConfiguration
	os        OS
	modes     []Mode // that exist
	file      *File
	strict    bool              // unknown feature gates are errors
	flagged   map[string]string // flag by the path it set
	udpIdle   time.Duration
	notes     []Note
	overrides []Override
	errs      []error
	warnings  []*FieldError
}

// complete validates values even if the form of the file is wrong, so that its author
// gets all errors at once. It drops further errors about a field that malformed is about.
func complete(file *File, flags *Flags, os OS, malformed error) (*Config, error) {
	b := &build{
		KubeProxyConfiguration: *file.Values.DeepCopy(),
		os:                     os,
		modes:                  flags.Modes,
		file:                   file,
		strict:                 flags.StrictConfig,
		flagged:                map[string]string{},
		notes:                  slices.Clone(file.Notes),
	}
	b.ignoreOtherMode(flags)
	b.applyFlags(flags)
	b.ignoreInterfaces()
	b.noteEmpty(flags)
	setDefaults(&b.KubeProxyConfiguration, os, b.given)
	b.applyPorts(flags)
	b.applyUDPIdle(flags)
	switches := b.applySwitches(flags)
	b.validate()
	b.checkProxyName(flags)
	b.noteSourceRanges(flags)
	if flags.StrictConfig {
		for _, w := range b.warnings {
			b.errs = append(b.errs, w)
		}
	}
	b.errs = slices.DeleteFunc(b.errs, func(err error) bool { return sameField(err, malformed) })
	if len(b.errs) > 0 {
		return nil, errors.Join(b.errs...)
	}
	b.inheritFields()
	b.noteUnused()
	return &Config{
		KubeProxyConfiguration: b.KubeProxyConfiguration,
		OS:                     os,
		Master:                 flags.Master,
		ProxyName:              flags.ProxyName,
		IgnoreSourceRanges:     flags.IgnoreSourceRanges,
		UDPIdleTimeout:         b.udpIdle,
		Switches:               switches,
		Overrides:              b.overrides,
		Notes:                  b.notes,
		Warnings:               append(slices.Clone(file.Warnings), b.warnings...),
	}, nil
}

func sameField(err, joined error) bool {
	var e *FieldError
	return errors.As(err, &e) && slices.ContainsFunc(errtree.Find[*FieldError](joined), func(f *FieldError) bool { return f.Path == e.Path })
}

// given reports whether a flag or the file sets the field at path.
func (b *build) given(path string) bool { return b.origin(path) != "" }

// origin returns where the value at path comes from, or "" for a default. An element of a
// list or map has the origin of the whole.
func (b *build) origin(path string) string {
	for {
		if flag, ok := b.flagged[path]; ok {
			return "--" + flag
		}
		if line, ok := b.file.Lines[path]; ok {
			return b.file.Name + ":" + strconv.Itoa(line)
		}
		i := strings.LastIndexAny(path, "[")
		if i < 0 {
			return ""
		}
		path = path[:i]
	}
}

func (b *build) errorf(path, format string, args ...any) {
	b.errs = append(b.errs, &FieldError{Origin: b.origin(path), Path: path, Text: fmt.Sprintf(format, args...)})
}

func (b *build) warnf(path, format string, args ...any) {
	b.warnings = append(b.warnings, &FieldError{Origin: b.origin(path), Path: path, Text: fmt.Sprintf(format, args...)})
}

func (b *build) notef(path, format string, args ...any) {
	b.notes = append(b.notes, Note{Origin: b.origin(path), Path: path, Text: fmt.Sprintf(format, args...)})
}

// The proxy modes in files and flags that settings are about. Flags.Modes has those that exist.
const (
	IPTables    v1alpha1.ProxyMode = "iptables"
	IPVS        v1alpha1.ProxyMode = "ipvs"
	NFTables    v1alpha1.ProxyMode = "nftables"
	Userspace   v1alpha1.ProxyMode = "userspace"
	Kernelspace v1alpha1.ProxyMode = "kernelspace"
)

// Mode is what the configuration needs to know of a proxy mode.
type Mode struct {
	Name v1alpha1.ProxyMode
	OS   OS
	// Settings lists those that the mode uses and not every mode, such as ipvs.scheduler.
	Settings []string
	// Localhost is what answers NodePorts on loopback addresses.
	Localhost Localhost
}

// Localhost is what answers NodePorts on loopback addresses in nodePortAddresses.
type Localhost uint8

// The ways to answer there.
const (
	LocalhostNobody    Localhost = iota
	LocalhostListeners           // listeners of the process
	LocalhostRules               // over IPv4 rules, which iptables.localhostNodePorts switches; over IPv6 listeners
)

// uses reports whether the mode uses a setting that not every mode uses.
func (m Mode) uses(path string) bool { return slices.Contains(m.Settings, path) }

// ModesOf lists the names of the modes of os, sorted.
func ModesOf(modes []Mode, os OS) []v1alpha1.ProxyMode {
	var all []v1alpha1.ProxyMode
	for _, m := range modes {
		if m.OS == os {
			all = append(all, m.Name)
		}
	}
	slices.Sort(all)
	return all
}

// modeHelp is the help of --proxy-mode.
func modeHelp(modes []Mode) string {
	var on []string
	for _, s := range []struct {
		os   OS
		name string
	}{{Linux, "Linux"}, {Windows, "Windows"}} {
		if names := texts(ModesOf(modes, s.os)); len(names) > 0 {
			on = append(on, list(names)+" on "+s.name)
		}
	}
	return "`MODE` that forwards traffic: " + strings.Join(on, ", ") + "; empty for the best one that works"
}

// usersOf names the modes of a system that use a setting, as "a or b".
func (b *build) usersOf(path string, os OS) string {
	var names []string
	for _, m := range b.modes {
		if m.OS == os && m.uses(path) {
			names = append(names, string(m.Name))
		}
	}
	slices.Sort(names)
	return list(names)
}

// mode returns what is known of the configured mode, nothing if none is.
func (b *build) mode() Mode {
	for _, m := range b.modes {
		if m.Name == b.Mode && m.OS == b.os {
			return m
		}
	}
	return Mode{}
}

// usesNFTables reports whether mode is nftables, explicitly or by default.
func usesNFTables(mode v1alpha1.ProxyMode, os OS) bool {
	return mode == NFTables || mode == "" && os == Linux
}

// maxFile bounds a configuration file. A file with all settings has 2 kB.
const maxFile = 1 << 20

// ReadFile reads the file that f names. It returns nil if f names none.
func (f *Flags) ReadFile() ([]byte, error) {
	if f.Config == "" {
		return nil, nil
	}
	return readFile(f.Config)
}

// Read reads a configuration of at most the size that ReadFile takes.
func Read(from io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it has more than %d bytes", maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return data, nil
}

// readFile reads a regular file. Symbolic links are followed.
func readFile(path string) ([]byte, error) {
	data, _, err := files.Read(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return data, nil
}

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
	if a, err := service.ParseAddr(c.BindAddress); err == nil && a.Is6() {
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

// setConntrackDefaults tells 0, which keeps the system's value, from null, for the default.
func setConntrackDefaults(c *v1alpha1.KubeProxyConntrackConfiguration) {
	setIfNil(&c.MaxPerCore, 32768)
	setIfNil(&c.Min, 131072)
	setIfNil(&c.TCPEstablishedTimeout, metav1.Duration{Duration: 24 * time.Hour})
	setIfNil(&c.TCPCloseWaitTimeout, metav1.Duration{Duration: time.Hour})
}

func setIfZero[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

func setIfNil[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// withPort appends port to an IP address without one. Other strings are rejected later.
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
