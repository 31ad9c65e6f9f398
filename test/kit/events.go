// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kit

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// EventSink is the transport to an API server in memory that accepts every Event. The zero
// value is ready.
type EventSink struct {
	mu      sync.Mutex
	written []EventRequest
}

// EventRequest is one that wrote an Event.
type EventRequest struct {
	Method string // POST creates an Event, PATCH counts it once more
	Event  corev1.Event
	Body   string
}

// RoundTrip implements http.RoundTripper.
func (s *EventSink) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	q := EventRequest{Method: r.Method, Body: string(body)}
	if err := json.Unmarshal(body, &q.Event); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written = append(s.written, q)
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, nil
}

// Written returns the requests so far, in order.
func (s *EventSink) Written() []EventRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]EventRequest(nil), s.written...)
}
