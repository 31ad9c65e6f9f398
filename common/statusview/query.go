// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package statusview asks a running proxy for its state and prints the answer.
//
// A Query goes in: what to ask, and the address of the metrics server. An Answer comes
// out, which a View prints as a table or as JSON, and the exit code of kube-proxy status.
// The package parses no command line and reads no configuration.
package statusview

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"kubeproxy/common/document"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/printable"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/common/suggest"
)

// DefaultServer is where the metrics server listens, unless configured otherwise.
const DefaultServer = "127.0.0.1:10249"

// Query is what to ask, and where.
type Query struct {
	Server  string // HOST:PORT of the metrics server
	Version string // of the program that asks, for the User-Agent

	// Reference selects Services, and those of one name by their ports. All is empty for all.
	service.Reference
	// Selects selects by labels, unless nil.
	Selects func(labels map[string]string) bool
	Failing bool  // keep only Services that need attention
	Sort    Order // of Services, by name if empty
}

// Order is what Services are sorted by.
type Order string

// The orders.
const (
	ByName      Order = "name"
	ByState     Order = "state"     // the worst first
	ByEndpoints Order = "endpoints" // the fewest first
	BySince     Order = "since"     // the latest change first
)

// Orders lists them.
var Orders = []Order{ByName, ByState, ByEndpoints, BySince}

// sort sorts Services. Equal ones keep the order of names.
func (o Order) sort(all []servicestate.Service) {
	compare := map[Order]func(a, b *servicestate.Service) int{
		ByState: func(a, b *servicestate.Service) int { return cmp.Compare(urgency(b), urgency(a)) },
		ByEndpoints: func(a, b *servicestate.Service) int {
			return cmp.Compare(leastEndpoints(a), leastEndpoints(b))
		},
		BySince: func(a, b *servicestate.Service) int { return sinceOrNever(b).Compare(sinceOrNever(a)) },
	}[o]
	if compare != nil {
		slices.SortStableFunc(all, func(a, b servicestate.Service) int { return compare(&a, &b) })
	}
}

// urgency is greater for a Service in a worse state.
func urgency(s *servicestate.Service) int {
	switch colour := stateOf(s).Colour; {
	case colour == red:
		return 3
	case notProgrammed(s):
		return 2
	case colour == yellow:
		return 1
	}
	return 0
}

func leastEndpoints(s *servicestate.Service) int {
	if len(s.Ports) == 0 {
		return 0
	}
	return slices.MinFunc(s.Ports, func(a, b servicestate.Port) int { return cmp.Compare(a.Endpoints, b.Endpoints) }).Endpoints
}

func sinceOrNever(s *servicestate.Service) time.Time {
	if _, since := sinceWhen(s); since != nil {
		return *since
	}
	return time.Time{}
}

// UnknownError is the answer of a proxy that does not know the Service, or a port of it.
type UnknownError struct{ Text string }

// Error implements error.
func (e *UnknownError) Error() string { return e.Text }

// noAnswerHint is the advice for a connection that fails.
const noAnswerHint = "is the proxy running on this node? If its metrics server has another address, name it with --server HOST:PORT, or give the proxy's --config FILE"

// maxResponse bounds a response: 10,000 Services take some megabytes.
const maxResponse = 1 << 30

// Fetch returns another path of the metrics server, and whether the proxy accepted the request.
// Without such an answer, the error says why, and a remedy.
func (q *Query) Fetch(ctx context.Context, path string) (body []byte, accepted bool, err error) {
	status, body, err := q.get(ctx, path)
	switch {
	case err != nil:
		return nil, false, err
	case status != http.StatusOK && status != http.StatusBadRequest || !json.Valid(body):
		return nil, false, q.identifyServer(ctx, status)
	}
	return body, status == http.StatusOK, nil
}

// ErrNoPage means that the proxy does not serve a page.
var ErrNoPage = errors.New("the proxy does not serve it")

// Page returns any other page of the metrics server.
func (q *Query) Page(ctx context.Context, path string) ([]byte, error) {
	status, body, err := q.get(ctx, path)
	if err != nil {
		return nil, err
	}
	if status == http.StatusNotFound {
		return nil, fmt.Errorf("%s%s: %w", q.Server, path, ErrNoPage)
	}
	if status != http.StatusOK {
		first, _, _ := strings.Cut(string(body), "\n")
		return nil, fmt.Errorf("%s answers %s with HTTP status %d: %.200s", q.Server, path, status, sanitize(first))
	}
	return body, nil
}

// Ask returns the state of the proxy and of the Services that q selects.
func (q *Query) Ask(ctx context.Context) (*Answer, error) {
	r, err := q.services(ctx, q.Namespace, q.Name)
	if _, unknown := errors.AsType[*UnknownError](err); unknown {
		return nil, q.suggest(ctx, err.Error())
	}
	if err != nil {
		return nil, err
	}
	if q.Name != "" && q.Namespace == "" {
		err = q.named(ctx, r)
	}
	r.Services = slices.DeleteFunc(r.Services, func(s servicestate.Service) bool { return q.Selects != nil && !q.Selects(s.Labels) })
	if err == nil && q.Port+q.Protocol != "" {
		err = q.keepPorts(r.Services)
	}
	if err != nil {
		return nil, err
	}
	return q.evaluate(r), nil
}

// named keeps Services of that name in any namespace, a single one with its endpoints.
func (q *Query) named(ctx context.Context, r *servicestate.Response) error {
	r.Services = slices.DeleteFunc(r.Services, func(s servicestate.Service) bool { return s.Name != q.Name })
	if len(r.Services) == 0 {
		return q.suggest(ctx, fmt.Sprintf("no Service named %s is known to the proxy in any namespace: it may be headless, of type ExternalName, without ports, or left to another proxy", q.Name))
	}
	for i, s := range r.Services {
		one, err := q.services(ctx, s.Namespace, s.Name)
		if _, gone := errors.AsType[*UnknownError](err); gone {
			continue
		}
		if err != nil {
			return err
		}
		r.Services[i] = one.Services[0]
	}
	return nil
}

// suggest adds the Service that was meant to an error.
func (q *Query) suggest(ctx context.Context, text string) error {
	var names []string
	if r, err := q.services(ctx, "", ""); err == nil {
		for _, s := range r.Services {
			names = append(names, s.Namespace+"/"+s.Name)
		}
	}
	if near := suggest.Service(q.Namespace, q.Name, names); near != "" {
		text += "; did you mean " + sanitize(near) + "?"
	}
	return &UnknownError{text}
}

func (q *Query) keepPorts(all []servicestate.Service) error {
	var there []string
	kept := 0
	for i := range all {
		all[i].Ports = slices.DeleteFunc(all[i].Ports, func(p servicestate.Port) bool {
			there = append(there, strings.TrimPrefix(p.Port+"/"+strings.ToLower(p.Protocol), "/"))
			number := slices.ContainsFunc(p.Frontends, func(f servicestate.Frontend) bool { return strconv.Itoa(int(f.Port)) == q.Port })
			return q.Port != "" && p.Port != q.Port && !number || q.Protocol != "" && !strings.EqualFold(p.Protocol, q.Protocol)
		})
		kept += len(all[i].Ports)
	}
	if kept == 0 {
		return &UnknownError{sanitize(fmt.Sprintf("port %s: the Service has the ports %s: want one of them", strings.Trim(q.Port+"/"+q.Protocol, "/"), strings.Join(unique(there), ", ")))}
	}
	return nil
}

// services asks for the Services of a namespace and name, "" for all.
func (q *Query) services(ctx context.Context, namespace, name string) (*servicestate.Response, error) {
	path := "/services"
	if namespace != "" {
		path += "/" + url.PathEscape(namespace)
		if name != "" {
			path += "/" + url.PathEscape(name)
		}
	}
	status, body, err := q.get(ctx, path)
	if err != nil {
		return nil, err
	}
	var response struct {
		servicestate.Response
		Error string `json:"error"`
	}
	parsed := json.Unmarshal(body, &response) == nil
	switch {
	case status == http.StatusOK && parsed && response.Services != nil && response.Health.Status != nil:
		return &response.Response, nil
	case status == http.StatusNotFound && parsed && response.Error != "":
		return nil, &UnknownError{sanitize(response.Error)}
	case status == http.StatusForbidden && bytes.Contains(body, []byte("--expose-admin-pages")):
		return nil, fmt.Errorf("%s shows Services to its own node only: run this command there or in the proxy's pod, or give the proxy --expose-admin-pages", q.Server)
	case status == http.StatusOK:
		return nil, fmt.Errorf("%s answers something else than the state of Services: want the metrics server of this proxy, by default %s", q.Server, DefaultServer)
	}
	return nil, q.identifyServer(ctx, status)
}

// wantsTLS begins the answer of a server of HTTPS to a request of HTTP, see net/http.
const wantsTLS = "Client sent an HTTP request to an HTTPS server"

// get returns a response's status and body, by HTTP, or HTTPS if the server requires that, with any
// certificate on loopback: the answer comes from this machine.
func (q *Query) get(ctx context.Context, path string) (int, []byte, error) {
	client := &http.Client{
		// HTTP proxies in the environment do not apply to the own node.
		Transport: &http.Transport{DisableKeepAlives: true},
		// The proxy redirects nobody. Who does may be a program of any user that got the
		// port first, and sends this command to places that it cannot reach itself.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	status, body, err := q.getBy(ctx, client, "http://"+q.Server+path)
	if err != nil || status != http.StatusBadRequest || !bytes.HasPrefix(body, []byte(wantsTLS)) {
		return status, body, err
	}
	if addr, err := netip.ParseAddrPort(q.Server); err == nil && addr.Addr().IsLoopback() || strings.HasPrefix(q.Server, "localhost:") {
		client.Transport = &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	}
	return q.getBy(ctx, client, "https://"+q.Server+path)
}

func (q *Query) getBy(ctx context.Context, client *http.Client, address string) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("ask %s: %w", q.Server, err)
	}
	r.Header.Set("User-Agent", "kube-proxy-status/"+q.Version)
	r.Host = "localhost" // the server knows no other name of the node
	// The end of ctx hides what it interrupted.
	var looking, connected atomic.Bool
	response, err := client.Do(r.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		DNSStart: func(httptrace.DNSStartInfo) { looking.Store(true) },
		DNSDone:  func(httptrace.DNSDoneInfo) { looking.Store(false) },
		ConnectDone: func(_, _ string, err error) {
			if err == nil {
				connected.Store(true)
			}
		},
	})))
	var body []byte
	if err == nil {
		defer response.Body.Close()
		body, err = io.ReadAll(io.LimitReader(response.Body, maxResponse))
	}
	switch late := timedOut(err); {
	case late && looking.Load():
		return 0, nil, fmt.Errorf("ask %s: no name server answers in time: want the name or address of the node in --server", q.Server)
	case late && !connected.Load():
		return 0, nil, fmt.Errorf("no connection to %s in time: the address is wrong, or a firewall drops what is sent there; name another with --server HOST:PORT, or wait longer with --timeout", q.Server)
	case err != nil:
		return 0, nil, q.connectError(err)
	}
	return response.StatusCode, body, nil
}

func timedOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
}

// connectError describes why there is no response, and a remedy.
func (q *Query) connectError(err error) error {
	if inner, ok := errors.AsType[*url.Error](err); ok {
		err = inner.Err // without the URL, which repeats the address
	}
	op, network := errors.AsType[*net.OpError](err)
	_, name := errors.AsType[*net.DNSError](err)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("ask %s: interrupted", q.Server)
	case name:
		return fmt.Errorf("ask %s: %w: want the name or address of the node in --server", q.Server, err)
	case network && op.Op == "dial":
		return fmt.Errorf("nobody answers at %s (%w): %s", q.Server, op.Err, noAnswerHint)
	case timedOut(err):
		return fmt.Errorf("%s accepts connections but does not answer in time: the proxy may hang or the node be overloaded; wait longer with --timeout, and see the log of the proxy", q.Server)
	case strings.Contains(err.Error(), "malformed HTTP"),
		strings.Contains(err.Error(), "readLoopPeekFailLocked: %!w(<nil>)"): // a response before the request
		return fmt.Errorf("%s does not speak HTTP: want the metrics server of the proxy, by default %s", q.Server, DefaultServer)
	}
	return fmt.Errorf("ask %s: the connection broke: %w", q.Server, err)
}

// identifyServer finds out which program responded, if it does not know /services.
func (q *Query) identifyServer(ctx context.Context, status int) error {
	if code, mode, err := q.get(ctx, "/proxyMode"); err == nil && code == http.StatusOK && len(mode) < 32 {
		return fmt.Errorf("a kube-proxy in mode %s answers at %s that cannot tell the state of Services: it is another program, or an older version of this one", sanitize(string(mode)), q.Server)
	}
	if code, body, err := q.get(ctx, "/healthz"); err == nil && (code == http.StatusOK || code == http.StatusServiceUnavailable) && strings.Contains(string(body), `"lastUpdated"`) {
		return fmt.Errorf("%s is the health server of a kube-proxy: want its metrics server, by default %s", q.Server, DefaultServer)
	}
	return fmt.Errorf("what answers at %s is not this proxy (HTTP status %d): want its metrics server, by default %s", q.Server, status, DefaultServer)
}

// DialAddress completes an address, and converts a listen address to one to connect to.
func DialAddress(s string) (string, error) {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		_, port, _ = net.SplitHostPort(DefaultServer)
		host = strings.TrimSuffix(strings.TrimPrefix(s, "["), "]")
	}
	_, badPort := strconv.ParseUint(port, 10, 16)
	if _, err := netip.ParseAddr(host); badPort != nil || port == "0" || err != nil && strings.ContainsAny(host, ":/[]") {
		return "", fmt.Errorf("--server: %q is no address: want HOST or HOST:PORT, such as 127.0.0.1:10249 or [::1]:10249", s)
	}
	addr, err := netip.ParseAddr(host)
	switch {
	case host == "" || err == nil && addr == netip.IPv4Unspecified():
		host = "127.0.0.1"
	case err == nil && addr == netip.IPv6Unspecified():
		host = "::1"
	}
	return net.JoinHostPort(host, port), nil
}

// Answer is what -o json prints. New versions may add fields, but must not rename or remove any.
type Answer struct {
	Server string `json:"server"` // that was asked
	// OK is what the exit code says: the proxy is healthy, its latest rounds did not fail, nothing
	// keeps traffic from flowing, and all selected Services are programmed in full, whether they are
	// listed or not. For one Service that was selected by name, the state of the proxy matters only if
	// it keeps traffic of its IP families from flowing.
	OK      bool    `json:"ok"`
	Summary Summary `json:"summary"`
	servicestate.Response
}

// The exit codes of kube-proxy status.
const (
	ExitNotOK       = 1
	ExitUnreachable = 2
	ExitUnknown     = 3
)

// ExitCode returns the exit code for what Ask returned.
func ExitCode(a *Answer, err error) int {
	if _, unknown := errors.AsType[*UnknownError](err); unknown {
		return ExitUnknown
	}
	switch {
	case err != nil:
		return ExitUnreachable
	case !a.OK:
		return ExitNotOK
	}
	return 0
}

// UntilOK and the others are the Conditions of --wait.
const (
	UntilOK         = "ok"
	untilProgrammed = "programmed"
	untilAnswers    = "answers"
)

// Conditions lists what one can wait for.
var Conditions = []string{UntilOK, untilProgrammed, untilAnswers}

// Meets reports whether an answer meets a condition. nil is no answer.
func (a *Answer) Meets(condition string) bool {
	switch {
	case a == nil:
		return false
	case condition == UntilOK:
		return a.OK
	case condition == untilProgrammed:
		return a.Summary.Services > 0 && a.Summary.NotProgrammed == 0
	}
	return true
}

// Summary counts the selected Services.
type Summary struct {
	Services int `json:"services"`
	// NotProgrammed are Services not fully in force, Problems those with parts left out or
	// interpreted, Unserved those with a port that serves no client.
	NotProgrammed int `json:"notProgrammed"`
	Problems      int `json:"problems"`
	Unserved      int `json:"unserved"`
	// Unanswered are Services with a health check that is not answered on all addresses.
	Unanswered int `json:"unanswered"`
}

// evaluate sets OK for a response and keeps the part that q selects.
func (q *Query) evaluate(a *servicestate.Response) *Answer {
	services := a.Services
	d := &Answer{Server: q.Server, Response: *a}
	d.Summary.Services = len(services)
	for i := range services {
		d.Summary.add(&services[i])
	}
	well := a.Health.Healthy && !unsynced(&a.Health) && !failing(&a.Health) && len(a.Health.Blocked) == 0
	if q.Name != "" {
		well = !slices.ContainsFunc(services, func(s servicestate.Service) bool { return blocked(&s, a.Health.BlockedFamilies) })
	}
	d.OK = well && d.Summary.NotProgrammed == 0 && d.Summary.Problems == 0 && d.Summary.Unanswered == 0
	others := func(namespace, name string) bool {
		return !slices.ContainsFunc(services, func(s servicestate.Service) bool { return s.Namespace == namespace && s.Name == name })
	}
	d.Silent = slices.DeleteFunc(d.Silent, func(x servicestate.SilentEndpoint) bool { return others(x.Namespace, x.Name) })
	d.Ended = slices.DeleteFunc(d.Ended, func(x servicestate.EndedConnections) bool {
		return (q.Name != "" || q.Namespace != "") && others(x.Namespace, x.Name)
	})
	q.Sort.sort(services)
	if q.Failing {
		services = slices.DeleteFunc(services, func(s servicestate.Service) bool {
			return !notProgrammed(&s) && !unserved(&s) && !healthCheckUnanswered(&s)
		})
	}
	d.Services = services
	return d
}

// blocked reports that a Service has a port in one of families.
func blocked(s *servicestate.Service, families []string) bool {
	return slices.ContainsFunc(s.Ports, func(p servicestate.Port) bool { return slices.Contains(families, p.Family) })
}

// failing reports that a family's latest round failed as a whole, though not for
// long enough to call the proxy unhealthy.
func failing(r *health.Report) bool {
	for _, s := range r.Status {
		if s.Failing {
			return true
		}
	}
	return false
}

// unsynced reports that something was never read, such as a broken manifest.
func unsynced(r *health.Report) bool {
	return slices.ContainsFunc(r.Sources, func(s health.SourceReport) bool { return !s.Synced })
}

func (su *Summary) add(s *servicestate.Service) {
	if s.State != servicestate.Programmed {
		su.NotProgrammed++
	}
	if len(s.Problems) > 0 {
		su.Problems++
	}
	if unserved(s) {
		su.Unserved++
	}
	if healthCheckUnanswered(s) {
		su.Unanswered++
	}
}

// notProgrammed returns whether part of a Service is not in force.
func notProgrammed(s *servicestate.Service) bool {
	return s.State != servicestate.Programmed || len(s.Problems) > 0
}

// unserved returns whether a port of a Service serves no client anywhere. A traffic
// policy that leaves no endpoint on this node is in order.
func unserved(s *servicestate.Service) bool {
	return slices.ContainsFunc(s.Ports, func(p servicestate.Port) bool {
		return slices.ContainsFunc(p.Frontends, func(f servicestate.Frontend) bool {
			return slices.Contains([]servicestate.Reason{servicestate.NoAddress, servicestate.NoEndpoints, servicestate.NoSources, servicestate.NotReached, servicestate.UnsupportedByMode}, f.Reason)
		})
	})
}

// healthCheckUnanswered returns whether load balancers cannot reach the health check of a
// Service on this node, and so regard the node as failed.
func healthCheckUnanswered(s *servicestate.Service) bool {
	return s.HealthCheck != nil && s.HealthCheck.Error != ""
}

// Format is the form of what is printed.
type Format string

// The formats.
const (
	Table Format = "table" // for a terminal
	Wide  Format = "wide"  // a table with all columns and nothing shortened
	Name  Format = "name"  // of each Service, as commands take it
	JSON  Format = "json"
)

// data reports whether f is for programs.
func (f Format) data() bool {
	is, _ := document.IsData(string(f)) // its template was checked
	return is
}

// View is how an answer is printed.
type View struct {
	Format  Format
	Full    bool      // each Service in full, instead of the proxy and a line for each; not for JSON
	Failing bool      // of nodes, only those that are not well or differ from most
	Colour  bool      // for a terminal; not for JSON
	Width   int       // how many columns a line may have, 0 for document.Width
	Now     time.Time // the end of durations
}

// Print writes an answer to w.
func (v *View) Print(w io.Writer, a *Answer) error {
	if v.Format.data() {
		return document.WriteData(w, string(v.Format), a)
	}
	p := &printer{colour: v.Colour, wide: v.Format == Wide, width: v.width(), now: v.Now}
	switch {
	case v.Format == Name:
		for _, s := range a.Services {
			p.line("svc/%s/%s", sanitize(s.Namespace), sanitize(s.Name))
		}
	case v.Full:
		p.services(a)
	default:
		p.overview(a)
	}
	_, err := w.Write(p.text.Bytes())
	return err
}

// width is how many columns a line may have. In a wide table it is as long as it is.
func (v *View) width() int {
	if v.Format == Wide {
		return document.Unlimited
	}
	return cmp.Or(v.Width, document.Width)
}

// sanitize converts foreign text to one line without control characters.
func sanitize(s string) string { return printable.Text(strings.Join(strings.Fields(s), " ")) }

// Watch follows what a proxy answers.
type Watch struct {
	Query *Query
	View  View
	// Timeout is how long an answer may take.
	Timeout time.Duration
}

// The pause between two requests is minPause at least, and so long that answers take one
// part in askShare of the time. The answer of a proxy with 10,000 Services has megabytes.
const (
	minPause = time.Second
	askShare = 20
)

// Run writes the state, and then each change with its time, until ctx ends. That is no
// error. A request that fails after the first one is written as a change, because a proxy
// that restarts does not answer for a while. As JSON, each state that differs is written
// in full, and a request that fails as a failure.
func (wa *Watch) Run(ctx context.Context, w io.Writer) error {
	last, err := wa.ask(ctx)
	if err != nil {
		return err
	}
	if err := wa.View.Print(w, last); err != nil {
		return err
	}
	fault := ""
	for pause := minPause; ; {
		if !reconcile.Pause(ctx, pause) {
			return nil
		}
		asked := time.Now()
		now, err := wa.ask(ctx)
		pause = max(minPause, askShare*time.Since(asked))
		if ctx.Err() != nil {
			return nil
		}
		var all []change
		switch {
		case err != nil && err.Error() == fault:
			continue
		case err != nil:
			fault = err.Error()
			if err := wa.writeFailure(w, fault); err != nil {
				return err
			}
			continue
		case fault != "":
			fault = ""
			all = append([]change{{"proxy", "answers again"}}, wa.changes(last, now)...)
		default:
			all = wa.changes(last, now)
		}
		last = now
		if err := wa.write(w, last, all); err != nil {
			return err
		}
	}
}

// changes lists what is different in b from a.
func (wa *Watch) changes(a, b *Answer) []change {
	if wa.Query.Failing {
		return changes(a, b, "nothing is wrong any more")
	}
	return changes(a, b, "gone")
}

func (wa *Watch) ask(ctx context.Context) (*Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, wa.Timeout)
	defer cancel()
	return wa.Query.Ask(ctx)
}

// failure is written as JSON in place of an answer.
type failure struct {
	Server string `json:"server"` // that was asked
	OK     bool   `json:"ok"`     // always false
	Error  string `json:"error"`
}

// writeFailure writes that the proxy does not answer.
func (wa *Watch) writeFailure(w io.Writer, what string) error {
	if wa.View.Format.data() {
		return document.WriteData(w, string(wa.View.Format), failure{Server: wa.Query.Server, Error: what})
	}
	return wa.write(w, nil, []change{{"proxy", what}})
}

// write writes changes, one line for each.
func (wa *Watch) write(w io.Writer, now *Answer, all []change) error {
	if len(all) == 0 {
		return nil
	}
	if wa.View.Format.data() {
		return document.WriteData(w, string(wa.View.Format), now)
	}
	var b bytes.Buffer
	at := time.Now().Format(time.TimeOnly)
	for _, c := range all {
		lines := document.Wrap(c.about+": "+c.what, wa.View.width()-len(at)-2)
		b.WriteString(at + "  " + strings.Join(lines, "\n"+strings.Repeat(" ", len(at)+2)) + "\n")
	}
	_, err := w.Write(b.Bytes())
	return err
}
