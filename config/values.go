// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"

	"kubeproxy/common/service"
)

// ChartValues returns values of the chart for Linux nodes whose kube-proxy runs with a
// configuration, none if f is empty, and with flags. It lists what changes for the nodes.
func ChartValues(f Found, flags *Flags) ([]byte, []Note, error) {
	if f.Name == "" && flags.Config != "" {
		return nil, nil, fmt.Errorf("--config: %.80q is not read: want it as FILE", flags.Config)
	}
	flags.Config = f.Name
	file := &File{}
	c, err := LoadFrom(flags, Linux, f.Data)
	if err == nil && f.Name != "" {
		file, err = Parse(f.Name, f.Data)
	}
	if err != nil {
		return nil, nil, err
	}
	v := &chartValues{Config: c, flags: flags, file: file, was: file.Values.Mode}
	if !slices.Contains(ModesOf(flags.Modes, Linux), v.was) {
		v.was = IPTables // which kube-proxy takes without a mode
	}
	switch {
	case c.Mode == "":
		v.notef("linux.mode", "is iptables, kube-proxy's mode where none is set; with -- --proxy-mode=nftables the values are for nftables, the default of the chart")
		if err := flags.set.Set("proxy-mode", string(IPTables)); err != nil {
			return nil, nil, err
		}
		if v.Config, err = LoadFrom(flags, Linux, f.Data); err != nil {
			return nil, nil, err
		}
	case f.Name == "":
		v.was = c.Mode
	case c.Mode != v.was:
		v.notef("linux.mode", "is %s, and was %s", c.Mode, v.was)
	}
	flags.set.Visit(v.flag)
	text, err := yaml.Marshal(v.values(f.Server))
	return text, v.notes, err
}

// chartValues are values of the chart in the making.
type chartValues struct {
	*Config
	flags *Flags
	file  *File
	was   v1alpha1.ProxyMode
	notes []Note
}

func (v *chartValues) notef(path, format string, args ...any) {
	v.notes = append(v.notes, Note{Path: path, Text: fmt.Sprintf(format, args...)})
}

// flag says of a flag that kube-proxy does not have that it is left out.
func (v *chartValues) flag(f *pflag.Flag) {
	const handled = "master service-proxy-name udp-timeout count-traffic socket-acceleration config"
	if !slices.ContainsFunc(settings, func(s setting) bool { return s.flag == f.Name }) && !slices.Contains(strings.Fields(handled), f.Name) &&
		!slices.ContainsFunc(oldFlags(), func(d deprecatedFlag) bool { return d.flag == f.Name }) {
		v.notef("--"+f.Name, "is left out: other values, such as extraArgs, have its effect")
	}
}

// values returns all values. Those that are no fields of linux.config have names of their own.
func (v *chartValues) values(server string) map[string]any {
	fields := v.fields()
	v.nodePorts(fields)
	linux := map[string]any{"mode": v.Mode}
	if a := v.SocketAcceleration; a != AccelerateNone {
		linux["socketAcceleration"] = string(a)
	}
	all := map[string]any{"linux": linux}
	if server = v.server(server); server != "" {
		all["apiServer"] = server
	}
	if v.ClusterCIDR != "" {
		all["clusterCIDR"] = strings.ReplaceAll(v.ClusterCIDR, " ", "")
	}
	if at := v.serves("healthzBindAddress", v.HealthzBindAddress); at.Addr().IsLoopback() {
		v.notef("linux.config.healthzBindAddress", "is left out: the kubelet does not reach %s; the chart has [::]:10256", at)
	} else if at.Port() != 0 && (!at.Addr().IsUnspecified() || at.Port() != healthzPort) {
		fields["healthzBindAddress"] = at.String()
	}
	if at := v.serves("metricsBindAddress", v.MetricsBindAddress); at.Port() != 0 && (!at.Addr().IsLoopback() || at.Port() != metricsPort) {
		all["metrics"] = map[string]any{"bindAddress": at.String()}
	}
	var args []string
	if v.ProxyName != "" {
		args = append(args, "--service-proxy-name="+v.ProxyName)
	}
	if v.Mode == Userspace && v.UDPIdleTimeout != defaultUDPIdle {
		args = append(args, "--udp-timeout="+v.UDPIdleTimeout.String())
	}
	if len(args) > 0 {
		all["extraArgs"] = args
	}
	if len(fields) > 0 {
		linux["config"] = fields
	}
	for _, n := range v.Notes {
		if n.Origin != "" && n.Path != "hostnameOverride" { // the chart gives each pod the name of its Node
			v.notes = append(v.notes, n)
		}
	}
	for _, w := range v.Warnings {
		v.notes = append(v.notes, Note{w.Origin, w.Path, w.Text})
	}
	return all
}

// ownValues are fields that other values, or the chart itself, have in place of linux.config.
var ownValues = []string{
	"apiVersion", "kind", "mode", "clientConnection.kubeconfig", "hostnameOverride", "clusterCIDR",
	"healthzBindAddress", "metricsBindAddress", "iptables.localhostNodePorts", "featureGates",
}

// fields returns the fields of linux.config: those that have an effect and no default.
func (v *chartValues) fields() map[string]any {
	all := map[string]any{}
	plain := v1alpha1.KubeProxyConfiguration{}
	setDefaults(&plain, Linux, func(string) bool { return false })
	use := Use{APIServer: true}
	for _, m := range v.flags.Modes {
		if m.OS == Linux && m.Name == v.Mode {
			use.Mode = m
		}
	}
	for _, path := range leafPaths() {
		value := fieldAt(&v.KubeProxyConfiguration, path)
		// A minSyncPeriod of 0 is the default for kube-proxy.
		if slices.Contains(ownValues, path) || use.effect(path, v.Config) == Unused || showList(value) == showList(fieldAt(&plain, path)) ||
			strings.HasSuffix(path, ".minSyncPeriod") && value.IsZero() {
			continue
		}
		put(all, path, json.RawMessage(showValue(value)))
	}
	gates := maps.Clone(v.FeatureGates)
	if maps.DeleteFunc(gates, func(name string, _ bool) bool { return !acts(name) }); len(gates) > 0 {
		all["featureGates"] = gates
	}
	if v.CountTraffic {
		all["countTraffic"] = true
	}
	return all
}

// put sets a field at a dotted path.
func put(in map[string]any, path string, value any) {
	names := strings.Split(path, ".")
	last := len(names) - 1
	for _, name := range names[:last] {
		if in[name] == nil {
			in[name] = map[string]any{}
		}
		in = in[name].(map[string]any)
	}
	in[names[last]] = value
}

// server returns the address of the API server.
func (v *chartValues) server(found string) string {
	if v.Master != "" {
		found = v.Master
	}
	if !regexp.MustCompile(`^https?://[^ ]+$`).MatchString(found) {
		v.notef("apiServer", "is not known here: helm install asks the cluster, and helm template needs one like https://192.0.2.1:6443")
		return ""
	}
	return found
}

// serves returns where a server is, which the chart always has.
func (v *chartValues) serves(path, addr string) netip.AddrPort {
	at, _ := netip.ParseAddrPort(addr) // validated
	if at.Port() == 0 {
		v.notef(path, "is left out: the chart always has this server")
	}
	return at
}

// nodePorts says where NodePorts no longer answer.
func (v *chartValues) nodePorts(fields map[string]any) {
	words := v.NodePortAddresses
	local := *v.IPTables.LocalhostNodePorts && (len(words) == 0 || slices.Contains(words, wordAll) || slices.Contains(words, wordLocalhost) ||
		slices.ContainsFunc(prefixes(words), func(p netip.Prefix) bool { return p.Contains(service.Localhost(service.IPv4)) }))
	byRules := v.Mode == IPTables || v.Mode == Userspace
	switch {
	case byRules && local && (v.file.Lines["iptables.localhostNodePorts"] > 0 || v.flags.changed("iptables-localhost-nodeports")):
		put(fields, "iptables.localhostNodePorts", true)
	case byRules && local && v.was != IPVS: // which does not answer there
		v.notef("linux.config.iptables.localhostNodePorts", "is false in the chart: NodePorts no longer answer on 127.0.0.1; true keeps that")
	case v.Mode == NFTables && v.was == IPTables && local && !slices.Contains(words, wordLocalhost) && !slices.ContainsFunc(prefixes(words), service.LoopbackOnly):
		v.notef("linux.config.nodePortAddresses", "has no localhost: NodePorts no longer answer on 127.0.0.1; with it they do")
	}
	if v.Mode == NFTables && v.was != NFTables && len(words) == 0 {
		v.notef("linux.config.nodePortAddresses", "is [primary] in mode nftables: NodePorts answer on the addresses of the Node, no longer on all of the machine; [all] keeps that")
	}
}

// Write writes every field of c as YAML. Loading that file returns an equal
// configuration.
func (c *Config) Write(w io.Writer) error {
	data, err := yaml.Marshal(c.KubeProxyConfiguration)
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	for _, s := range ownSwitches {
		if v := s.of(&c.Switches); !off(v) {
			data = append(data, s.path+": "+v.String()+"\n"...)
		}
	}
	if _, err := w.Write(data); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// IgnoreExternalIPs reports whether a feature gate disables externalIPs of Services.
func (c *Config) IgnoreExternalIPs() bool {
	on, given := c.FeatureGates["AllowServiceExternalIPs"]
	return given && !on
}

// Effect is what a changed setting requires to take effect.
type Effect uint8

// The effects, mildest first.
const (
	Unused  Effect = iota // nothing, because the running parts do not use the setting
	Hot                   // the running process applies it
	Restart               // only a new process applies it
)

// Use describes which parts of its configuration a process uses.
type Use struct {
	// Mode is the mode in force, even if the configuration leaves it open.
	Mode Mode
	// APIServer means that objects come from an API server.
	APIServer bool
}

// Change is a setting that differs between two configurations.
type Change struct {
	Path     string // such as iptables.masqueradeBit or featureGates[NAME]
	From, To string // as in a JSON file
	Effect   Effect
}

// String returns "path: from -> to".
func (c Change) String() string { return fmt.Sprintf("%s: %s -> %s", c.Path, c.From, c.To) }

// Diff lists the settings that differ between old and now, in the order of the type.
func Diff(old, now *Config, u Use) []Change {
	var all []Change
	for _, path := range leafPaths() {
		if path == "featureGates" {
			all = append(all, diffGates(old.FeatureGates, now)...)
			continue
		}
		a, b := fieldAt(&old.KubeProxyConfiguration, path), fieldAt(&now.KubeProxyConfiguration, path)
		if from, to := showList(a), showList(b); from != to {
			all = append(all, Change{path, from, to, u.effect(path, now)})
		}
	}
	if from, to := old.UDPIdleTimeout, now.UDPIdleTimeout; from != to {
		c := Change{Path: udpIdlePath, From: from.String(), To: to.String()}
		if u.Mode.uses(udpIdlePath) {
			c.Effect = Restart
		}
		all = append(all, c)
	}
	return append(all, diffSwitches(old, now)...)
}

// showList is show, but renders nil and empty lists alike.
func showList(v reflect.Value) string {
	if v.Kind() == reflect.Slice && v.Len() == 0 {
		return "[]"
	}
	return showValue(v)
}

// diffGates compares gate by gate, because each gate has its own effect.
func diffGates(old map[string]bool, next *Config) []Change {
	names, now := map[string]bool{}, next.FeatureGates
	maps.Copy(names, old)
	maps.Copy(names, now)
	var all []Change
	for _, name := range slices.Sorted(maps.Keys(names)) {
		from, to := showGate(old, name), showGate(now, name)
		if from == to {
			continue
		}
		c := Change{Path: "featureGates[" + name + "]", From: from, To: to}
		// Honored gates are enabled unless they are set to false.
		if acts(name) && (from == "false") != (to == "false") && (name != ipvsGate || mayBeIPVS(next)) {
			c.Effect = effects["featureGates"].effect
		}
		all = append(all, c)
	}
	return all
}

// mayBeIPVS reports whether the mode can be ipvs, including by the Node's annotation.
func mayBeIPVS(c *Config) bool { return c.OS == Linux && (c.Mode == IPVS || c.Mode == "") }

func showGate(all map[string]bool, name string) string {
	on, given := all[name]
	if !given {
		return "unset"
	}
	return strconv.FormatBool(on)
}

// leafPaths lists the settings without their sections.
func leafPaths() []string {
	all := paths(reflect.TypeFor[v1alpha1.KubeProxyConfiguration](), "")
	return slices.DeleteFunc(all, func(path string) bool {
		return slices.ContainsFunc(all, func(p string) bool { return strings.HasPrefix(p, path+".") })
	})
}

func (u Use) effect(path string, now *Config) Effect {
	e := effects[path]
	switch {
	case path == "mode" && now.Mode == u.Mode.Name: // the mode equals the one that was detected
		return Unused
	case e.someModes && !u.Mode.uses(path):
		return Unused
	case strings.HasPrefix(path, "clientConnection.") && !u.APIServer:
		return Unused
	case path == "conntrack.tcpBeLiberal" && u.Mode.uses(path): // a rule depends on it
		return Restart
	case isOtherOS(now.OS, path):
		return Unused
	}
	return e.effect
}

// settingEffect is the effect of a setting.
type settingEffect struct {
	effect    Effect
	someModes bool // the setting has no effect in modes that do not list it
}

// effects has every setting. A setting requires a restart if no running part can apply
// it, such as the connection to the API server, or the mark bit, which other programs may
// use.
var effects = map[string]settingEffect{
	"kind":         {effect: Unused}, // there is only one
	"apiVersion":   {effect: Unused},
	"featureGates": {effect: Restart}, // gate by gate, see diffGates

	"clientConnection.kubeconfig":         {effect: Restart},
	"clientConnection.acceptContentTypes": {effect: Restart},
	"clientConnection.contentType":        {effect: Restart},
	"clientConnection.qps":                {effect: Restart},
	"clientConnection.burst":              {effect: Restart},
	"configSyncPeriod":                    {effect: Unused}, // the API server is watched

	"logging.format":                      {effect: Restart},
	"logging.flushFrequency":              {effect: Hot},
	"logging.verbosity":                   {effect: Hot},
	"logging.vmodule":                     {effect: Hot},
	"logging.options.text.splitStream":    {effect: Unused},
	"logging.options.text.infoBufferSize": {effect: Unused},
	"logging.options.json.splitStream":    {effect: Unused},
	"logging.options.json.infoBufferSize": {effect: Unused},

	"hostnameOverride":            {effect: Restart},
	"bindAddress":                 {effect: Restart},
	"healthzBindAddress":          {effect: Hot},
	"metricsBindAddress":          {effect: Hot},
	"bindAddressHardFail":         {effect: Hot},
	"enableProfiling":             {effect: Hot},
	"showHiddenMetricsForVersion": {effect: Unused}, // none is hidden
	"oomScoreAdj":                 {effect: Hot},
	"portRange":                   {Restart, true},
	"windowsRunAsService":         {effect: Restart},

	"mode":                            {effect: Restart},
	"detectLocalMode":                 {effect: Hot},
	"detectLocal.bridgeInterface":     {effect: Hot},
	"detectLocal.interfaceNamePrefix": {effect: Hot},
	"clusterCIDR":                     {effect: Hot},
	"nodePortAddresses":               {effect: Hot},

	"iptables.masqueradeBit":      {Restart, true},
	"iptables.masqueradeAll":      {Hot, true},
	"iptables.localhostNodePorts": {Restart, true},
	"iptables.syncPeriod":         {Hot, true},
	"iptables.minSyncPeriod":      {Hot, true},

	"nftables.masqueradeBit": {Restart, true},
	"nftables.masqueradeAll": {Hot, true},
	"nftables.syncPeriod":    {Hot, true},
	"nftables.minSyncPeriod": {Hot, true},

	"ipvs.syncPeriod":    {Hot, true},
	"ipvs.minSyncPeriod": {Hot, true},
	"ipvs.scheduler":     {Restart, true},
	"ipvs.excludeCIDRs":  {Restart, true},
	"ipvs.strictARP":     {Restart, true},
	"ipvs.tcpTimeout":    {Restart, true},
	"ipvs.tcpFinTimeout": {Restart, true},
	"ipvs.udpTimeout":    {Restart, true},

	"winkernel.networkName":           {Restart, true},
	"winkernel.sourceVip":             {Restart, true},
	"winkernel.enableDSR":             {Restart, true},
	"winkernel.rootHnsEndpointName":   {Restart, true},
	"winkernel.forwardHealthCheckVip": {Restart, true},

	"conntrack.maxPerCore":            {effect: Hot},
	"conntrack.min":                   {effect: Hot},
	"conntrack.tcpEstablishedTimeout": {effect: Hot},
	"conntrack.tcpCloseWaitTimeout":   {effect: Hot},
	"conntrack.tcpBeLiberal":          {effect: Hot},
	"conntrack.udpTimeout":            {effect: Hot},
	"conntrack.udpStreamTimeout":      {effect: Hot},
}
