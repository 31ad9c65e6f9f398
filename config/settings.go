// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

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
}

// settings holds every flag that has a field.
var settings = []setting{
	{flag: "proxy-mode", path: "mode", group: groupGeneral, help: "`MODE` that forwards traffic"}, // see modeHelp
	{flag: "feature-gates", path: "featureGates", group: groupGeneral, help: "switch features, such as `NAME=true,OTHER=false`; " + featureHelp()},
	{flag: "oom-score-adj", path: "oomScoreAdj", group: groupGeneral, help: "the process's highest `SCORE` for the kernel's out-of-memory killer, -1000 to 1000; Linux only"},
	{flag: "profiling", path: "enableProfiling", group: groupGeneral, help: "serve profiles under /debug/pprof of the metrics server"},
	{flag: "show-hidden-metrics-for-version", path: "showHiddenMetricsForVersion", group: groupGeneral, help: "show metrics hidden since `VERSION`, the minor version before this one"},

	{flag: "kubeconfig", path: "clientConnection.kubeconfig", group: groupAPI, help: "kubeconfig `FILE`, with the address of the API server and credentials"},
	{flag: "kube-api-content-type", path: "clientConnection.contentType", group: groupAPI, help: "media `TYPE` of requests"},
	{flag: "kube-api-qps", path: "clientConnection.qps", group: groupAPI, help: "requests a second, `NUMBER`, in the long run"},
	{flag: "kube-api-burst", path: "clientConnection.burst", group: groupAPI, help: "`NUMBER` of requests that may exceed that rate for a moment"},
	{flag: "config-sync-period", path: "configSyncPeriod", group: groupAPI, positive: true, help: "`TIME` between two full reads of what the API server holds, more than 0; ignored, because the API server is watched"},

	{flag: "hostname-override", path: "hostnameOverride", group: groupNode, help: "`NAME` of the Node of this machine, if it is not the host name"},
	{flag: "bind-address", path: "bindAddress", group: groupNode, help: "primary `IP` of the node; 0.0.0.0 or :: takes the Node's address of that family. Listeners of mode userspace are there if --proxy-port-range is given; else nothing listens on it"},
	{flag: "bind-address-hard-fail", path: "bindAddressHardFail", group: groupNode, help: "exit if the health or metrics address is taken, instead of trying again"},
	{flag: "healthz-bind-address", path: "healthzBindAddress", group: groupNode, help: "`IP:PORT` of the health server, port 0 for none"},
	{flag: "metrics-bind-address", path: "metricsBindAddress", group: groupNode, help: "`IP:PORT` of the metrics server, port 0 for none"},

	{flag: "proxy-port-range", path: "portRange", group: groupTraffic, help: "ports of the listeners of mode userspace, `FIRST-LAST`, which nothing else on the node may use; empty lets the system choose"},
	{flag: "cluster-cidr", path: "clusterCIDR", group: groupTraffic, help: "`CIDR` of all pods, or one of each family with a comma between"},
	{flag: "detect-local-mode", path: "detectLocalMode", group: groupTraffic, help: "`HOW` to distinguish pods of this node from other clients: ClusterCIDR (the default on Linux), NodeCIDR, BridgeInterface or InterfaceNamePrefix"},
	{flag: "pod-bridge-interface", path: "detectLocal.bridgeInterface", group: groupTraffic, help: "bridge `NAME` for --detect-local-mode BridgeInterface"},
	{flag: "pod-interface-name-prefix", path: "detectLocal.interfaceNamePrefix", group: groupTraffic, help: "beginning of interface `NAMES` for --detect-local-mode InterfaceNamePrefix"},
	{flag: "masquerade-all", path: "iptables.masqueradeAll", nftables: "nftables.masqueradeAll", group: groupTraffic, help: "masquerade all traffic to ClusterIPs"},
	{flag: "nodeport-addresses", path: "nodePortAddresses", group: groupTraffic, help: "`CIDRS` of the node's addresses that answer NodePorts, and the words primary, localhost and all; unset means primary in mode nftables, all in the others"},

	{flag: "iptables-localhost-nodeports", path: "iptables.localhostNodePorts", group: groupIPTables, help: "answer NodePorts on 127.0.0.1 by rules; modes iptables and userspace only"},
	{flag: "iptables-masquerade-bit", path: "iptables.masqueradeBit", nftables: "nftables.masqueradeBit", group: groupIPTables, help: "`BIT` of the packet mark that asks for masquerading, 0 to 31"},
	{flag: "iptables-sync-period", path: "iptables.syncPeriod", nftables: "nftables.syncPeriod", positive: true, group: groupIPTables, help: "longest `TIME` between two checks of the rules, more than 0"},
	{flag: "iptables-min-sync-period", path: "iptables.minSyncPeriod", nftables: "nftables.minSyncPeriod", group: groupIPTables, help: "least `TIME` between two changes of the rules, 0 for none"},

	{flag: "ipvs-scheduler", path: "ipvs.scheduler", group: groupIPVS, help: "`NAME` of a scheduler the kernel has: rr (the default), lc, dh, sh, sed, nq and others"},
	{flag: "ipvs-strict-arp", path: "ipvs.strictARP", group: groupIPVS, help: "answer ARP only for addresses of the interface that is asked"},
	{flag: "ipvs-exclude-cidrs", path: "ipvs.excludeCIDRs", group: groupIPVS, help: "`CIDRS` of virtual servers to leave alone"},
	{flag: "ipvs-sync-period", path: "ipvs.syncPeriod", positive: true, group: groupIPVS, help: "longest `TIME` between two checks of the virtual servers, more than 0"},
	{flag: "ipvs-min-sync-period", path: "ipvs.minSyncPeriod", group: groupIPVS, help: "least `TIME` between two changes, 0 for none"},
	{flag: "ipvs-tcp-timeout", path: "ipvs.tcpTimeout", group: groupIPVS, help: "`TIME` an idle TCP session is kept, 0 for the system's value"},
	{flag: "ipvs-tcpfin-timeout", path: "ipvs.tcpFinTimeout", group: groupIPVS, help: "`TIME` a TCP session is kept after its FIN, 0 for the system's value"},
	{flag: "ipvs-udp-timeout", path: "ipvs.udpTimeout", group: groupIPVS, help: "`TIME` an idle UDP session is kept, 0 for the system's value"},

	{flag: "network-name", path: "winkernel.networkName", group: groupWindows, help: "`NAME` of the HNS network"},
	{flag: "source-vip", path: "winkernel.sourceVip", group: groupWindows, help: "`IP` that overlay networks masquerade with"},
	{flag: "enable-dsr", path: "winkernel.enableDSR", group: groupWindows, help: "let replies go straight to the client (direct server return)"},
	{flag: "root-hnsendpoint-name", path: "winkernel.rootHnsEndpointName", group: groupWindows, help: "`NAME` of the host's own endpoint on an l2bridge network"},
	{flag: "forward-healthcheck-vip", path: "winkernel.forwardHealthCheckVip", group: groupWindows, help: "forward load balancers' health checks to the node"},
	{flag: "windows-service", path: "windowsRunAsService", group: groupWindows, help: "run under the Windows service manager"},

	{flag: "conntrack-max-per-core", path: "conntrack.maxPerCore", group: groupConntrack, help: "most connections to track, `NUMBER` for each CPU; 0 leaves the system's limit alone"},
	{flag: "conntrack-min", path: "conntrack.min", group: groupConntrack, help: "connections to track at least, `NUMBER` in all, whatever --conntrack-max-per-core gives"},
	{flag: "conntrack-tcp-timeout-established", path: "conntrack.tcpEstablishedTimeout", group: groupConntrack, help: "`TIME` an idle TCP connection is kept, 0 for the system's value"},
	{flag: "conntrack-tcp-timeout-close-wait", path: "conntrack.tcpCloseWaitTimeout", group: groupConntrack, help: "`TIME` a TCP connection is kept in CLOSE_WAIT, 0 for the system's value"},
	{flag: "conntrack-tcp-be-liberal", path: "conntrack.tcpBeLiberal", group: groupConntrack, help: "let packets outside the TCP window pass"},
	{flag: "conntrack-udp-timeout", path: "conntrack.udpTimeout", group: groupConntrack, help: "`TIME` a UDP flow without answer is kept, 0 for the system's value"},
	{flag: "conntrack-udp-timeout-stream", path: "conntrack.udpStreamTimeout", group: groupConntrack, help: "`TIME` a UDP flow with answers is kept, 0 for the system's value"},

	{flag: "v", path: "logging.verbosity", group: groupLogs, help: "`LEVEL` of detail, 0 for the least"},
	{flag: "vmodule", path: "logging.vmodule", group: groupLogs, help: "levels of single source files, such as `FILE=2,OTHER*=4`; format text only"},
	{flag: "logging-format", path: "logging.format", group: groupLogs, help: "`FORM` of a line: text or json"},
	{flag: "log-flush-frequency", path: "logging.flushFrequency", group: groupLogs, help: "longest `TIME` a line may wait to be written"},
	{flag: "log-json-info-buffer-size", path: "logging.options.json.infoBufferSize", group: groupLogs, help: "`BYTES` of JSON lines to buffer; ignored, nothing is buffered"},
	{flag: "log-json-split-stream", path: "logging.options.json.splitStream", group: groupLogs, help: "split JSON lines between standard output and error; ignored"},
	{flag: "log-text-info-buffer-size", path: "logging.options.text.infoBufferSize", group: groupLogs, help: "`BYTES` of text lines to buffer; ignored, nothing is buffered"},
	{flag: "log-text-split-stream", path: "logging.options.text.splitStream", group: groupLogs, help: "split text lines between standard output and error; ignored"},
}

// deprecatedFlag is a flag that only old command lines contain. If value is nil, the flag
// still works and is registered elsewhere.
type deprecatedFlag struct {
	flag  string
	value func() pflag.Value
	help  string
	why   string
}

// deprecatedFlags lists them. A flag without effect still needs a value of its type.
var deprecatedFlags = []deprecatedFlag{
	{flag: "healthz-port", why: "write the port into --healthz-bind-address"},
	{flag: "metrics-port", why: "write the port into --metrics-bind-address"},
	{flag: "cleanup-iptables", why: "use --cleanup"},
	{flag: "cleanup-ipvs", why: "--cleanup removes what mode ipvs made, too; only false has an effect, which leaves that alone"},
	{"boot-id-file", text("/proc/sys/kernel/random/boot_id"), "`FILES` with the boot ID of the node", neverConcerned},
	{"machine-id-file", text("/etc/machine-id,/var/lib/dbus/machine-id"), "`FILES` with the machine ID of the node", neverConcerned},
	{"conntrack-max", number(), "most connections to track, `NUMBER` in all", "ignored, use --conntrack-max-per-core and --conntrack-min"},
	{"resource-container", text("/kube-proxy"), "`NAME` of the cgroup to run in", "ignored, the container runtime does that"},
	{"azure-container-registry-config", text(""), "`FILE` with registry credentials", neverConcerned},
	{"add-dir-header", boolean(false), "name the directory in log lines", "ignored"},
	{"alsologtostderr", boolean(false), "log to standard error too", "ignored, logs always go there"},
	{"log-backtrace-at", text(""), "dump the stack at `FILE:LINE`", "ignored"},
	{"log-dir", text(""), "`DIRECTORY` for log files", "ignored, redirect standard error"},
	{"logtostderr", boolean(true), "log to standard error", "ignored, logs always go there"},
	{"one-output", boolean(false), "write each line to one log file only", "ignored"},
	{"skip-headers", boolean(false), "leave out the head of log lines", "ignored"},
	{"skip-log-headers", boolean(false), "leave out the head of log files", "ignored"},
	{"stderrthreshold", text("2"), "least `SEVERITY` to show", "ignored, logs always go to standard error"},
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
		all = append(all, deprecatedFlag{name, text(""), "", neverConcerned})
	}
	for name := range strings.FieldsSeq(sharedSwitches) {
		all = append(all, deprecatedFlag{name, boolean(false), "", neverConcerned})
	}
	return all
}

const neverConcerned = "ignored, never concerned the proxy"

func boolean(def bool) func() pflag.Value {
	return func() pflag.Value {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		fs.Bool("x", def, "")
		return fs.Lookup("x").Value
	}
}

func number() func() pflag.Value {
	return func() pflag.Value {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		fs.Int32("x", 0, "")
		return fs.Lookup("x").Value
	}
}

func text(def string) func() pflag.Value {
	return func() pflag.Value {
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		fs.String("x", def, "")
		return fs.Lookup("x").Value
	}
}
