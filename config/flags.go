// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"

	"kubeproxy/common/printable"
)

// GroupAnnotation is the pflag annotation with the heading of a flag in a help text.
const GroupAnnotation = "group"

// Flags holds the command line. Call Register before parsing.
type Flags struct {
	// Modes are the modes that exist. They are set before Register.
	Modes         []Mode
	Config        string // file to read
	StrictConfig  bool   // treat tolerated mistakes in it as errors
	WriteConfigTo string // file to write
	Master        string // address of the API server
	ProxyName     string // see Config
	// IgnoreSourceRanges is described in Config.
	IgnoreSourceRanges bool
	Cleanup            bool
	CleanupIPVS        bool // whether Cleanup includes virtual servers
	InitOnly           bool
	LogFile            string // of a Windows service
	// LogFileMaxSize is in megabytes; 0 means any size.
	LogFileMaxSize int32

	values      v1alpha1.KubeProxyConfiguration
	healthzPort int32
	metricsPort int32
	udpIdle     time.Duration
	switches    Switches
	set         *pflag.FlagSet // nil without a command line
}

// Register adds every documented flag of the proxy to fs, including those without effect.
func (f *Flags) Register(fs *pflag.FlagSet) {
	f.set = fs
	setDefaults(&f.values, Linux, func(string) bool { return false })
	f.values.DetectLocalMode = "" // the default depends on the system
	fs.StringVar(&f.Config, "config", "", "read the configuration from this `FILE`; flags override it")
	fs.BoolVar(&f.StrictConfig, "strict-config", false, "exit if the configuration has unknown fields or feature gates, or says something twice, instead of warning")
	fs.StringVar(&f.WriteConfigTo, "write-config-to", "", "write the complete configuration to this `FILE`, - for standard output, and exit")
	fs.StringVar(&f.Master, "master", "", "`ADDRESS` of the API server, in place of the one in the kubeconfig")
	fs.StringVar(&f.ProxyName, "service-proxy-name", "", "serve the Services with the label service.kubernetes.io/service-proxy-name=`NAME`, and no others, in mode nftables; without it, those without the label")
	fs.BoolVar(&f.Cleanup, "cleanup", false, "remove everything that any mode of this proxy installed, and exit")
	fs.BoolVar(&f.InitOnly, "init-only", false, "make the settings of the system that need privileges, and exit")
	for _, name := range []string{"config", "strict-config", "write-config-to", "master", "service-proxy-name", "cleanup", "init-only"} {
		group(fs, name, groupGeneral)
	}
	fs.StringVar(&f.LogFile, "log-file", "", "log `FILE` of a Windows service, by default in ProgramData; without a service logs go to standard error")
	fs.Int32Var(&f.LogFileMaxSize, "log-file-max-size", 20, "size at which that file makes room for another one, in `MEGABYTES`, 0 for any; five old ones are kept")
	group(fs, "log-file", groupLogs)
	group(fs, "log-file-max-size", groupLogs)
	for _, s := range settings {
		addFlag(fs, s, fieldAt(&f.values, s.path))
		group(fs, s.flag, s.group)
	}
	fs.Lookup("proxy-mode").Usage = modeHelp(f.Modes)
	f.registerUDPIdle(fs)
	f.registerSwitches(fs)
	f.registerSourceRanges(fs)
	f.registerDeprecated(fs)
}

func (f *Flags) registerDeprecated(fs *pflag.FlagSet) {
	fs.Int32Var(&f.healthzPort, "healthz-port", healthzPort, "`PORT` of the health server where its address has none, 0 for no server")
	fs.Int32Var(&f.metricsPort, "metrics-port", metricsPort, "`PORT` of the metrics server where its address has none, 0 for no server")
	fs.BoolVar(&f.Cleanup, "cleanup-iptables", false, "the same as --cleanup")
	fs.BoolVar(&f.CleanupIPVS, "cleanup-ipvs", true, "with --cleanup, remove the virtual servers of IPVS, too")
	for _, d := range oldFlags() {
		if d.value != nil {
			fs.Var(d.value(), d.flag, d.help)
		}
		flag := fs.Lookup(d.flag)
		flag.Usage += " (deprecated: " + d.why + ")"
		if flag.Value.Type() == "bool" {
			flag.NoOptDefVal = "true"
		}
		flag.Hidden = d.value != nil && d.help == ""
		group(fs, d.flag, groupDeprecated)
	}
}

func group(fs *pflag.FlagSet, name, heading string) {
	flag := fs.Lookup(name)
	if flag.Annotations == nil {
		flag.Annotations = map[string][]string{}
	}
	flag.Annotations[GroupAnnotation] = []string{heading}
}

// addFlag adds a flag for v, a field of the configuration.
func addFlag(fs *pflag.FlagSet, s setting, v reflect.Value) {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	switch p := v.Addr().Interface().(type) {
	case *bool:
		fs.BoolVar(p, s.flag, *p, s.help)
	case *int32:
		fs.Int32Var(p, s.flag, *p, s.help)
	case *float32:
		fs.Float32Var(p, s.flag, *p, s.help)
	case *string:
		fs.StringVar(p, s.flag, *p, s.help)
	case *v1alpha1.ProxyMode:
		fs.StringVar((*string)(p), s.flag, string(*p), s.help)
	case *v1alpha1.LocalMode:
		fs.StringVar((*string)(p), s.flag, string(*p), s.help)
	case *[]string:
		fs.StringSliceVar(p, s.flag, *p, s.help)
	case *metav1.Duration:
		fs.DurationVar(&p.Duration, s.flag, p.Duration, s.help)
	case *logsapi.TimeOrMetaDuration:
		fs.DurationVar(&p.Duration.Duration, s.flag, p.Duration.Duration, s.help)
	case *logsapi.VerbosityLevel:
		fs.VarP(logsapi.VerbosityLevelPflag(p), s.flag, s.flag, s.help)
	case *logsapi.VModuleConfiguration:
		fs.Var(logsapi.VModuleConfigurationPflag(p), s.flag, s.help)
	case *resource.QuantityValue:
		fs.Var(p, s.flag, s.help)
	case *map[string]bool:
		fs.Var((*gateValue)(p), s.flag, s.help)
	}
}

// changed reports whether the command line sets the flag.
func (f *Flags) changed(name string) bool { return f.set != nil && f.set.Changed(name) }

// applyFlags replaces values of the file by those of flags that were given.
func (b *build) applyFlags(f *Flags) {
	for _, s := range settings {
		if f.changed(s.flag) && s.path != "featureGates" {
			b.apply(s, s.path, fieldAt(&f.values, s.path))
		}
	}
	for _, s := range settings { // the mode is not known before
		if s.nftables != "" && f.changed(s.flag) && usesNFTables(b.Mode, b.os) {
			b.apply(s, s.nftables, fieldAt(&f.values, s.path))
		}
	}
	if f.changed("feature-gates") {
		b.applyGates(f.values.FeatureGates)
	}
	for _, d := range oldFlags() {
		if f.changed(d.flag) {
			b.notes = append(b.notes, Note{Origin: "--" + d.flag, Text: "is deprecated: " + d.why})
		}
	}
	b.applyLogFile(f)
}

// applyLogFile validates flags that only a Windows service uses.
func (b *build) applyLogFile(f *Flags) {
	if f.LogFileMaxSize < 0 {
		b.errs = append(b.errs, &FieldError{Origin: "--log-file-max-size", Text: fmt.Sprintf("%d is too small: want 0 or more", f.LogFileMaxSize)})
	}
	for _, name := range []string{"log-file", "log-file-max-size"} {
		if f.changed(name) && (b.os != Windows || !b.WindowsRunAsService) {
			b.notes = append(b.notes, Note{Origin: "--" + name, Text: "is ignored: only a Windows service writes a file of its own; redirect standard error"})
		}
	}
}

func (b *build) apply(s setting, path string, v reflect.Value) {
	field := fieldAt(&b.KubeProxyConfiguration, path)
	_, inFile := b.file.Lines[path]
	if from, to := showValue(field), showValue(v); inFile && from != to {
		b.overrides = append(b.overrides, Override{s.flag, path, from, to})
	}
	field.Set(v)
	b.flagged[path] = s.flag
	if d, ok := v.Interface().(metav1.Duration); ok && s.positive && d.Duration == 0 {
		b.period(path, 0) // 0 means the default in a file, but is invalid for a flag
	}
}

// applyGates overrides single gates. A flag for one gate does not change the others.
func (b *build) applyGates(flagged map[string]bool) {
	merged := maps.Clone(b.FeatureGates)
	if merged == nil {
		merged = map[string]bool{}
	}
	for _, name := range slices.Sorted(maps.Keys(flagged)) {
		path := "featureGates[" + name + "]"
		if old, ok := merged[name]; ok && old != flagged[name] {
			b.overrides = append(b.overrides, Override{"feature-gates", path, strconv.FormatBool(old), strconv.FormatBool(flagged[name])})
		}
		merged[name] = flagged[name]
		b.flagged[path] = "feature-gates"
	}
	b.FeatureGates = merged
}

// applyPorts applies the two flags for a port without an address. A port in the flag for
// the address takes precedence, unless these flags are 0.
func (b *build) applyPorts(f *Flags) {
	b.applyPort(f, "healthz", f.healthzPort, &b.HealthzBindAddress)
	b.applyPort(f, "metrics", f.metricsPort, &b.MetricsBindAddress)
}

func (b *build) applyPort(f *Flags, server string, port int32, addr *string) {
	if !f.changed(server + "-port") {
		return
	}
	path := server + "BindAddress"
	if port < 0 || port > 65535 {
		b.errs = append(b.errs, &FieldError{"--" + server + "-port", path, fmt.Sprintf("%d is no port: want 0 to 65535", port)})
		return
	}
	flag := server + "-bind-address"
	if _, err := netip.ParseAddrPort(f.set.Lookup(flag).Value.String()); err == nil && f.changed(flag) && port != 0 {
		return
	}
	old, err := netip.ParseAddrPort(*addr)
	if err != nil {
		return // it is rejected later
	}
	to := netip.AddrPortFrom(old.Addr(), uint16(port)).String()
	if _, inFile := b.file.Lines[path]; inFile && to != *addr {
		b.overrides = append(b.overrides, Override{server + "-port", path, strconv.Quote(*addr), strconv.Quote(to)})
	}
	*addr = to
	b.flagged[path] = server + "-port"
}

// gateValue parses "Name=true,Other=false". Repeated flags accumulate.
type gateValue map[string]bool

// String implements pflag.Value.
func (g *gateValue) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(*g)) {
		all = append(all, name+"="+strconv.FormatBool((*g)[name]))
	}
	return strings.Join(all, ",")
}

// Set implements pflag.Value.
func (g *gateValue) Set(s string) error {
	for pair := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, valued := strings.Cut(pair, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		on, err := strconv.ParseBool(value)
		switch {
		case name == "":
			return fmt.Errorf("%.80q has no name: want NAME=true or NAME=false", pair)
		case !valued:
			return fmt.Errorf("%.80q has no value: want %.80s=true or %.80s=false", name, printable.Text(name), printable.Text(name))
		case err != nil:
			return fmt.Errorf("%.80q: %.80q is neither true nor false", name, value)
		}
		if *g == nil {
			*g = gateValue{}
		}
		(*g)[name] = on
	}
	return nil
}

// Type implements pflag.Value.
func (g *gateValue) Type() string { return "gates" }
