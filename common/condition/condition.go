// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package condition names what a proxy reports that needs an operator: in kube-proxy status,
// at /healthz, as a metric and in the findings of kube-proxy doctor.
package condition

import "strings"

// Name is the name of a condition. One that ends in "-" goes on with what it is about, see Of.
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
	Unreached         Name = "unreached"
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
	Blocks bool   // may stop traffic
}

// Kinds returns all conditions there are, which docs/troubleshooting.md lists.
func Kinds() []Kind {
	const family = "FAMILY"
	return []Kind{
		{Certificate, "", "the new certificate of the servers cannot be read; the previous one stays", false},
		{Configuration, "", "the changed file cannot be used; the previous one stays", false},
		{Dataplane, "", "Host Networking Service does not answer", false},
		{Drift, family, "another program alters our rules again and again", false},
		{DynamicPorts, "", "dynamic ports run out; load balancers without DSR take them", false},
		{MissingFamily, family, "the node cannot have this IP family", false},
		{HealthChecks, "", "a health check node port is not served", true},
		{Holder, "", "this process stands by, and the rules of the other are not in force", false},
		{Kubeconfig, "", "the changed file cannot be used; the previous connection stays", false},
		{Lacking, family, "the rules are in force without something that is tried again", false},
		{Leftovers, family, "rules of an earlier proxy or mode are there", false},
		{NodeObject, "", "something of the own Node cannot be used", false},
		{NodePortAddresses, family, "no address of the node answers NodePorts", false},
		{NodePorts, "", "a NodePort hides a program of the node", false},
		{OtherProxy, "", "another service proxy runs on this node", false},
		{OtherRules, family, "another program writes rules of a service proxy again", false},
		{Pods, family, "pods cannot be told from other clients", false},
		{RefusedAddresses, "", "addresses of Services belong to others", false},
		{Relay, "", "the relay lacks open files, or refuses clients", false},
		{Server, "NAME", "a server of this process cannot listen", false},
		{ServiceCIDRs, "", "ServiceCIDRs cannot be used, or not for all their addresses", false},
		{Setting, "NAME", "a setting of the system, such as forwarding, is not as wanted", true},
		{SharedMark, family, "another program uses the masquerade bit, so mode ipvs masquerades its packets", false},
		{Sources, "", "objects or files cannot be read", false},
		{StaleConnections, family, "entries that lead to old endpoints cannot be deleted", false},
		{Unreached, "", "connections that pass through the process reach no endpoint of a Service", false},
		{Unsupported, "", "the mode cannot do all that Services ask for", false},
	}
}
