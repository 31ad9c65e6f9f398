// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"errors"
	"strings"
	"sync"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"kubeproxy/common/source"
)

// Outages logs failures to read the API server. It logs each sort of failure when it
// first appears, and then the number of repetitions at growing intervals. So an outage of
// an hour takes a dozen lines.
type Outages struct {
	now    func() time.Time
	remedy func(error) string

	mu      sync.Mutex
	log     klog.Logger
	failing map[string]bool // kinds
	since   time.Time       // start of the outage: failing has not been empty since
	logged  bool            // a failure of the outage is in the log
	reasons map[string]*failure
}

// failure is a sort of failure. Its errors differ only in numbers and in the object of
// the request.
type failure struct {
	last, logged time.Time
	pause        time.Duration
	repeats      int
}

// forgetAfter is how long a sort of failure is remembered, and the longest interval
// between log lines of a lasting one.
const forgetAfter = 15 * time.Minute

// firstPause is the first interval between log lines of a lasting failure.
const firstPause = time.Minute

// NewOutages returns Outages that logs to log. remedy names the remedy for an error, or is
// empty.
func NewOutages(log klog.Logger, remedy func(error) string) *Outages {
	return &Outages{log: log, now: time.Now, remedy: remedy, failing: map[string]bool{}, reasons: map[string]*failure{}}
}

// SetLog logs to another log from now on, as the server in it is another one.
func (o *Outages) SetLog(log klog.Logger) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.log = log
}

// RecordError records a failure to read.
func (o *Outages) RecordError(err error) {
	read, ok := errors.AsType[*source.ReadError](err)
	if !ok {
		read = &source.ReadError{Err: err}
	}
	now := o.now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.failing) == 0 && !read.Optional {
		o.since = now
	}
	if delete(o.failing, read.Kind); !read.Optional {
		o.failing[read.Kind] = true
	}
	name := reasonOf(read)
	s := o.reasons[name]
	if s == nil || now.Sub(s.last) > forgetAfter {
		s = &failure{}
		o.reasons[name] = s
	}
	s.last = now
	s.repeats++
	if !s.logged.IsZero() && now.Sub(s.logged) < s.pause {
		return
	}
	o.logFailure(read, s)
	s.logged, s.repeats, s.pause = now, 0, min(max(2*s.pause, firstPause), forgetAfter)
}

// logFailure logs a failure.
func (o *Outages) logFailure(read *source.ReadError, s *failure) {
	if read.Optional {
		if s.logged.IsZero() {
			o.log.Info("Going on without what the API server does not have or does not show", "kind", read.Kind, "reason", read.Err.Error())
		}
		return
	}
	args := []any{"kind", read.Kind}
	if r := o.remedy(read.Err); r != "" {
		args = append(args, "remedy", r)
	}
	if !s.logged.IsZero() {
		args = append(args, "repeated", s.repeats, "failingFor", o.now().Sub(o.since).Round(time.Second))
	}
	o.log.Error(read.Err, "The API server cannot be read; what is programmed stays in force", args...)
	o.logged = true
}

// Recovered records that a kind can be read.
func (o *Outages) Recovered(kind string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.failing[kind] {
		return
	}
	delete(o.failing, kind)
	if len(o.failing) == 0 && o.logged {
		o.log.Info("The API server can be read again", "failedFor", o.now().Sub(o.since).Round(time.Millisecond))
		o.logged = false
	}
}

// reasonOf returns the sort of a failure. The kind and the numbers of a request, such as
// ports, do not belong to the sort.
func reasonOf(e *source.ReadError) string {
	if e.Optional {
		return e.Kind
	}
	if reason := apierrors.ReasonForError(e.Err); reason != metav1.StatusReasonUnknown {
		return string(reason)
	}
	text := e.Err.Error()
	if i := strings.LastIndex(text, "\": "); i >= 0 { // after the URL
		text = text[i:]
	}
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, strings.ReplaceAll(text, e.Kind, ""))
}
