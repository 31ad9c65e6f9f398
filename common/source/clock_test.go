// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"net/http"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"
)

// nobody is an API server that does not run.
type nobody struct{}

func (nobody) RoundTrip(*http.Request) (*http.Response, error) { return nil, syscall.ECONNREFUSED }

// However long an outage has lasted and pauses have become, a stop is at once.
func TestStopInOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		a := &APIServer{Config: &rest.Config{Host: "https://192.0.2.1", Transport: nobody{}, QPS: -1}, NodeName: "a"}
		var err error
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			err = a.Run(ctx, nil)
		}()
		time.Sleep(10*time.Minute + time.Millisecond)
		stop()
		begin := time.Now()
		<-ended
		if took := time.Since(begin); took > 0 || err != nil {
			t.Errorf("Run ended after %s with %v, want at once without error", took, err)
		}
	})
}
