// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package trafficview shows the traffic of Services. It has the answer of a running
// proxy, and the code with which kube-proxy top asks for it twice, computes rates and
// prints them. Counting is left to package traffic.
package trafficview

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubeproxy/common/document"
	"kubeproxy/common/health"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/printable"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/statusview"
	"kubeproxy/common/traffic"
)

// Path is where the metrics server answers.
const Path = "/traffic"

// Response is the answer of a proxy.
type Response struct {
	Mode string `json:"mode"`
	Node string `json:"node"`
	traffic.Reading
	// Silent are endpoints of these Services that do not answer.
	Silent []servicestate.SilentEndpoint `json:"silentEndpoints,omitempty"`
	// Ended are connections of them that ended lately.
	Ended []servicestate.EndedConnections `json:"endedConnections,omitempty"`
}

// Answer is what -o json prints. New versions may add fields, but must not rename or remove any.
type Answer struct {
	Server string `json:"server"` // that was asked
	Mode   string `json:"mode"`
	Node   string `json:"node"`
	// Time is when the counters were read, Since when counting began.
	Time  time.Time `json:"time"`
	Since time.Time `json:"since"`
	// Seconds is the time that the rates cover, up to Time. It is 0 without rates.
	Seconds float64 `json:"seconds"`
	// Counted is what is counted besides connections.
	Counted  traffic.Kinds `json:"counted"`
	Services []Service     `json:"services"` // those with traffic
	// Total is what these carry together.
	Total Numbers `json:"total"`
	// Error is why not everything could be read.
	Error string `json:"error,omitempty"`
	// Silent are endpoints of the Services that do not answer, with or without traffic.
	Silent []servicestate.SilentEndpoint `json:"silentEndpoints,omitempty"`
	// Ended are connections of them that ended lately.
	Ended []servicestate.EndedConnections `json:"endedConnections,omitempty"`
}

// Service is what a Service carries.
type Service struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Numbers
	Endpoints []Endpoint `json:"endpoints,omitempty"`
}

// Endpoint is what an endpoint carries for a Service port.
type Endpoint struct {
	Port     string `json:"port,omitempty"`
	Protocol string `json:"protocol"`
	Address  string `json:"address,omitempty"` // empty for all that are gone
	Numbers
}

// Numbers are totals and rates.
type Numbers struct {
	traffic.Counts
	PerSecond *Rate `json:"perSecond,omitempty"`
}

// Rate is the traffic of a second.
type Rate struct {
	Connections float64 `json:"connections"`
	PacketsIn   float64 `json:"packetsIn,omitempty"`
	PacketsOut  float64 `json:"packetsOut,omitempty"`
	BytesIn     float64 `json:"bytesIn,omitempty"`
	BytesOut    float64 `json:"bytesOut,omitempty"`
}

// Query is what to ask a proxy for, and how often.
type Query struct {
	// Query has the server, and the namespace and name of Services, empty for all.
	statusview.Query
	// Endpoints asks for endpoints, too.
	Endpoints bool
	// Timeout bounds each question.
	Timeout time.Duration
	// Interval is the time between the two readings of a rate, 0 for no rates.
	Interval time.Duration
	// Sort orders Services and endpoints.
	Sort Order

	ports map[[2]string]bool // name and protocol of those that the query selects, nil for all
}

// Order is what Services and endpoints are sorted by.
type Order string

// The orders. All but ByName have the greatest first.
const (
	ByRate        Order = "rate" // of connections, then their number
	ByConnections Order = "connections"
	ByBytes       Order = "bytes"
	ByName        Order = "name"
)

// Orders lists them.
var Orders = []Order{ByRate, ByConnections, ByBytes, ByName}

// read takes one reading.
func (q *Query) read(ctx context.Context) (*Response, error) {
	ctx, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()
	body, accepted, err := q.Fetch(ctx, Path+"?"+url.Values{
		"namespace": {q.Namespace}, "name": {q.Name}, "endpoints": {strconv.FormatBool(q.Endpoints)},
	}.Encode())
	if err != nil {
		return nil, err
	}
	var answer struct {
		Response
		Error string `json:"error"`
	}
	switch err := json.Unmarshal(body, &answer); {
	case err != nil || accepted && answer.Time.IsZero():
		return nil, fmt.Errorf("%s answers something else than what Services carry: want the metrics server of this proxy", q.Server)
	case !accepted:
		return nil, errors.New(printable.Text(answer.Error))
	}
	answer.Response.Error = answer.Error
	q.keepPorts(answer.Services)
	return &answer.Response, nil
}

// find checks that the Service is there, and finds the ports that the query selects.
func (q *Query) find(ctx context.Context) error {
	if q.Name == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, q.Timeout)
	defer cancel()
	a, err := q.Ask(ctx)
	if err != nil || q.Port+q.Protocol == "" {
		return err
	}
	q.ports = map[[2]string]bool{}
	for _, s := range a.Services {
		for _, p := range s.Ports {
			q.ports[[2]string{p.Port, strings.ToLower(p.Protocol)}] = true
		}
	}
	return nil
}

// keepPorts keeps what the selected ports carry.
func (q *Query) keepPorts(all []traffic.Service) {
	for i := 0; i < len(all) && q.ports != nil; i++ {
		s := &all[i]
		s.Counts = traffic.Counts{}
		s.Endpoints = slices.DeleteFunc(s.Endpoints, func(e traffic.Endpoint) bool { return !q.ports[[2]string{e.Port, strings.ToLower(e.Protocol)}] })
		for _, e := range s.Endpoints {
			s.Counts = s.Counts.Plus(e.Counts)
		}
	}
}

// poll is the pause while a proxy still answers with the previous counters.
const poll = 250 * time.Millisecond

// Follow asks until ctx ends, and passes answers to show: the first after the second reading, with
// --watch one after each interval, or later if counters take long to read.
func (q *Query) Follow(ctx context.Context, show func(*Answer) (more bool, err error)) error {
	if err := q.find(ctx); err != nil {
		return err
	}
	last, err := q.read(ctx)
	if err != nil {
		return err
	}
	if q.Interval == 0 {
		_, err := show(q.answer(nil, last))
		return err
	}
	for {
		if !reconcile.Pause(ctx, q.Interval) {
			return ctx.Err()
		}
		now, err := q.read(ctx)
		for err == nil && !now.Time.After(last.Time) {
			if !reconcile.Pause(ctx, poll) {
				return ctx.Err()
			}
			now, err = q.read(ctx)
		}
		if err != nil {
			return err
		}
		if more, err := show(q.answer(last, now)); err != nil || !more {
			return err
		}
		last = now
	}
}

// answer computes the totals and rates of two readings. first is nil for no rates.
func (q *Query) answer(first, second *Response) *Answer {
	a := &Answer{
		Server: q.Server, Mode: second.Mode, Node: second.Node, Time: second.Time, Since: second.Since,
		Counted: second.Counted, Services: make([]Service, len(second.Services)), Error: second.Error, Silent: second.Silent, Ended: second.Ended,
	}
	before := map[[2]string]traffic.Service{}
	if first != nil && second.Since.Equal(first.Since) {
		a.Seconds = second.Time.Sub(first.Time).Seconds()
		for _, s := range first.Services {
			before[[2]string{s.Namespace, s.Name}] = s
		}
	}
	var was traffic.Counts // of all Services
	for i, now := range second.Services {
		last := before[[2]string{now.Namespace, now.Name}]
		a.Services[i] = Service{now.Namespace, now.Name, a.numbers(last.Counts, now.Counts), a.endpoints(last, now)}
		slices.SortStableFunc(a.Services[i].Endpoints, func(x, y Endpoint) int { return q.compare(x.Numbers, y.Numbers) })
		a.Total.Counts, was = a.Total.Plus(now.Counts), was.Plus(last.Counts)
	}
	a.Total = a.numbers(was, a.Total.Counts)
	slices.SortStableFunc(a.Services, func(x, y Service) int { return q.compare(x.Numbers, y.Numbers) })
	return a
}

func (a *Answer) endpoints(last, now traffic.Service) []Endpoint {
	type key struct{ port, protocol, address string }
	before := map[key]traffic.Counts{}
	for _, e := range last.Endpoints {
		before[key{e.Port, e.Protocol, e.Address}] = e.Counts
	}
	var all []Endpoint
	for _, e := range now.Endpoints {
		all = append(all, Endpoint{e.Port, e.Protocol, e.Address, a.numbers(before[key{e.Port, e.Protocol, e.Address}], e.Counts)})
	}
	return all
}

func (a *Answer) numbers(last, now traffic.Counts) Numbers {
	if a.Seconds == 0 {
		return Numbers{Counts: now}
	}
	n := now.Since(last)
	of := func(n uint64) float64 { return float64(n) / a.Seconds }
	return Numbers{now, &Rate{of(n.Connections), of(n.PacketsIn), of(n.PacketsOut), of(n.BytesIn), of(n.BytesOut)}}
}

// plus returns what two nodes carry together.
func (n Numbers) plus(o Numbers) Numbers {
	n.Counts = n.Plus(o.Counts)
	if a, b := n.PerSecond, o.PerSecond; a == nil {
		n.PerSecond = b
	} else if b != nil {
		n.PerSecond = &Rate{a.Connections + b.Connections, a.PacketsIn + b.PacketsIn, a.PacketsOut + b.PacketsOut, a.BytesIn + b.BytesIn, a.BytesOut + b.BytesOut}
	}
	return n
}

// PrintNodes writes what several nodes carry together, and then each of them.
func (v View) PrintNodes(w io.Writer, all []*Answer, order Order) error {
	if len(all) == 0 {
		return nil
	}
	q := &Query{Sort: order}
	sum := merge(all)
	slices.SortStableFunc(sum.Services, func(x, y Service) int { return q.compare(x.Numbers, y.Numbers) })
	if err := v.Print(w, sum); err != nil {
		return err
	}
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(x, y *Answer) int { return q.compare(x.Total, y.Total) })
	t := v.table(sum, "NODE")
	for _, a := range all[:limited(len(all), v.Limit)] {
		t.Rows = append(t.Rows, append([]document.Cell{document.Plain(printable.Text(a.Node))}, sum.cells(a.Total)...))
	}
	b := bytes.NewBufferString("\n")
	t.Write(b)
	_, err := w.Write(b.Bytes())
	return err
}

// merge adds up answers. There is at least one.
func merge(all []*Answer) *Answer {
	sum := *all[0]
	sum.Services, sum.Total, sum.Silent, sum.Ended = nil, Numbers{}, nil, nil
	var nodes []string
	at := map[[2]string]int{}
	for _, a := range all {
		nodes = append(nodes, a.Node)
		sum.Total, sum.Seconds = sum.Total.plus(a.Total), max(sum.Seconds, a.Seconds)
		sum.Counted = traffic.Kinds{Packets: sum.Counted.Packets || a.Counted.Packets, Bytes: sum.Counted.Bytes || a.Counted.Bytes}
		sum.Error = cmp.Or(sum.Error, a.Error)
		if a.Since.Before(sum.Since) {
			sum.Since = a.Since
		}
		if !strings.Contains(sum.Mode, a.Mode) {
			sum.Mode += " and " + a.Mode
		}
		for _, s := range a.Services {
			k := [2]string{s.Namespace, s.Name}
			i, known := at[k]
			if !known {
				i, at[k] = len(at), len(at)
				sum.Services = append(sum.Services, Service{Namespace: s.Namespace, Name: s.Name})
			}
			sum.Services[i].add(s)
		}
	}
	const most = 3
	sum.Node = strings.Join(nodes[:min(most, len(nodes))], ", ")
	if n := len(nodes) - most; n > 0 {
		sum.Node += fmt.Sprintf(" and %d more", n)
	}
	return &sum
}

// add adds what another node carries of the same Service.
func (s *Service) add(o Service) {
	s.Numbers = s.plus(o.Numbers)
	for _, e := range o.Endpoints {
		i := slices.IndexFunc(s.Endpoints, func(x Endpoint) bool { return x.Port == e.Port && x.Protocol == e.Protocol && x.Address == e.Address })
		if i < 0 {
			s.Endpoints = append(s.Endpoints, e)
			continue
		}
		s.Endpoints[i].Numbers = s.Endpoints[i].plus(e.Numbers)
	}
}

// compare puts the greater one first. Equal ones keep the order of names.
func (q *Query) compare(x, y Numbers) int {
	switch q.Sort {
	case ByName:
		return 0
	case ByBytes:
		return cmp.Compare(y.BytesIn+y.BytesOut, x.BytesIn+x.BytesOut)
	case ByConnections:
		return cmp.Compare(y.Connections, x.Connections)
	}
	rate := 0
	if x.PerSecond != nil && y.PerSecond != nil {
		rate = cmp.Compare(y.PerSecond.Connections, x.PerSecond.Connections)
	}
	return cmp.Or(rate, cmp.Compare(y.Connections, x.Connections))
}

// Server serves the traffic of Services.
type Server struct {
	Mode, Node string
	// Collector counts. It is nil if nothing is counted; then Lack is the reason, for people.
	Collector *traffic.Collector
	Lack      string
	// Silent, if set, returns the endpoints that do not answer.
	Silent func() []servicestate.SilentEndpoint
	// Ended, if set, returns the connections that ended lately.
	Ended func() []servicestate.EndedConnections
}

type refusal struct {
	Error string `json:"error"`
}

// Handler serves GET /traffic?namespace=N&name=N&endpoints=true: a Response, or 400 and an error.
func (s *Server) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if s.Collector == nil {
			health.ReplyJSON(w, http.StatusBadRequest, refusal{s.Lack})
			return
		}
		v := q.URL.Query()
		if namespace, name := v.Get("namespace"), v.Get("name"); name != "" && !s.Collector.Knows(namespace, name) {
			where := "in any namespace"
			if namespace != "" {
				where = "in namespace " + namespace
			}
			health.ReplyJSON(w, http.StatusBadRequest, refusal{"no Service named " + name + " is known to the proxy " + where})
			return
		}
		r := s.Collector.Read(q.Context(), traffic.Selection{
			Namespace: v.Get("namespace"), Name: v.Get("name"), Endpoints: v.Get("endpoints") == "true",
		})
		a := Response{Mode: s.Mode, Node: s.Node, Reading: *r}
		other := func(namespace, name string) bool {
			return v.Get("namespace") != "" && v.Get("namespace") != namespace || v.Get("name") != "" && v.Get("name") != name
		}
		if s.Silent != nil {
			a.Silent = slices.DeleteFunc(s.Silent(), func(x servicestate.SilentEndpoint) bool { return other(x.Namespace, x.Name) })
		}
		if s.Ended != nil {
			a.Ended = slices.DeleteFunc(s.Ended(), func(x servicestate.EndedConnections) bool { return other(x.Namespace, x.Name) })
		}
		health.ReplyJSON(w, http.StatusOK, a)
	})
}

// View is how an Answer is printed as a table.
type View struct {
	Limit  int  // of Services, and of endpoints of each; 0 for all
	Colour bool // for a terminal
	Width  int  // how many columns a line may have, 0 for document.Width
}

func (v View) wrap(text string) []string { return document.Wrap(text, cmp.Or(v.Width, document.Width)) }

// Print writes a to w.
func (v View) Print(w io.Writer, a *Answer) error {
	var b bytes.Buffer
	v.head(&b, a)
	if len(a.Services) == 0 {
		b.WriteString("No Service has carried anything.\n")
		_, err := w.Write(b.Bytes())
		return err
	}
	t := v.table(a, "SERVICE")
	shown := limited(len(a.Services), v.Limit)
	for _, s := range a.Services[:shown] {
		t.Rows = append(t.Rows, append([]document.Cell{document.Plain(printable.Text(s.Namespace + "/" + s.Name))}, a.cells(s.Numbers)...))
	}
	if shown > 1 || shown < len(a.Services) {
		name := "all"
		if more := len(a.Services) - shown; more > 0 {
			name = fmt.Sprintf("all, with %d more", more)
		}
		t.Rows = append(t.Rows, append([]document.Cell{{Text: name, Colour: document.Bold}}, a.cells(a.Total)...))
	}
	t.Write(&b)
	for _, s := range a.Services[:shown] {
		v.endpoints(&b, a, s)
	}
	_, err := w.Write(b.Bytes())
	return err
}

// head describes the numbers.
func (v View) head(b *bytes.Buffer, a *Answer) {
	what := "connections"
	if a.Counted.Packets {
		what += ", packets"
	}
	if a.Counted.Bytes {
		what += ", bytes"
	}
	if i := strings.LastIndex(what, ", "); i >= 0 {
		what = what[:i] + " and " + what[i+2:]
	}
	text := fmt.Sprintf("Node %s, mode %s: new %s since %s.", printable.Text(a.Node), printable.Text(a.Mode), what, a.Since.Format(time.DateTime+" MST"))
	if a.Seconds > 0 {
		text += fmt.Sprintf(" Rates cover %s seconds up to %s.", fraction(a.Seconds), a.Time.Format(time.TimeOnly))
	}
	for _, l := range v.wrap(text) {
		b.WriteString(l + "\n")
	}
	if a.Error != "" {
		v.warn(b, "Not everything could be read: "+a.Error)
	}
	var silent, ended []string
	for _, x := range a.Silent {
		silent = append(silent, fmt.Sprintf("%s of %s/%s", x.Address, x.Namespace, x.Name))
	}
	for _, x := range a.Ended {
		ended = append(ended, fmt.Sprintf("%d from %s/%s to %s", x.Connections, x.Namespace, x.Name, x.Address))
	}
	v.warnOf(b, "No answer", silent) // what is left out carries nothing new
	v.warnOf(b, "Ended connections", ended)
	b.WriteString("\n")
}

// warnOf names the first of all that are something.
func (v View) warnOf(b *bytes.Buffer, what string, all []string) {
	const most = 3
	if n := len(all) - most; n > 0 {
		all = append(all[:most], fmt.Sprintf("and %d more", n))
	}
	if len(all) > 0 {
		v.warn(b, what+", see kube-proxy status: "+strings.Join(all, ", "))
	}
}

func (v View) warn(b *bytes.Buffer, text string) {
	for _, l := range v.wrap(printable.Text(text)) {
		if v.Colour {
			l = document.Cell{Text: l, Colour: document.Yellow}.Painted()
		}
		b.WriteString(l + "\n")
	}
}

// table returns a table without rows whose first columns are what.
func (v View) table(a *Answer, what string) *document.Table {
	head := what
	if a.Seconds > 0 {
		head += "|CONN/S"
	}
	head += "|CONNECTIONS"
	if a.Counted.Bytes && a.Seconds > 0 {
		head += "|IN/S|OUT/S"
	}
	if a.Counted.Bytes {
		head += "|IN|OUT"
	}
	return &document.Table{Head: head, Colours: v.Colour, Width: v.Width}
}

// endpoints prints those of a Service.
func (v View) endpoints(b *bytes.Buffer, a *Answer, s Service) {
	if len(s.Endpoints) == 0 {
		return
	}
	shown := limited(len(s.Endpoints), v.Limit)
	head := "Endpoints of " + printable.Text(s.Namespace+"/"+s.Name)
	if shown < len(s.Endpoints) {
		head += fmt.Sprintf(", %d of %d", shown, len(s.Endpoints))
	}
	fmt.Fprintf(b, "\n%s\n\n", strings.Join(v.wrap(head), "\n"))
	t := v.table(a, "PORT|ENDPOINT")
	for _, e := range s.Endpoints[:shown] {
		t.Rows = append(t.Rows, append([]document.Cell{
			document.Plain(printable.Text(strings.TrimPrefix(e.Port+"/"+e.Protocol, "/"))), document.Plain(cmp.Or(printable.Text(e.Address), "those that are gone")),
		}, a.cells(e.Numbers)...))
	}
	t.Write(b)
}

func limited(n, limit int) int {
	if limit > 0 {
		return min(n, limit)
	}
	return n
}

// cells returns the numbers of a row, as table has columns for them.
func (a *Answer) cells(n Numbers) []document.Cell {
	var all []document.Cell
	add := func(text string) { all = append(all, document.Cell{Text: text, Right: true}) }
	r := n.PerSecond
	if r == nil && a.Seconds > 0 { // one of several nodes has just begun to count
		r = &Rate{}
	}
	if r != nil {
		add(fraction(r.Connections))
	}
	add(fmt.Sprint(n.Connections))
	if a.Counted.Bytes && r != nil {
		add(size(r.BytesIn))
		add(size(r.BytesOut))
	}
	if a.Counted.Bytes {
		add(size(float64(n.BytesIn)))
		add(size(float64(n.BytesOut)))
	}
	return all
}

// fraction prints a number, small ones with one digit after the point.
func fraction(x float64) string {
	if x < 10 {
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// size prints a number of bytes.
func size(n float64) string {
	units := []string{"B", "kB", "MB", "GB", "TB", "PB"}
	i := 0
	for ; n >= 1000 && i < len(units)-1; i++ {
		n /= 1000
	}
	if i == 0 || n >= 100 {
		return fmt.Sprintf("%.0f %s", n, units[i])
	}
	return fmt.Sprintf("%.1f %s", n, units[i])
}
