// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// Server serves a handler on one address. Set the fields before Run.
type Server struct {
	Name    string // for logs and errors, such as "metrics"
	Addr    string // host:port; [::] is every address of both families, or of the one that there is
	Handler http.Handler
	// HardFail makes it an error if the address cannot be bound. Otherwise Run retries
	// every five seconds.
	HardFail bool
	// Listening, if set, is called with the address once it is bound.
	Listening func(net.Addr)
	// Attempted, if set, is called for each attempt to bind, with its error or nil.
	Attempted func(error)
	// TLS, if set, makes it a server of HTTPS.
	TLS *tls.Config
	// Connections, if set, bounds the number of connections. The default is
	// MaxConnections.
	Connections *Connections
	// Listen, if set, replaces the system's function.
	Listen func(ctx context.Context, network, addr string) (net.Listener, error)
}

// lacksFamily reports that the kernel has no IPv6, as with ipv6.disable=1, see
// https://man7.org/linux/man-pages/man2/socket.2.html
// Windows has a number of its own for that, WSAEAFNOSUPPORT:
// https://learn.microsoft.com/en-us/windows/win32/winsock/windows-sockets-error-codes-2
func lacksFamily(err error) bool {
	const wsaNoFamily = syscall.Errno(10047)
	return errors.Is(err, syscall.EAFNOSUPPORT) || errors.Is(err, wsaNoFamily)
}

// rebindInterval is the pause after a failed attempt to bind.
const rebindInterval = 5 * time.Second

// shutdownTimeout bounds the time that requests have to finish at the end.
const shutdownTimeout = time.Second

// Run serves until ctx ends, which is not an error.
func (s *Server) Run(ctx context.Context) error {
	log := klog.FromContext(ctx).WithValues("server", s.Name, "address", s.Addr)
	for failures := 0; ctx.Err() == nil; failures++ {
		err := s.once(ctx, func() {
			if failures > 0 {
				log.Info("Serving after all", "attempts", failures+1)
			}
			failures = 0
		})
		if err == nil {
			return nil
		}
		if s.HardFail {
			return err
		}
		if failures == 0 {
			log.Error(err, "Not served; trying again until it works", "every", rebindInterval)
		}
		select {
		case <-ctx.Done():
		case <-time.After(rebindInterval):
		}
	}
	return nil
}

// once serves until ctx ends or an error occurs. It calls bound once it listens.
func (s *Server) once(ctx context.Context, bound func()) error {
	l, err := s.listen(ctx)
	if s.Attempted != nil {
		s.Attempted(err)
	}
	if err != nil {
		return err
	}
	bound()
	if s.Listening != nil {
		s.Listening(l.Addr())
	}
	conns := s.Connections
	if conns == nil {
		conns = NewConnections(MaxConnections)
	}
	if s.TLS != nil {
		l = tls.NewListener(l, s.TLS)
	}
	return Serve(ctx, s.Name, l, s.Handler, conns)
}

func (s *Server) listen(ctx context.Context) (net.Listener, error) {
	listen := s.Listen
	if listen == nil {
		var lc net.ListenConfig
		listen = lc.Listen
	}
	network, err := networkOf(s.Addr)
	if err != nil {
		return nil, fmt.Errorf("%s server: %w", s.Name, err)
	}
	l, err := listen(ctx, network, s.Addr)
	if port, all := strings.CutPrefix(s.Addr, "[::]:"); all && lacksFamily(err) {
		l, err = listen(ctx, "tcp4", "0.0.0.0:"+port)
	}
	if err != nil {
		return nil, fmt.Errorf("%s server: %w", s.Name, err)
	}
	return l, nil
}

// networkOf returns "tcp" for [::], which serves both families.
func networkOf(addr string) (string, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return "", fmt.Errorf("address %q: want host:port", addr)
	}
	if ip := net.ParseIP(host); ip != nil && ip.To4() != nil {
		return "tcp4", nil
	}
	return "tcp", nil
}

// Serve answers on l until ctx ends, which is not an error, and closes l. It bounds the
// resources of slow or silent clients, for each one and in total.
func Serve(ctx context.Context, name string, l net.Listener, h http.Handler, conns *Connections) error {
	srv := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ConnState:         conns.connState,
		ErrorLog:          newErrorLog(klog.FromContext(ctx), name).standard(),
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if srv.Shutdown(bye) != nil {
			srv.Close()
		}
	})
	err := srv.Serve(l)
	if !stop() {
		<-done
	}
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("%s server: %w", name, err)
}
