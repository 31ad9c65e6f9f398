// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package explain says what happens to a connection and why. A Tracker and a Query go in,
// an Explanation comes out: the client, the Service, each rule of Kubernetes that applies,
// and for each endpoint whether it gets new connections. Package route decides; this
// package only adds the reasons. Parse reads what a user types. Explanation.Print is for
// people; the JSON form is stable.
package explain

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/common/document"
	"kubeproxy/common/health"
	"kubeproxy/common/printable"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/suggest"
	"kubeproxy/common/track"
)

// Explanation is what happens to a connection on one node, and why.
type Explanation struct {
	Node string `json:"node"`
	// ReadFrom says what was read in place of a proxy that answers, empty if one answered.
	ReadFrom    string `json:"readFrom,omitempty"`
	Generation  uint64 `json:"generation"` // of the snapshot
	Source      string `json:"source"`     // an address
	Destination string `json:"destination"`
	Protocol    string `json:"protocol"`
	// Action is forward, reject, drop or pass. Pass means that no Service is concerned.
	Action string `json:"action"`
	Why    string `json:"why"` // one clause
	// Service, Port and Frontend say what the destination belongs to. They are empty if
	// it belongs to no Service.
	Service  string `json:"service,omitempty"`
	Port     string `json:"port,omitempty"`
	Frontend string `json:"frontend,omitempty"`
	// Steps are the rules that apply, in their order.
	Steps     []Step     `json:"steps"`
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// Problems are parts of the Service that cannot be used.
	Problems []string `json:"problems,omitempty"`
	// Notes are for the user.
	Notes []string `json:"notes,omitempty"`
	// Installed is what the dataplane of the node does. It is nil if it was not read.
	Installed *Path `json:"installed,omitempty"`
	// Verdict says whether the node does what it should. Differences say where not.
	Verdict     Agreement `json:"verdict"`
	Differences []string  `json:"differences,omitempty"`
	// Leads are signs that connections fail, though not by what the node does.
	Leads []string `json:"leads,omitempty"`
	// Probe is what was dialed, nil if nothing was to be.
	Probe *Probe `json:"probe,omitempty"`
}

// Step is one rule that applies to the connection.
type Step struct {
	Rule string `json:"rule"` // such as client, destination, policy
	Text string `json:"text"` // what it does here, one sentence without its full stop
}

// Endpoint is an address that EndpointSlices list for the Service port.
type Endpoint struct {
	track.Listed
	// Chosen means that the connection may go there. All chosen ones are equally likely.
	Chosen bool   `json:"chosen"`
	Why    string `json:"why"`
	// Client is what the endpoint sees as the address of the client: kept or masqueraded.
	// It is set for chosen endpoints.
	Client string `json:"client,omitempty"`
}

// Model is the data that explains connections.
type Model struct {
	Tracker  *track.Tracker
	Snapshot *service.Snapshot // the latest of Tracker
	// Relays is whether connections pass through the process. Then no endpoint sees the
	// address of the client.
	Relays bool
}

// errNotRead is the answer before Services are known.
var errNotRead = errors.New("no Service is known yet: the existing objects have not all been read")

// Explain returns what happens to c.
func (m Model) Explain(c route.Conn) *Explanation {
	v := route.Decide(m.Snapshot, c)
	x := &Explanation{
		Node: m.Snapshot.Node.Name, Generation: m.Snapshot.Generation,
		Source: c.From.String(), Destination: c.To.String(), Protocol: c.Protocol.String(),
		Action: v.Action.String(), Why: v.Reason, Verdict: Unknown,
	}
	e := explainer{m, c, &v, x}
	e.client()
	e.destination()
	if v.Port == nil {
		return x
	}
	e.sources()
	e.endpoints()
	if v.Action == route.Forward {
		e.affinity()
		e.clientAddress()
	}
	return x
}

// explainer fills the Explanation x.
type explainer struct {
	Model
	conn    route.Conn
	verdict *route.Verdict
	x       *Explanation
}

func (e *explainer) step(rule, format string, args ...any) {
	e.x.Steps = append(e.x.Steps, Step{rule, fmt.Sprintf(format, args...)})
}

// client says how the node sees the client.
func (e *explainer) client() {
	node, from := e.Snapshot.Node, e.conn.From
	family := service.FamilyOf(e.conn.To.Addr())
	switch {
	case e.conn.Interface == "":
		e.step("client", "the node itself")
	case node.Pods.Contains(from, e.conn.Interface):
		e.step("client", "a pod, because %s", podReason(node.Pods, from))
	case !node.Pods.Known(family):
		e.step("client", "unknown whether a pod: neither --cluster-cidr nor another way to recognize pods is set, so it counts as one for ClusterIPs")
	default:
		e.step("client", "outside of the cluster, because %s", outsideReason(node.Pods, family))
	}
}

func podReason(p service.LocalPods, from netip.Addr) string {
	switch {
	case p.Interface != "":
		return "it comes through the bridge " + p.Interface
	case p.InterfacePrefix != "":
		return "it comes through an interface " + p.InterfacePrefix + "*"
	}
	for _, x := range p.Prefixes {
		if x.Contains(from) {
			return "its address is in " + x.String()
		}
	}
	return "its address is a pod's"
}

func outsideReason(p service.LocalPods, f service.Family) string {
	switch {
	case p.Interface != "":
		return "it does not come through the bridge " + p.Interface
	case p.InterfacePrefix != "":
		return "it does not come through an interface " + p.InterfacePrefix + "*"
	}
	return "its address is not in " + printable.Join(service.InFamily(p.Prefixes, f), " or ")
}

// destination says which Service has the destination, and which others claim it.
func (e *explainer) destination() {
	p, f := e.verdict.Port, e.verdict.Frontend
	if p == nil {
		if name := e.Tracker.LeftAlone(e.conn.To.Addr()); name != "" {
			e.x.Why = fmt.Sprintf("the address is of service %s, and left to its load balancer: ipMode Proxy", name)
		}
		e.step("destination", "%s", e.x.Why)
		e.nearby()
		return
	}
	e.x.Service, e.x.Port, e.x.Frontend = p.Name.Namespace+"/"+p.Name.Name, p.Name.Port, f.Kind.String()
	e.step("destination", "%s of %s", kindText(f.Kind), portText(p.Name))
	for _, other := range e.Tracker.Claimants(p, *f).Others {
		e.step("claim", "also claimed by service %s", other)
	}
	e.x.addProblems(e.Tracker, types.NamespacedName{Namespace: p.Name.Namespace, Name: p.Name.Name})
}

func (ex *Explanation) addProblems(t *track.Tracker, name types.NamespacedName) {
	for _, problem := range t.Problems() {
		if problem.Service == name {
			ex.Problems = append(ex.Problems, problem.Field+": "+problem.Message)
		}
	}
}

func kindText(k service.Kind) string {
	return map[service.Kind]string{
		service.ClusterIP: "the ClusterIP", service.NodePort: "a NodePort",
		service.ExternalIP: "an external IP", service.LoadBalancerIP: "the load balancer's address",
	}[k]
}

func portText(n service.PortName) string {
	if n.Port == "" {
		return "service " + n.Namespace + "/" + n.Name
	}
	return "port " + n.Port + " of service " + n.Namespace + "/" + n.Name
}

// nearby lists what Services have at almost the same destination.
func (e *explainer) nearby() {
	const most = 4
	to, family := e.conn.To, service.FamilyOf(e.conn.To.Addr())
	for p := range e.Snapshot.Ports(family) {
		for _, f := range p.Frontends {
			here := f.Addr == to.Addr() || f.Kind == service.NodePort && e.conn.ToNode
			samePort := f.Port == to.Port() && p.Name.Protocol != e.conn.Protocol
			if !here || f.Kind == service.NodePort && !samePort || len(e.x.Notes) == most {
				continue
			}
			e.x.Notes = append(e.x.Notes, fmt.Sprintf("%s has %d/%s there", portText(p.Name), f.Port, p.Name.Protocol))
		}
	}
	switch {
	case to.Addr().IsLoopback():
		e.x.Notes = append(e.x.Notes, "on loopback addresses NodePorts answer programs of the node only, and only if that is configured: see nodePortAddresses and iptables.localhostNodePorts")
	case e.conn.ToNode && !e.Snapshot.Node.AnswersNodePorts(to.Addr()):
		e.x.Notes = append(e.x.Notes, "NodePorts are not served at "+to.Addr().String()+": see nodePortAddresses")
	}
}

// sources says whether the load balancer's source ranges admit the client.
func (e *explainer) sources() {
	switch ranges := e.verdict.Frontend.Sources; {
	case ranges == nil:
	case len(ranges) == 0:
		e.step("source ranges", "loadBalancerSourceRanges has no range of this IP family that can be used, so nobody is admitted")
	default:
		i := slices.IndexFunc(ranges, func(r netip.Prefix) bool { return r.Contains(e.conn.From) })
		if i < 0 {
			e.step("source ranges", "none of the %d loadBalancerSourceRanges holds the client", len(ranges))
			return
		}
		e.step("source ranges", "the client is in %s", ranges[i])
	}
}

// endpoints lists the endpoints with the reason why each one is chosen or not.
func (e *explainer) endpoints() {
	p := e.verdict.Port
	choice := e.Tracker.Choice(p.Family, p.Name)
	byPolicy := e.policyOfClient() == service.PolicyLocal
	ready := 0
	for _, c := range choice.Candidates {
		use := c.Cluster
		if byPolicy && c.ForLocal != nil {
			use = *c.ForLocal
		}
		if c.Ready {
			ready++
		}
		x := Endpoint{Listed: c.Listed, Chosen: use.Used && e.verdict.Action == route.Forward, Why: use.Why}
		if use.Used && !x.Chosen {
			x.Why = "the connection does not get this far"
		}
		if x.Chosen {
			x.Client = e.seenAs(c)
		}
		e.x.Endpoints = append(e.x.Endpoints, x)
	}
	e.step("endpoints", "%s", count(len(choice.Candidates), ready))
	if choice.Missed != "" && e.verdict.Action == route.Reject {
		e.x.Why = "no endpoint is for this port: " + choice.Missed
	}
	e.policy()
	if choice.Topology != "" && !byPolicy {
		e.step("topology", "%s", choice.Topology)
	}
}

func count(all, ready int) string {
	switch {
	case all == 0:
		return "no EndpointSlice lists one for this port"
	case ready == all:
		return fmt.Sprintf("%d, all ready", all)
	}
	return fmt.Sprintf("%d, %d of them ready", all, ready)
}

// seenAs returns the address that the endpoint sees as the client's.
func (e *explainer) seenAs(c track.Candidate) string {
	i := slices.IndexFunc(e.verdict.Endpoints, func(x service.Endpoint) bool { return x.Addr.String() == c.Address })
	if e.Relays || i >= 0 && e.verdict.Masquerades(e.verdict.Endpoints[i]) {
		return clientMasqueraded
	}
	return clientKept
}

// policyOfClient returns the policy that applies to this client. For pods and the node,
// policy Local of an external address is the same as policy Cluster.
func (e *explainer) policyOfClient() service.Policy {
	p, kind := e.verdict.Port, e.verdict.Frontend.Kind
	if kind.External() && e.internal() {
		return service.PolicyCluster
	}
	return p.Policy(kind)
}

// internal reports whether the client is a pod or the node itself.
func (e *explainer) internal() bool {
	return e.conn.Interface == "" || e.Snapshot.Node.Pods.Contains(e.conn.From, e.conn.Interface)
}

func (e *explainer) policy() {
	p, kind := e.verdict.Port, e.verdict.Frontend.Kind
	field := "internalTrafficPolicy"
	if kind.External() {
		field = "externalTrafficPolicy"
	}
	switch {
	case p.Policy(kind) == service.PolicyCluster:
		e.step("policy", "%s Cluster: endpoints on every node", field)
	case e.policyOfClient() == service.PolicyCluster:
		e.step("policy", "%s Local is for clients outside of the cluster, so here endpoints on every node", field)
	default:
		e.step("policy", "%s Local: endpoints on this node only", field)
	}
}

func (e *explainer) affinity() {
	if d := e.verdict.Port.Affinity; d > 0 {
		e.step("affinity", "sessionAffinity ClientIP: the same endpoint as the client's last connection within %s", d)
	}
	if e.verdict.Port.LeadsDirectly(*e.verdict.Frontend) && !e.internal() {
		e.step("direct return", "the packet goes as it is to the node of the endpoint, which answers the client itself, where all nodes of endpoints answer as peers; otherwise as follows")
	}
	if age := e.verdict.Port.Rebalance; age > 0 && e.conn.Protocol == service.TCP {
		e.step("rebalance", "after %s, the connection ends if its endpoint has more than its share and another one was added", age)
	}
}

// clientAddress says whether the endpoints see the client's own address.
func (e *explainer) clientAddress() {
	masqueraded := 0
	for _, x := range e.verdict.Endpoints {
		if e.verdict.Masquerades(x) {
			masqueraded++
		}
	}
	switch {
	case e.Relays:
		e.step("client address", "replaced by an address of the node, because connections pass through kube-proxy in this mode")
	case masqueraded == 0:
		e.step("client address", "kept")
	case masqueraded < len(e.verdict.Endpoints):
		e.step("client address", "kept, except where the endpoint is the client itself")
	default:
		e.step("client address", "replaced by an address of the node, %s", e.masqueradeReason())
	}
}

func (e *explainer) masqueradeReason() string {
	switch node := e.Snapshot.Node; {
	case e.verdict.Frontend.Kind.External() && e.conn.Interface == "":
		return "because the node itself is the client"
	case e.verdict.Frontend.Kind.External():
		return "because of externalTrafficPolicy Cluster: the answer must come back through this node"
	case node.MasqueradeAll:
		return "because masqueradeAll is set"
	case len(e.verdict.Endpoints) == 1 && e.verdict.Endpoints[0].Addr.Addr() == e.conn.From:
		return "because the only endpoint is the client itself"
	}
	return "because the client is no pod"
}

// Other is a base chain of others that the packet passes, of nftables or iptables.
type Other struct {
	Hook  string `json:"hook"`  // such as forward
	Table string `json:"table"` // with its family, such as inet filter
	Chain string `json:"chain"`
	Does  Deed   `json:"does"`
	// Rule is the rule that does it, or the policy of a chain, in words. Look is a command
	// that shows it. Both are empty if the packet passes.
	Rule string `json:"rule,omitempty"`
	Look string `json:"look,omitempty"`
	// To are the destinations of the packet there. Reply means that it is an answer instead, and
	// they are its senders.
	To    []string `json:"to,omitempty"`
	Reply bool     `json:"reply,omitempty"`
	// Doubts are rules that may end the packet, which cannot be told here.
	Doubts []Doubt `json:"doubts,omitempty"`
}

// Doubt is a rule of others that may do something.
type Doubt struct {
	Rule string `json:"rule"` // or, without a deed, a sentence
	Does Deed   `json:"does,omitempty"`
	Why  string `json:"why"` // that cannot be told
	Look string `json:"look"`
}

// Deed is what rules of others do with a packet.
type Deed string

// The deeds.
const (
	Passes      Deed = "pass"
	Drops       Deed = "drop"
	Refuses     Deed = "reject"
	Translates  Deed = "translate"  // to another destination
	Masquerades Deed = "masquerade" // replaces the address of the client
	Untracks    Deed = "untrack"    // exempts it from connection tracking
	Unmarks     Deed = "unmark"     // clears the mark by which kube-proxy masquerades
)

// verbs say what the rule does with packets to a destination.
var verbs = map[Deed]string{
	Drops: "drops packets to %s", Refuses: "refuses packets to %s",
	Translates:  "gives packets to %s another destination",
	Masquerades: "masquerades packets to %s",
	Untracks:    "exempts packets to %s from connection tracking, so that no Service gets them",
	Unmarks:     "clears the mark of packets to %s, so that their source is not masqueraded",
}

// mayVerbs say what a rule may do with it.
var mayVerbs = map[Deed]string{
	Drops: "may drop it", Refuses: "may refuse it", Translates: "may give it another destination",
	Masquerades: "may masquerade it", Untracks: "may exempt it from connection tracking",
}

// Alike reports whether o and x are the same but for the destinations of the packet.
func (o *Other) Alike(x *Other) bool {
	return o.Reply == x.Reply && o.Hook == x.Hook && o.Table == x.Table && o.Chain == x.Chain && o.Does == x.Does && o.Rule == x.Rule && slices.Equal(o.Doubts, x.Doubts)
}

// breaks reports whether what the base chain does is a difference from what should happen to
// a connection.
func (o *Other) breaks(action string) bool {
	switch o.Does {
	case Drops, Refuses:
		return action != "drop"
	case Translates, Untracks, Unmarks:
		return action != "pass"
	}
	return false
}

// text says what the base chain does.
func (o *Other) text() string { return o.Rule + " " + o.deed() + ", and is not kube-proxy's" }

// deed says what the base chain does with packets.
func (o *Other) deed() string {
	text := fmt.Sprintf(verbs[o.Does], o.destinations())
	if o.Reply {
		text = strings.NewReplacer("packets to", "answers of", "no Service gets them", "the client takes none").Replace(text)
	}
	return text
}

// destinations keeps the list of destinations to one line.
func (o *Other) destinations() string { return Some(o.To) }

// Some keeps a list to one line.
func Some(all []string) string {
	const most = 3
	if n := len(all) - most; n > 0 {
		return strings.Join(all[:most], ", ") + fmt.Sprintf(" and %d more", n)
	}
	return strings.Join(all, ", ")
}

// summary says in a few words what the base chain does.
func (o *Other) summary() string {
	switch {
	case o.Does != Passes:
		return o.deed()
	case len(o.Doubts) > 0 && o.Reply:
		return mayVerbs[o.Doubts[0].Does] + ", an answer, which cannot be told"
	case len(o.Doubts) > 0:
		return mayVerbs[o.Doubts[0].Does] + ", which cannot be told"
	}
	return "lets it pass"
}

// others compares what others do with what should happen.
func (ex *Explanation) others() {
	for i := range ex.Installed.Others {
		o := &ex.Installed.Others[i]
		switch {
		case o.breaks(ex.Action):
			ex.Differences = append(ex.Differences, o.text())
		case o.Does != Passes:
			ex.Notes = append(ex.Notes, o.text())
		}
	}
}

// doubtful returns what may end the packet.
func (p *Path) doubtful() []Doubt {
	all := slices.Clone(p.Doubts)
	for i := range p.Others {
		for _, d := range p.Others[i].Doubts {
			if !slices.ContainsFunc(all, func(x Doubt) bool { return x.Rule == d.Rule }) {
				all = append(all, d)
			}
		}
	}
	return all
}

// printOthers prints what the base chains of others do.
func (p *Path) printOthers(w *page) {
	if len(p.Others) == 0 {
		return
	}
	fmt.Fprintf(w, "\nRules of others on its way:\n")
	t := document.Table{Indent: "  ", Head: "HOOK|TABLE|CHAIN|WHAT IT DOES"}
	for i := range p.Others {
		o := &p.Others[i]
		var row []document.Cell
		does := o.summary()
		if o.Does == Passes && len(o.Doubts) == 0 && p.again(i) {
			does = "lets packets to " + o.destinations() + " pass"
		}
		for _, text := range []string{o.Hook, o.Table, o.Chain, does} {
			row = append(row, document.Plain(printable.Text(text)))
		}
		t.Rows = append(t.Rows, row)
	}
	t.Write(&w.Buffer)
}

// again reports whether the packet passes the chain with other addresses, too.
func (p *Path) again(i int) bool {
	for j := range p.Others {
		a, b := &p.Others[i], &p.Others[j]
		if i != j && a.Hook == b.Hook && a.Table == b.Table && a.Chain == b.Chain {
			return true
		}
	}
	return false
}

// mostDoubts is how many rules are printed that cannot be told.
const mostDoubts = 4

// printDoubts prints the first of the rules that may end the packet, and the commands that
// show them.
func printDoubts(w *page, all []Doubt) {
	first := all[:min(mostDoubts, len(all))]
	for _, d := range first {
		text := strings.TrimSpace(d.Rule + " " + mayVerbs[d.Does])
		if d.Why != "" {
			text += " (" + d.Why + ")"
		}
		fmt.Fprintf(w, "  %s\n", w.wrap(printable.Text(text), 4))
	}
	if n := len(all) - len(first); n > 0 {
		fmt.Fprintf(w, "  and %d more; -o json has all\n", n)
	}
	var looks []string
	for _, d := range first {
		if d.Look != "" && !slices.Contains(looks, d.Look) {
			looks = append(looks, d.Look)
			fmt.Fprintf(w, "  look  %s\n", printable.Text(d.Look)) // not wrapped, to be copied
		}
	}
}

// Server answers questions about the node on which it runs.
type Server struct {
	Tracker *track.Tracker
	// Trace follows c through the dataplane of the node. It returns nil where the mode
	// cannot do that.
	Trace func(ctx context.Context, want *service.Snapshot, c route.Conn) (*Walk, error)
	// Local reports whether an address belongs to the node.
	Local func(netip.Addr) bool
	// Interfaces lists the interfaces of the node.
	Interfaces func() []string
	// Relays is as in Model.
	Relays bool
	// Probed is called before somebody dials what an answer has.
	Probed func(by string, x *Explanation)
	// Pod looks a pod up, as for Query. It is nil where pods cannot be looked up.
	Pod func(context.Context, types.NamespacedName) (addrs []netip.Addr, node string, err error)

	// Follower, if set, returns what follows many connections, for a Survey.
	Follower func() Follower
	// Notes, if set, has what is to be known of a Service, NAMESPACE/NAME.
	Notes func(service string) []string
	// Reaches, if set, reports whether the node has a route to an address.
	Reaches func(netip.Addr) bool
	// Waiting, if set, returns the connections to Services of want whose clients wait for a first
	// answer, with the Services.
	Waiting func(ctx context.Context, want *service.Snapshot) (map[Wait]string, error)

	one, surveying sync.Mutex // one request at a time, because reading a dataplane takes long
}

// mostName is how many bytes of the name of one who dials are logged.
const mostName = 200

// Refusal is the answer to a question that cannot be answered.
type Refusal struct {
	Error string `json:"error"`
	// UnknownPod means that the question can be asked again with addresses of the pod.
	UnknownPod bool `json:"unknownPod,omitempty"`
}

// Handler serves GET /explain?source=S&destination=D&interface=I. A client that knows the
// pod in the source adds podAddress=A, which may be repeated, and podNode=N. One that will
// dial what the answer has says by probe=WHO who does. The answer is an Explanation, or
// status 400 with a Refusal.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		v := q.URL.Query()
		x, err := s.Answer(q.Context(), Query{
			Source: v.Get("source"), Destination: v.Get("destination"), Interface: v.Get("interface"), Local: s.Local, Pod: s.pods(q.Context(), v),
		})
		if err != nil {
			_, unknown := errors.AsType[*UnknownPodError](err)
			health.ReplyJSON(w, http.StatusBadRequest, Refusal{err.Error(), unknown})
			return
		}
		if by := v.Get("probe"); by != "" && s.Probed != nil {
			s.Probed(printable.Text(by[:min(len(by), mostName)]), x)
		}
		health.ReplyJSON(w, http.StatusOK, x)
	})
}

// pods returns the function that looks pods up: in the question, or on the server.
func (s *Server) pods(ctx context.Context, v url.Values) func(types.NamespacedName) ([]netip.Addr, string, error) {
	if given := v["podAddress"]; len(given) > 0 {
		return func(types.NamespacedName) (addrs []netip.Addr, node string, err error) {
			for _, text := range given {
				a, err := service.ParseAddr(text)
				if err != nil {
					return nil, "", fmt.Errorf("podAddress: %w", err)
				}
				addrs = append(addrs, a)
			}
			return addrs, v.Get("podNode"), nil
		}
	}
	if s.Pod == nil {
		return nil
	}
	return func(id types.NamespacedName) ([]netip.Addr, string, error) { return s.Pod(ctx, id) }
}

// knows returns an error unless the node has an interface of a name, or none is named.
func (s *Server) knows(name string) error {
	if name == "" || s.Interfaces == nil {
		return nil
	}
	all := s.Interfaces()
	if len(all) == 0 || slices.Contains(all, name) {
		return nil
	}
	const most = 12
	near, list := suggest.Closest(name, all), strings.Join(all[:min(most, len(all))], ", ")
	if n := len(all) - most; n > 0 {
		list += fmt.Sprintf(" and %d more", n)
	}
	if near != "" {
		list += "; did you mean " + near + "?"
	}
	return fmt.Errorf("--interface: this node has no interface %q: want one of %s", name, list)
}

// Answer says what happens to the connection of q.
func (s *Server) Answer(ctx context.Context, q Query) (*Explanation, error) {
	s.one.Lock()
	defer s.one.Unlock()
	m := Model{s.Tracker, s.Tracker.Latest(), s.Relays}
	if m.Snapshot == nil {
		return nil, errNotRead
	}
	if err := s.knows(q.Interface); err != nil {
		return nil, err
	}
	x, c, err := m.Answer(q)
	if err != nil || !c.To.IsValid() {
		return x, err
	}
	if s.Notes != nil {
		x.Notes = append(x.Notes, s.Notes(x.Service)...)
	}
	walk, err := s.Trace(ctx, m.Snapshot, c)
	switch {
	case err != nil:
		x.Notes = append(x.Notes, "what is installed could not be read: "+err.Error())
	case walk == nil:
		x.Notes = append(x.Notes, "this mode cannot say yet what is installed for one connection; kube-proxy status says whether all of it is in force")
	default:
		x.Compare(walk.Path())
		x.Notes = append(x.Notes, walk.Notes...)
	}
	return x, nil
}
