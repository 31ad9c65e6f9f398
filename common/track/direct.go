// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package track

import (
	"slices"

	"kubeproxy/common/service"
)

// AnnotationDirectReturn of a Service says whether clients from outside get answers from the
// endpoint's node directly, as Options.DirectReturn does for all.
const AnnotationDirectReturn = "kubeproxy.io/direct-return"

// directs are the choices of a Service, by the number that is kept of it.
var directs = [...]string{"", "off", "on"}

// direct reports whether the Service asks for direct return.
func (r *resolver) direct() bool {
	choice := directs[r.owner.choices/directChoice]
	return choice == "on" || choice == "" && r.tracker.options.DirectReturn
}

// directReturn returns service.Port.Direct for p, whose endpoints were chosen from slices.
func (r *resolver) directReturn(p *service.Port, from []origin) *service.Direct {
	if !r.direct() || p.External != service.PolicyCluster || len(p.Cluster) == 0 || !slices.ContainsFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind > service.NodePort }) {
		return nil
	}
	if p.Consistent.Slots == 0 || p.Affinity > 0 {
		r.notes.add("metadata.annotations["+AnnotationDirectReturn+"]", "direct return needs consistent selection without session affinity, which %s port %q does not have; it is left out", p.Family, p.Name.Port)
		return nil
	}
	at, all := r.tracker.interner.placesOf(from), make([]string, len(p.Cluster))
	for i, e := range p.Cluster {
		all[i] = at[e.Addr.Addr()].node
	}
	return &service.Direct{Nodes: all}
}
