// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package doctor finds what keeps a service proxy, or its traffic, from working on a
// node, and says how to correct it.
//
// Checks go in; they read the node, the API server or a running proxy and change nothing.
// A Report of Findings comes out, as text or JSON. The checks of the systems are in
// platform/linux/doctor and platform/windows/doctor, those of the API server in
// Cluster here.
package doctor

import (
	"cmp"
	"encoding/json"
	"slices"

	"kubeproxy/common/track"
)

// Severity is how much a Finding matters.
type Severity string

// The severities, worst first.
const (
	Blocks Severity = "blocks" // the proxy does not start, or traffic is lost
	Risk   Severity = "risk"   // some traffic is lost, or will be
)

// Finding is something that needs attention. After its Fix has run, it is not found
// again.
type Finding struct {
	Topic Topic
	// Subject is the object that the Finding is about, such as a setting or a port. It
	// distinguishes Findings of one Topic.
	Subject string
	// Mode is the mode that it concerns, empty for every mode.
	Mode string
	// Severity is that of the Topic if it is empty.
	Severity Severity
	// What is one sentence without a full stop.
	What string
	// Fix is a command for a shell of the node, empty if no command corrects it. Whoever runs it
	// unread harms nothing: it ends no program, and removes or opens nothing of others.
	Fix string
	// Advice is what to do if there is no Fix, with commands that may harm, or what to know before
	// the Fix is run.
	Advice string
	// Follows are the topics that explain this Finding, the likeliest first, if they are found.
	// Cause is the one that was.
	Follows []Topic
	Cause   Topic
}

// severity returns how much f matters.
func (f *Finding) severity() Severity { return cmp.Or(f.Severity, topics[f.Topic].severity) }

type findingJSON struct {
	ID       Topic    `json:"id"`
	Subject  string   `json:"subject,omitempty"`
	Mode     string   `json:"mode,omitempty"`
	Severity Severity `json:"severity"`
	What     string   `json:"what"`
	Why      string   `json:"why"`
	Fix      string   `json:"fix,omitempty"`
	Advice   string   `json:"advice,omitempty"`
	Link     string   `json:"link"`
	Cause    Topic    `json:"cause,omitempty"`
}

// MarshalJSON implements json.Marshaler. New versions may add fields, but must not rename
// or remove any.
func (f Finding) MarshalJSON() ([]byte, error) {
	return json.Marshal(findingJSON{f.Topic, f.Subject, f.Mode, f.severity(), f.What, f.Topic.Why(), f.Fix, f.Advice, f.Topic.Link(), f.Cause})
}

// sorted returns findings in the order of printing: those that explain others, those that nothing
// explains, the rest; each by severity, then by Topic and Subject. Of several about the same Subject, the first stays.
func sorted(all []Finding) []Finding {
	type key struct {
		topic         Topic
		subject, mode string
	}
	seen := map[key]bool{}
	kept := []Finding{}
	for _, f := range all {
		k := key{f.Topic, f.Subject, f.Mode}
		if !seen[k] {
			seen[k] = true
			kept = append(kept, f)
		}
	}
	seenIn(kept)
	setCauses(kept)
	causes := map[Topic]bool{}
	for _, f := range kept {
		causes[f.Cause] = true
	}
	rank := func(f Finding) int {
		switch {
		case f.Cause != "":
			return 2
		case causes[f.Topic]:
			return 0
		}
		return 1
	}
	slices.SortStableFunc(kept, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), cmp.Compare(a.severity(), b.severity()), cmp.Compare(topics[a.Topic].order, topics[b.Topic].order),
			cmp.Compare(a.Mode, b.Mode), cmp.Compare(a.Subject, b.Subject))
	})
	return kept
}

// setCauses sets the Cause of findings. What has one explains nothing itself.
func setCauses(all []Finding) {
	for i := range all {
		all[i].Cause = all[i].cause(all)
	}
}

// cause returns the topic of all that explains f, empty if none does.
func (f *Finding) cause(all []Finding) Topic {
	for _, t := range f.Follows {
		if slices.ContainsFunc(all, func(g Finding) bool { return g.Topic == t && g.Cause == "" && (t != f.Topic || len(g.Follows) == 0) }) {
			return t
		}
	}
	return ""
}

// Topic is a kind of Finding.
type Topic string

// The topics.
const (
	ModeUnavailable   Topic = "mode-unavailable"
	ProxyCondition    Topic = "proxy-condition"
	ProxyUnhealthy    Topic = "proxy-unhealthy"
	ProxySilent       Topic = "proxy-silent"
	ProxyAbsent       Topic = "proxy-absent"
	IPForward         Topic = "ip-forward"
	Kubeconfig        Topic = "kubeconfig"
	APIServer         Topic = "api-server"
	Manifest          Topic = "manifest"
	MissingRights     Topic = "missing-rights"
	ClockSkew         Topic = "clock-skew"
	NodeUnknown       Topic = "node-unknown"
	PodCIDR           Topic = "pod-cidr"
	OtherProxy        Topic = "other-proxy"
	Leftovers         Topic = "leftovers"
	IPTablesVariants  Topic = "iptables-variants"
	XtablesLock       Topic = "xtables-lock"
	PortTaken         Topic = "port-taken"
	NodePortHidden    Topic = "nodeport-hidden"
	ServiceRoute      Topic = "service-route"
	InputPolicy       Topic = "input-policy"
	ForwardPolicy     Topic = "forward-policy"
	SharedMark        Topic = "shared-mark"
	Firewall          Topic = "firewall"
	ReversePathFilter Topic = "rp-filter"
	BridgeNetfilter   Topic = "br-netfilter"
	Liberal           Topic = "be-liberal"
	Setting           Topic = "setting"
	ConntrackFull     Topic = "conntrack-full"
	EarlyDrop         Topic = "early-drop"
	InsertFailed      Topic = "insert-failed"
	HNS               Topic = "hns"
	HNSVersion        Topic = "hns-version"
	HNSNetwork        Topic = "hns-network"
	StrayPods         Topic = "stray-pods"
	SourceVIP         Topic = "source-vip"
	VFPExtension      Topic = "vfp-extension"
	DSROff            Topic = "dsr-off"
	DSRLoopback       Topic = "dsr-loopback"
	DynamicPorts      Topic = "dynamic-ports"
	WritableFiles     Topic = "writable-files"

	// Of the objects of Services; each code of package track is one, too.
	ServiceTraffic Topic = "service-traffic"
	ServiceProblem Topic = "service-problem"
	Unanswered     Topic = "unanswered"

	AccelerationLacks    Topic = "socket-acceleration"
	AccelerationPeers    Topic = "acceleration-peers"
	AccelerationDetached Topic = "acceleration-detached"
	AccelerationPods     Topic = "acceleration-pods"
	AccelerationLeft     Topic = "acceleration-left"
	AccelerationMounts   Topic = "acceleration-mounts"
	AccelerationOthers   Topic = "acceleration-others"
)

// about describes a topic.
type about struct {
	order    int
	severity Severity
	more     string // the chapter in folder docs that says more
	why      string // why it matters, and to whom
}

// topics has every topic.
var topics = map[Topic]about{
	ProxyAbsent:       {0, Blocks, "troubleshooting.md#first-look", "changes of Services, endpoints and this node's pods do not arrive, and nobody repairs what others alter"},
	ModeUnavailable:   {1, Blocks, "troubleshooting.md#the-program-ends-at-its-start", "the proxy cannot program this node in the mode, so clients of this node would reach no Service"},
	ProxyUnhealthy:    {2, Blocks, "troubleshooting.md#healthz-answers-503", "the rules of this node are out of date: clients reach endpoints that are gone, and load balancers leave the node"},
	ProxySilent:       {3, Risk, "troubleshooting.md#first-look", "nobody can read the state of the proxy: neither status nor a monitoring system; if it hangs, changes do not arrive"},
	IPForward:         {4, Blocks, "troubleshooting.md#a-service-does-not-answer", "the kernel drops packets of pods and of other machines: pods reach no endpoint on this node or elsewhere, clients outside no NodePort"},
	ProxyCondition:    {5, Risk, "troubleshooting.md#all-conditions", "the running proxy reports it: clients of a Service, a whole IP family or the monitoring of the node are affected"},
	Kubeconfig:        {6, Blocks, "troubleshooting.md#the-api-server-is-unreachable", "the proxy cannot connect to the API server, so it knows no Services and does not start"},
	APIServer:         {7, Blocks, "troubleshooting.md#the-api-server-is-unreachable", "the proxy cannot read Services: what is programmed stays, and changes do not arrive"},
	Manifest:          {60, Risk, "troubleshooting.md#a-manifest-has-no-effect", "what the file says is not in force: what it held before stays, or after a start nothing of it is served"},
	MissingRights:     {8, Blocks, "troubleshooting.md#the-api-server-is-unreachable", "the API server refuses what the proxy must read, so it programs nothing or without topology"},
	ClockSkew:         {9, Risk, "troubleshooting.md#the-api-server-is-unreachable", "certificates and tokens count as expired or not yet valid, so the API server may refuse the proxy and kubelet"},
	NodeUnknown:       {10, Blocks, "troubleshooting.md#the-node-is-unknown", "no endpoint counts as local: Services with policy Local are dropped here, and NodePorts of nodePortAddresses primary stay closed"},
	PodCIDR:           {11, Risk, "troubleshooting.md#the-client-address-is-lost", "pods of this node count as clients outside: their connections are masqueraded or dropped by policy Local, and endpoints lose the client's address"},
	OtherProxy:        {12, Blocks, "troubleshooting.md#two-proxies-on-a-node", "two service proxies write rules for the same Services: each undoes the changes of the other, and a connection may reach an old endpoint"},
	Leftovers:         {13, Risk, "troubleshooting.md#rules-of-another-proxy-come-back", "rules of an earlier proxy translate connections first, to endpoints of that time"},
	IPTablesVariants:  {14, Risk, "troubleshooting.md#iptables-legacy-and-nft-are-mixed", "rules of the two variants do not see each other: kubelet, network plugin and proxy may work against each other"},
	XtablesLock:       {15, Risk, "troubleshooting.md#the-xtables-lock-is-held", "programs of the node write iptables at the same moment, and one of the two changes is lost"},
	PortTaken:         {16, Blocks, "troubleshooting.md#the-program-ends-at-its-start", "the server of the proxy does not start: probes restart the pod, load balancers leave the node, or nobody can ask for metrics"},
	NodePortHidden:    {17, Risk, "troubleshooting.md#a-nodeport-does-not-answer-from-outside", "clients of that program reach a Service in place of it"},
	ServiceRoute:      {18, Risk, "troubleshooting.md#a-service-does-not-answer", "processes of the node, such as kubelet and an API server that calls webhooks, reach no Service; pods do"},
	InputPolicy:       {19, Risk, "modes.md#health-checks-of-load-balancers", "load balancers get no answer from the health check, and send no traffic of policy Local to this node"},
	ForwardPolicy:     {20, Blocks, "troubleshooting.md#a-service-does-not-answer", "connections that are translated to pods are dropped afterwards: clients outside and on other nodes reach no pod of this node"},
	SharedMark:        {46, Risk, "troubleshooting.md#the-client-address-is-lost", "packets of the other program leave from a random port, so its peers may not know them: tunnels break"},
	Firewall:          {21, Risk, "troubleshooting.md#a-nodeport-does-not-answer-from-outside", "a firewall service drops what it does not know, and may drop traffic to pods or flush rules at a reload"},
	ReversePathFilter: {22, Risk, "troubleshooting.md#a-nodeport-does-not-answer-from-outside", "replies that leave by another interface than requests came in by are dropped: clients of NodePorts wait for a timeout"},
	BridgeNetfilter:   {23, Risk, "troubleshooting.md#a-pod-cannot-reach-itself-through-its-service", "replies between two pods on one bridge are not translated back: a pod that reaches its neighbour through a Service gets no answer"},
	Liberal:           {24, Risk, "troubleshooting.md#connections-are-reset", "the kernel does not mark late packets as invalid, so they pass untranslated and the client resets its connection"},
	Setting:           {25, Risk, "troubleshooting.md#all-conditions", "the setting that the configuration asks for is not in force, and the proxy may not write it"},
	ConntrackFull:     {26, Blocks, "troubleshooting.md#the-conntrack-table-is-full", "the kernel drops the first packet of each new connection of any program on this node"},
	EarlyDrop:         {27, Risk, "troubleshooting.md#the-conntrack-table-is-full", "the table of connections was full: the kernel dropped connections of any program on this node"},
	InsertFailed:      {28, Risk, "troubleshooting.md#udp-or-dns-uses-an-old-endpoint", "two packets raced for one connection and one was lost: mostly DNS queries, which then take five seconds"},
	HNS:               {29, Blocks, "troubleshooting.md#windows", "the proxy programs Windows through the Host Networking Service: no client of this node reaches a Service"},
	HNSVersion:        {30, Risk, "windows.md#what-a-node-needs", "this version of HNS lacks what the configuration or Services ask for"},
	HNSNetwork:        {31, Blocks, "windows.md#the-network-and-the-source-vip", "the proxy does not know where pods are, waits, and programs no Service"},
	StrayPods:         {45, Risk, "troubleshooting.md#windows", "no Service leads to these pods, and they may reach no pods of other nodes"},
	SourceVIP:         {32, Blocks, "windows.md#the-network-and-the-source-vip", "answers of pods on other nodes do not come back, so connections to them hang"},
	VFPExtension:      {33, Blocks, "troubleshooting.md#windows", "HNS has no switch to put load balancers into: Services are accepted and forward nothing"},
	DSROff:            {34, Risk, "windows.md#when-dynamic-ports-run-out", "each load balancer takes 64 dynamic ports of the node: after some 250 of them new Services fail"},
	DSRLoopback:       {43, Risk, "troubleshooting.md#a-pod-cannot-reach-itself-through-its-service", "a pod that connects to its own Service and is the endpoint gets no answer"},
	WritableFiles:     {44, Risk, "troubleshooting.md#windows", "the proxy works as the system: who may change its program or its files decides what it runs, or what it takes for its own"},
	DynamicPorts:      {35, Blocks, "windows.md#when-dynamic-ports-run-out", "HNS refuses further load balancers, and programs of the node cannot connect out"},

	ServiceTraffic: {47, Blocks, "troubleshooting.md#a-service-does-not-answer", "the first packet of each new connection to these Services is lost on this node, or goes another way"},
	Unanswered:     {58, Risk, "troubleshooting.md#a-service-does-not-answer", "their clients hang, and fail in the end"},
	ServiceProblem: {48, Risk, "troubleshooting.md#mistakes-in-objects", "a part of the Service is not served"},

	Topic(track.PortMismatch):        {49, Risk, "troubleshooting.md#mistakes-in-objects", "connections to the port are refused, although the endpoints are ready"},
	Topic(track.ProtocolMismatch):    {50, Risk, "troubleshooting.md#mistakes-in-objects", "connections to the port are refused, although the endpoints are ready"},
	Topic(track.FamilyMismatch):      {51, Risk, "troubleshooting.md#mistakes-in-objects", "connections to the Service are refused, although the endpoints are ready"},
	Topic(track.ClusterIPEndpoint):   {52, Risk, "troubleshooting.md#mistakes-in-objects", "the address is not translated a second time, so connections that are sent there hang"},
	Topic(track.AddressClaimed):      {53, Risk, "troubleshooting.md#mistakes-in-objects", "clients of one Service reach the other"},
	Topic(track.SliceWithoutService): {54, Risk, "troubleshooting.md#mistakes-in-objects", "no Service leads to these endpoints"},
	Topic(track.NoSlice):             {55, Risk, "troubleshooting.md#mistakes-in-objects", "the Service has no endpoint, whatever its selector matches, so connections are refused"},

	AccelerationLeft:     {36, Risk, "acceleration.md#stop-removal-disputes", "programs of the kernel give sockets endpoints from lists that nobody updates: clients of this node connect to endpoints that are gone"},
	AccelerationOthers:   {37, Risk, "acceleration.md#stop-removal-disputes", "other programs give sockets endpoints before socket acceleration does, perhaps from old lists: clients of this node may connect to endpoints that are gone"},
	AccelerationMounts:   {38, Risk, "acceleration.md#stop-removal-disputes", "programs of socket acceleration that are pinned in the hidden one stay in force, with old lists, and a process without SYS_ADMIN cannot remove them"},
	AccelerationDetached: {39, Risk, "acceleration.md#stop-removal-disputes", "the rules serve connections that are not taken; a client of this node may see the address of an endpoint where it expects the ClusterIP"},
	AccelerationLacks:    {40, Risk, "acceleration.md#what-it-needs", "the rules serve all connections, so clients of this node reach every Service, without the speed that the configuration asks for"},
	AccelerationPods:     {41, Risk, "acceleration.md#which-cgroups", "the rules serve connections of pods, so only programs on the network of the node get the speed that the configuration asks for"},
	AccelerationPeers:    {42, Risk, "acceleration.md#what-it-needs", "a program that asks late for the peer of its connection to a ClusterIP gets the endpoint: some clients, and some logs, name an address that they did not ask for"},
}

// Link returns where to read more.
func (t Topic) Link() string { return "docs/" + topics[t].more }

// Why returns why the topic matters, and to whom.
func (t Topic) Why() string { return topics[t].why }
