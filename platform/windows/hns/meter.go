// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"time"

	"kubeproxy/common/service"
)

// Call is a call to HNS that has ended.
type Call struct {
	Operation string // one of Operations
	Took      time.Duration
	Err       error
	// Balancer is the load balancer that the call was about, if it was.
	Balancer *LoadBalancer
}

// The operations that change load balancers.
const (
	CreateBalancer = "create_load_balancer"
	ChangeBalancer = "change_load_balancer"
	DeleteBalancer = "delete_load_balancer"
)

// Operations are all there are. To list everything is one call here, and
// several for HNS.
var Operations = []string{
	"list", "list_endpoints", "find_endpoint", "create_endpoint", "delete_endpoint", CreateBalancer, ChangeBalancer, DeleteBalancer,
}

// classes are the names of the classes of errors.
var classes = []struct {
	err  error
	name string
}{
	{ErrNotFound, "not_found"}, {ErrNotRunning, "not_running"}, {ErrExists, "exists"},
	{ErrBusy, "busy"}, {ErrRefused, "refused"}, {ErrMissing, "not_installed"},
}

// Classes lists the classes of errors.
func Classes() []string {
	var names []string
	for _, c := range classes {
		names = append(names, c.name)
	}
	return append(names, otherError)
}

const otherError = "other"

// Class is the class of the call's error, "" for a success.
func (c *Call) Class() string {
	if c.Err == nil {
		return ""
	}
	for _, x := range classes {
		if errors.Is(c.Err, x.err) {
			return x.name
		}
	}
	return otherError
}

// Cause is the class of the call's error in the words that kube-proxy's metrics
// have for it, "" for a success.
func (c *Call) Cause() string {
	var e *Error
	if c.Err == nil {
		return ""
	}
	if errors.As(c.Err, &e) {
		switch e.Code {
		case 0x803b0001:
			return "network_not_found"
		case 0x803b0013:
			return "port_already_exists"
		case notImplemented:
			return "not_implemented"
		case 0x803b001e, 0x803b002f:
			return "invalid_ip"
		}
	}
	return otherError
}

// Use is what a load balancer is for, in the words that kube-proxy's metrics
// have for it. One that was found and not made may be taken for an external IP, or
// for a ClusterIP.
func (lb *LoadBalancer) Use() string {
	switch {
	case !lb.VIP.IsValid():
		return "nodeport"
	case lb.Flags&ExternalRoute == 0 && lb.Kind == service.LoadBalancerIP:
		return "healthcheck"
	case lb.Flags&ExternalRoute == 0:
		return "clusterip"
	case lb.Kind == service.LoadBalancerIP:
		return "ingressip"
	}
	return "externalip"
}

// Metered returns d with each call told of when it has ended.
func Metered(d Driver, told func(Call)) Driver { return metered{d, told} }

type metered struct {
	driver Driver
	told   func(Call)
}

func (m metered) done(operation string, began time.Time, err error) {
	m.told(Call{Operation: operation, Took: time.Since(began), Err: err})
}

func (m metered) balancer(operation string, lb LoadBalancer, began time.Time, err error) {
	m.told(Call{Operation: operation, Took: time.Since(began), Err: err, Balancer: &lb})
}

func (m metered) List(ctx context.Context, what What) (Listing, error) {
	began, operation := time.Now(), "list"
	if what == Endpoints {
		operation = "list_endpoints"
	}
	l, err := m.driver.List(ctx, what)
	m.done(operation, began, err)
	return l, err
}

func (m metered) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	began := time.Now()
	made, err := m.driver.CreateEndpoint(ctx, e)
	m.done("create_endpoint", began, err)
	return made, err
}

func (m metered) HasEndpoint(ctx context.Context, id string) (bool, error) {
	began := time.Now()
	has, err := m.driver.HasEndpoint(ctx, id)
	m.done("find_endpoint", began, err)
	return has, err
}

func (m metered) DeleteEndpoint(ctx context.Context, id string) error {
	began := time.Now()
	err := m.driver.DeleteEndpoint(ctx, id)
	m.done("delete_endpoint", began, err)
	return err
}

func (m metered) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (string, error) {
	began := time.Now()
	id, err := m.driver.CreateLoadBalancer(ctx, lb)
	m.balancer(CreateBalancer, lb, began, err)
	return id, err
}

func (m metered) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	began := time.Now()
	now, err := m.driver.UpdateLoadBalancer(ctx, lb)
	m.balancer(ChangeBalancer, lb, began, err)
	return now, err
}

// PortsLeft is no call to HNS.
func (m metered) PortsLeft(ctx context.Context, k Key) (bool, error) {
	return m.driver.PortsLeft(ctx, k)
}

func (m metered) DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) error {
	began := time.Now()
	err := m.driver.DeleteLoadBalancer(ctx, lb)
	m.balancer(DeleteBalancer, lb, began, err)
	return err
}
