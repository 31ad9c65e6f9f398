// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"
	yaml "go.yaml.in/yaml/v3"
	"k8s.io/kube-proxy/config/v1alpha1"
	sigsyaml "sigs.k8s.io/yaml"

	"kubeproxy/common/service"
)

// Write writes every field of c as YAML, from which an equal configuration can be loaded.
func (c *Config) Write(w io.Writer) error {
	data, err := sigsyaml.Marshal(c.KubeProxyConfiguration)
	if err != nil {
		return fmt.Errorf("encode configuration: %w", err)
	}
	for _, s := range ownSwitches {
		if !s.usual(&c.Switches) {
			data = append(data, s.path+": "+s.of(&c.Switches).String()+"\n"...)
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

// Migrate returns a configuration as --config takes it, otherwise as written, without what has no
// effect, and lists that. It fails if a start on os would refuse the result.
func Migrate(f Found, modes []Mode, os OS) ([]byte, []Note, error) {
	file, err := Parse(f.Name, f.Data)
	if err != nil {
		return nil, nil, err
	}
	m := migration{file: file}
	m.sections(file.doc.Content[0], "")
	out := f.Data
	all := documents(plainText(f.Data))
	switch {
	case m.changed:
		if out, err = encode(file.doc); err != nil {
			return nil, nil, fmt.Errorf("%s: encode: %w", f.Name, err)
		}
	case len(all) > 1 || f.Where != "":
		out = append(bytes.Trim([]byte(all[0].text), "\n"), '\n')
	}
	if _, err := LoadFrom(&Flags{Modes: modes, Config: f.Name}, os, out); err != nil {
		_, err = LoadFrom(&Flags{Modes: modes, Config: f.Name}, os, f.Data) // with its lines
		return nil, nil, fmt.Errorf("the result could not be used on %s: %w", os, err)
	}
	return out, m.notes, nil
}

func encode(doc *yaml.Node) ([]byte, error) {
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	err := enc.Encode(doc)
	return out.Bytes(), err
}

// migration changes the nodes of a file.
type migration struct {
	file    *File
	notes   []Note // what was left out
	changed bool
}

// sections visits a mapping and its sections.
func (m *migration) sections(n *yaml.Node, parent string) {
	if n.Kind != yaml.MappingNode {
		return
	}
	for i := 0; i < len(n.Content); {
		key, val := n.Content[i], n.Content[i+1]
		path := joinPath(parent, key.Value)
		note, unused := m.file.unused[key]
		switch {
		case path == "featureGates" && !unused:
			if m.gates(val); len(val.Content) == 0 && m.changed {
				unused = true
			}
		case path == "apiVersion" && val.Value != apiVersion:
			val.Value, m.changed = apiVersion, true
		}
		if note.Text != "" {
			m.notes = append(m.notes, note)
		}
		if unused {
			n.Content, m.changed = slices.Delete(n.Content, i, i+2), true
			continue
		}
		m.sections(val, path)
		i += 2
	}
}

// gates writes feature gates as a mapping of those that have an effect.
func (m *migration) gates(n *yaml.Node) {
	if n.Kind == yaml.ScalarNode && n.ShortTag() != "!!null" {
		line := n.Line
		*n = yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Line: line}
		for _, name := range slices.Sorted(maps.Keys(m.file.Values.FeatureGates)) {
			on := strconv.FormatBool(m.file.Values.FeatureGates[name])
			n.Content = append(n.Content,
				&yaml.Node{Kind: yaml.ScalarNode, Value: name, Line: line},
				&yaml.Node{Kind: yaml.ScalarNode, Value: on, Tag: "!!bool", Line: line})
		}
		m.changed = true
	}
	for i := 0; i < len(n.Content); {
		key := n.Content[i]
		note, unused := m.file.unused[key]
		if !unused && acts(key.Value) {
			i += 2
			continue
		}
		if !unused {
			note = Note{fmt.Sprintf("%s:%d", m.file.Name, key.Line), "featureGates[" + key.Value + "]", "has no effect here"}
		}
		m.notes = append(m.notes, note)
		n.Content, m.changed = slices.Delete(n.Content, i, i+2), true
	}
}

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
	text, err := sigsyaml.Marshal(v.values(f.Server))
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
	const handled = "master service-proxy-name udp-timeout count-traffic socket-acceleration silent-endpoints selection selection-slots direct-return config"
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
	if x := v.SilentEndpoints; x != SilentLeftOut {
		all["silentEndpoints"] = string(x)
	}
	if x := v.Selection; x != SelectAtRandom {
		all["selection"] = string(x)
	}
	if x := v.SelectionSlots; x != 0 {
		all["selectionSlots"] = int(x)
	}
	if v.DirectReturn {
		all["directReturn"] = true
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
