// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/source"
)

// testOutages is Outages with a clock and a log of its own.
type testOutages struct {
	*Outages
	clock time.Time
	log   bytes.Buffer
}

func newTestOutages() *testOutages {
	x := &testOutages{clock: time.Unix(1e9, 0)}
	x.Outages = NewOutages(textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&x.log))), func(error) string { return "" })
	x.now = func() time.Time { return x.clock }
	return x
}

func (t *testOutages) lines() []string {
	var all []string
	for line := range strings.Lines(t.log.String()) {
		_, text, _ := strings.Cut(line, "] ")
		all = append(all, text)
	}
	return all
}

func refused(kind string, port int) error {
	return &source.ReadError{Kind: kind, Err: fmt.Errorf("Get \"https://192.0.2.1/%s?v=%d\": read tcp 192.0.2.7:%d: connection reset", kind, port, port)}
}

// TestLongOutageIsAFewLines checks that an hour of failures, lasting or intermittent,
// takes a dozen lines.
func TestLongOutageIsAFewLines(t *testing.T) {
	for name, flaps := range map[string]bool{"lasts": false, "comes and goes": true} {
		t.Run(name, func(t *testing.T) {
			x := newTestOutages()
			kinds := []string{"services", "endpointslices", "nodes"}
			for i := range 720 {
				x.clock = x.clock.Add(5 * time.Second)
				kind := kinds[i%len(kinds)]
				x.RecordError(refused(kind, 30000+i))
				if flaps {
					x.Recovered(kind)
				}
			}
			for _, kind := range kinds {
				x.Recovered(kind)
			}
			lines := x.lines()
			if n := len(lines); n < 4 || n > 16 {
				t.Errorf("%d lines, want a dozen:\n%s", n, &x.log)
			}
			if !strings.Contains(lines[0], "cannot be read") || !strings.Contains(x.log.String(), "repeated=") {
				t.Errorf("the log begins with %q, or does not report repeats:\n%s", lines[0], &x.log)
			}
			if last := lines[len(lines)-1]; !strings.Contains(last, "again") {
				t.Errorf("last line %q, want that it is over", last)
			}
		})
	}
}

func TestEachReasonIsLogged(t *testing.T) {
	x := newTestOutages()
	x.RecordError(refused("services", 1))
	x.RecordError(&source.ReadError{Kind: "services", Err: apierrors.NewUnauthorized("who are you")})
	x.RecordError(&source.ReadError{Kind: "nodes", Err: apierrors.NewUnauthorized("who are you")})
	x.RecordError(&source.ReadError{Kind: "servicecidrs", Optional: true, Err: errors.New("not found")})
	x.RecordError(&source.ReadError{Kind: "servicecidrs", Optional: true, Err: errors.New("not found")})
	if n := len(x.lines()); n != 3 {
		t.Errorf("%d lines, want one for each sort:\n%s", n, &x.log)
	}
	x.Recovered("services")
	if strings.Contains(x.log.String(), "again") {
		t.Errorf("said to be over while nodes fail:\n%s", &x.log)
	}
	x.Recovered("nodes")
	x.Recovered("nodes")
	if n := strings.Count(x.log.String(), "again"); n != 1 {
		t.Errorf("said to be over %d times:\n%s", n, &x.log)
	}
}
