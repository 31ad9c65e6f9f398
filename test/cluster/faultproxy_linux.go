// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"time"
)

// FaultProxy is a reverse proxy before the API server, on another port of the same host.
// It passes requests on until a Fault is set. It has the API server's first certificate.
type FaultProxy struct {
	URL string // for Login.Server

	listener net.Listener
	server   *http.Server

	mu         sync.Mutex
	fault      Fault
	current    *faultPeriod
	faultCount int
}

// Fault describes how a FaultProxy spoils requests. The zero Fault spoils none.
type Fault struct {
	// Status, if not 0, is the response to every request.
	Status int
	// RetryAfter, if not 0, is the Retry-After of responses.
	RetryAfter time.Duration
	// Silent leaves requests unanswered until the client gives up.
	Silent bool
	// Delay delays responses.
	Delay time.Duration
	// Cut, if not 0, ends the body of each response after so many bytes, as if it were
	// complete. With Reset the connection ends there instead.
	Cut   int
	Reset bool
	// Skew is how far the clock in responses is ahead.
	Skew time.Duration
	// Only, if not empty, restricts the fault to requests with it in their path.
	Only string
}

// NewFaultProxy returns a FaultProxy without a fault. The caller closes it.
func (c *Cluster) NewFaultProxy(ctx context.Context) (*FaultProxy, error) {
	cert, err := tls.LoadX509KeyPair(c.path(certFile), c.path(keyFile))
	if err != nil {
		return nil, fmt.Errorf("certificate of a front: %w", err)
	}
	target, err := url.Parse(c.Server)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.ca.Certificate)
	f := &FaultProxy{current: newFaultPeriod()}
	if f.listener, err = c.host.Listen(ctx, "tcp", net.JoinHostPort(c.host.IPv4.String(), "0")); err != nil {
		return nil, fmt.Errorf("listen before the API server: %w", err)
	}
	f.URL = "https://" + f.listener.Addr().String()
	quiet := log.New(io.Discard, "", 0) // the end of a client is not worth a log line
	pass := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, ModifyResponse: skewDate, ErrorLog: quiet,
		Transport: &http.Transport{
			DialContext: c.dial, ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true,
		},
	}
	f.server = &http.Server{
		Handler: f.injectFaults(pass), ErrorLog: quiet,
		TLSConfig:   &tls.Config{Certificates: []tls.Certificate{cert}},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connection{}, c) },
	}
	go func() { _ = f.server.ServeTLS(f.listener, "", "") }() // ends with Close
	return f, nil
}

// Close closes all connections.
func (f *FaultProxy) Close() error { return errors.Join(f.server.Close(), f.listener.Close()) }

// SetFault applies a fault to every request from now on. Requests under way have ended
// when it returns, so later writes to the API server reach no watch. Silent requests end
// when the client gives up.
func (f *FaultProxy) SetFault(how Fault) {
	f.mu.Lock()
	past := f.current
	f.fault, f.current = how, newFaultPeriod()
	f.mu.Unlock()
	close(past.over)
	past.requests.Wait()
}

// FaultCount returns how many requests a fault has spoiled so far.
func (f *FaultProxy) FaultCount() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.faultCount
}

// faultPeriod is the time in which one fault is in force.
type faultPeriod struct {
	over     chan struct{}
	requests sync.WaitGroup
}

func newFaultPeriod() *faultPeriod { return &faultPeriod{over: make(chan struct{})} }

// beginRequest returns the fault for a request, and its period, which the request must
// leave.
func (f *FaultProxy) beginRequest(path string) (Fault, *faultPeriod) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.current.requests.Add(1)
	if f.fault == (Fault{}) || !strings.Contains(path, f.fault.Only) {
		return Fault{}, f.current
	}
	f.faultCount++
	return f.fault, f.current
}

// skew is the key of Fault.Skew in the context of a request.
type skew struct{}

func skewDate(r *http.Response) error {
	if by, _ := r.Request.Context().Value(skew{}).(time.Duration); by != 0 {
		r.Header.Set("Date", time.Now().Add(by).UTC().Format(http.TimeFormat))
	}
	return nil
}

func (f *FaultProxy) injectFaults(pass http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fault, now := f.beginRequest(r.URL.Path)
		if fault.Silent {
			now.requests.Done()
			<-r.Context().Done()
			return
		}
		defer now.requests.Done()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		r = r.WithContext(context.WithValue(ctx, skew{}, fault.Skew))
		if fault.Delay != 0 {
			select {
			case <-time.After(fault.Delay):
			case <-now.over:
			case <-ctx.Done():
			}
		}
		switch {
		case fault.Status != 0:
			if fault.RetryAfter != 0 {
				w.Header().Set("Retry-After", fmt.Sprint(int(fault.RetryAfter.Seconds())))
			}
			http.Error(w, http.StatusText(fault.Status), fault.Status)
		default:
			go func() {
				select {
				case <-now.over:
					cancel()
				case <-ctx.Done():
				}
			}()
			truncate(fault, pass, w, r)
		}
	})
}
