// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"

	"kubeproxy/common/suggest"
)

// apiVersion2 is the next version of the file as far as it is settled, in KEP-784
// (kubernetes/enhancements#784). It is read into the fields of v1alpha1.
const apiVersion2 = "kubeproxy.config.k8s.io/v1alpha2"

// movedFields maps fields of v1alpha2 to the corresponding fields of v1alpha1. One field
// of v1alpha2 can replace several.
var movedFields = map[string][]string{
	"linux.conntrack":     {"conntrack"},
	"linux.oomScoreAdj":   {"oomScoreAdj"},
	"linux.masqueradeAll": {"iptables.masqueradeAll", "nftables.masqueradeAll"},
	"syncPeriod":          {"iptables.syncPeriod", "nftables.syncPeriod", "ipvs.syncPeriod"},
	"minSyncPeriod":       {"iptables.minSyncPeriod", "nftables.minSyncPeriod", "ipvs.minSyncPeriod"},

	"windows.runAsService": {"windowsRunAsService"},
}

// droppedFields maps fields that v1alpha2 dropped to a text about their replacement.
var droppedFields = map[string]string{
	"clusterCIDR":         "want detectLocal.clusterCIDRs",
	"bindAddress":         "want nodeIPOverride",
	"portRange":           "only mode userspace uses it: want --proxy-port-range",
	"windowsRunAsService": "want windows.runAsService",
}

// familyPolicies are the valid values of ipFamilyPolicy.
var familyPolicies = []string{"SingleStack", "PreferDualStack", "RequireDualStack"}

// newField decodes a field that exists in v1alpha2 only. It returns false if path is not
// such a field.
func (d *decoder) newField(key, val *yaml.Node, path string) bool {
	var texts []string
	to, known := movedFields[path]
	switch {
	case known:
		d.move(val, path, to)
	case path == "linux", path == "windows":
		d.section(val, path)
	case path == "detectLocal.clusterCIDRs":
		if d.value(val, reflect.ValueOf(&texts).Elem(), path); len(texts) > 0 {
			d.Values.ClusterCIDR, d.Lines["clusterCIDR"] = strings.Join(texts, ","), val.Line
		}
	case path == "nodeIPOverride":
		if d.value(val, reflect.ValueOf(&texts).Elem(), path); len(texts) > 0 {
			d.Values.BindAddress, d.Lines["bindAddress"] = texts[0], val.Line
		}
		if len(texts) > 1 {
			d.notef(key, path, "the first address counts, and those of the other family are the Node's")
		}
	case path == "ipvs.masqueradeBit":
		d.move(val, path, []string{"iptables.masqueradeBit"})
		d.ipvsBit = true
	case path == "configHardFail":
		d.value(val, reflect.ValueOf(&d.hardFail).Elem(), path)
	case path == "ipFamilyPolicy":
		d.familyPolicy(key, val, path)
	default:
		return false
	}
	return true
}

func (d *decoder) familyPolicy(key, val *yaml.Node, path string) {
	var policy string
	if d.value(val, reflect.ValueOf(&policy).Elem(), path); policy != "" && !slices.Contains(familyPolicies, policy) {
		d.errorf(val, path, "%.80q is unknown: want %s", policy, list(familyPolicies))
	}
	d.notef(key, path, "is ignored: each family that the node can program is programmed")
}

// move decodes n into the first of to, and copies the value to the others.
func (d *decoder) move(n *yaml.Node, path string, to []string) {
	first := fieldAt(&d.Values, to[0])
	known := len(d.faults)
	d.value(n, first, to[0])
	for _, f := range d.faults[known:] { // use the path of the file
		if e := (*FieldError)(nil); errors.As(f.err, &e) {
			e.Path = path + strings.TrimPrefix(e.Path, to[0])
		}
	}
	for _, other := range to[1:] {
		fieldAt(&d.Values, other).Set(first)
		if line, given := d.Lines[to[0]]; given {
			d.Lines[other] = line
		}
	}
}

// section decodes a section that v1alpha1 does not have.
func (d *decoder) section(n *yaml.Node, path string) {
	if n.Kind != yaml.MappingNode && n.ShortTag() != "!!null" {
		d.errorf(n, path, "is %s: want a mapping", describe(n))
		return
	}
	var none struct{}
	d.structure(n, reflect.ValueOf(&none).Elem(), path)
}

// replacement returns the replacement in v1alpha2 for a field of v1alpha1, or "" for
// fields that remain.
func replacement(path string) string {
	if why, known := droppedFields[path]; known {
		return why
	}
	for _, to := range slices.Sorted(maps.Keys(movedFields)) {
		for _, from := range movedFields[to] {
			if path == from {
				return "want " + to
			}
		}
	}
	return ""
}

// written returns the path by which the file's author knows the field, which is
// another one in a file of v1alpha2.
func (b *build) written(path string) string {
	if origin := b.origin(path); !b.file.version2 || !strings.HasPrefix(origin, b.file.Name+":") {
		return path
	}
	for _, to := range slices.Sorted(maps.Keys(movedFields)) {
		for _, from := range movedFields[to] {
			if rest, is := strings.CutPrefix(path, from); is && (rest == "" || rest[0] == '.') {
				return to + rest
			}
		}
	}
	switch path {
	case "bindAddress":
		return "nodeIPOverride"
	case "clusterCIDR":
		return "detectLocal.clusterCIDRs"
	}
	return path
}

// newFields are the fields of v1alpha2 besides those in moved.
var newFields = []string{"detectLocal.clusterCIDRs", "nodeIPOverride", "ipvs.masqueradeBit", "configHardFail", "ipFamilyPolicy"}

// closest searches for a misspelt field among those of the file's version.
func (d *decoder) closest(path string) string {
	if !d.version2 {
		return closestPath(path)
	}
	if near := suggest.Closest(path, append(slices.Sorted(maps.Keys(movedFields)), newFields...)); near != "" {
		return near
	}
	near := closestPath(path)
	if replacement(near) != "" {
		return ""
	}
	return near
}

// finishV1alpha2 sets the defaults that differ in v1alpha2.
func (d *decoder) finishV1alpha2() {
	if d.Values.IPTables.LocalhostNodePorts == nil {
		d.Values.IPTables.LocalhostNodePorts = new(bool)
	}
	if _, given := d.Lines["bindAddressHardFail"]; !given {
		d.Values.BindAddressHardFail = true
	}
	if d.ipvsBit && d.Values.Mode != IPVS {
		d.Values.IPTables.MasqueradeBit = d.iptablesBit
	}
}
