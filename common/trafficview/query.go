// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package trafficview

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"kubeproxy/common/printable"
	"kubeproxy/common/statusview"
	"kubeproxy/common/traffic"
)

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
	return &answer.Response, nil
}

// poll is the pause between two requests while a proxy still answers with the previous
// counters.
const poll = 250 * time.Millisecond

// Follow asks until ctx ends, and passes each answer to show: the first one after the
// second reading, then, with --watch, one after each interval. A proxy whose counters
// take long to read has new values less often.
func (q *Query) Follow(ctx context.Context, show func(*Answer) (more bool, err error)) error {
	last, err := q.read(ctx)
	if err != nil {
		return err
	}
	if q.Interval == 0 {
		_, err := show(q.answer(nil, last))
		return err
	}
	for {
		if err := sleep(ctx, q.Interval); err != nil {
			return err
		}
		now, err := q.read(ctx)
		for err == nil && !now.Time.After(last.Time) {
			if err = sleep(ctx, poll); err == nil {
				now, err = q.read(ctx)
			}
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

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// answer computes the totals and rates of two readings. first is nil for no rates.
func (q *Query) answer(first, second *Response) *Answer {
	a := &Answer{
		Server: q.Server, Mode: second.Mode, Node: second.Node, Time: second.Time, Since: second.Since,
		Counted: second.Counted, Services: make([]Service, len(second.Services)), Error: second.Error,
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

// endpoints returns the endpoints of a Service.
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
