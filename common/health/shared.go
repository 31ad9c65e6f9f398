// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"bytes"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	// freshFor is how long an answer is reused for equal requests.
	freshFor = 100 * time.Millisecond
	// maxShared bounds the memory of answers that clients do not read. A single larger
	// answer is permitted.
	maxShared = 4 << 20
)

// responseCache generates one answer for all equal requests at about the same time, and
// keeps few answers for clients that do not read. Over the limit it cuts off the readers
// of the oldest answers.
type responseCache struct {
	handler http.Handler

	buildMu   sync.Mutex // for one answer at a time
	mu        sync.Mutex
	responses []*cachedResponse // oldest first
}

// cachedResponse is one answer, shared by its readers.
type cachedResponse struct {
	key     string
	made    time.Time
	header  http.Header
	status  int
	body    bytes.Buffer
	readers map[*http.ResponseController]bool
}

// Header implements http.ResponseWriter.
func (a *cachedResponse) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *cachedResponse) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *cachedResponse) Write(b []byte) (int, error) { return a.body.Write(b) }

func cached(h http.Handler) http.Handler { return &responseCache{handler: h} }

// ServeHTTP implements http.Handler.
func (s *responseCache) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	reader := http.NewResponseController(w)
	a := s.response(q, reader)
	defer s.release(a, reader)
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes())
}

// response returns the latest answer to q if it is fresh, or otherwise a new one.
func (s *responseCache) response(q *http.Request, reader *http.ResponseController) *cachedResponse {
	key := q.Method + " " + q.URL.Path + "\n" + q.Header.Get("Accept") + "\n" + q.Header.Get("Accept-Encoding")
	s.buildMu.Lock()
	defer s.buildMu.Unlock()
	if a := s.fresh(key, reader); a != nil {
		return a
	}
	a := &cachedResponse{key: key, header: http.Header{}, status: http.StatusOK, readers: map[*http.ResponseController]bool{reader: true}}
	s.handler.ServeHTTP(a, q)
	a.made = time.Now()
	s.store(a)
	return a
}

// fresh returns an answer that is new enough, and registers the reader.
func (s *responseCache) fresh(key string, reader *http.ResponseController) *cachedResponse {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.responses {
		if a.key == key && time.Since(a.made) < freshFor {
			a.readers[reader] = true
			return a
		}
	}
	return nil
}

// store adds a, and keeps as many older answers as the limit permits.
func (s *responseCache) store(a *cachedResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.responses = append(s.responses, a)
	size := 0
	for i, x := range slices.Backward(s.responses) {
		if size += x.body.Cap(); size <= maxShared || x == a {
			continue
		}
		for _, old := range s.responses[:i+1] {
			for reader := range old.readers {
				_ = reader.SetWriteDeadline(time.Now())
			}
		}
		s.responses = slices.Delete(s.responses, 0, i+1)
		return
	}
}

// release unregisters a reader that has read a or has gone.
func (s *responseCache) release(a *cachedResponse, reader *http.ResponseController) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(a.readers, reader)
	if len(a.readers) > 0 {
		return
	}
	if left := freshFor - time.Since(a.made); left > 0 {
		time.AfterFunc(left, func() { s.evict(a) })
		return
	}
	s.responses = slices.DeleteFunc(s.responses, func(x *cachedResponse) bool { return x == a })
}

// evict removes a, unless it has a reader.
func (s *responseCache) evict(a *cachedResponse) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(a.readers) == 0 {
		s.responses = slices.DeleteFunc(s.responses, func(x *cachedResponse) bool { return x == a })
	}
}
