// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package statusview

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"strings"

	"kubeproxy/common/health/servicestate"
)

// DefaultServer is where the metrics server of a proxy listens, unless its configuration
// says otherwise.
const DefaultServer = "127.0.0.1:10249"

// Query is what to ask, and where.
type Query struct {
	Server  string // HOST:PORT of the metrics server
	Version string // of the program that asks, for the User-Agent

	Namespace string // of the Services, empty for all
	Name      string // of the Service, empty for all
	Failing   bool   // keep only Services that need attention
}

// unknownServiceError is the answer of a proxy that does not know the Service.
type unknownServiceError struct{ text string }

func (e *unknownServiceError) Error() string { return e.text }

// noAnswerHint is the advice for a connection that fails.
const noAnswerHint = "is the proxy running on this node? If its metrics server has another address, name it with --server HOST:PORT, or give the proxy's --config FILE"

// maxResponse bounds a response: 10,000 Services take some megabytes.
const maxResponse = 1 << 30

// client reads from one server.
type client struct {
	http      http.Client
	server    string
	userAgent string
}

// Fetch returns the body of another path of the metrics server, and whether the proxy
// accepted the request. Without an answer of such a proxy, the error says why, and a
// remedy.
func (q *Query) Fetch(ctx context.Context, path string) (body []byte, accepted bool, err error) {
	a := q.client()
	status, body, err := a.get(ctx, path)
	switch {
	case err != nil:
		return nil, false, err
	case status != http.StatusOK && status != http.StatusBadRequest || !json.Valid(body):
		return nil, false, a.identifyServer(ctx, status)
	}
	return body, status == http.StatusOK, nil
}

// ErrNoPage means that the proxy does not serve a page.
var ErrNoPage = errors.New("the proxy does not serve it")

// Page returns any other page of the metrics server.
func (q *Query) Page(ctx context.Context, path string) ([]byte, error) {
	a := q.client()
	status, body, err := a.get(ctx, path)
	if err != nil {
		return nil, err
	}
	if status == http.StatusNotFound {
		return nil, fmt.Errorf("%s%s: %w", q.Server, path, ErrNoPage)
	}
	if status != http.StatusOK {
		first, _, _ := strings.Cut(string(body), "\n")
		return nil, fmt.Errorf("%s answers %s with HTTP status %d: %.200s", q.Server, path, status, sanitize(first))
	}
	return body, nil
}

func (q *Query) client() client {
	return client{
		http: http.Client{
			// HTTP proxies in the environment do not apply to the own node.
			Transport: &http.Transport{DisableKeepAlives: true},
			// The proxy redirects nobody. Who does may be a program of any user that got the
			// port first, and sends this command to places that it cannot reach itself.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
		server: q.Server, userAgent: "kube-proxy-status/" + q.Version,
	}
}

// Ask returns the state of the proxy and of the Services that q selects.
func (q *Query) Ask(ctx context.Context) (*Answer, error) {
	a := q.client()
	path := "/services"
	if q.Namespace != "" {
		path += "/" + url.PathEscape(q.Namespace)
		if q.Name != "" {
			path += "/" + url.PathEscape(q.Name)
		}
	}
	status, body, err := a.get(ctx, path)
	if err != nil {
		return nil, err
	}
	var response struct {
		servicestate.Response
		Error string `json:"error"`
	}
	parsed := json.Unmarshal(body, &response) == nil
	switch {
	case status == http.StatusOK && parsed && response.Services != nil && response.Health.Status != nil:
		return q.evaluate(&response.Response)
	case status == http.StatusNotFound && parsed && response.Error != "":
		return nil, &unknownServiceError{sanitize(response.Error)}
	case status == http.StatusForbidden && bytes.Contains(body, []byte("--expose-admin-pages")):
		return nil, fmt.Errorf("%s shows Services to its own node only: run this command there or in the proxy's pod, or give the proxy --expose-admin-pages", q.Server)
	case status == http.StatusOK:
		return nil, fmt.Errorf("%s answers something else than the state of Services: want the metrics server of this proxy, by default %s", q.Server, DefaultServer)
	}
	return nil, a.identifyServer(ctx, status)
}

// wantsTLS begins the answer of a server of HTTPS to a request of HTTP, see net/http.
const wantsTLS = "Client sent an HTTP request to an HTTPS server"

// get returns the status and body of a response. It asks by HTTP first, and by HTTPS if
// the server requires that. On loopback it accepts any certificate, because the answer
// comes from this machine.
func (a *client) get(ctx context.Context, path string) (int, []byte, error) {
	status, body, err := a.getBy(ctx, "http://", path)
	if err != nil || status != http.StatusBadRequest || !bytes.HasPrefix(body, []byte(wantsTLS)) {
		return status, body, err
	}
	if addr, err := netip.ParseAddrPort(a.server); err == nil && addr.Addr().IsLoopback() || strings.HasPrefix(a.server, "localhost:") {
		a.http.Transport = &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	}
	return a.getBy(ctx, "https://", path)
}

func (a *client) getBy(ctx context.Context, scheme, path string) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+a.server+path, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("ask %s: %w", a.server, err)
	}
	r.Header.Set("User-Agent", a.userAgent)
	r.Host = "localhost" // the server knows no other name of the node
	response, err := a.http.Do(r)
	if err != nil {
		return 0, nil, a.connectError(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	if err != nil {
		return 0, nil, a.connectError(err)
	}
	return response.StatusCode, body, nil
}

// connectError describes why there is no response, and a remedy.
func (a *client) connectError(err error) error {
	if inner, ok := errors.AsType[*url.Error](err); ok {
		err = inner.Err // without the URL, which repeats the address
	}
	op, network := errors.AsType[*net.OpError](err)
	_, name := errors.AsType[*net.DNSError](err)
	timedOut := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("ask %s: interrupted", a.server)
	case name:
		return fmt.Errorf("ask %s: %w: want the name or address of the node in --server", a.server, err)
	case network && op.Op == "dial" && (timedOut || op.Timeout()):
		return fmt.Errorf("no connection to %s in time: the address is wrong, or a firewall drops what is sent there; name another with --server HOST:PORT, or wait longer with --timeout", a.server)
	case network && op.Op == "dial":
		return fmt.Errorf("nobody answers at %s (%w): %s", a.server, op.Err, noAnswerHint)
	case timedOut:
		return fmt.Errorf("%s accepts connections but does not answer in time: the proxy may hang or the node be overloaded; wait longer with --timeout, and see the log of the proxy", a.server)
	case strings.Contains(err.Error(), "malformed HTTP"),
		strings.Contains(err.Error(), "readLoopPeekFailLocked: %!w(<nil>)"): // a response before the request
		return fmt.Errorf("%s does not speak HTTP: want the metrics server of the proxy, by default %s", a.server, DefaultServer)
	}
	return fmt.Errorf("ask %s: the connection broke: %w", a.server, err)
}

// identifyServer finds out which program responded, if it does not know /services.
func (a *client) identifyServer(ctx context.Context, status int) error {
	if code, mode, err := a.get(ctx, "/proxyMode"); err == nil && code == http.StatusOK && len(mode) < 32 {
		return fmt.Errorf("a kube-proxy in mode %s answers at %s that cannot tell the state of Services: it is another program, or an older version of this one", sanitize(string(mode)), a.server)
	}
	if code, body, err := a.get(ctx, "/healthz"); err == nil && (code == http.StatusOK || code == http.StatusServiceUnavailable) && strings.Contains(string(body), `"lastUpdated"`) {
		return fmt.Errorf("%s is the health server of a kube-proxy: want its metrics server, by default %s", a.server, DefaultServer)
	}
	return fmt.Errorf("what answers at %s is not this proxy (HTTP status %d): want its metrics server, by default %s", a.server, status, DefaultServer)
}
