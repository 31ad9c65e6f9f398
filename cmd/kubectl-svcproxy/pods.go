// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// pod is what is read of a Pod.
type pod struct {
	Metadata struct {
		Namespace         string            `json:"namespace"`
		Name              string            `json:"name"`
		Labels            map[string]string `json:"labels"`
		CreationTimestamp time.Time         `json:"creationTimestamp"`
		DeletionTimestamp *string           `json:"deletionTimestamp"`
		OwnerReferences   []owner           `json:"ownerReferences"`
	} `json:"metadata"`
	Spec   podSpec `json:"spec"`
	Status struct {
		Phase  string `json:"phase"`
		PodIPs []struct {
			IP string `json:"ip"`
		} `json:"podIPs"`
	} `json:"status"`
}

// owner is who made an object.
type owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

type podSpec struct {
	NodeName           string      `json:"nodeName"`
	HostNetwork        bool        `json:"hostNetwork"`
	ServiceAccountName string      `json:"serviceAccountName"`
	Containers         []container `json:"containers"`
}

type container struct {
	Name    string   `json:"name"`
	Image   string   `json:"image"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
}

// repository is an image without its tag and digest, which an update changes.
func (c *container) repository() string {
	name, _, _ := strings.Cut(c.Image, "@")
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		name = name[:i]
	}
	return name
}

// daemonSet is what is read of a DaemonSet.
type daemonSet struct {
	Metadata struct {
		Namespace string            `json:"namespace"`
		Name      string            `json:"name"`
		UID       string            `json:"uid"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Template struct {
			Spec podSpec `json:"spec"`
		} `json:"template"`
	} `json:"spec"`
}

func (p *pod) String() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// runs reports whether p can be asked, if it is one of ours.
func (p *pod) runs() bool { return p.Status.Phase == "Running" && p.Metadata.DeletionTimestamp == nil }

// notOurs returns why a pod with the proxy's labels, which anybody can set, is not one of the
// release. In the node's network it needs Pod Security's level "privileged". sets is nil if
// DaemonSets cannot be read: then the pod's own word has to do, and the names of the chart.
func (p *pod) notOurs(sets []daemonSet) string {
	const uncontrolled = "no DaemonSet controls it"
	owned := slices.IndexFunc(p.Metadata.OwnerReferences, func(o owner) bool {
		return o.Controller && o.Kind == "DaemonSet" && strings.HasPrefix(o.APIVersion, "apps/")
	})
	const named = "app.kubernetes.io/name" // by which the chart names all of a release
	account := p.Metadata.Labels[named]
	switch {
	case owned < 0:
		return uncontrolled
	case !p.Spec.HostNetwork:
		return "it is not in the network of the node"
	case sets == nil && account != "" && p.Spec.ServiceAccountName != account:
		return fmt.Sprintf("its service account is %q, not %q", p.Spec.ServiceAccountName, account)
	case sets == nil:
		return ""
	}
	by := p.Metadata.OwnerReferences[owned]
	i := slices.IndexFunc(sets, func(d daemonSet) bool {
		return d.Metadata.UID == by.UID && d.Metadata.Namespace == p.Metadata.Namespace
	})
	if i < 0 {
		return fmt.Sprintf("there is no DaemonSet %s that could control it", by.Name)
	}
	want := sets[i].Spec.Template.Spec
	if release := sets[i].Metadata.Labels[named]; release != account {
		return fmt.Sprintf("DaemonSet %s, which controls it, has the label %s=%s, not %s", by.Name, named, release, account)
	}
	if p.Spec.ServiceAccountName != want.ServiceAccountName {
		return fmt.Sprintf("its service account is %q, not %q", p.Spec.ServiceAccountName, want.ServiceAccountName)
	}
	for _, c := range want.Containers {
		is := slices.IndexFunc(p.Spec.Containers, func(x container) bool { return x.Name == c.Name })
		if is < 0 || p.Spec.Containers[is].repository() != c.repository() {
			return fmt.Sprintf("container %s does not have the image %s of DaemonSet %s", c.Name, c.repository(), by.Name)
		}
	}
	return ""
}

// container returns the one of that name, and the path of the proxy's program in it, no other.
func (p *pod) container(name string) (*container, string, error) {
	i := slices.IndexFunc(p.Spec.Containers, func(c container) bool { return c.Name == name })
	if i < 0 {
		return nil, "", fmt.Errorf("pod %s has no container %s: want --container NAME", p, name)
	}
	c := &p.Spec.Containers[i]
	if len(c.Command) == 0 {
		return c, "kube-proxy", nil
	}
	exe := c.Command[0]
	if base := exe[strings.LastIndexAny(exe, `/\`)+1:]; base != "kube-proxy" && base != "kube-proxy.exe" {
		return nil, "", fmt.Errorf("container %s of pod %s runs %q: want one that runs kube-proxy; --pods, --namespace or --container select another", name, p, exe)
	}
	return c, exe, nil
}

// list reads objects of a kind, of all namespaces or one.
func list[T any](p *plugin, kind string, args ...string) ([]T, error) {
	if p.namespace == "" {
		args = append(args, "--all-namespaces")
	} else {
		args = append(args, "--namespace="+p.namespace)
	}
	out, err := p.ask(append([]string{"get", kind, "--output=json"}, args...)...)
	switch {
	case err != nil && p.namespace == "" && strings.Contains(err.Error(), "(Forbidden)"):
		return nil, fmt.Errorf("%w: want the right to list %s in all namespaces, or --namespace with that of the proxy", err, kind)
	case err != nil:
		return nil, err
	}
	var all struct {
		Items []T `json:"items"`
	}
	if err := json.Unmarshal(out, &all); err != nil {
		return nil, fmt.Errorf("read the %s of the proxy: %w", kind, err)
	}
	return all.Items, nil
}

// find returns the pods of the proxy, on p.node or all, and why others with its labels are none, by node.
func (p *plugin) find(problems io.Writer) (ours []pod, refused map[string]string, err error) {
	args := []string{"--selector=" + p.pods}
	if p.node != "" {
		args = append(args, "--field-selector=spec.nodeName="+p.node)
	}
	all, err := list[pod](p, "pods", args...)
	if err != nil || len(all) == 0 {
		return nil, nil, err
	}
	sets, err := list[daemonSet](p, "daemonsets.apps")
	if err != nil {
		p.warn(problems, fmt.Errorf("pods are judged by their own word: %w", err))
	} else if sets == nil {
		sets = []daemonSet{}
	}
	refused = map[string]string{}
	for _, x := range all {
		why := x.notOurs(sets)
		if why == "" {
			ours = append(ours, x)
			continue
		}
		if x.runs() {
			text := fmt.Sprintf("pod %s is not asked, though it has labels %s: %s", &x, p.pods, why)
			p.warn(problems, errors.New(text))
			refused[x.Spec.NodeName] = text
		}
	}
	return ours, refused, p.oneNamespace(ours)
}

// oneNamespace refuses pods of two releases.
func (p *plugin) oneNamespace(all []pod) error {
	namespaces := map[string]bool{}
	for i := range all {
		if all[i].runs() {
			namespaces[all[i].Metadata.Namespace] = true
		}
	}
	if len(namespaces) > 1 {
		return errors.New("pods with labels " + p.pods + " run in more than one namespace: want --namespace NAMESPACE of the proxy, one of " + someOf(namespaces))
	}
	return nil
}

// pick returns the pod that runs on the Node, the newest one during an update.
func (p *plugin) pick(all []pod) (*pod, error) {
	nodes := map[string]bool{}
	var best *pod
	for i := range all {
		x := &all[i]
		if !x.runs() {
			continue
		}
		nodes[x.Spec.NodeName] = true
		if best == nil || x.Metadata.CreationTimestamp.After(best.Metadata.CreationTimestamp) {
			best = x
		}
	}
	switch {
	case best == nil && p.node != "":
		return nil, fmt.Errorf("no pod with labels %s runs on node %s: want --node with a Node that has the proxy, or --pods, --namespace", p.pods, p.node)
	case best == nil:
		return nil, fmt.Errorf("no pod with labels %s runs in %s: want --pods, --namespace of the proxy", p.pods, cmp.Or(p.namespace, "any namespace"))
	case len(nodes) > 1:
		return nil, errors.New("want --node NODE, one of " + someOf(nodes))
	}
	return best, nil
}

// someOf lists names, not all of a large cluster.
func someOf(set map[string]bool) string {
	const most = 20
	names := slices.Sorted(maps.Keys(set))
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}

// target is a node, with the pod of the proxy or why there is none.
type target struct {
	node string
	pod  *pod
	why  string
}

// targets returns all nodes that p selects, by name.
func (p *plugin) targets(problems io.Writer) ([]target, error) {
	ours, refused, err := p.find(problems)
	if err != nil {
		return nil, err
	}
	why, err := p.nodeStates()
	switch {
	case err != nil && p.nodes != "":
		return nil, err
	case err != nil:
		p.warn(problems, fmt.Errorf("nodes without a pod are not named: %w", err))
		for i := range ours {
			why[ours[i].Spec.NodeName] = ""
		}
	}
	on := map[string][]pod{}
	for _, x := range ours {
		on[x.Spec.NodeName] = append(on[x.Spec.NodeName], x)
	}
	var all []target
	for _, node := range slices.Sorted(maps.Keys(why)) {
		t := target{node: node}
		for i, x := range on[node] {
			if !x.runs() {
				t.why = strings.TrimSpace(fmt.Sprintf("pod %s does not run: it is %s", &x, cmp.Or(x.Status.Phase, "unknown")))
			} else if t.pod == nil || x.Metadata.CreationTimestamp.After(t.pod.Metadata.CreationTimestamp) {
				t.pod = &on[node][i]
			}
		}
		if t.pod == nil {
			t.why = cmp.Or(t.why, refused[node], "no pod of the proxy runs there"+why[node])
		}
		all = append(all, t)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no Node has labels %s", cmp.Or(p.nodes, "at all"))
	}
	return all, nil
}

// nodeStates returns the nodes that p selects, with a clause for those that are not ready. It reads
// the table that the API server writes: whole Nodes of a large cluster are a hundred megabytes.
func (p *plugin) nodeStates() (map[string]string, error) {
	states := map[string]string{}
	out, err := p.ask("get", "nodes", "--no-headers", "--selector="+p.nodes)
	for line := range strings.Lines(string(out)) {
		if words := strings.Fields(line); len(words) > 1 {
			states[words[0]] = ""
			if words[1] != "Ready" {
				states[words[0]] = ", and the Node is " + words[1]
			}
		}
	}
	return states, err
}
