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

// Front stands before the API server, at another port of the same host, and
// passes requests on until it is told to spoil them. It has the API server's
// first certificate.
type Front struct {
	URL string // for Login.Server

	listener net.Listener
	server   *http.Server

	mu      sync.Mutex
	fault   Fault
	now     *era
	spoiled int
}

// Fault is how a Front spoils requests. The zero Fault spoils none.
type Fault struct {
	// Status, if not 0, is the answer to every request.
	Status int
	// RetryAfter, if not 0, tells clients when to come again.
	RetryAfter time.Duration
	// Silent lets requests wait, as long as the client does.
	Silent bool
	// Delay makes answers wait.
	Delay time.Duration
	// Cut, if not 0, ends the body of each answer after so many bytes, as if
	// it were whole. With Reset the connection ends there instead.
	Cut   int
	Reset bool
	// Only, if not empty, leaves alone what does not have it in its path.
	Only string
}

// NewFront makes a Front that passes everything on. The caller closes it.
func (c *Cluster) NewFront(ctx context.Context) (*Front, error) {
	cert, err := tls.LoadX509KeyPair(c.path(certFile), c.path(keyFile))
	if err != nil {
		return nil, fmt.Errorf("certificate of a front: %w", err)
	}
	target, err := url.Parse(c.Server)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(c.ca.cert)
	f := &Front{now: newEra()}
	if f.listener, err = c.host.Listen(ctx, "tcp", net.JoinHostPort(c.host.IPv4.String(), "0")); err != nil {
		return nil, fmt.Errorf("listen before the API server: %w", err)
	}
	f.URL = "https://" + f.listener.Addr().String()
	quiet := log.New(io.Discard, "", 0) // clients that leave are no news
	pass := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }, ErrorLog: quiet,
		Transport: &http.Transport{
			DialContext: c.dial, ForceAttemptHTTP2: true,
			TLSClientConfig: &tls.Config{RootCAs: roots}, DisableCompression: true,
		},
	}
	f.server = &http.Server{
		Handler: f.spoil(pass), ErrorLog: quiet,
		TLSConfig:   &tls.Config{Certificates: []tls.Certificate{cert}},
		ConnContext: func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connection{}, c) },
	}
	go func() { _ = f.server.ServeTLS(f.listener, "", "") }() // ends with Close
	return f, nil
}

// Close closes all connections.
func (f *Front) Close() error { return errors.Join(f.server.Close(), f.listener.Close()) }

// Spoil spoils every request from now on, and those under way, which have
// ended when it returns: what is written to the API server afterwards reaches
// no watch. Silent ones end when the client goes.
func (f *Front) Spoil(how Fault) {
	f.mu.Lock()
	past := f.now
	f.fault, f.now = how, newEra()
	f.mu.Unlock()
	close(past.over)
	past.requests.Wait()
}

// Spoiled returns how many requests came to grief so far.
func (f *Front) Spoiled() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.spoiled
}

// era is the time in which one fault is in force.
type era struct {
	over     chan struct{}
	requests sync.WaitGroup
}

func newEra() *era { return &era{over: make(chan struct{})} }

// enter returns what is to happen to a request, which has to leave the era.
func (f *Front) enter(path string) (Fault, *era) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now.requests.Add(1)
	if f.fault == (Fault{}) || !strings.Contains(path, f.fault.Only) {
		return Fault{}, f.now
	}
	f.spoiled++
	return f.fault, f.now
}

func (f *Front) spoil(pass http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fault, now := f.enter(r.URL.Path)
		if fault.Silent {
			now.requests.Done()
			<-r.Context().Done()
			return
		}
		defer now.requests.Done()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		r = r.WithContext(ctx)
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
			cut(fault, pass, w, r)
		}
	})
}
