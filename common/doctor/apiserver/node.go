// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"kubeproxy/common/doctor"
	"kubeproxy/common/ipaddr"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
)

// Pods is how the configuration distinguishes pods from other clients.
type Pods struct {
	// CIDRs are those of clusterCIDR, none if it is not used.
	CIDRs []netip.Prefix
	// FromNode is whether the podCIDRs of the Node are used.
	FromNode bool
}

// node checks the Node of this machine.
func (s *Server) node(ctx context.Context) (doctor.Seen, error) {
	if absent := s.absent(ctx); absent != nil {
		return *absent, nil
	}
	c := s.connect(ctx)
	n, err := (&source.APIServer{Config: c.config, NodeName: s.Node}).ReadNode(ctx)
	if apierrors.IsForbidden(err) {
		return doctor.NothingToSee("the account may not read Nodes"), nil
	}
	if err != nil {
		return doctor.Seen{}, err
	}
	addrs, err := s.Addrs()
	if err != nil {
		return doctor.Seen{}, err
	}
	var list corev1.NodeList
	if n == nil || !isThisMachine(n, addrs) { // which may not be permitted
		_, _ = c.client.call(ctx, "/api/v1/nodes?limit=5000", nil, &list)
	}
	return nodeSeen(Machine{s.Node, addrs, s.Pods}, n, list.Items), nil
}

// Machine is what is known of this machine.
type Machine struct {
	Name  string // of the Node, as the proxy would have it
	Addrs []netip.Addr
	Pods  Pods
}

// ManifestNode returns the Check of the Node in manifests.
func ManifestNode(paths []string, name string, addrs func() ([]netip.Addr, error), pods Pods) doctor.Check {
	return doctor.Check{Name: "Node", Look: func(ctx context.Context) (doctor.Seen, error) {
		n, err := (&source.Manifests{Paths: paths, NodeName: name}).ReadNode(ctx)
		if err != nil {
			return doctor.Seen{}, err
		}
		all, err := addrs()
		if err != nil {
			return doctor.Seen{}, err
		}
		return nodeSeen(Machine{name, all, pods}, n, nil), nil
	}}
}

// nodeSeen decides whether n is the Node of machine m. n is nil if there is none. others
// are other Nodes, as far as they are known.
func nodeSeen(m Machine, n *corev1.Node, others []corev1.Node) doctor.Seen {
	i := slices.IndexFunc(others, func(o corev1.Node) bool { return isThisMachine(&o, m.Addrs) })
	advice := "set --hostname-override, or hostnameOverride, to the name that kubectl get nodes shows"
	if i >= 0 {
		advice = fmt.Sprintf("Node %s has an address of this machine: start the proxy with --hostname-override=%s", others[i].Name, others[i].Name)
	}
	f := doctor.Finding{Topic: doctor.NodeUnknown, Subject: m.Name, Advice: advice}
	switch {
	case n == nil:
		f.What = fmt.Sprintf("there is no Node of the name %s", m.Name)
		return doctor.Seen{Findings: []doctor.Finding{f}}
	case !isThisMachine(n, m.Addrs):
		f.What = fmt.Sprintf("Node %s has the addresses %s, of which this machine has none, so it is another one", m.Name, strings.Join(addrsOf(n), ", "))
		return doctor.Seen{Findings: []doctor.Finding{f}}
	}
	return doctor.Seen{Note: "Node " + m.Name, Findings: podFindings(m.Pods, n)}
}

// addrsOf lists the addresses of a Node.
func addrsOf(n *corev1.Node) []string {
	var all []string
	for _, a := range n.Status.Addresses {
		if _, err := ipaddr.Parse(a.Address); err == nil {
			all = append(all, a.Address)
		}
	}
	return all
}

// isThisMachine returns whether a Node has an address of addrs, or none at all. A cloud may have
// addresses that the machine does not know of, but not only such.
func isThisMachine(n *corev1.Node, addrs []netip.Addr) bool {
	all := addrsOf(n)
	return len(all) == 0 || slices.ContainsFunc(all, func(s string) bool {
		a, err := ipaddr.Parse(s)
		return err == nil && slices.Contains(addrs, a)
	})
}

// podFindings checks that the pods of a Node count as pods.
func podFindings(p Pods, n *corev1.Node) []doctor.Finding {
	own := n.Spec.PodCIDRs
	if len(own) == 0 && n.Spec.PodCIDR != "" {
		own = []string{n.Spec.PodCIDR}
	}
	if p.FromNode && len(own) == 0 {
		return []doctor.Finding{{Topic: doctor.PodCIDR, Subject: n.Name, What: fmt.Sprintf("detectLocalMode is NodeCIDR, and Node %s has no podCIDRs", n.Name),
			Advice: "let the controller manager assign them (--allocate-node-cidrs), or set detectLocalMode to ClusterCIDR and clusterCIDR to the range of the network plugin"}}
	}
	var all []doctor.Finding
	for _, text := range own {
		pods, err := ipaddr.ParsePrefix(text)
		if err != nil {
			continue
		}
		same := service.InFamily(p.CIDRs, service.FamilyOf(pods.Addr()))
		fits := slices.ContainsFunc(same, func(c netip.Prefix) bool { return c.Bits() <= pods.Bits() && c.Contains(pods.Addr()) })
		if len(same) > 0 && !fits {
			all = append(all, doctor.Finding{Topic: doctor.PodCIDR, Subject: text, What: fmt.Sprintf("the podCIDR %s of Node %s is not in the clusterCIDR %s", text, n.Name, prefixes(same)),
				Advice: "set --cluster-cidr, or clusterCIDR, to the range of all pods"})
		}
	}
	return all
}

func prefixes(all []netip.Prefix) string {
	var names []string
	for _, p := range all {
		names = append(names, p.String())
	}
	return strings.Join(names, ", ")
}

// right is what the account needs.
type right struct {
	group, resource, verb string
	// needed is whether nothing works without it.
	needed bool
}

func (r right) String() string { return r.verb + " " + r.resource }

// rights are those of the ClusterRole in build/deploy/linux/objects.yaml.
var rights = []right{
	{"", "services", "list", true},
	{"", "services", "watch", true},
	{"discovery.k8s.io", "endpointslices", "list", true},
	{"discovery.k8s.io", "endpointslices", "watch", true},
	{"", "nodes", "list", false},
	{"", "nodes", "watch", false},
	{"networking.k8s.io", "servicecidrs", "list", false},
	{"networking.k8s.io", "servicecidrs", "watch", false},
	{"", "events", "create", false},
	{"", "events", "patch", false},
}

// rights checks that the account may do what the proxy does.
func (s *Server) rights(ctx context.Context) (doctor.Seen, error) {
	if absent := s.absent(ctx); absent != nil {
		return *absent, nil
	}
	c := s.connect(ctx)
	var missing []right
	for _, r := range rights {
		allowed, err := c.client.may(ctx, r)
		if err != nil {
			return doctor.Seen{}, fmt.Errorf("ask whether the account may %s: %w", r, err)
		}
		if !allowed {
			missing = append(missing, r)
		}
	}
	seen := doctor.Seen{Note: fmt.Sprintf("%d of them", len(rights))}
	if len(missing) > 0 {
		seen.Findings = []doctor.Finding{rightsFinding(missing, c.user)}
	}
	return seen, nil
}

func rightsFinding(missing []right, user string) doctor.Finding {
	f := doctor.Finding{Topic: doctor.MissingRights, Severity: doctor.Risk}
	var names []string
	for _, r := range missing {
		names = append(names, r.String())
		if r.needed {
			f.Severity = doctor.Blocks
		}
	}
	f.What = "the account may not " + strings.Join(names, ", ")
	f.Advice = "run it where kubectl has the rights of an administrator; the ClusterRole in build/deploy/linux/objects.yaml has all rights, those on servicecidrs and on events too, which older clusters do not give"
	const command = "kubectl create clusterrolebinding kube-proxy-node-proxier --clusterrole=system:node-proxier "
	account, isAccount := strings.CutPrefix(user, "system:serviceaccount:")
	switch {
	case isAccount:
		f.Fix = command + "--serviceaccount=" + account
	case user != "":
		f.Fix = command + "--user=" + user
	}
	return f
}

// may asks whether the account has a right in every namespace.
func (c *client) may(ctx context.Context, r right) (bool, error) {
	type attributes struct {
		Group    string `json:"group,omitempty"`
		Resource string `json:"resource"`
		Verb     string `json:"verb"`
	}
	body := map[string]any{
		"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
		"spec": map[string]any{"resourceAttributes": attributes{r.group, r.resource, r.verb}},
	}
	var answer struct{ Status struct{ Allowed bool } }
	_, err := c.call(ctx, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body, &answer)
	return answer.Status.Allowed, err
}
