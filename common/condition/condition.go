// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package condition names what a proxy reports that needs an operator: in kube-proxy status,
// at /healthz, as a metric and in the findings of kube-proxy doctor.
package condition

import "strings"

// Name is the name of a condition. One that ends in "-" goes on with what it is about, see
// Of.
type Name string

// The conditions. Kinds says of each what it means.
const (
	Configuration     Name = "configuration"
	Kubeconfig        Name = "kubeconfig"
	Certificate       Name = "certificate"
	Server            Name = "server-"
	Setting           Name = "setting-"
	Sources           Name = "sources"
	NodeObject        Name = "node-object"
	ServiceCIDRs      Name = "service-cidrs"
	RefusedAddresses  Name = "refused-addresses"
	Unsupported       Name = "unsupported"
	HealthChecks      Name = "health-checks"
	NodePorts         Name = "node-ports"
	NodePortAddresses Name = "node-port-addresses-"
	Pods              Name = "pods-"
	MissingFamily     Name = "family-"
	Lacking           Name = "lacking-"
	StaleConnections  Name = "stale-connections-"
	Leftovers         Name = "leftovers-"
	OtherProxy        Name = "other-proxy"
	OtherRules        Name = "other-rules-"
	Drift             Name = "drift-"
	Holder            Name = "holder"
	Relay             Name = "relay"
	Dataplane         Name = "dataplane"
	DynamicPorts      Name = "dynamic-ports"
	SharedMark        Name = "shared-mark-"
)

// Of returns n for what it is about, such as a family.
func (n Name) Of(what string) Name { return n + Name(strings.ReplaceAll(what, " ", "-")) }

// Kind is what a condition means.
type Kind struct {
	Name   Name
	About  string // what ends the name, empty if it is whole
	What   string // a clause for documents
	Blocks bool   // traffic may not flow
}

// Kinds returns all conditions there are, which docs/troubleshooting.md lists.
func Kinds() []Kind {
	const family = "FAMILY"
	return []Kind{
		{Certificate, "", "the certificate of the servers cannot be read again; they use the previous one", false},
		{Configuration, "", "the changed configuration file cannot be used; the previous one stays in force", false},
		{Dataplane, "", "Host Networking Service does not answer", false},
		{Drift, family, "another program alters the rules of this proxy again and again", false},
		{DynamicPorts, "", "the node runs out of dynamic ports, of which each load balancer without DSR takes some", false},
		{MissingFamily, family, "the node cannot have this IP family, so its Services are not programmed", false},
		{HealthChecks, "", "a health check node port is not served, so a load balancer may leave this node out", true},
		{Holder, "", "this process stands by, and the rules of the one that programs the node are not in force", false},
		{Kubeconfig, "", "the changed kubeconfig cannot be used; the previous connection stays", false},
		{Lacking, family, "the rules are in force without something that is tried again", false},
		{Leftovers, family, "rules of an earlier proxy or mode are still there", false},
		{NodeObject, "", "something of the own Node cannot be used", false},
		{NodePortAddresses, family, "no address of the node answers NodePorts", false},
		{NodePorts, "", "a program of the node listens on a NodePort, which hides it", false},
		{OtherProxy, "", "another service proxy runs on this node", false},
		{OtherRules, family, "another program adds rules of a service proxy again after their removal", false},
		{Pods, family, "pods cannot be told from other clients", false},
		{RefusedAddresses, "", "addresses of Services are refused, as they belong to others", false},
		{Relay, "", "the relay lacks open files, or refuses clients", false},
		{Server, "NAME", "a server of this process cannot listen", false},
		{ServiceCIDRs, "", "ServiceCIDRs cannot be used, or not for all their addresses", false},
		{Setting, "NAME", "a setting of the system is not as wanted; those of forwarding stop traffic", true},
		{SharedMark, family, "another program marks packets with the masquerade bit, and mode ipvs masquerades them, too", false},
		{Sources, "", "objects or files cannot be read", false},
		{StaleConnections, family, "entries of connections to endpoints that are gone cannot be deleted", false},
		{Unsupported, "", "the mode cannot do all that Services ask for", false},
	}
}
