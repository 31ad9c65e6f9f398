// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package apiserver has checks of the API server and of the Node for common/doctor.
//
// The settings of the connection and the name of the Node go in, checks come out. All
// requests read, or ask what the account may do.
package apiserver

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"kubeproxy/common/doctor"
	"kubeproxy/common/kubeclient"
)

// Server has the settings of the connection to the API server, and what should be found there.
type Server struct {
	Client *kubeclient.Options
	Node   string
	// Addrs lists the addresses of this machine.
	Addrs func() ([]netip.Addr, error)
	Pods  Pods
	// SetClock is the command that sets the clock of this machine.
	SetClock string

	once      sync.Once
	connected connection
}

// connection is the result of the first request.
type connection struct {
	client *client
	config *rest.Config
	user   string // the user that the API server sees, empty if it does not say
	skew   time.Duration
	finds  []doctor.Finding // why there is no client
}

// maxSkew is how far clocks may differ. Certificates are made for minutes before their
// beginning, and bound tokens are renewed minutes before their end.
const maxSkew = 30 * time.Second

// Checks returns all checks.
func (s *Server) Checks() []doctor.Check {
	return []doctor.Check{
		{Name: "API server", Look: s.connection},
		{Name: "rights", Look: s.rights},
		{Name: "Node", Look: s.node},
	}
}

// Configured returns whether anything says how to reach an API server.
func (s *Server) Configured() bool {
	return s.Client.Connection.Kubeconfig != "" || s.Client.Master != "" || os.Getenv("KUBERNETES_SERVICE_HOST") != ""
}

// Config returns the client configuration, nil if the API server cannot be used.
func (s *Server) Config(ctx context.Context) *rest.Config {
	if !s.Configured() {
		return nil
	}
	if c := s.connect(ctx); c.client != nil {
		return c.config
	}
	return nil
}

// absent returns why a check cannot ask anything, nil if it can.
func (s *Server) absent(ctx context.Context) *doctor.Seen {
	var seen doctor.Seen
	switch {
	case !s.Configured():
		seen = doctor.NothingToSee("neither --kubeconfig, --master nor --manifests is given")
	case s.connect(ctx).client == nil:
		seen = doctor.NothingToSee("the API server cannot be asked")
	default:
		return nil
	}
	return &seen
}

// connect makes the first request.
func (s *Server) connect(ctx context.Context) *connection {
	s.once.Do(func() { s.connected = s.try(ctx) })
	return &s.connected
}

func (s *Server) try(ctx context.Context) connection {
	file := cmp.Or(s.Client.Connection.Kubeconfig, "the service account of the pod")
	bad := func(what, advice string) connection {
		return connection{finds: []doctor.Finding{{Topic: doctor.Kubeconfig, Subject: file, What: what, Advice: advice}}}
	}
	config, err := s.Client.Config()
	if err != nil {
		return bad(err.Error(), "correct the file, or name another one with --kubeconfig")
	}
	if since, is := kubeclient.Expired(config, time.Now()); is {
		return bad(fmt.Sprintf("the client certificate in %s expired at %s", file, since.Format(time.RFC3339)), "renew the client certificate of the user")
	}
	c, err := newClient(config)
	if err != nil {
		return bad(err.Error(), "correct what the kubeconfig refers to")
	}
	var version struct{ GitVersion string }
	sent := time.Now()
	date, err := c.call(ctx, "/version", nil, &version)
	got := connection{client: c, config: config}
	if !date.IsZero() { // with a resolution of one second, so the middle of it is likely
		middle := sent.Add(time.Since(sent) / 2)
		got.skew = middle.Sub(date.Add(time.Second / 2))
	}
	if err == nil {
		got.user, err = c.whoAmI(ctx)
	}
	switch {
	case apierrors.IsUnauthorized(err):
		return bad(fmt.Sprintf("the API server at %s refuses the credentials: %v", config.Host, err), s.Client.Remedy(err))
	case err != nil:
		got.client = nil
		got.finds = []doctor.Finding{{Topic: doctor.APIServer, Subject: config.Host, What: fmt.Sprintf("the API server at %s cannot be asked: %v", config.Host, err),
			Advice: cmp.Or(s.Client.Remedy(err), "check the network between this node and the API server, and that no firewall drops the connection")}}
	}
	return got
}

// whoAmI returns the name of the user, empty if the API server is too old to say.
func (c *client) whoAmI(ctx context.Context) (string, error) {
	body := map[string]string{"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
	var answer struct {
		Status struct {
			UserInfo struct{ Username string }
		}
	}
	_, err := c.call(ctx, "/apis/authentication.k8s.io/v1/selfsubjectreviews", body, &answer)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return "", nil
	}
	return answer.Status.UserInfo.Username, err
}

// connection checks that the API server answers, and that the clocks agree.
func (s *Server) connection(ctx context.Context) (doctor.Seen, error) {
	if !s.Configured() {
		return *s.absent(ctx), nil
	}
	c := s.connect(ctx)
	if ctx.Err() != nil && c.client == nil && errors.Is(ctx.Err(), context.Canceled) {
		return doctor.Seen{}, ctx.Err()
	}
	seen := doctor.Seen{Findings: c.finds}
	if c.client == nil {
		return seen, nil
	}
	seen.Note = fmt.Sprintf("%s, as user %s", c.config.Host, cmp.Or(c.user, "unknown"))
	if d := c.skew.Abs(); d > maxSkew {
		side := "ahead of"
		if c.skew < 0 {
			side = "behind"
		}
		seen.Findings = append(seen.Findings, doctor.Finding{Topic: doctor.ClockSkew,
			What: fmt.Sprintf("the clock of this node is %s %s that of the API server", d.Round(time.Second), side), Fix: s.SetClock,
			Advice: "if it comes back, look at the time service of both machines"})
	}
	return seen, nil
}

// client makes single requests. It needs the time of each answer, which the clients of
// client-go do not return.
type client struct {
	http *http.Client
	base string
}

func newClient(to *rest.Config) (*client, error) {
	h, err := rest.HTTPClientFor(to)
	if err != nil {
		return nil, err
	}
	base, _, err := rest.DefaultServerUrlFor(to)
	if err != nil {
		return nil, err
	}
	return &client{h, base.String()}, nil
}

// maxAnswer bounds an answer.
const maxAnswer = 64 << 20

// call sends body, if any, and reads the answer into answer. It returns the time of the
// API server, zero if it does not say.
func (c *client) call(ctx context.Context, path string, body, answer any) (time.Time, error) {
	method, text := http.MethodGet, []byte(nil)
	if body != nil {
		var err error
		method = http.MethodPost
		if text, err = json.Marshal(body); err != nil {
			return time.Time{}, err
		}
	}
	r, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return time.Time{}, err
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	response, err := c.http.Do(r)
	if err != nil {
		return time.Time{}, err
	}
	defer response.Body.Close()
	date, _ := http.ParseTime(response.Header.Get("Date"))
	text, err = io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return date, err
	}
	if response.StatusCode/100 != 2 {
		return date, statusError(response.StatusCode, method, text)
	}
	if err := json.Unmarshal(text, answer); err != nil {
		return date, fmt.Errorf("the answer to %s is no JSON: %w", path, err)
	}
	return date, nil
}

func statusError(code int, method string, text []byte) error {
	var s metav1.Status
	if json.Unmarshal(text, &s) == nil && s.Status == metav1.StatusFailure {
		return &apierrors.StatusError{ErrStatus: s}
	}
	return apierrors.NewGenericServerResponse(code, method, schema.GroupResource{}, "", "", 0, true)
}
