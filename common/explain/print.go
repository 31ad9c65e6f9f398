// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"

	"kubeproxy/common/document"
	"kubeproxy/common/printable"
	"kubeproxy/common/route"
)

// mostEndpoints is how many endpoints are printed unless all are asked for.
const mostEndpoints = 20

// View is how an Explanation is printed.
type View struct {
	All   bool // endpoints, instead of the first ones
	Width int  // how many columns a line may have, 0 for document.Width
}

// page collects what is printed.
type page struct {
	bytes.Buffer
	width int
}

// Print writes x for people. Text from outside is made printable.
func (v View) Print(to io.Writer, x *Explanation) error {
	w := &page{width: cmp.Or(v.Width, document.Width)}
	head := fmt.Sprintf("%s -> %s/%s, seen from node %s", x.Source, x.Destination, x.Protocol, printable.Text(x.Node))
	fmt.Fprintf(w, "%s\n", w.wrap(head, 0))
	if x.ReadFrom != "" {
		fmt.Fprintln(w, w.wrap("no proxy answers here; read from "+printable.Text(x.ReadFrom), 0))
	}
	fmt.Fprintf(w, "%s\n\n", w.wrap(x.headline(), 0))
	widest := 0
	for _, s := range x.Steps {
		widest = max(widest, len(s.Rule))
	}
	for _, s := range x.Steps {
		fmt.Fprintf(w, "  %-*s  %s\n", widest, s.Rule, w.wrap(printable.Text(s.Text), widest+4))
	}
	v.endpoints(w, x)
	x.installed(w)
	x.Probe.print(w, x.Protocol)
	for _, p := range x.Problems {
		fmt.Fprintf(w, "\nproblem: %s\n", w.wrap(printable.Text(p), 9))
	}
	for _, n := range x.Notes {
		fmt.Fprintf(w, "\nnote: %s\n", w.wrap(printable.Text(n), 6))
	}
	_, err := printable.Writer(to).Write(w.Bytes())
	return err
}

// wrap breaks text into lines that fit beside an indent of the second and later lines.
func (w *page) wrap(text string, indent int) string {
	return strings.Join(document.Wrap(text, w.width-indent), "\n"+strings.Repeat(" ", indent))
}

// headline is a sentence about what happens to the connection.
func (ex *Explanation) headline() string {
	chosen := 0
	for _, e := range ex.Endpoints {
		if e.Chosen {
			chosen++
		}
	}
	switch {
	case ex.Action == "forward" && chosen == 1:
		return "Forwarded to the only endpoint for it."
	case ex.Action == "forward":
		return fmt.Sprintf("Forwarded to one of %d endpoints, each as likely as the others.", chosen)
	case ex.Action == "reject":
		return "Refused at once: " + ex.Why + "."
	case ex.Action == "drop":
		return "Dropped without an answer: " + ex.Why + "."
	}
	return "Left alone: " + ex.Why + "."
}

func (v View) endpoints(w *page, x *Explanation) {
	if len(x.Endpoints) == 0 {
		return
	}
	list := sorted(x.Endpoints)
	rest := 0
	if !v.All && len(list) > mostEndpoints {
		rest = len(list) - mostEndpoints
		list = list[:mostEndpoints]
	}
	fmt.Fprintln(w)
	t := document.Table{Indent: "  ", Head: "ENDPOINT|NODE|ZONE|STATE|GETS IT|CLIENT|WHY", Width: v.Width}
	for _, e := range list {
		gets := "no"
		if e.Chosen {
			gets = "yes"
		}
		row := []document.Cell{}
		for _, text := range []string{e.Address, orDash(e.Node), orDash(e.Zone), e.State, gets, orDash(e.Client), e.Why} {
			row = append(row, document.Plain(printable.Text(text)))
		}
		t.Rows = append(t.Rows, row)
	}
	t.Write(&w.Buffer)
	if rest > 0 {
		fmt.Fprintf(w, "  and %d more; --all prints them, -o json too\n", rest)
	}
}

// sorted returns the chosen endpoints first.
func sorted(all []Endpoint) []Endpoint {
	var list, others []Endpoint
	for _, e := range all {
		if e.Chosen {
			list = append(list, e)
		} else {
			others = append(others, e)
		}
	}
	return append(list, others...)
}

func orDash(s string) string {
	if strings.TrimSpace(s) == "" {
		return "-"
	}
	return printable.Text(s)
}

// mostObject is the longest name of an object that has its text beside it.
const mostObject = 30

// installed prints what the node really does.
func (ex *Explanation) installed(w *page) {
	if ex.Installed == nil {
		return
	}
	fmt.Fprintf(w, "\nOn the node:\n")
	widest := 0
	for _, h := range ex.Installed.Hops {
		if n := len([]rune(h.Object)); n <= mostObject {
			widest = max(widest, n)
		}
	}
	for _, h := range ex.Installed.Hops {
		object := printable.Text(h.Object)
		if len([]rune(object)) > mostObject { // a line of its own
			fmt.Fprintf(w, "  %s\n", w.wrap(object, 2))
			object = ""
		}
		fmt.Fprintf(w, "  %-*s  %s\n", widest, object, w.wrap(printable.Text(h.Does), widest+4))
	}
	ex.Installed.around(w)
	ex.Installed.printOthers(w)
	ex.conclusion(w)
}

// conclusion prints whether the node does what it should, and what may be wrong otherwise.
func (ex *Explanation) conclusion(w *page) {
	doubts := ex.Installed.doubtful()
	text := "The node does what it should."
	switch {
	case ex.Verdict == Unknown:
		return
	case ex.Verdict == Differ:
		fmt.Fprintf(w, "\nThe node does not do what it should:\n")
		ex.differences(w)
		if text = "Rules of others that cannot be followed may matter, too:"; len(ex.Installed.Doubts) > 0 {
			text = "What cannot be told may matter, too:"
		}
	case len(doubts) > 0:
		text = "The node does what it should, as far as the rules of others can be followed:"
		if len(ex.Installed.Doubts) > 0 {
			text = "The node does what it should, as far as this can be told:"
		}
	}
	if len(doubts) > 0 || ex.Verdict == Agree {
		fmt.Fprintf(w, "\n%s\n", text)
	}
	printDoubts(w, doubts)
	if len(ex.Leads) > 0 {
		fmt.Fprintf(w, "\nBut look further:\n")
	}
	for _, text := range ex.Leads {
		fmt.Fprintf(w, "  %s\n", w.wrap(printable.Text(text), 2))
	}
}

// differences prints what differs. Commands are not wrapped, to be copied.
func (ex *Explanation) differences(w *page) {
	for _, d := range ex.Differences {
		fmt.Fprintf(w, "  %s\n", w.wrap(printable.Text(d), 2))
	}
	ex.Installed.printCommands(w)
	for i := range ex.Installed.Others {
		if o := &ex.Installed.Others[i]; o.breaks(ex.Action) {
			fmt.Fprintf(w, "  look  %s\n", printable.Text(o.Look))
		}
	}
	var before []string
	for _, f := range ex.Installed.Flows {
		if f.Stale && f.Remedy != "" && !slices.Contains(before, f.Remedy) {
			before = append(before, f.Remedy)
			fmt.Fprintf(w, "  fix  %s\n", f.Remedy)
		}
	}
}

// mostAround is how many routes and connections are printed.
const mostAround = 4

// around prints the routes to the targets and back, and existing connections.
func (p *Path) around(w *page) {
	p.routes(w)
	printSome(w, p.flowLines())
}

// printSome prints the first of lines after an empty line.
func printSome(w *page, lines []string) {
	if len(lines) == 0 {
		return
	}
	fmt.Fprintln(w)
	for _, line := range lines[:min(mostAround, len(lines))] {
		fmt.Fprintf(w, "  %s\n", w.wrap(line, 4))
	}
	if n := len(lines) - mostAround; n > 0 {
		fmt.Fprintf(w, "  and %d more; -o json has all\n", n)
	}
}

// Path is what the dataplane of this node does with a connection, read back from it.
type Path struct {
	// Hops are the objects that the first packet meets, in their order.
	Hops   []Hop  `json:"hops"`
	Action string `json:"action"` // as in Explanation
	// Targets are where the connection may go, sorted by address; only with action forward.
	Targets []Target `json:"targets,omitempty"`
	// DirectReturn is whether another rule than that of Kubernetes decides if the endpoint sees the client's own address.
	DirectReturn bool `json:"directReturn,omitempty"`
	// Remembered is the endpoint that follows from the client, by session affinity or consistent
	// selection. Then it is the only target.
	Remembered string `json:"remembered,omitempty"`
	// Faults are objects on the path that are not as the proxy makes them.
	Faults []string `json:"faults,omitempty"`
	// ByDesign is why the mode always differs from the rules of Kubernetes here. Then
	// action and targets do not count as a difference.
	ByDesign string `json:"byDesign,omitempty"`
	// Others are the base chains of others on the way, in the order in which the packet
	// passes them. Of tables that the proxy shares with others, such as those of iptables,
	// only those that matter are listed.
	Others []Other `json:"others,omitempty"`
	// Flows are the client's connections to the destination that connection tracking knows.
	Flows []Flow `json:"flows,omitempty"`
	// Obstacles keep packets from getting there, or answers from coming back. Doubts may. Both
	// are beside the rules of Others.
	Obstacles []Obstacle `json:"obstacles,omitempty"`
	Doubts    []Doubt    `json:"doubts,omitempty"`
}

// Hop is one object that the packet meets, by the name that the system's own tools show.
type Hop struct {
	Object string `json:"object"`
	Does   string `json:"does"` // what it does with the packet
}

// OneOf says on one line, for a Hop, that a packet goes to one of some addresses. what is
// what they are, such as endpoints.
func OneOf(what string, all []netip.AddrPort) string {
	const most = 3
	text := fmt.Sprintf("one of %d %s: %s", len(all), what, printable.Join(all[:min(most, len(all))], ", "))
	if n := len(all) - most; n > 0 {
		text += fmt.Sprintf(" and %d more", n)
	}
	return text
}

// Target is an endpoint to which the dataplane may send the connection.
type Target struct {
	Address string `json:"address"`
	// Client is what the endpoint sees as the client's address: kept, masqueraded or unknown.
	Client string `json:"client"`
	// Route is how packets get there, Reply how answers get back. They are empty if that is
	// unknown.
	Route string `json:"route,omitempty"`
	Reply string `json:"reply,omitempty"`
}

// What an endpoint sees as the address of the client.
const (
	clientKept        = "kept"
	clientMasqueraded = "masqueraded"
	clientUnknown     = "unknown" // the dataplane does not say
)

// Agreement is the verdict on what should happen and what is installed.
type Agreement string

// The verdicts.
const (
	Agree   Agreement = "agree"
	Differ  Agreement = "differ"
	Unknown Agreement = "unknown" // nothing could be read, or nothing was to be read
)

// LegacyTables stands for all tables of iptables-legacy in Walk.Followed.
const LegacyTables = "iptables-legacy"

// Walk is the raw result of following a packet through a dataplane.
type Walk struct {
	Hops    []Hop
	Action  route.Action
	Targets map[netip.AddrPort]bool // whether the address of the client is replaced
	// ClientUnknown means that the dataplane does not say what Targets should.
	ClientUnknown bool
	// Remembered is the target that follows from the client, invalid without one.
	Remembered netip.AddrPort
	Faults     []string
	ByDesign   string // as in Path
	// Others are rules of others, as in Path. Followed names the tables that were followed,
	// so that nobody else needs to, as nft or iptables-legacy name them.
	Others   []Other
	Followed []string
	// Served means that the node takes the packet for itself and then sends it to a target,
	// as IPVS does.
	Served bool
	// Taken means that connect(2) gives the socket a target, so that the rules see no packet
	// to the destination.
	Taken bool
	// DirectReturn is as in Path. Parts, if there are any, are what the node handles in place of a connection to Targets.
	DirectReturn bool
	Parts        []Part
	// Via are listeners of the process through which connections pass to the targets.
	Via []netip.AddrPort
	// Here reports whether a target is known to be on this node.
	Here func(netip.AddrPort) bool
	// Flows, Obstacles and Doubts are as in Path, Routes and Replies as in Target.
	Flows           []Flow
	Obstacles       []Obstacle
	Doubts          []Doubt
	Routes, Replies map[netip.Addr]string
	// Notes are for the user.
	Notes []string
}

// Part is the first packet of a connection through the node, or of one that carries it to another node.
type Part struct {
	route.Conn
	Targets map[netip.AddrPort]bool // as in Walk
	// Mark, unless it is 0, is what packets get before connection tracking, which they pass by. It leads them to a
	// table of routes of this number.
	Mark uint32
}

// Path returns w in printable form.
func (w *Walk) Path() *Path {
	p := &Path{
		Hops: w.Hops, Action: w.Action.String(), Faults: w.Faults, ByDesign: w.ByDesign, Others: w.Others, Flows: w.Flows,
		Obstacles: w.Obstacles, Doubts: w.Doubts, DirectReturn: w.DirectReturn,
	}
	if w.Remembered.IsValid() {
		p.Remembered = w.Remembered.String()
	}
	var addrs []netip.AddrPort
	for a := range w.Targets {
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	for _, a := range addrs {
		t := Target{Address: a.String(), Client: clientKept, Route: w.Routes[a.Addr()], Reply: w.Replies[a.Addr()]}
		switch {
		case w.ClientUnknown:
			t.Client = clientUnknown
		case w.Targets[a]:
			t.Client = clientMasqueraded
		}
		p.Targets = append(p.Targets, t)
	}
	return p
}

// Compare sets what is installed, and says where it differs from what should happen.
func (ex *Explanation) Compare(p *Path) {
	ex.Installed, ex.Verdict, ex.Differences = p, Agree, slices.Clone(p.Faults)
	if p.DirectReturn {
		ex.keepClients(p)
	}
	switch {
	case p.ByDesign != "":
		ex.Notes = append(ex.Notes, p.ByDesign)
	case p.Action != ex.Action:
		ex.Differences = append(ex.Differences, fmt.Sprintf("the node does %s, and should %s", actionText(p.Action), actionText(ex.Action)))
	default:
		ex.Differences = append(ex.Differences, ex.differentTargets(p)...)
	}
	for _, o := range p.Obstacles {
		ex.Differences = append(ex.Differences, o.What)
	}
	ex.others()
	ex.flows()
	if len(ex.Differences) > 0 {
		ex.Verdict = Differ
	}
}

// keepClients says which endpoints see the client's own address, as p has it.
func (ex *Explanation) keepClients(p *Path) {
	for _, t := range p.Targets {
		for i := range ex.Endpoints {
			if e := &ex.Endpoints[i]; e.Address == t.Address && e.Chosen {
				e.Client = t.Client
			}
		}
	}
}

func actionText(action string) string {
	if action == "pass" {
		return "leave it alone"
	}
	return action
}

// comesBack reports whether t is the client itself, on any node. Such a connection may be
// masqueraded, because otherwise the answer would not pass this node.
func (ex *Explanation) comesBack(t Target) bool {
	a, err := netip.ParseAddrPort(t.Address)
	return err == nil && a.Addr().String() == ex.Source && t.Client == clientMasqueraded
}

// differentTargets compares the endpoints. Session affinity narrows the choice to one.
func (ex *Explanation) differentTargets(p *Path) []string {
	var all []string
	want, have := map[string]string{}, map[string]string{}
	for _, e := range ex.Endpoints {
		if e.Chosen {
			want[e.Address] = e.Client
		}
	}
	for _, t := range p.Targets {
		have[t.Address] = t.Client
		switch client, wanted := want[t.Address]; {
		case !wanted:
			all = append(all, fmt.Sprintf("the node also sends it to %s, which should not get it", t.Address))
		case client != t.Client && t.Client != clientUnknown && !ex.comesBack(t):
			all = append(all, fmt.Sprintf("the client's address is %s on the way to %s, and should be %s", t.Client, t.Address, client))
		}
	}
	if p.Remembered != "" {
		return all
	}
	for _, e := range ex.Endpoints {
		if _, there := have[e.Address]; e.Chosen && !there {
			all = append(all, fmt.Sprintf("the node never sends it to %s, which should get its share", e.Address))
		}
	}
	return all
}
