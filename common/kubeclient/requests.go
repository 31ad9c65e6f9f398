// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	clientmetrics "k8s.io/client-go/tools/metrics"
	"k8s.io/klog/v2"

	"kubeproxy/common/metrics"
	"kubeproxy/common/source"
)

// CountRequests counts the requests of this process to the API server in m. client-go
// accepts one registration for all clients of a process.
func CountRequests(m *metrics.Metrics) {
	c := m.Client()
	clientmetrics.Register(clientmetrics.RegisterOpts{
		RequestResult: c.Requests, RequestRetry: c.Retries,
		RequestLatency: c.Duration, RateLimiterLatency: c.RateLimiter, ResolverLatency: c.Resolver,
		RequestSize: c.RequestSize, ResponseSize: c.ResponseSize,
	})
}

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

// Remedy names, for a failure to read the API server, its usual cause and where to correct
// it. It returns nothing for an unknown failure.
func (o *Options) Remedy(err error) string {
	from, server := "the service account of the pod", "KUBERNETES_SERVICE_HOST"
	if file := o.Connection.Kubeconfig; file != "" {
		from, server = "kubeconfig "+file, "cluster.server in kubeconfig "+file
	}
	if o.Master != "" {
		server = "--master"
	}
	return remedy(err, from, server)
}

func remedy(err error, from, server string) string {
	if text := certificateRemedy(err, from, server); text != "" {
		return text
	}
	var unknown *net.DNSError
	var socket *net.OpError
	switch {
	case errors.As(err, &socket) && socket.Op == "proxyconnect":
		return "the request went to the proxy that HTTPS_PROXY or HTTP_PROXY names: check these, and let NO_PROXY name the API server if it needs no proxy"
	case apierrors.IsBadRequest(err):
		return fmt.Sprintf("it does not understand the request, like an HTTPS server that gets HTTP: check that %s begins with https://", server)
	case apierrors.IsUnauthorized(err):
		return fmt.Sprintf("the credentials in %s are unknown or expired: renew the user's token or client certificate", from)
	case apierrors.IsForbidden(err):
		return "the account lacks rights: bind it to a ClusterRole that may list and watch this kind, such as system:node-proxier"
	case errors.As(err, &unknown):
		return fmt.Sprintf("the host's name cannot be resolved: check %s", server)
	case isRefused(err):
		return fmt.Sprintf("nobody listens there: check %s, and that the API server runs", server)
	case isForeign(err):
		return fmt.Sprintf("this is the answer of a proxy or another server, and of no API server: check %s", server)
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the server does not know this kind, so it is no API server, or older than Kubernetes 1.21: check %s", server)
	case errors.Is(err, source.ErrNoAnswer), errors.Is(err, source.ErrCutOff):
		return fmt.Sprintf("check %s, that its name is resolved here, and that it speaks TLS; a firewall or proxy on the way may drop or end connections", server)
	}
	return ""
}

// certificateRemedy covers the certificates of both sides.
func certificateRemedy(err error, from, server string) string {
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &authority):
		return fmt.Sprintf("the API server's certificate is of another authority: set cluster.certificate-authority in %s to the cluster's", from)
	case errors.As(err, &name):
		return fmt.Sprintf("the API server's certificate is for other names: check %s, or set cluster.tls-server-name in %s", server, from)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the API server's certificate is not valid now: renew it, or set this node's clock"
	case strings.Contains(err.Error(), "remote error: tls: ") && strings.Contains(err.Error(), "certificate"):
		return fmt.Sprintf("the API server refuses the client certificate in %s: renew it", from)
	}
	return ""
}

// isForeign reports that a server answered in a format that the API does not have, such as
// HTML. The client has a type for one of these errors only, see
// https://github.com/kubernetes/client-go/blob/master/rest/request.go
func isForeign(err error) bool {
	var format runtime.NegotiateError
	return errors.As(err, &format) || strings.Contains(err.Error(), "serializer for ")
}

// isRefused reports that nobody listens at an address. Windows has a number of its own for
// that, WSAECONNREFUSED:
// https://learn.microsoft.com/en-us/windows/win32/winsock/windows-sockets-error-codes-2
func isRefused(err error) bool {
	const wsaConnRefused = syscall.Errno(10061)
	return utilnet.IsConnectionRefused(err) || errors.Is(err, wsaConnRefused)
}
