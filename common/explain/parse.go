// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/source"
	"kubeproxy/common/suggest"
)

// Query is a connection as a user names it.
type Query struct {
	// Source is an address, pod/NAMESPACE/NAME, node or outside.
	Source string
	// Destination is ADDRESS:PORT, node:PORT or a Service as service.ParseReference takes it.
	// Each may end in /tcp, /udp or /sctp.
	Destination string
	// Interface is where the packets enter the node, "" if unknown.
	Interface string
	// Local reports whether an address belongs to the node. Nil knows the addresses of its
	// Node and loopback addresses.
	Local func(netip.Addr) bool
	// Pod returns the addresses of a pod and the name of its node, as far as they are
	// known. It is nil where pods cannot be looked up.
	Pod func(types.NamespacedName) (addrs []netip.Addr, node string, err error)
}

// The accepted forms, for errors.
const (
	sourceForms      = "want an address, pod/NAMESPACE/NAME, node or outside"
	destinationForms = "want ADDRESS:PORT, node:PORT or a Service as NAMESPACE/NAME or NAMESPACE/NAME:PORT, and /udp or /sctp where it is not TCP"
)

// InNamespace completes the names of q that have no namespace.
func (q *Query) InNamespace(namespace string) error {
	if namespace == "" {
		return nil
	}
	if kind, name, _ := strings.Cut(q.Source, "/"); isPod(kind) && !strings.Contains(name, "/") {
		q.Source = kind + "/" + namespace + "/" + name
	}
	if !namesService(q.Destination) {
		return nil
	}
	r, err := service.ParseReference(q.Destination, namespace)
	q.Destination = r.String()
	return err
}

// isPod reports whether a source of this kind is a pod.
func isPod(kind string) bool { return kind == "pod" || kind == "po" || kind == "pods" }

// namesService reports whether a destination is a Service, whose name begins with a letter.
func namesService(text string) bool {
	_, err := service.ParseAddr(text)
	port, onNode := strings.CutPrefix(text, "node:")
	_, numeric := strconv.Atoi(port[:strings.IndexAny(port+"/", "/")])
	return err != nil && text != "" && (text[0] >= 'a' && text[0] <= 'z') && !(onNode && numeric == nil)
}

// outside is the Source that stands for any client outside of the cluster.
const outside = "outside"

// outsideAddrs are addresses that documentation reserves, by family. They stand for any
// client outside of the cluster. See https://www.rfc-editor.org/rfc/rfc5737 and
// https://www.rfc-editor.org/rfc/rfc3849.
var outsideAddrs = [2]netip.Addr{netip.MustParseAddr("203.0.113.1"), netip.MustParseAddr("2001:db8::1")}

// Connection returns the connection that q names, and what was assumed.
func (m Model) Connection(q Query) (route.Conn, []string, error) {
	p := parser{Model: m, query: q}
	source, err := p.source()
	if err != nil {
		return route.Conn{}, nil, err
	}
	if err := p.destination(source.families()); err != nil {
		return route.Conn{}, nil, err
	}
	p.conn.From = source.addr[service.FamilyOf(p.conn.To.Addr())]
	p.conn.Interface = source.iface
	if !p.conn.From.IsValid() {
		return route.Conn{}, nil, fmt.Errorf("source %q has no %s address, and the destination %s has that family", q.Source, service.FamilyOf(p.conn.To.Addr()), p.conn.To)
	}
	return p.conn, p.notes, nil
}

// unproxiedError is about a Service that is not served at all.
type unproxiedError struct {
	name     types.NamespacedName
	reason   string
	protocol service.Protocol
}

func (e *unproxiedError) Error() string { return fmt.Sprintf("service %s %s", e.name, e.reason) }

// Answer explains the connection that q names. The connection is invalid if the Service
// that q names is not served at all.
func (m Model) Answer(q Query) (*Explanation, route.Conn, error) {
	c, notes, err := m.Connection(q)
	if u, is := errors.AsType[*unproxiedError](err); is {
		x := &Explanation{
			Node: m.Snapshot.Node.Name, Generation: m.Snapshot.Generation,
			Source: q.Source, Destination: "svc/" + u.name.String(), Protocol: u.protocol.String(),
			Action: route.Pass.String(), Why: u.Error(), Service: u.name.String(), Steps: []Step{}, Verdict: Agree,
		}
		x.addProblems(m.Tracker, u.name)
		return x, route.Conn{}, nil
	}
	if err != nil {
		return nil, route.Conn{}, err
	}
	x := m.Explain(c)
	x.Notes = append(notes, x.Notes...)
	return x, c, nil
}

type parser struct {
	Model
	query Query
	conn  route.Conn
	notes []string
}

func (p *parser) note(format string, args ...any) {
	p.notes = append(p.notes, fmt.Sprintf(format, args...))
}

// client is a source: its address by family, and its interface as in route.Conn.
type client struct {
	addr  [2]netip.Addr
	iface string
}

// families lists the families in which c has an address, IPv4 first.
func (c client) families() []service.Family {
	var all []service.Family
	for _, f := range service.Families {
		if c.addr[f].IsValid() {
			all = append(all, f)
		}
	}
	return all
}

// anyInterface stands for an interface of the node that is not a pod's.
const anyInterface = "outside"

func (p *parser) source() (client, error) {
	node := p.Snapshot.Node
	kind, name, _ := strings.Cut(p.query.Source, "/")
	switch {
	case p.query.Source == outside:
		return client{outsideAddrs, p.interfaceOr(anyInterface)}, nil
	case p.query.Source == "node":
		c := client{addr: byFamily(node.Addrs)}
		if len(c.families()) == 0 {
			return c, fmt.Errorf("source node: no address of node %q is known", node.Name)
		}
		return c, nil
	case isPod(kind):
		return p.pod(name)
	}
	a, err := service.ParseAddr(p.query.Source)
	if err != nil {
		return client{}, fmt.Errorf("source %q: %s", p.query.Source, sourceForms)
	}
	a = a.WithZone("")
	var c client
	c.addr[service.FamilyOf(a)] = a
	switch {
	case p.isLocal(a) && p.query.Interface == "":
		return c, nil
	case (node.Pods.Interface != "" || node.Pods.InterfacePrefix != "") && p.query.Interface == "":
		p.note("pods are recognized by their interface, which an address does not show: taken for a client outside; --interface NAME names the interface")
	}
	c.iface = p.interfaceOr(anyInterface)
	return c, nil
}

func (p *parser) isLocal(a netip.Addr) bool {
	return slices.Contains(p.Snapshot.Node.Addrs, a) || a.IsLoopback() || p.query.Local != nil && p.query.Local(a)
}

func (p *parser) interfaceOr(otherwise string) string {
	if p.query.Interface != "" {
		return p.query.Interface
	}
	return otherwise
}

// byFamily returns the first address of each family.
func byFamily(addrs []netip.Addr) (first [2]netip.Addr) {
	for _, a := range addrs {
		if f := service.FamilyOf(a); !first[f].IsValid() {
			first[f] = a
		}
	}
	return first
}

func (p *parser) pod(name string) (client, error) {
	id, ok := namespaced(name)
	if !ok {
		return client{}, fmt.Errorf("source %q: want pod/NAMESPACE/NAME", p.query.Source)
	}
	if p.query.Pod == nil {
		return client{}, fmt.Errorf("source %q: pods cannot be looked up here: give the address of the pod instead", p.query.Source)
	}
	addrs, node, err := p.query.Pod(id)
	if err != nil {
		return client{}, fmt.Errorf("source %q: %w", p.query.Source, err)
	}
	if own := p.Snapshot.Node.Name; node != "" && !strings.EqualFold(node, own) {
		p.note("pod %s runs on node %s, so its connections to a ClusterIP are decided there, not on %s", id, node, own)
	}
	pods := p.Snapshot.Node.Pods
	iface := "pod"
	switch {
	case p.query.Interface != "":
		iface = p.query.Interface
	case slices.ContainsFunc(addrs, p.isLocal):
		p.note("pod %s uses the network of the node, so its connections are the node's own", id)
		iface = ""
	case pods.Interface != "":
		iface = pods.Interface
	case pods.InterfacePrefix != "":
		iface = pods.InterfacePrefix + "0"
	}
	return client{byFamily(addrs), iface}, nil
}

func namespaced(s string) (types.NamespacedName, bool) {
	namespace, name, ok := strings.Cut(s, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}, ok && namespace != "" && name != "" && !strings.Contains(name, "/")
}

// destination sets the destination of conn. A Service is dialled in the first of families
// in which it has an address.
func (p *parser) destination(families []service.Family) error {
	if namesService(p.query.Destination) {
		return p.service(families)
	}
	text, protocol, given, err := p.protocol()
	if err != nil {
		return err
	}
	p.conn.Protocol = protocol
	if port, ok := strings.CutPrefix(text, "node:"); ok {
		return p.nodePort(port, given, families)
	}
	to, err := service.ParseAddrPort(text)
	if err != nil || to.Port() == 0 {
		return fmt.Errorf("destination %q: %s", p.query.Destination, destinationForms)
	}
	p.conn.To = netip.AddrPortFrom(to.Addr().WithZone(""), to.Port())
	p.conn.ToNode = p.isLocal(p.conn.To.Addr())
	return nil
}

// protocol splits the protocol off the destination. TCP is the default, and given says
// whether the destination named one.
func (p *parser) protocol() (rest string, protocol service.Protocol, given bool, err error) {
	for _, x := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		if rest, ok := strings.CutSuffix(strings.ToLower(p.query.Destination), "/"+x.String()); ok {
			return p.query.Destination[:len(rest)], x, true, nil
		}
	}
	text := p.query.Destination
	i := strings.LastIndex(text, ":")
	if i >= 0 && strings.Contains(text[i:], "/") {
		return "", 0, false, fmt.Errorf("destination %q: %s", text, destinationForms)
	}
	return text, service.TCP, false, nil
}

// nodePort dials a port of the node's own address.
func (p *parser) nodePort(port string, given bool, families []service.Family) error {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return fmt.Errorf("destination %q: %q is no port: want node:PORT, such as node:30080", p.query.Destination, port)
	}
	own := byFamily(p.Snapshot.Node.Addrs)
	for _, f := range families {
		if own[f].IsValid() {
			p.conn.To, p.conn.ToNode = netip.AddrPortFrom(own[f], uint16(n)), true
			if !given {
				p.protocolOfNodePort(uint16(n))
			}
			return nil
		}
	}
	return fmt.Errorf("destination %q: no address of node %q is known in the family of the source", p.query.Destination, p.Snapshot.Node.Name)
}

// protocolOfNodePort takes the protocol of the only Service with NodePort n.
func (p *parser) protocolOfNodePort(n uint16) {
	var found []service.Protocol
	for x := range p.Snapshot.Ports(service.FamilyOf(p.conn.To.Addr())) {
		if slices.ContainsFunc(x.Frontends, func(f service.Frontend) bool { return f.Kind == service.NodePort && f.Port == n }) {
			found = append(found, x.Name.Protocol)
		}
	}
	if len(found) == 1 {
		p.conn.Protocol = found[0]
	}
}

// service dials a Service by name.
func (p *parser) service(families []service.Family) error {
	r, err := service.ParseReference(p.query.Destination, "")
	if err != nil {
		return fmt.Errorf("destination %q: %s", p.query.Destination, destinationForms)
	}
	p.conn.Protocol = service.TCP
	for _, x := range []service.Protocol{service.UDP, service.SCTP} {
		if x.String() == r.Protocol {
			p.conn.Protocol = x
		}
	}
	name, port, given := types.NamespacedName{Namespace: r.Namespace, Name: r.Name}, r.Port, r.Protocol != ""
	if name.Namespace == "" {
		if name.Namespace, err = p.namespaceOf(r.Name); err != nil {
			return err
		}
	}
	ports := p.Tracker.ServicePorts(name)
	if why := p.Tracker.Unproxied(name); why != "" {
		return &unproxiedError{name, why, p.conn.Protocol}
	}
	if len(ports) == 0 {
		return fmt.Errorf("destination %q: %s", p.query.Destination, p.unknownService(name))
	}
	var names []string
	var found []*service.Port
	for _, x := range ports {
		label := portLabel(x)
		if !slices.Contains(names, label) {
			names = append(names, label)
		}
		if !given || x.Name.Protocol == p.conn.Protocol {
			if port == "" || x.Name.Port == port || clusterPort(x) == port {
				found = append(found, x)
			}
		}
	}
	if len(found) == 0 || port == "" && len(names) > 1 {
		return fmt.Errorf("destination %q: service %s has the ports %s: want one of them", p.query.Destination, name, strings.Join(names, ", "))
	}
	return p.dial(name, found, families)
}

// dial takes the first ClusterIP of the ports, in the order of families. For clients
// outside of the cluster it prefers the addresses that such clients are given.
func (p *parser) dial(name types.NamespacedName, found []*service.Port, families []service.Family) error {
	kinds := []service.Kind{service.ClusterIP}
	if p.query.Source == outside {
		kinds = []service.Kind{service.LoadBalancerIP, service.ExternalIP, service.NodePort, service.ClusterIP}
	}
	for _, kind := range kinds {
		for _, f := range families {
			if slices.ContainsFunc(found, func(x *service.Port) bool { return x.Family == f && p.dialFrontend(x, kind) }) {
				return nil
			}
		}
	}
	return fmt.Errorf("destination %q: service %s has no ClusterIP in the family of the source", p.query.Destination, name)
}

// dialFrontend dials the first frontend of this kind, if x has one.
func (p *parser) dialFrontend(x *service.Port, kind service.Kind) bool {
	i := slices.IndexFunc(x.Frontends, func(front service.Frontend) bool { return front.Kind == kind })
	if i < 0 {
		return false
	}
	addr := x.Frontends[i].Addr
	if kind == service.NodePort {
		if addr = byFamily(p.Snapshot.Node.Addrs)[x.Family]; !addr.IsValid() {
			return false
		}
	}
	p.conn.To, p.conn.Protocol = netip.AddrPortFrom(addr, x.Frontends[i].Port), x.Name.Protocol
	p.conn.ToNode = p.isLocal(addr)
	return true
}

// portLabel names a port in the form that a user types.
func portLabel(p *service.Port) string {
	at := clusterPort(p) + "/" + p.Name.Protocol.String()
	if len(p.Frontends) == 0 { // those that it wants are others'
		at = p.Name.Protocol.String() + ", at no address"
	}
	if p.Name.Port == "" {
		return at
	}
	return fmt.Sprintf("%s (%s)", p.Name.Port, at)
}

// clusterPort returns the number of the port at the ClusterIP.
func clusterPort(p *service.Port) string {
	for _, f := range p.Frontends {
		if f.Kind != service.NodePort {
			return strconv.Itoa(int(f.Port))
		}
	}
	return "0"
}

// namespaceOf returns the namespace of the only Service of that name, "" if there is none.
func (p *parser) namespaceOf(name string) (string, error) {
	var found []string
	for _, n := range p.Tracker.Names("") {
		if n.Name == name {
			found = append(found, n.Namespace)
		}
	}
	if len(found) > 1 {
		return "", fmt.Errorf("destination %q: namespaces %s have a Service of that name: want NAMESPACE/%s, or --namespace", p.query.Destination, strings.Join(found, ", "), name)
	}
	return strings.Join(found, ""), nil
}

func (p *parser) unknownService(name types.NamespacedName) string {
	var all []string
	for _, n := range p.Tracker.Names("") {
		all = append(all, n.String())
	}
	text := fmt.Sprintf("there is no service %s here", strings.TrimPrefix(name.String(), "/"))
	if near := suggest.Service(name.Namespace, name.Name, all); near != "" {
		return text + fmt.Sprintf("; did you mean svc/%s?", near)
	}
	return text
}

// Pods is a Sink that passes everything on, and remembers which pods the endpoints are.
type Pods struct {
	source.Sink
	known map[types.NamespacedName]pod
}

type pod struct {
	addrs []netip.Addr
	node  string
}

// NewPods returns a Pods that passes everything to sink. A nil sink is for slices alone.
func NewPods(sink source.Sink) *Pods {
	return &Pods{sink, map[types.NamespacedName]pod{}}
}

// SetSlice implements source.Sink.
func (p *Pods) SetSlice(o *discoveryv1.EndpointSlice) bool {
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if e.TargetRef == nil || e.TargetRef.Kind != "Pod" || len(e.Addresses) == 0 {
			continue
		}
		addr, err := service.ParseAddr(e.Addresses[0])
		if err != nil {
			continue // the tracker reports it
		}
		id := types.NamespacedName{Namespace: o.Namespace, Name: e.TargetRef.Name}
		known := p.known[id]
		if !slices.Contains(known.addrs, addr) {
			known.addrs = append(known.addrs, addr)
		}
		if e.NodeName != nil {
			known.node = *e.NodeName
		}
		p.known[id] = known
	}
	return p.Sink == nil || p.Sink.SetSlice(o)
}

// Find returns the addresses of a pod and the name of its node. It knows the pods that
// EndpointSlices refer to.
func (p *Pods) Find(id types.NamespacedName) ([]netip.Addr, string, error) {
	known, ok := p.known[id]
	if !ok {
		return nil, "", &UnknownPodError{id}
	}
	return known.addrs, known.node, nil
}

// UnknownPodError means that no EndpointSlice refers to a pod, so that its addresses are
// not known.
type UnknownPodError struct{ Pod types.NamespacedName }

// Error implements error.
func (e *UnknownPodError) Error() string {
	return fmt.Sprintf("no EndpointSlice refers to pod %s by targetRef: give its address instead", e.Pod)
}
