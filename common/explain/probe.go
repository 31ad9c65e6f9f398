// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/document"
	"kubeproxy/common/printable"
)

// Probe is what dialing the endpoints, and then the destination, has shown.
type Probe struct {
	Dials []Dial `json:"dials"`
	// Enter is the beginning of a command that runs another in the network namespace of the
	// client, empty if that is not known.
	Enter string `json:"enter,omitempty"`
	// Findings say what fails and why, with what to do about it.
	Findings []Finding `json:"findings,omitempty"`
	// Untold says what was not dialed, or could not be told, and why.
	Untold []string `json:"untold,omitempty"`
}

// Finding is something that a dial shows to be wrong.
type Finding struct {
	Text   string `json:"text"`
	Advice string `json:"advice"`
}

// Dial is one attempt to connect.
type Dial struct {
	From     string `json:"from"` // here, or client: from its network namespace
	To       string `json:"to"`
	Endpoint bool   `json:"endpoint,omitempty"` // else it is the destination that was asked for
	Result   Result `json:"result"`
	Reason   string `json:"reason,omitempty"` // of the system
	// Milliseconds is the time until the result.
	Milliseconds float64 `json:"milliseconds"`
	// Packets says which size of packets arrives at an endpoint of another node.
	Packets *Packets `json:"packets,omitempty"`
}

// The places from which a Dial comes.
const (
	Here       = "here"
	FromClient = "client"
)

// Result is how a Dial ends.
type Result string

// The results.
const (
	Connected   Result = "connected"
	Answered    Result = "answered"     // a datagram
	Silent      Result = "no answer"    // to a datagram, which not every program answers
	Refused     Result = "refused"      // by a reset, or an ICMP message
	TimedOut    Result = "timed out"    // no answer to the first packet
	Unreachable Result = "no route"     // of the system, or of a router on the way
	Failed      Result = "failed"       // for another reason
	NotDialed   Result = "not possible" // here
)

// Packets is whether packets as large as a connection would send them arrive, marked not to be
// fragmented.
type Packets struct {
	Bytes int `json:"bytes"`
	// State is arrive, smaller (a hop names Hop as the most it takes, and TCP heeds that), lost,
	// lost back (they arrive, and answers of their size do not come back), or unknown.
	State string `json:"state"`
	Hop   int    `json:"hop,omitempty"`
}

// The states of Packets.
const (
	PacketsArrive  = "arrive"
	PacketsSmaller = "smaller"
	PacketsLost    = "lost"
	PacketsNotBack = "lost back"
	PacketsUnknown = "unknown"
)

func (p *Packets) text() string {
	switch {
	case p == nil || p.State == PacketsUnknown:
		return ""
	case p.State == PacketsSmaller:
		return fmt.Sprintf("%d bytes at most", p.Hop)
	}
	return fmt.Sprintf("%d bytes %s", p.Bytes, p.State)
}

// lostOn is on which way p gets lost, to or back from an endpoint, "" for none.
func (p *Packets) lostOn() string {
	if p == nil {
		return ""
	}
	return map[string]string{PacketsLost: "to", PacketsNotBack: "back from"}[p.State]
}

// Dialed are the endpoints that get connections, and how many more than most there are.
func (ex *Explanation) Dialed(most int) (all []Endpoint, more []string) {
	for _, e := range ex.Endpoints {
		switch {
		case !e.Chosen:
		case len(all) < most:
			all = append(all, e)
		default:
			more = append(more, e.Address)
		}
	}
	return all, more
}

// Masqueraded reports whether e gets connections from an address of the node, not of the client.
func (e *Endpoint) Masqueraded() bool { return e.Client == clientMasqueraded }

// Judges reports whether source ranges decide about the client, so that the destination cannot
// be dialed in its place.
func (ex *Explanation) Judges() bool {
	return slices.ContainsFunc(ex.Steps, func(s Step) bool { return s.Rule == "source ranges" })
}

// SetProbe records p, and finds what is wrong in it. What was dialed from the client counts, and
// the same from here shows where it fails. The destination fails where its endpoints do, so it is
// a finding only if they work.
func (ex *Explanation) SetProbe(p *Probe) {
	ex.Probe = p
	counts := func(d *Dial) bool {
		return d.From == FromClient || !slices.ContainsFunc(p.Dials, func(x Dial) bool { return x.From == FromClient && x.To == d.To })
	}
	about := map[Finding][]string{}
	add := func(f Finding, d *Dial) {
		if about[f] == nil {
			p.Findings = append(p.Findings, f)
		}
		about[f] = append(about[f], d.To)
	}
	for i := range p.Dials {
		d := &p.Dials[i]
		if counts(d) && d.Endpoint && !d.works() {
			add(p.endpoint(d, ex.Protocol), d)
		}
		if way := d.Packets.lostOn(); way != "" {
			add(Finding{
				fmt.Sprintf("packets of %d bytes get lost on the way %s %%s, small ones arrive: a hop takes only smaller ones, and nobody hears its ICMP message", d.Packets.Bytes, way),
				"give pods the smallest MTU of the way, or let ICMP messages that fragmentation is needed pass",
			}, d)
		}
	}
	for i, f := range p.Findings {
		who := "endpoint " + about[f][0]
		if len(about[f]) > 1 {
			who = "each of endpoints " + Some(about[f])
		}
		p.Findings[i].Text = strings.Replace(f.Text, "%s", who, 1)
	}
	for i := range p.Dials {
		if d := &p.Dials[i]; counts(d) && !d.Endpoint && !ex.expected(d) && len(p.Findings) == 0 {
			f := ex.destinationFails(d)
			if d.From == FromClient {
				f.Advice += p.atClient()
			}
			p.Findings = append(p.Findings, f)
		}
	}
}

// Fails reports whether the probe found something wrong. A nil one did not.
func (p *Probe) Fails() bool { return p != nil && len(p.Findings) > 0 }

func (d *Dial) works() bool {
	return slices.Contains([]Result{Connected, Answered, Silent, NotDialed}, d.Result)
}

// expected reports whether a dial of the destination ends as it should.
func (ex *Explanation) expected(d *Dial) bool {
	switch ex.Action {
	case "reject":
		return d.Result == Refused || d.Result == NotDialed
	case "drop":
		return d.Result == TimedOut || d.Result == Silent || d.Result == NotDialed
	}
	return d.works()
}

// endpoint says why a dial of an endpoint fails. The text has %s for endpoints of which it is so.
func (p *Probe) endpoint(d *Dial, protocol string) Finding {
	fromHere := slices.IndexFunc(p.Dials, func(x Dial) bool { return x.From == Here && x.To == d.To && x.works() })
	const who = "%s"
	if d.From == FromClient && fromHere >= 0 {
		return Finding{fmt.Sprintf("%s answers the node, and not the client: %s", who, d.why()),
			"look for a NetworkPolicy that keeps the client away" + p.atClient()}
	}
	port := d.To[strings.LastIndexByte(d.To, ':')+1:]
	switch d.Result {
	case Refused:
		return Finding{fmt.Sprintf("%s refuses connections: nothing listens on port %s/%s there, or a firewall refuses it", who, port, protocol),
			"compare targetPort of the Service with the port on which the program in the pod listens, and see its log"}
	case TimedOut:
		return Finding{fmt.Sprintf("%s does not answer within %s: its pod is gone or hangs, or something drops the packet or its answer, such as a NetworkPolicy", who, d.patience()),
			"look at the pod, its NetworkPolicies, and the way between the nodes"}
	case Unreachable:
		return Finding{fmt.Sprintf("%s cannot be reached: %s", who, d.why()), "see ip route get with its address, ip neigh, and whether the node of the endpoint runs"}
	}
	return Finding{fmt.Sprintf("%s cannot be dialed: %s", who, d.why()), "see the error of the system"}
}

// atClient says where else to look, if only the client fails: at what may drop packets of its
// interface, which explain names, and in its own network.
func (p *Probe) atClient() string {
	text := ", at what above may drop it, and at the routes and rules of the client's own network"
	if p.Enter != "" {
		text += fmt.Sprintf(": %[1]s ip route; %[1]s nft list ruleset", p.Enter)
	}
	return text
}

// destinationFails says that the destination fails though its endpoints work.
func (ex *Explanation) destinationFails(d *Dial) Finding {
	text := fmt.Sprintf("%s does not answer as it should: %s", d.To, d.why())
	switch {
	case ex.Action == "forward":
		return Finding{fmt.Sprintf("the Service fails at %s, though its endpoints answer: %s", d.To, d.why()), "look at what is said above about the node, its rules and connection tracking"}
	case ex.Action == "pass":
		return Finding{text, "no Service has this destination: look at its own host"}
	}
	return Finding{text, "another program may answer there, or the rules are not those that should be"}
}

func (d *Dial) why() string {
	if d.Reason == "" {
		return string(d.Result)
	}
	return d.Reason
}

func (d *Dial) time() string {
	t := time.Duration(d.Milliseconds * float64(time.Millisecond))
	if t < 10*time.Millisecond {
		return t.Round(10 * time.Microsecond).String()
	}
	return t.Round(time.Millisecond).String()
}

// patience is how long nobody answered, in tenths of a second.
func (d *Dial) patience() time.Duration {
	return time.Duration(d.Milliseconds * float64(time.Millisecond)).Round(100 * time.Millisecond)
}

// print prints what was dialed.
func (p *Probe) print(w *page, protocol string) {
	if p == nil {
		return
	}
	fmt.Fprintf(w, "\nDialed over %s:\n", protocol)
	t := document.Table{Indent: "  ", Head: "FROM|TO|RESULT|TIME|PACKETS", Width: w.width}
	for i := range p.Dials {
		d := &p.Dials[i]
		to := d.To
		if d.Endpoint {
			to = "endpoint " + to
		}
		var row []document.Cell
		result := string(d.Result)
		if d.Result == Failed {
			result += ": " + d.why()
		}
		for _, text := range []string{d.From, to, result, d.time(), orDash(d.Packets.text())} {
			row = append(row, document.Plain(printable.Text(text)))
		}
		t.Rows = append(t.Rows, row)
	}
	t.Write(&w.Buffer)
	for _, text := range p.Untold {
		fmt.Fprintf(w, "  %s\n", w.wrap(printable.Text(text), 2))
	}
	if len(p.Findings) > 0 {
		fmt.Fprintf(w, "\nThe probe fails:\n")
	}
	for _, f := range p.Findings {
		fmt.Fprintf(w, "  %s\n", w.wrap(printable.Text(f.Text), 2))
		fmt.Fprintf(w, "  advice  %s\n", w.wrap(printable.Text(f.Advice), 10))
	}
}
