// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package report

import (
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"kubeproxy/common/events"
	"kubeproxy/common/track"
)

// eventExternalIPs is about a feature that Kubernetes is going to remove. All nodes see
// the same Service.
var eventExternalIPs = events.Topic{Reason: "ExternalIPsDeprecation", Scope: events.Cluster}

// See kubernetes/enhancements#5707.
const externalIPsText = "spec.externalIPs is deprecated in Kubernetes and kube-proxy will stop to serve it: use a Service of type LoadBalancer, an Ingress or a Gateway"

// deprecations warns once of each use of a deprecated feature.
type deprecations struct {
	log klog.Logger
	// externalIPsIgnored is true if externalIPs are switched off.
	externalIPsIgnored bool
	// name is the label's value of the Services to serve, see track.Options.
	name string

	mu   sync.Mutex
	uses map[types.NamespacedName]bool // Services with externalIPs
}

// update records s, and returns in a few words which deprecated fields it uses, empty for
// none.
func (d *deprecations) update(s *corev1.Service) string {
	n := types.NamespacedName{Namespace: s.Namespace, Name: s.Name}
	served := track.Named(s, d.name) && s.Spec.ClusterIP != corev1.ClusterIPNone && s.Spec.Type != corev1.ServiceTypeExternalName
	uses := served && !d.externalIPsIgnored && len(s.Spec.ExternalIPs) > 0
	d.mu.Lock()
	defer d.mu.Unlock()
	switch before := d.uses[n]; {
	case !uses:
		delete(d.uses, n)
		return ""
	case !before:
		d.uses[n] = true
		d.log.Info("Warning: "+externalIPsText, "service", n.String(), "externalIPs", fmt.Sprintf("%q", s.Spec.ExternalIPs))
	}
	return externalIPsText
}

func (d *deprecations) remove(n types.NamespacedName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.uses, n)
}

// eventDeprecatedMode is about the mode of this node.
func eventDeprecatedMode(mode string) events.Topic {
	return events.Topic{Reason: strings.ToUpper(mode) + "Deprecation"}
}

// warnDeprecatedMode warns if the mode itself is deprecated, as text says.
func warnDeprecatedMode(mode, text string, to *Events, log klog.Logger) {
	if text == "" {
		return
	}
	log.Info("Warning: " + text)
	if to != nil {
		to.Failed(to.self(), eventDeprecatedMode(mode), text)
	}
}

// maxDeprecationEvents bounds the Events about deprecated fields, so that they leave room
// for Events about failures.
const maxDeprecationEvents = 100

// reportDeprecation records which deprecated fields a Service uses. An empty text means
// none.
func (h *Events) reportDeprecation(n types.NamespacedName, text string) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case text == "":
		delete(h.deprecated, n)
	case len(h.deprecated) >= maxDeprecationEvents && !h.deprecated[n]:
		return
	default:
		h.deprecated[n] = true
	}
	h.report(n, eventExternalIPs, text, "")
}
