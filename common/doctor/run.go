// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"kubeproxy/common/condition"
	"kubeproxy/common/document"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/lease"
	"kubeproxy/common/printable"
	"kubeproxy/common/service"
	"kubeproxy/common/statusview"
)

// Check examines one thing. It changes nothing.
type Check struct {
	// Name is what it examines, in a few words.
	Name string
	// Look examines it. An error means that this was impossible. What keeps the proxy
	// from working is not an error but a Finding.
	Look func(ctx context.Context) (Seen, error)
}

// Seen is what a Check saw.
type Seen struct {
	Findings []Finding
	// Note says in a few words what was examined, or why there is nothing to examine.
	Note string
	// Absent means that there is nothing to examine.
	Absent bool
}

// NothingToSee returns what a Check saw that does not apply here.
func NothingToSee(format string, args ...any) Seen {
	return Seen{Note: fmt.Sprintf(format, args...), Absent: true}
}

// State is how a Check ended.
type State string

// The states of a Check.
const (
	OK      State = "ok"
	Found   State = "found"
	Skipped State = "skipped" // there is nothing to look at
	Failed  State = "failed"  // it could not look
)

// CheckResult is how one Check ended.
type CheckResult struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	Note  string `json:"note,omitempty"`
}

// Runner runs checks.
type Runner struct {
	Checks []Check
	// Timeout bounds each Check, which then counts as failed.
	Timeout time.Duration
	// Progress receives which checks still run, after Patience and then again after each
	// further Patience.
	Progress func(text string)
	Patience time.Duration
}

// parallel is how many checks run at once. Some wait for the network.
const parallel = 4

// Run runs all checks, and returns their results in the order of the checks, and the
// findings sorted.
func (r *Runner) Run(ctx context.Context) ([]CheckResult, []Finding) {
	results, found := make([]CheckResult, len(r.Checks)), make([][]Finding, len(r.Checks))
	p := &progress{running: make([]bool, len(r.Checks))}
	defer p.report(r)()
	var group errgroup.Group
	group.SetLimit(parallel)
	for i, c := range r.Checks {
		group.Go(func() error {
			p.set(i, begun)
			defer p.set(i, ended)
			results[i], found[i] = c.run(ctx, r.Timeout)
			return nil
		})
	}
	_ = group.Wait() // no check returns an error
	var all []Finding
	for _, f := range found {
		all = append(all, f...)
	}
	return results, sorted(all)
}

// run runs c, but does not wait for longer than timeout, even if a call hangs.
func (c Check) run(ctx context.Context, timeout time.Duration) (CheckResult, []Finding) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	type outcome struct {
		seen Seen
		err  error
	}
	done := make(chan outcome, 1)
	go func() {
		seen, err := c.Look(ctx)
		done <- outcome{seen, err}
	}()
	var o outcome
	select {
	case o = <-done:
	case <-ctx.Done():
		o.err = fmt.Errorf("no answer within %s", timeout)
	}
	result := CheckResult{Name: c.Name, State: OK, Note: o.seen.Note}
	switch {
	case o.err != nil:
		result.State, result.Note = Failed, strings.Join(strings.Fields(o.err.Error()), " ")
	case len(o.seen.Findings) > 0:
		result.State = Found
	case o.seen.Absent:
		result.State = Skipped
	}
	return result, o.seen.Findings
}

// progress records which checks run.
type progress struct {
	mu       sync.Mutex
	running  []bool
	finished int
}

type step int

const (
	begun step = iota
	ended
)

func (p *progress) set(i int, s step) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running[i] = s == begun
	if s == ended {
		p.finished++
	}
}

// report calls Progress of r from time to time, until end is called.
func (p *progress) report(r *Runner) (end func()) {
	if r.Progress == nil {
		return func() {}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(r.Patience)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				return
			case <-tick.C:
				r.Progress(p.text(r.Checks))
			}
		}
	}()
	return func() {
		close(stop)
		<-stopped
	}
}

func (p *progress) text(checks []Check) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for i, running := range p.running {
		if running {
			names = append(names, checks[i].Name)
		}
	}
	return fmt.Sprintf("%d of %d checks done, still looking at: %s", p.finished, len(checks), strings.Join(names, ", "))
}

// Services returns what the proxy serves, as far as its answer has it: names, ClusterIPs, NodePorts
// and health check node ports. The answer does not say which addresses answer NodePorts,
// so all addresses count. Services returns nil if nobody answered.
func (p *Proxy) Services() *service.Snapshot {
	if p.Answer == nil {
		return nil
	}
	var ports []*service.Port
	for _, s := range p.Answer.Services {
		for i := range s.Ports {
			ports = append(ports, portOf(&s, &s.Ports[i]))
		}
	}
	return service.New(p.Answer.Generation, &service.Node{Name: p.Answer.Node, NodePorts: service.AnyAddress()}, ports)
}

func portOf(s *servicestate.Service, p *servicestate.Port) *service.Port {
	port := &service.Port{Name: service.PortName{Namespace: s.Namespace, Name: s.Name, Port: p.Port}}
	for _, protocol := range []service.Protocol{service.TCP, service.UDP, service.SCTP} {
		if strings.EqualFold(p.Protocol, protocol.String()) {
			port.Name.Protocol = protocol
		}
	}
	if p.Family == service.IPv6.String() {
		port.Family = service.IPv6
	}
	if s.HealthCheck != nil {
		port.HealthCheck = s.HealthCheck.Port
	}
	for _, f := range p.Frontends {
		addr, err := netip.ParseAddr(f.Address)
		switch {
		case f.Kind == service.NodePort.String():
			port.Frontends = append(port.Frontends, service.Frontend{Kind: service.NodePort, Port: f.Port})
		case f.Kind == service.ClusterIP.String() && err == nil:
			port.Frontends = append(port.Frontends, service.Frontend{Kind: service.ClusterIP, Addr: addr, Port: f.Port})
		}
	}
	return port
}

// Proxy is the state of the proxy that runs on the node, as kube-proxy status shows it.
type Proxy struct {
	Answer *statusview.Answer // nil if nobody answered
	Err    error              // why not
}

// AskProxy asks the proxy at the metrics server of q.
func AskProxy(ctx context.Context, q statusview.Query) *Proxy {
	a, err := q.Ask(ctx)
	return &Proxy{a, err}
}

// String describes the proxy in a few words, empty if nobody answered.
func (p *Proxy) String() string {
	if p.Answer == nil {
		return ""
	}
	return fmt.Sprintf("kube-proxy %s answers at %s, mode %s, node %s", p.Answer.Version, p.Answer.Server, p.Answer.Mode, p.Answer.Node)
}

// covered are the conditions of a proxy that a topic of its own describes, by the
// beginning of their names. All others become Findings of ProxyCondition.
var covered = []struct {
	prefix condition.Name
	topic  Topic
	fix    string
}{
	{condition.Setting.Of("net.ipv4.ip_forward"), IPForward, "sysctl -w net.ipv4.ip_forward=1"},
	{condition.Setting.Of("net.ipv6.conf.all.forwarding"), IPForward, "sysctl -w net.ipv6.conf.all.forwarding=1"},
	{condition.Setting, Setting, ""},
	{"other-", OtherProxy, ""},
	{condition.Leftovers, Leftovers, ""},
	{condition.DynamicPorts, DynamicPorts, ""},
	{condition.SharedMark, SharedMark, ""},
}

// SubjectOtherProxy is the Subject of OtherProxy, so that the proxy and the node report one
// Finding.
const SubjectOtherProxy = "other-proxy"

// Silent is what a node has of a proxy that does not answer at its metrics server.
type Silent struct {
	// Node is the name of the node that is asked for.
	Node string
	// Holder returns the proxy that programs the node, see lease.QueryHolder.
	Holder func(context.Context) (lease.Identity, error)
	// Hung describes the only process of a proxy, and says what to do about it. It returns an
	// empty text if none runs, or several do, of which the check of other proxies tells.
	Hung func() (what, advice string, several bool)
	// Absent says what the node does without a proxy, and how to start one.
	Absent func(context.Context) (what, advice string)
	// BeforeStart is whether the findings are for a start, so that no proxy has to run.
	BeforeStart bool
}

// Check returns the Check of what the running proxy itself reports. Its conditions are
// the only source of what keeps traffic from flowing, here as in kube-proxy status.
func (p *Proxy) Check(s Silent) Check {
	return Check{Name: "running proxy", Look: func(ctx context.Context) (Seen, error) {
		if p.Answer != nil {
			note := "health, sources and conditions" + silentNote(len(p.Answer.Silent))
			return Seen{Findings: append(p.ofAnother(s.Node), proxyFindings(&p.Answer.Health)...), Note: note}, nil
		}
		return s.look(ctx, p.Err)
	}}
}

// ofAnother says that the proxy is that of another node than the one that is asked for.
func (p *Proxy) ofAnother(node string) []Finding {
	if is := p.Answer.Node; is != node && is != "" && node != "" {
		return []Finding{{Topic: NodeUnknown, Subject: node, Severity: Risk, Follows: []Topic{NodeUnknown},
			What:   fmt.Sprintf("the running proxy is that of node %s, and --hostname-override or hostnameOverride asks for %s: what is said of the proxy and of packets is about %s, and of objects about %s", is, node, is, node),
			Advice: "leave it out here, or start the proxy with that name"}}
	}
	return nil
}

// silentNote counts endpoints that do not answer. That is no fault of the node.
func silentNote(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; 1 endpoint does not answer, see kube-proxy status"
	}
	return fmt.Sprintf("; %d endpoints do not answer, see kube-proxy status", n)
}

// look finds what became of the proxy that does not answer, because of fault.
func (s Silent) look(ctx context.Context, fault error) (Seen, error) {
	found := func(f Finding) (Seen, error) { return Seen{Findings: []Finding{f}}, nil }
	who, err := s.Holder(ctx)
	hung, advice, several := s.Hung()
	switch {
	case err == nil:
		return found(Finding{Topic: ProxySilent, What: fmt.Sprintf("%s programs this node, and cannot be asked: %v", who, fault),
			Advice: "give the address of its metrics server with --server, or its configuration with --config"})
	case several || s.BeforeStart && hung != "":
		return NothingToSee("none answers"), nil
	case hung != "":
		return found(Finding{Topic: ProxySilent, Severity: Blocks, What: fmt.Sprintf("%s, and does not answer: %v", hung, fault), Advice: advice})
	case errors.Is(err, os.ErrDeadlineExceeded):
		return found(Finding{Topic: ProxySilent, Severity: Blocks, What: err.Error(),
			Advice: "it runs in another container or machine: look at the state of its process there, and restart it"})
	case s.BeforeStart:
		return NothingToSee("none runs, as before a start"), nil
	}
	what, advice := s.Absent(ctx)
	return found(Finding{Topic: ProxyAbsent, What: what, Advice: advice})
}

func proxyFindings(r *health.Report) []Finding {
	var all []Finding
	unread := slices.ContainsFunc(r.Sources, func(s health.SourceReport) bool { return !s.Synced })
	for _, family := range slices.Sorted(maps.Keys(r.Status)) {
		s := r.Status[family]
		if (s.Healthy || s.Blocked) && !s.Failing { // the condition that blocks is a finding
			continue
		}
		text := strings.TrimPrefix(s.Reason+": "+s.LastError, ": ")
		var follows []Topic
		if unread && s.Generation == 0 {
			follows = sourceFaults
		}
		all = append(all, Finding{Topic: ProxyUnhealthy, Follows: follows, Subject: family, What: fmt.Sprintf("%s is not programmed: %s", family, strings.TrimSuffix(text, ": ")),
			Advice: "read the log of the proxy; kube-proxy status shows whether a later round succeeds"})
	}
	all = append(all, sourceFindings(r.Sources)...)
	for _, name := range slices.Sorted(maps.Keys(r.Conditions)) {
		known := name == string(condition.Sources) && slices.ContainsFunc(r.Sources, func(s health.SourceReport) bool { return s.Error != "" })
		if name != string(condition.NodePorts) && !known { // that counts what the checks of the node list, and is up to a minute old
			all = append(all, conditionFinding(r, name))
		}
	}
	return all
}

// sourceFaults are the topics that explain why the proxy does not know what to serve.
var sourceFaults = []Topic{Kubeconfig, APIServer, Manifest}

// manifestSource is the name of the source that reads files.
const manifestSource = "manifests"

// request is what errors of different kinds of objects do not have in common.
var request = regexp.MustCompile(`^(watch|list) \S+ at the API server: |\b(Get|Post) "[^"]*": `)

// sourceFindings has a Finding for each fault of the sources. Kinds of objects that cannot be read
// for the same reason are one.
func sourceFindings(sources []health.SourceReport) (all []Finding) {
	var faults []string
	names := map[string][]string{}
	for _, s := range sources {
		fault := "the proxy has had no contact for long with"
		switch {
		case s.Name == manifestSource && s.Error != "":
			all = append(all, Finding{Topic: Manifest, Subject: s.Name, What: "the proxy cannot use all of the manifests: " + s.Error, Advice: "kube-proxy status shows all errors of the sources"})
			continue
		case s.Error != "":
			fault = "the proxy cannot read, because of " + request.ReplaceAllString(s.Error, "")
		case !s.Synced:
			fault = "the proxy has not read yet"
		case !s.Stale:
			continue
		}
		if names[fault] == nil {
			faults = append(faults, fault)
		}
		names[fault] = append(names[fault], s.Name)
	}
	for _, fault := range faults {
		n := names[fault]
		all = append(all, Finding{Topic: APIServer, Subject: strings.Join(n, ","), What: fmt.Sprintf("%s: %s", fault, strings.Join(n, ", ")), Severity: Risk,
			Advice: "kube-proxy status shows all errors of the sources", Follows: []Topic{Kubeconfig, APIServer}})
	}
	return all
}

func conditionFinding(r *health.Report, name string) Finding {
	f := Finding{Topic: ProxyCondition, Subject: name, What: fmt.Sprintf("condition %s: %s", name, r.Conditions[name]), Severity: Risk}
	if slices.Contains(r.Blocked, name) {
		f.Severity = Blocks
	}
	switch condition.Name(name) {
	case condition.Sources, condition.NodeObject, condition.ServiceCIDRs, condition.Kubeconfig:
		f.Follows = sourceFaults
	}
	for _, c := range covered {
		if strings.HasPrefix(name, string(c.prefix)) {
			f.Topic, f.Subject, f.Fix = c.topic, strings.TrimPrefix(name, string(condition.Setting)), c.fix
			if c.topic == OtherProxy {
				f.Subject = SubjectOtherProxy
			}
			break
		}
	}
	if f.Fix == "" {
		f.Advice = "kube-proxy status shows when it is over"
	}
	return f
}

// Report is what -o json prints. New versions may add fields, but must not rename or remove any.
type Report struct {
	Node   string   `json:"node"`
	System string   `json:"system"`
	Modes  []string `json:"modes"` // that were looked at
	// Proxy is the service proxy that runs on the node, empty for none.
	Proxy string `json:"proxy,omitempty"`
	// BeforeStart is whether the findings are for a start.
	BeforeStart bool `json:"beforeStart,omitempty"`
	// OK is whether every check could look and found nothing.
	OK       bool          `json:"ok"`
	Findings []Finding     `json:"findings"`
	Checks   []CheckResult `json:"checks"`
}

// The exit codes of kube-proxy doctor.
const (
	ExitFindings = 1
	ExitFailed   = 2 // a check could not look
)

// ExitCode returns 0 if all checks could look and found nothing.
func (r *Report) ExitCode() int {
	switch {
	case r.count(Failed) > 0:
		return ExitFailed
	case len(r.Findings) > 0:
		return ExitFindings
	}
	return 0
}

func (r *Report) count(s State) int {
	n := 0
	for _, c := range r.Checks {
		if c.State == s {
			n++
		}
	}
	return n
}

// Data writes r in a format for programs.
func (r *Report) Data(w io.Writer, format string) error {
	r.OK = r.ExitCode() == 0
	return document.WriteData(w, format, r)
}

// View is how a report is printed.
type View struct {
	Colour bool // for a terminal
	All    bool // findings that follow from others, too, which are counted otherwise
	Width  int  // how many columns a line may have, 0 for document.Width
}

// Text writes r for a person. Commands stay whole, to be copied.
func (v View) Text(w io.Writer, r *Report) error {
	p := &printer{view: v}
	p.head(r)
	p.checks(r.Checks)
	for i := range r.Findings {
		if f := &r.Findings[i]; f.Cause == "" || v.All {
			p.finding(i+1, r)
		}
	}
	p.verdict(r)
	_, err := w.Write(p.text.Bytes())
	return err
}

type printer struct {
	view View
	text bytes.Buffer
}

func (p *printer) line(format string, args ...any) { fmt.Fprintf(&p.text, format+"\n", args...) }

func (p *printer) width() int { return cmp.Or(p.view.Width, document.Width) }

func (p *printer) paint(c document.Colour, text string) string {
	if !p.view.Colour {
		return text
	}
	return c.Paint(text)
}

// field prints a word and, beside it, a text in lines of its own column.
func (p *printer) field(indent int, name, text string) {
	const column = 9
	margin := strings.Repeat(" ", indent)
	for _, line := range document.Wrap(oneLine(text), p.width()-indent-column) {
		p.line("%s%-*s%s", margin, column, name, line)
		name = ""
	}
}

func (p *printer) head(r *Report) {
	modes := "mode " + strings.Join(r.Modes, ", ")
	if len(r.Modes) > 1 {
		modes = "modes " + strings.Join(r.Modes, ", ")
	}
	p.field(0, "node", fmt.Sprintf("%s, %s, %s", r.Node, r.System, modes))
	proxy := r.Proxy
	switch {
	case proxy == "" && r.BeforeStart:
		proxy = "none answers here; these are the findings for a start"
	case proxy == "":
		proxy = "none answers here"
	}
	p.field(0, "proxy", proxy)
	p.line("")
}

var stateColours = map[State]document.Colour{OK: document.Green, Found: document.Red, Failed: document.Yellow}

// checks prints a line for each check.
func (p *printer) checks(all []CheckResult) {
	names := 0
	for _, c := range all {
		names = max(names, utf8.RuneCountInString(c.Name))
	}
	const indent, states = 2, len(Skipped) + 2
	for _, c := range all {
		state := p.paint(stateColours[c.State], fmt.Sprintf("%-*s", states, c.State))
		margin := strings.Repeat(" ", indent+states+names+2)
		lines := document.Wrap(oneLine(c.Note), p.width()-len(margin))
		p.line("%s", strings.TrimRight(fmt.Sprintf("%*s%s%-*s  %s", indent, "", state, names, c.Name, lines[0]), " "))
		for _, line := range lines[1:] {
			p.line("%s%s", margin, line)
		}
	}
	p.line("")
}

// finding prints the finding of r that is number n.
func (p *printer) finding(n int, r *Report) {
	f := &r.Findings[n-1]
	mark := p.paint(document.Yellow, "RISK")
	if f.severity() == Blocks {
		mark = p.paint(document.Red, "BLOCKS")
	}
	of := ""
	if f.Mode != "" {
		of = ", mode " + f.Mode
	}
	p.line("%d. %s  %s%s", n, mark, p.paint(document.Bold, string(f.Topic)), of)
	const indent = 3
	p.field(indent, "what", f.What)
	if f.Cause != "" {
		p.field(indent, "cause", string(f.Cause)+", see there")
	} else if follow := r.consequences(f.Topic); follow == 1 && !p.view.All {
		p.field(indent, "also", "1 consequence, which --all shows")
	} else if follow > 1 && !p.view.All {
		p.field(indent, "also", fmt.Sprintf("%d consequences, which --all shows", follow))
	}
	p.field(indent, "why", f.Topic.Why())
	if f.Fix != "" {
		p.line("%*s%-9s%s", indent, "", "fix", oneLine(f.Fix)) // not wrapped, to be copied
	}
	if f.Advice != "" {
		p.field(indent, "advice", f.Advice)
	}
	p.field(indent, "more", f.Topic.Link())
	p.line("")
}

// consequences counts the findings that t explains.
func (r *Report) consequences(t Topic) int {
	n := 0
	for i := range r.Findings {
		if t != "" && r.Findings[i].Cause == t || t == "" && r.Findings[i].Cause != "" {
			n++
		}
	}
	return n
}

// verdict prints the result.
func (p *printer) verdict(r *Report) {
	checked := len(r.Checks) - r.count(Skipped)
	text := p.paint(document.Green, "nothing found")
	switch n := len(r.Findings) - r.consequences(""); {
	case n == 1:
		text = p.paint(document.Red, "1 finding")
	case n > 1:
		text = p.paint(document.Red, fmt.Sprintf("%d findings", n))
	}
	if n := r.count(Failed); n > 0 {
		text += ", " + p.paint(document.Yellow, fmt.Sprintf("%d of %d checks could not look", n, checked))
	}
	p.line("%s", text)
}

// oneLine converts foreign text to one line without control characters.
func oneLine(s string) string { return printable.Text(strings.Join(strings.Fields(s), " ")) }

// Server is a server of the proxy.
type Server struct {
	Name string         // "health" or "metrics"
	Flag string         // that sets its address
	Addr netip.AddrPort // where it is to listen
}

// Holder is a program that listens on an address.
type Holder struct {
	Name string         // empty for none
	Addr netip.AddrPort // where it listens
	End  string         // how to end it, to follow "or "
}

// TakenPorts checks that servers of the proxy can listen. holder returns who prevents that,
// other service proxies left out.
func TakenPorts(servers []Server, holder func(netip.AddrPort) Holder) Seen {
	var names []string
	var seen Seen
	for _, s := range servers {
		names = append(names, fmt.Sprintf("%s %s", s.Name, s.Addr))
		if h := holder(s.Addr); h.Name != "" {
			seen.Findings = append(seen.Findings, Finding{
				Topic: PortTaken, Subject: s.Addr.String(), What: fmt.Sprintf("the %s server of the proxy cannot listen on %s: %s listens on %s", s.Name, s.Addr, h.Name, h.Addr),
				Advice: "give the server of the proxy another address with --" + s.Flag + ", or " + h.End,
			})
		}
	}
	seen.Note = strings.Join(names, ", ")
	return seen
}
