// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"
	"encoding/json"
	"errors"
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
	"kubeproxy/common/service"
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
		switch value := d.value.(type) {
		case bool:
			fs.Bool(d.flag, value, d.help)
		case int32:
			fs.Int32(d.flag, value, d.help)
		case string:
			fs.String(d.flag, value, d.help)
		}
		flag := fs.Lookup(d.flag)
		flag.Usage += " (deprecated: " + d.why + ")"
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

// gateValue parses "Name=true,Other=false". Repeated flags accumulate. It implements pflag.Value.
type gateValue map[string]bool

func (g *gateValue) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(*g)) {
		all = append(all, name+"="+strconv.FormatBool((*g)[name]))
	}
	return strings.Join(all, ",")
}

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

func (g *gateValue) Type() string { return "gates" }

// The headings of a help text.
const (
	groupGeneral    = "General"
	groupAPI        = "API server"
	groupNode       = "Node and addresses"
	groupTraffic    = "Traffic"
	groupIPTables   = "Modes iptables and nftables"
	groupIPVS       = "Mode ipvs"
	groupWindows    = "Windows"
	groupConntrack  = "Connection tracking"
	groupLogs       = "Logs"
	groupDeprecated = "Deprecated"
)

// Groups lists the headings in the order of the help text.
var Groups = []string{
	groupGeneral, groupAPI, groupNode, groupTraffic, groupIPTables, groupIPVS,
	groupWindows, groupConntrack, groupLogs, groupDeprecated,
}

// setting is a flag that sets a field.
type setting struct {
	flag, path, group, help string
	nftables                string // field that it also sets in mode nftables
	positive                bool   // a period that must not be 0
	effect                  Effect // of a change
	someModes               bool   // the setting has no effect in modes that do not list it
}

// settings holds every flag that has a field. A change requires a restart if no running part can
// apply it, as the connection to the API server, or the mark bit, which others may use.
var settings = []setting{
	{flag: "proxy-mode", path: "mode", effect: Restart, group: groupGeneral, help: "`MODE` that forwards traffic"}, // see modeHelp
	{flag: "feature-gates", path: "featureGates", effect: Restart, group: groupGeneral, help: "switch features, such as `NAME=true,OTHER=false`; " + featureHelp()},
	{flag: "oom-score-adj", path: "oomScoreAdj", effect: Hot, group: groupGeneral, help: "the process's highest `SCORE` for the kernel's out-of-memory killer, -1000 to 1000; Linux only"},
	{flag: "profiling", path: "enableProfiling", effect: Hot, group: groupGeneral, help: "serve profiles under /debug/pprof of the metrics server"},
	{flag: "show-hidden-metrics-for-version", path: "showHiddenMetricsForVersion", group: groupGeneral, help: "show metrics hidden since `VERSION`, the minor version before this one"},

	{flag: "kubeconfig", path: "clientConnection.kubeconfig", effect: Restart, group: groupAPI, help: "kubeconfig `FILE`, with the address of the API server and credentials"},
	{flag: "kube-api-content-type", path: "clientConnection.contentType", effect: Restart, group: groupAPI, help: "media `TYPE` of requests"},
	{flag: "kube-api-qps", path: "clientConnection.qps", effect: Restart, group: groupAPI, help: "requests a second, `NUMBER`, in the long run"},
	{flag: "kube-api-burst", path: "clientConnection.burst", effect: Restart, group: groupAPI, help: "`NUMBER` of requests that may exceed that rate for a moment"},
	{flag: "config-sync-period", path: "configSyncPeriod", group: groupAPI, positive: true, help: "`TIME` between two full reads of what the API server holds, more than 0; ignored, because the API server is watched"},

	{flag: "hostname-override", path: "hostnameOverride", effect: Restart, group: groupNode, help: "`NAME` of the Node of this machine, if it is not the host name"},
	{flag: "bind-address", path: "bindAddress", effect: Restart, group: groupNode, help: "primary `IP` of the node; 0.0.0.0 or :: takes the Node's address of that family. Listeners of mode userspace are there if --proxy-port-range is given; else nothing listens on it"},
	{flag: "bind-address-hard-fail", path: "bindAddressHardFail", effect: Hot, group: groupNode, help: "exit if the health or metrics address is taken, instead of trying again"},
	{flag: "healthz-bind-address", path: "healthzBindAddress", effect: Hot, group: groupNode, help: "`IP:PORT` of the health server, port 0 for none"},
	{flag: "metrics-bind-address", path: "metricsBindAddress", effect: Hot, group: groupNode, help: "`IP:PORT` of the metrics server, port 0 for none"},

	{flag: "proxy-port-range", path: "portRange", effect: Restart, someModes: true, group: groupTraffic, help: "ports of the listeners of mode userspace, `FIRST-LAST`, which nothing else on the node may use; empty lets the system choose"},
	{flag: "cluster-cidr", path: "clusterCIDR", effect: Hot, group: groupTraffic, help: "`CIDR` of all pods, or one of each family with a comma between"},
	{flag: "detect-local-mode", path: "detectLocalMode", effect: Hot, group: groupTraffic, help: "`HOW` to distinguish pods of this node from other clients: ClusterCIDR (the default on Linux), NodeCIDR, BridgeInterface or InterfaceNamePrefix"},
	{flag: "pod-bridge-interface", path: "detectLocal.bridgeInterface", effect: Hot, group: groupTraffic, help: "bridge `NAME` for --detect-local-mode BridgeInterface"},
	{flag: "pod-interface-name-prefix", path: "detectLocal.interfaceNamePrefix", effect: Hot, group: groupTraffic, help: "beginning of interface `NAMES` for --detect-local-mode InterfaceNamePrefix"},
	{flag: "masquerade-all", path: "iptables.masqueradeAll", nftables: "nftables.masqueradeAll", effect: Hot, someModes: true, group: groupTraffic, help: "masquerade all traffic to ClusterIPs"},
	{flag: "nodeport-addresses", path: "nodePortAddresses", effect: Hot, group: groupTraffic, help: "`CIDRS` of the node's addresses that answer NodePorts, and the words primary, localhost and all; unset means primary in mode nftables, all in the others"},

	{flag: "iptables-localhost-nodeports", path: "iptables.localhostNodePorts", effect: Restart, someModes: true, group: groupIPTables, help: "answer NodePorts on 127.0.0.1 by rules; modes iptables and userspace only"},
	{flag: "iptables-masquerade-bit", path: "iptables.masqueradeBit", nftables: "nftables.masqueradeBit", effect: Restart, someModes: true, group: groupIPTables, help: "`BIT` of the packet mark that asks for masquerading, 0 to 31"},
	{flag: "iptables-sync-period", path: "iptables.syncPeriod", nftables: "nftables.syncPeriod", positive: true, effect: Hot, someModes: true, group: groupIPTables, help: "longest `TIME` between two checks of the rules, more than 0"},
	{flag: "iptables-min-sync-period", path: "iptables.minSyncPeriod", nftables: "nftables.minSyncPeriod", effect: Hot, someModes: true, group: groupIPTables, help: "least `TIME` between two changes of the rules, 0 for none"},

	{flag: "ipvs-scheduler", path: "ipvs.scheduler", effect: Restart, someModes: true, group: groupIPVS, help: "`NAME` of a scheduler the kernel has: rr (the default), lc, dh, sh, sed, nq and others"},
	{flag: "ipvs-strict-arp", path: "ipvs.strictARP", effect: Restart, someModes: true, group: groupIPVS, help: "answer ARP only for addresses of the interface that is asked"},
	{flag: "ipvs-exclude-cidrs", path: "ipvs.excludeCIDRs", effect: Restart, someModes: true, group: groupIPVS, help: "`CIDRS` of virtual servers to leave alone"},
	{flag: "ipvs-sync-period", path: "ipvs.syncPeriod", positive: true, effect: Hot, someModes: true, group: groupIPVS, help: "longest `TIME` between two checks of the virtual servers, more than 0"},
	{flag: "ipvs-min-sync-period", path: "ipvs.minSyncPeriod", effect: Hot, someModes: true, group: groupIPVS, help: "least `TIME` between two changes, 0 for none"},
	{flag: "ipvs-tcp-timeout", path: "ipvs.tcpTimeout", effect: Restart, someModes: true, group: groupIPVS, help: "`TIME` an idle TCP session is kept, 0 for the system's value"},
	{flag: "ipvs-tcpfin-timeout", path: "ipvs.tcpFinTimeout", effect: Restart, someModes: true, group: groupIPVS, help: "`TIME` a TCP session is kept after its FIN, 0 for the system's value"},
	{flag: "ipvs-udp-timeout", path: "ipvs.udpTimeout", effect: Restart, someModes: true, group: groupIPVS, help: "`TIME` an idle UDP session is kept, 0 for the system's value"},

	{flag: "network-name", path: "winkernel.networkName", effect: Restart, someModes: true, group: groupWindows, help: "`NAME` of the HNS network"},
	{flag: "source-vip", path: "winkernel.sourceVip", effect: Restart, someModes: true, group: groupWindows, help: "`IP` that overlay networks masquerade with"},
	{flag: "enable-dsr", path: "winkernel.enableDSR", effect: Restart, someModes: true, group: groupWindows, help: "let replies go straight to the client (direct server return)"},
	{flag: "root-hnsendpoint-name", path: "winkernel.rootHnsEndpointName", effect: Restart, someModes: true, group: groupWindows, help: "`NAME` of the host's own endpoint on an l2bridge network"},
	{flag: "forward-healthcheck-vip", path: "winkernel.forwardHealthCheckVip", effect: Restart, someModes: true, group: groupWindows, help: "forward load balancers' health checks to the node"},
	{flag: "windows-service", path: "windowsRunAsService", effect: Restart, group: groupWindows, help: "run under the Windows service manager"},

	{flag: "conntrack-max-per-core", path: "conntrack.maxPerCore", effect: Hot, group: groupConntrack, help: "most connections to track, `NUMBER` for each CPU; 0 leaves the system's limit alone"},
	{flag: "conntrack-min", path: "conntrack.min", effect: Hot, group: groupConntrack, help: "connections to track at least, `NUMBER` in all, whatever --conntrack-max-per-core gives"},
	{flag: "conntrack-tcp-timeout-established", path: "conntrack.tcpEstablishedTimeout", effect: Hot, group: groupConntrack, help: "`TIME` an idle TCP connection is kept, 0 for the system's value"},
	{flag: "conntrack-tcp-timeout-close-wait", path: "conntrack.tcpCloseWaitTimeout", effect: Hot, group: groupConntrack, help: "`TIME` a TCP connection is kept in CLOSE_WAIT, 0 for the system's value"},
	{flag: "conntrack-tcp-be-liberal", path: "conntrack.tcpBeLiberal", effect: Hot, group: groupConntrack, help: "let packets outside the TCP window pass"},
	{flag: "conntrack-udp-timeout", path: "conntrack.udpTimeout", effect: Hot, group: groupConntrack, help: "`TIME` a UDP flow without answer is kept, 0 for the system's value"},
	{flag: "conntrack-udp-timeout-stream", path: "conntrack.udpStreamTimeout", effect: Hot, group: groupConntrack, help: "`TIME` a UDP flow with answers is kept, 0 for the system's value"},

	{flag: "v", path: "logging.verbosity", effect: Hot, group: groupLogs, help: "`LEVEL` of detail, 0 for the least"},
	{flag: "vmodule", path: "logging.vmodule", effect: Hot, group: groupLogs, help: "levels of single source files, such as `FILE=2,OTHER*=4`; format text only"},
	{flag: "logging-format", path: "logging.format", effect: Restart, group: groupLogs, help: "`FORM` of a line: text or json"},
	{flag: "log-flush-frequency", path: "logging.flushFrequency", effect: Hot, group: groupLogs, help: "longest `TIME` a line may wait to be written"},
	{flag: "log-json-info-buffer-size", path: "logging.options.json.infoBufferSize", group: groupLogs, help: "`BYTES` of JSON lines to buffer; ignored, nothing is buffered"},
	{flag: "log-json-split-stream", path: "logging.options.json.splitStream", group: groupLogs, help: "split JSON lines between standard output and error; ignored"},
	{flag: "log-text-info-buffer-size", path: "logging.options.text.infoBufferSize", group: groupLogs, help: "`BYTES` of text lines to buffer; ignored, nothing is buffered"},
	{flag: "log-text-split-stream", path: "logging.options.text.splitStream", group: groupLogs, help: "split text lines between standard output and error; ignored"},
}

// deprecatedFlag is a flag that only old command lines contain. If value is nil, the flag
// still works and is registered elsewhere.
type deprecatedFlag struct {
	flag  string
	value any // of its type, the default
	help  string
	why   string
}

// deprecatedFlags lists them. A flag without effect still needs a value of its type.
var deprecatedFlags = []deprecatedFlag{
	{flag: "healthz-port", why: "write the port into --healthz-bind-address"},
	{flag: "metrics-port", why: "write the port into --metrics-bind-address"},
	{flag: "cleanup-iptables", why: "use --cleanup"},
	{flag: "cleanup-ipvs", why: "--cleanup removes what mode ipvs made, too; only false has an effect, which leaves that alone"},
	{"boot-id-file", "/proc/sys/kernel/random/boot_id", "`FILES` with the boot ID of the node", neverConcerned},
	{"machine-id-file", "/etc/machine-id,/var/lib/dbus/machine-id", "`FILES` with the machine ID of the node", neverConcerned},
	{"conntrack-max", int32(0), "most connections to track, `NUMBER` in all", "ignored, use --conntrack-max-per-core and --conntrack-min"},
	{"resource-container", "/kube-proxy", "`NAME` of the cgroup to run in", "ignored, the container runtime does that"},
	{"azure-container-registry-config", "", "`FILE` with registry credentials", neverConcerned},
	{"add-dir-header", false, "name the directory in log lines", "ignored"},
	{"alsologtostderr", false, "log to standard error too", "ignored, logs always go there"},
	{"log-backtrace-at", "", "dump the stack at `FILE:LINE`", "ignored"},
	{"log-dir", "", "`DIRECTORY` for log files", "ignored, redirect standard error"},
	{"logtostderr", true, "log to standard error", "ignored, logs always go there"},
	{"one-output", false, "write each line to one log file only", "ignored"},
	{"skip-headers", false, "leave out the head of log lines", "ignored"},
	{"skip-log-headers", false, "leave out the head of log files", "ignored"},
	{"stderrthreshold", "2", "least `SEVERITY` to show", "ignored, logs always go to standard error"},
}

// sharedFlags and sharedSwitches were listed by kube-proxy 1.2 to 1.18, because it was
// linked with cAdvisor and cloud providers. None of them had an effect. Help hides them.
const sharedFlags = `application-metrics-count-limit cloud-provider-gce-l7lb-src-cidrs cloud-provider-gce-lb-src-cidrs
container-hints containerd containerd-namespace default-not-ready-toleration-seconds
default-unreachable-toleration-seconds docker docker-env-metadata-whitelist docker-root docker-run docker-tls-ca
docker-tls-cert docker-tls-key event-storage-age-limit event-storage-event-limit global-housekeeping-interval
google-json-key housekeeping-interval httptest.serve ir-data-source ir-dbname ir-hawkular ir-influxdb-host ir-password
ir-percentile ir-user storage-driver-buffer-duration storage-driver-db storage-driver-host storage-driver-password
storage-driver-table storage-driver-user`

const sharedSwitches = `allow-verification-with-non-compliant-keys docker-only docker-tls enable-load-reader
ir-namespace-only log-cadvisor-usage storage-driver-secure`

// oldFlags lists deprecatedFlags and the hidden ones, which have no help.
func oldFlags() []deprecatedFlag {
	all := slices.Clone(deprecatedFlags)
	for name := range strings.FieldsSeq(sharedFlags) {
		all = append(all, deprecatedFlag{name, "", "", neverConcerned})
	}
	for name := range strings.FieldsSeq(sharedSwitches) {
		all = append(all, deprecatedFlag{name, false, "", neverConcerned})
	}
	return all
}

const neverConcerned = "ignored, never concerned the proxy"

// Switches are settings that kube-proxy does not have: it warns of their fields.
type Switches struct {
	// CountTraffic counts what Services carry.
	CountTraffic bool
	// SocketAcceleration gives TCP sockets their endpoint when they connect.
	SocketAcceleration Acceleration
	// SecondDraw is whether a TCP connection whose endpoint does not answer gets another one.
	SecondDraw SecondDraw
	// SilentEndpoints is what becomes of endpoints that do not answer.
	SilentEndpoints SilentEndpoints
	// Selection is how connections get an endpoint, and SelectionSlots the size of tables for it.
	Selection      Selection
	SelectionSlots SelectionSlots
	// DirectReturn is whether the endpoint's node answers clients from outside directly.
	DirectReturn bool
}

// Choice is the value of a switch with a few values, which W lists. The default is "". It implements
// pflag.Value and json.Unmarshaler.
type Choice[W interface{ forms() forms }] string

// Acceleration is whose sockets get their endpoint when they connect.
type Acceleration = Choice[acceleration]

// The values of Acceleration.
const (
	AccelerateNone Acceleration = ""
	AccelerateNode Acceleration = "node" // what runs on the network of the node
	AccelerateAll  Acceleration = "all"  // pods, too
)

// SecondDraw is a boolean switch that is on by default.
type SecondDraw = Choice[secondDraw]

// The values of SecondDraw.
const (
	DrawAgain SecondDraw = ""
	DrawOnce  SecondDraw = "false"
)

// SilentEndpoints is what becomes of endpoints that do not answer while others do.
type SilentEndpoints = Choice[silence]

// The values of SilentEndpoints.
const (
	SilentLeftOut  SilentEndpoints = ""
	SilentObserved SilentEndpoints = "observe" // named, and not left out
	SilentIgnored  SilentEndpoints = "off"
)

// Selection is how connections get an endpoint.
type Selection = Choice[selection]

// The values of Selection.
const (
	SelectAtRandom      Selection = ""
	SelectConsistent    Selection = "consistent"     // external addresses and NodePorts
	SelectConsistentAll Selection = "consistent-all" // ClusterIPs, too
)

type acceleration struct{}
type secondDraw struct{}
type silence struct{}
type selection struct{}

// forms says what a Choice may be: for help, for an error, and the words for each value. The first
// word is that of output.
type forms struct {
	help, want string
	values     []form
}

type form struct{ value, words string }

const yes, no = " true t 1 yes y on", " false f 0 no n off"

func (acceleration) forms() forms {
	return forms{"node|all", "node, all, true for all, or false", []form{{"", no}, {"node", "node"}, {"all", "all" + yes}}}
}

func (secondDraw) forms() forms {
	return forms{"bool", "true or false", []form{{"", yes}, {"false", no}}}
}

func (silence) forms() forms {
	return forms{"on|observe|off", "on, observe or off", []form{{"off", "off" + no}, {"observe", "observe"}, {"", "on" + yes}}}
}

func (selection) forms() forms {
	values := []form{{"", "random" + no}, {"consistent", "consistent" + yes}, {"consistent-all", "consistent-all"}}
	return forms{"RULE", "random, consistent or consistent-all", values}
}

func (*Choice[W]) forms() forms {
	var w W
	return w.forms()
}

// Set implements pflag.Value.
func (c *Choice[W]) Set(text string) error {
	for _, f := range c.forms().values {
		if slices.Contains(strings.Fields(f.words), strings.ToLower(text)) {
			*c = Choice[W](f.value)
			return nil
		}
	}
	return errors.New("want " + c.forms().want)
}

// String implements pflag.Value.
func (c *Choice[W]) String() string {
	for _, f := range c.forms().values {
		if f.value == string(*c) {
			return strings.Fields(f.words)[0]
		}
	}
	return string(*c)
}

// Type implements pflag.Value.
func (c *Choice[W]) Type() string { return c.forms().help }

// UnmarshalJSON implements json.Unmarshaler.
func (c *Choice[W]) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	return c.Set(s)
}

// SelectionSlots is a number of slots, 0 for service.DefaultSlots. It implements pflag.Value and
// json.Unmarshaler.
type SelectionSlots uint16

var wantSlots = fmt.Sprintf("a whole number from %d to %d", service.MinSlots, service.MaxSlots)

// Number returns the number of slots.
func (x SelectionSlots) Number() uint16 { return cmp.Or(uint16(x), service.DefaultSlots) }

// Set implements pflag.Value.
func (x *SelectionSlots) Set(text string) error {
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || n < service.MinSlots {
		return errors.New("want " + wantSlots)
	}
	if *x = SelectionSlots(n); n == service.DefaultSlots {
		*x = 0
	}
	return nil
}

// String implements pflag.Value.
func (x *SelectionSlots) String() string { return fmt.Sprint(x.Number()) }

// Type implements pflag.Value.
func (x *SelectionSlots) Type() string { return "NUMBER" }

// UnmarshalJSON implements json.Unmarshaler.
func (x *SelectionSlots) UnmarshalJSON(text []byte) error { return x.Set(string(text)) }

// ownSwitch is one of Switches: flag, field, and why it has no effect on Windows.
type ownSwitch struct {
	flag, path, help, windows string
	alone                     string // the value of the flag without one, empty if it needs one
	effect                    Effect // of a change
	of                        func(*Switches) pflag.Value
}

var ownSwitches = []ownSwitch{
	{
		flag: "count-traffic", path: "countTraffic",
		help:    "count the connections of each Service and endpoint, for kube-proxy top and the metrics; modes ipvs and userspace count bytes, too",
		windows: "HNS does not count what a load balancer carries",
		alone:   "true",
		effect:  Restart,
		of:      func(s *Switches) pflag.Value { return (*onOff)(&s.CountTraffic) },
	},
	{
		flag: "socket-acceleration", path: "socketAcceleration",
		help:    "give TCP sockets of this node the endpoint of a ClusterIP when they connect, so that their packets need no translation; rules serve all other connections. node leaves pods to the rules, all or no value takes them, too",
		windows: "it is for programs of the Linux kernel",
		alone:   "true",
		effect:  Restart,
		of:      func(s *Switches) pflag.Value { return &s.SocketAcceleration },
	},
	{
		flag: "second-draw", path: "secondDraw",
		help:    "a connection over TCP or SCTP whose first packet no endpoint answers within a second gets another endpoint when its client repeats it",
		windows: "HNS does not tell which connections nobody answers",
		alone:   "true",
		effect:  Hot,
		of:      func(s *Switches) pflag.Value { return &s.SecondDraw },
	},
	{
		flag: "silent-endpoints", path: "silentEndpoints",
		help:    "what becomes of endpoints that do not answer while others of the Service do: on leaves them out until they answer, observe only names them, off does not look. The annotation kubeproxy.io/silent-endpoints of a Service overrides it",
		windows: "HNS does not tell which connections nobody answers",
		effect:  Hot,
		of:      func(s *Switches) pflag.Value { return &s.SilentEndpoints },
	},
	{
		flag: "selection", path: "selection",
		help:    "how connections get an endpoint: random draws one, consistent has all nodes with the same endpoints select the same one for the same address and port of a client of an external address or NodePort, consistent-all also of a ClusterIP; mode nftables can do that. The annotation kubeproxy.io/selection of a Service overrides it",
		windows: "HNS selects endpoints itself",
		effect:  Hot,
		of:      func(s *Switches) pflag.Value { return &s.Selection },
	},
	{
		flag: "selection-slots", path: "selectionSlots",
		help:    "the size of the table of a Service with consistent selection, the same on all nodes; it takes ten slots for an endpoint",
		windows: "HNS selects endpoints itself",
		effect:  Hot,
		of:      func(s *Switches) pflag.Value { return &s.SelectionSlots },
	},
	{
		flag: "direct-return", path: "directReturn",
		help:    "lead packets to an external address of a Service to the node of the endpoint, which answers the client itself, so that the client's address stays and open connections survive a change of the ingress node; mode nftables can do that, with consistent selection. The annotation kubeproxy.io/direct-return of a Service, on or off, overrides it",
		windows: "HNS has no tunnel between nodes for this",
		alone:   "true",
		effect:  Hot,
		of:      func(s *Switches) pflag.Value { return (*onOff)(&s.DirectReturn) },
	},
}

// onOff is a boolean switch. It implements pflag.Value.
type onOff bool

func (o *onOff) Set(text string) error {
	on, err := strconv.ParseBool(text)
	*o = onOff(on)
	return err
}

func (o *onOff) String() string { return strconv.FormatBool(bool(*o)) }
func (o *onOff) Type() string   { return "bool" }

// IsBoolFlag lets pflag print a switch like its own booleans.
func (o *onOff) IsBoolFlag() bool { return true }

// off reports whether a switch is.
func off(v pflag.Value) bool { return slices.Contains([]string{"false", "off", "random"}, v.String()) }

func (o *ownSwitch) usual(s *Switches) bool { return o.of(s).String() == o.of(&Switches{}).String() }

// switchOf returns the switch whose field has this path, nil if there is none.
func switchOf(path string) *ownSwitch {
	for i := range ownSwitches {
		if ownSwitches[i].path == path {
			return &ownSwitches[i]
		}
	}
	return nil
}

func (f *Flags) registerSwitches(fs *pflag.FlagSet) {
	for _, s := range ownSwitches {
		fs.Var(s.of(&f.switches), s.flag, s.help)
		fs.Lookup(s.flag).NoOptDefVal = s.alone
		group(fs, s.flag, groupTraffic)
	}
}

// applySwitches returns what the file and flags switch on.
func (b *build) applySwitches(f *Flags) Switches {
	result := b.file.Switches
	for _, s := range ownSwitches {
		now, byFlag := s.of(&result), s.of(&f.switches)
		_, inFile := b.file.Lines[s.path]
		if f.changed(s.flag) {
			if inFile && now.String() != byFlag.String() {
				b.overrides = append(b.overrides, Override{s.flag, s.path, now.String(), byFlag.String()})
			}
			_ = now.Set(byFlag.String()) // a flag has read it
			b.flagged[s.path] = s.flag
		}
		if b.os == Windows && !off(now) && (inFile || f.changed(s.flag)) {
			b.notef(s.path, "has no effect on %s: %s", b.os, s.windows)
		}
	}
	return result
}

// diffSwitches lists the switches that differ.
func diffSwitches(old, now *Config) []Change {
	var all []Change
	for _, s := range ownSwitches {
		from, to := s.of(&old.Switches).String(), s.of(&now.Switches).String()
		if from == to {
			continue
		}
		c := Change{Path: s.path, From: from, To: to}
		if now.OS != Windows {
			c.Effect = s.effect
		}
		all = append(all, c)
	}
	return all
}
