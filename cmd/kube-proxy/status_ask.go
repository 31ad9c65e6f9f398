// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"

	"kubeproxy/common/health/servicestate"
)

// whenMute is what to do when nobody answers.
const whenMute = "is the proxy running on this node? If its metrics server has another address, name it with --server HOST:PORT, or give the proxy's --config FILE"

// maxAnswer bounds what is read: 10,000 Services take some megabytes.
const maxAnswer = 1 << 30

// asker asks one server.
type asker struct {
	client http.Client
	server string
}

// ask fetches what q is about.
func ask(ctx context.Context, server string, q *inquiry) (*document, error) {
	// What the environment says of HTTP proxies is not about the own node.
	a := asker{http.Client{Transport: &http.Transport{DisableKeepAlives: true}}, server}
	path := "/services"
	if q.namespace != "" {
		path += "/" + url.PathEscape(q.namespace)
		if q.name != "" {
			path += "/" + url.PathEscape(q.name)
		}
	}
	status, body, err := a.get(ctx, path)
	if err != nil {
		return nil, err
	}
	var answer struct {
		servicestate.Answer
		Error string `json:"error"`
	}
	parsed := json.Unmarshal(body, &answer) == nil
	switch {
	case status == http.StatusOK && parsed && answer.Services != nil && answer.Health.Status != nil:
		return newDocument(server, &answer.Answer, q)
	case status == http.StatusNotFound && parsed && answer.Error != "":
		return nil, &exit{exitWrong, errors.New(clean(answer.Error))}
	case status == http.StatusOK:
		return nil, fmt.Errorf("%s answers something else than the state of Services: want the metrics server of this proxy, by default %s", server, defaultServer)
	}
	return nil, a.stranger(ctx, status)
}

// get returns the status and body of an answer.
func (a *asker) get(ctx context.Context, path string) (int, []byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.server+path, nil)
	if err != nil {
		return 0, nil, fmt.Errorf("ask %s: %w", a.server, err)
	}
	r.Header.Set("User-Agent", "kube-proxy-status/"+builtFrom().Version)
	answer, err := a.client.Do(r)
	if err != nil {
		return 0, nil, a.silence(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return 0, nil, a.silence(err)
	}
	return answer.StatusCode, body, nil
}

// silence says why there is no answer, and what to do.
func (a *asker) silence(err error) error {
	if inner, ok := errors.AsType[*url.Error](err); ok {
		err = inner.Err // without the URL, which says the address again
	}
	op, network := errors.AsType[*net.OpError](err)
	_, name := errors.AsType[*net.DNSError](err)
	late := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded)
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("ask %s: interrupted", a.server)
	case name:
		return fmt.Errorf("ask %s: %w: want the name or address of the node in --server", a.server, err)
	case network && op.Op == "dial" && (late || op.Timeout()):
		return fmt.Errorf("no connection to %s in time: the address is wrong, or a firewall drops what is sent there; name another with --server HOST:PORT, or wait longer with --timeout", a.server)
	case network && op.Op == "dial":
		return fmt.Errorf("nobody answers at %s (%w): %s", a.server, op.Err, whenMute)
	case late:
		return fmt.Errorf("%s accepts connections but does not answer in time: the proxy may hang or the node be overloaded; wait longer with --timeout, and see the log of the proxy", a.server)
	case strings.Contains(err.Error(), "malformed HTTP"),
		strings.Contains(err.Error(), "readLoopPeekFailLocked: %!w(<nil>)"): // an answer before the question
		return fmt.Errorf("%s does not speak HTTP: want the metrics server of the proxy, by default %s", a.server, defaultServer)
	}
	return fmt.Errorf("ask %s: the connection broke: %w", a.server, err)
}

// stranger finds out who it is that does not know about Services.
func (a *asker) stranger(ctx context.Context, status int) error {
	if code, mode, err := a.get(ctx, "/proxyMode"); err == nil && code == http.StatusOK && len(mode) < 32 {
		return fmt.Errorf("a kube-proxy in mode %s answers at %s that cannot tell the state of Services: it is another program, or an older version of this one", clean(string(mode)), a.server)
	}
	if code, body, err := a.get(ctx, "/healthz"); err == nil && (code == http.StatusOK || code == http.StatusServiceUnavailable) && strings.Contains(string(body), `"lastUpdated"`) {
		return fmt.Errorf("%s is the health server of a kube-proxy: want its metrics server, by default %s", a.server, defaultServer)
	}
	return fmt.Errorf("what answers at %s is not this proxy (HTTP status %d): want its metrics server, by default %s", a.server, status, defaultServer)
}
