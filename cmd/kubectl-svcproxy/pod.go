// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
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
		OwnerReferences   []struct {
			APIVersion string `json:"apiVersion"`
			Kind       string `json:"kind"`
			Controller bool   `json:"controller"`
		} `json:"ownerReferences"`
	} `json:"metadata"`
	Spec struct {
		NodeName           string      `json:"nodeName"`
		HostNetwork        bool        `json:"hostNetwork"`
		ServiceAccountName string      `json:"serviceAccountName"`
		Containers         []container `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase  string `json:"phase"`
		PodIPs []struct {
			IP string `json:"ip"`
		} `json:"podIPs"`
	} `json:"status"`
}

type container struct {
	Name    string   `json:"name"`
	Command []string `json:"command"`
	Args    []string `json:"args"`
}

func (x *pod) String() string { return x.Metadata.Namespace + "/" + x.Metadata.Name }

// notOurs returns why a pod with the labels of the proxy is not one of the chart's, empty if it
// is. Whoever may create pods can set labels. A pod in the network of the node needs the level
// "privileged" of Pod Security in its namespace.
func (x *pod) notOurs() string {
	account := x.Metadata.Labels["app.kubernetes.io/name"] // the chart names both after the release
	switch {
	case len(x.Metadata.OwnerReferences) == 0:
		return "no DaemonSet controls it"
	case !x.Spec.HostNetwork:
		return "it is not in the network of the node"
	case account != "" && x.Spec.ServiceAccountName != account:
		return fmt.Sprintf("its service account is %q, not %q", x.Spec.ServiceAccountName, account)
	}
	for _, o := range x.Metadata.OwnerReferences {
		if o.Controller && o.Kind == "DaemonSet" && strings.HasPrefix(o.APIVersion, "apps/") {
			return ""
		}
	}
	return "no DaemonSet controls it"
}

// container returns the one of that name, and the program of the proxy in it: on Windows it
// has a path. Another program is not run.
func (x *pod) container(name string) (*container, string, error) {
	i := slices.IndexFunc(x.Spec.Containers, func(c container) bool { return c.Name == name })
	if i < 0 {
		return nil, "", fmt.Errorf("pod %s has no container %s: want --container NAME", x, name)
	}
	c := &x.Spec.Containers[i]
	if len(c.Command) == 0 {
		return c, "kube-proxy", nil
	}
	exe := c.Command[0]
	if base := exe[strings.LastIndexAny(exe, `/\`)+1:]; base != "kube-proxy" && base != "kube-proxy.exe" {
		return nil, "", fmt.Errorf("container %s of pod %s runs %q: want one that runs kube-proxy; --selector, --namespace or --container select another", name, x, exe)
	}
	return c, exe, nil
}

// ask runs kubectl and returns what it prints.
func (p *plugin) ask(args ...string) ([]byte, error) {
	cmd := exec.Command("kubectl", append(slices.Clone(p.kubectl), args...)...)
	var problems bytes.Buffer
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(problems.String()))
	}
	return out, nil
}

// askedPod returns the pod that explain asks about, nil if it asks about none.
func (p *plugin) askedPod() (*pod, error) {
	if p.command[0] != "explain" {
		return nil, nil
	}
	i := slices.IndexFunc(p.command, func(arg string) bool { return strings.HasPrefix(arg, "pod/") })
	if i < 0 {
		return nil, nil
	}
	id := strings.TrimPrefix(p.command[i], "pod/")
	namespace, name, whole := strings.Cut(id, "/")
	if !whole {
		return nil, nil // kube-proxy says how to write it
	}
	out, err := p.ask("get", "pod", "--namespace="+namespace, "--output=json", "--", name)
	if err != nil {
		return nil, err
	}
	var found pod
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("read pod %s: %w", id, err)
	}
	if len(found.Status.PodIPs) == 0 {
		return nil, fmt.Errorf("pod %s has no address yet: its phase is %s", id, found.Status.Phase)
	}
	return &found, nil
}

// flagsOfPod returns what explain would look up of a pod that is no endpoint. In the pod of
// the proxy, it has the rights of the proxy, who may not read pods.
func flagsOfPod(asked *pod) []string {
	if asked == nil {
		return nil
	}
	var all []string
	for _, x := range asked.Status.PodIPs {
		all = append(all, "--pod-address="+x.IP)
	}
	return append(all, "--pod-node="+asked.Spec.NodeName)
}

// find returns the pod of the proxy on the Node.
func (p *plugin) find(problems io.Writer) (*pod, error) {
	args := []string{"get", "pods", "--output=json", "--selector=" + p.selector}
	if p.namespace == "" {
		args = append(args, "--all-namespaces")
	} else {
		args = append(args, "--namespace="+p.namespace)
	}
	if p.node != "" {
		args = append(args, "--field-selector=spec.nodeName="+p.node)
	}
	out, err := p.ask(args...)
	switch {
	case err != nil && p.namespace == "" && strings.Contains(err.Error(), "(Forbidden)"):
		return nil, fmt.Errorf("%w: want the right to list pods in all namespaces, or --namespace with that of the proxy", err)
	case err != nil:
		return nil, err
	}
	var list struct {
		Items []pod `json:"items"`
	}
	if err := json.Unmarshal(out, &list); err != nil {
		return nil, fmt.Errorf("read the pods of the proxy: %w", err)
	}
	return p.pick(list.Items, problems)
}

// pick returns the pod that runs on the Node, the newest one during an update.
func (p *plugin) pick(all []pod, problems io.Writer) (*pod, error) {
	nodes, namespaces := map[string]bool{}, map[string]bool{}
	var best *pod
	for i := range all {
		x := &all[i]
		if x.Status.Phase != "Running" || x.Metadata.DeletionTimestamp != nil {
			continue
		}
		if why := x.notOurs(); why != "" {
			fmt.Fprintf(problems, "kubectl svcproxy: warning: pod %s is not asked, though it has labels %s: %s\n", x, p.selector, why)
			continue
		}
		nodes[x.Spec.NodeName], namespaces[x.Metadata.Namespace] = true, true
		if best == nil || x.Metadata.CreationTimestamp.After(best.Metadata.CreationTimestamp) {
			best = x
		}
	}
	switch {
	case best == nil && p.node != "":
		return nil, fmt.Errorf("no pod with labels %s runs on node %s: want --node with a Node that has the proxy, or --selector, --namespace", p.selector, p.node)
	case best == nil:
		return nil, fmt.Errorf("no pod with labels %s runs in %s: want --selector, --namespace of the proxy", p.selector, cmp.Or(p.namespace, "any namespace"))
	case len(namespaces) > 1:
		return nil, errors.New("pods with labels " + p.selector + " run in more than one namespace: want --namespace NAMESPACE of the proxy, one of " + someOf(namespaces))
	case len(nodes) > 1:
		return nil, errors.New("want --node NODE, one of " + someOf(nodes))
	}
	return best, nil
}

// someOf lists names, not all of a large cluster.
func someOf(set map[string]bool) string {
	const most = 20
	var names []string
	for n := range set {
		names = append(names, n)
	}
	slices.Sort(names)
	if n := len(names) - most; n > 0 {
		return fmt.Sprintf("%s and %d others", strings.Join(names[:most], ", "), n)
	}
	return strings.Join(names, ", ")
}
