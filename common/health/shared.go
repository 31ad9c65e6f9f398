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
	// freshFor is how long an answer is given to others who ask the same.
	freshFor = 100 * time.Millisecond
	// mostShared bounds what answers that nobody reads hold in memory, but for one
	// that is larger by itself.
	mostShared = 4 << 20
)

// shared makes one answer for all who ask at about the same time, and holds few of
// them for those who do not read. The readers of the oldest are cut off first.
type shared struct {
	handler http.Handler

	making  sync.Mutex // one answer at a time
	mu      sync.Mutex
	answers []*sharedAnswer // the oldest first
}

// sharedAnswer is one, which its readers have in common.
type sharedAnswer struct {
	key     string
	made    time.Time
	header  http.Header
	status  int
	body    bytes.Buffer
	readers map[*http.ResponseController]bool
}

// Header implements http.ResponseWriter.
func (a *sharedAnswer) Header() http.Header { return a.header }

// WriteHeader implements http.ResponseWriter.
func (a *sharedAnswer) WriteHeader(status int) { a.status = status }

// Write implements http.ResponseWriter.
func (a *sharedAnswer) Write(b []byte) (int, error) { return a.body.Write(b) }

func share(h http.Handler) http.Handler { return &shared{handler: h} }

// ServeHTTP implements http.Handler.
func (s *shared) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	reader := http.NewResponseController(w)
	a := s.answer(q, reader)
	defer s.leave(a, reader)
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body.Bytes())
}

// answer returns the latest answer to q if it is fresh, else a new one.
func (s *shared) answer(q *http.Request, reader *http.ResponseController) *sharedAnswer {
	key := q.Method + " " + q.URL.Path + "\n" + q.Header.Get("Accept") + "\n" + q.Header.Get("Accept-Encoding")
	s.making.Lock()
	defer s.making.Unlock()
	if a := s.fresh(key, reader); a != nil {
		return a
	}
	a := &sharedAnswer{key: key, header: http.Header{}, status: http.StatusOK, readers: map[*http.ResponseController]bool{reader: true}}
	s.handler.ServeHTTP(a, q)
	a.made = time.Now()
	s.keep(a)
	return a
}

// fresh returns an answer that is new enough, and counts a reader.
func (s *shared) fresh(key string, reader *http.ResponseController) *sharedAnswer {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, a := range s.answers {
		if a.key == key && time.Since(a.made) < freshFor {
			a.readers[reader] = true
			return a
		}
	}
	return nil
}

// keep holds a, and as many older ones as there is room for.
func (s *shared) keep(a *sharedAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers = append(s.answers, a)
	size := 0
	for i, x := range slices.Backward(s.answers) {
		if size += x.body.Cap(); size <= mostShared || x == a {
			continue
		}
		for _, old := range s.answers[:i+1] {
			for reader := range old.readers {
				_ = reader.SetWriteDeadline(time.Now())
			}
		}
		s.answers = slices.Delete(s.answers, 0, i+1)
		return
	}
}

// leave is for a reader who has read a, or has gone.
func (s *shared) leave(a *sharedAnswer, reader *http.ResponseController) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(a.readers, reader)
	if len(a.readers) > 0 {
		return
	}
	if left := freshFor - time.Since(a.made); left > 0 {
		time.AfterFunc(left, func() { s.drop(a) })
		return
	}
	s.answers = slices.DeleteFunc(s.answers, func(x *sharedAnswer) bool { return x == a })
}

// drop lets go of a, unless somebody still reads it.
func (s *shared) drop(a *sharedAnswer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(a.readers) == 0 {
		s.answers = slices.DeleteFunc(s.answers, func(x *sharedAnswer) bool { return x == a })
	}
}
