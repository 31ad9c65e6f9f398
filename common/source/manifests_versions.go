// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/common/printable"
)

// retired are fields of older versions of Kubernetes without a meaning today. portalIP and
// deprecatedPublicIPs came before clusterIP and externalIPs.
// https://kubernetes.io/docs/reference/using-api/deprecation-guide/.
var retired = map[string]bool{"spec.ipFamily": true, "spec.topologyKeys": true, "metadata.clusterName": true, "metadata.initializers": true, "spec.portalIP": true, "spec.deprecatedPublicIPs": true}

var indexes = regexp.MustCompile(`\[\d+\]`)

// tolerate notes unknown fields that another version of Kubernetes may have written, and
// returns the other errors. An object with a UID comes from an API server, and what a
// server or a kubelet writes has no typos.
func (d *decoder) tolerate(i item, value metav1.Object, strict []error, out *decoded) []error {
	h := i.header
	_, node := value.(*corev1.Node)
	lenient := node || h.Metadata.UID != "" || h.APIVersion != "v1" && !strings.HasSuffix(h.APIVersion, "/v1")
	var rest []error
	for _, err := range strict {
		parent, last, ok := fieldOf(err)
		field := indexes.ReplaceAllString(strings.TrimPrefix(parent+"."+last, "."), "")
		switch {
		case !ok || !strings.Contains(err.Error(), "unknown field") ||
			!lenient && !retired[field] && !strings.HasPrefix(field, "status."):
			rest = append(rest, err)
		case field == "endpoints.topology": // see readTopology
		case out.fields < maxProblems && !d.noted[h.Kind+" "+field]:
			out.fields++
			d.noteOnce(h.Kind+" "+field, fmt.Sprintf("manifest %s: %s: %s: the field %s, unknown to this version, is ignored, here and elsewhere",
				printable.Text(d.path), i.doc.position(), i.key, printable.Text(field)))
		}
	}
	return rest
}

// readTopology sets what discovery.k8s.io/v1beta1 has in the topology of an endpoint, and the
// family of v1alpha1 in Kubernetes 1.16, whose addressType is IP.
// https://kubernetes.io/docs/reference/using-api/deprecation-guide/#endpointslice-v125,
// https://github.com/kubernetes/kubernetes/pull/84971.
func readTopology(s *discoveryv1.EndpointSlice, text []byte) {
	var old struct {
		Endpoints []struct {
			Topology map[string]string `json:"topology"`
		} `json:"endpoints"`
	}
	if json.Unmarshal(text, &old) != nil {
		return
	}
	if s.AddressType == "IP" {
		s.AddressType = discoveryv1.AddressTypeIPv4
		if strings.Contains(firstAddress(s), ":") {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
	}
	set := func(to **string, value string) {
		if *to == nil && value != "" {
			*to = &value
		}
	}
	for i := range min(len(old.Endpoints), len(s.Endpoints)) {
		topology := old.Endpoints[i].Topology
		set(&s.Endpoints[i].NodeName, topology[corev1.LabelHostname])
		set(&s.Endpoints[i].Zone, topology[corev1.LabelTopologyZone])
	}
}

// firstAddress returns an address of s, or "".
func firstAddress(s *discoveryv1.EndpointSlice) string {
	for _, e := range s.Endpoints {
		if len(e.Addresses) > 0 {
			return e.Addresses[0]
		}
	}
	return ""
}
