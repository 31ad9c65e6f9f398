// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"errors"
	"time"

	"kubeproxy/common/service"
)

// Call is a completed call to HNS.
type Call struct {
	Operation string // one of Operations
	Took      time.Duration
	Err       error
	// Balancer is the load balancer that the call concerned, otherwise nil.
	Balancer *LoadBalancer
}

// The operations that change load balancers.
const (
	CreateBalancer = "create_load_balancer"
	ChangeBalancer = "change_load_balancer"
	DeleteBalancer = "delete_load_balancer"
)

// Operations lists all operations. A listing of everything counts as one call, although
// HNS receives several.
var Operations = []string{
	"list", "list_endpoints", "find_endpoint", "create_endpoint", "delete_endpoint", CreateBalancer, ChangeBalancer, DeleteBalancer,
}

// classes are the names of the error classes.
var classes = []struct {
	err  error
	name string
}{
	{ErrNotFound, "not_found"}, {ErrNotRunning, "not_running"}, {ErrExists, "exists"},
	{ErrBusy, "busy"}, {ErrRefused, "refused"}, {ErrNotInstalled, "not_installed"},
}

// Classes returns the names of the error classes.
func Classes() []string {
	var names []string
	for _, c := range classes {
		names = append(names, c.name)
	}
	return append(names, otherError)
}

const otherError = "other"

// Class returns the class of the call's error, "" for success.
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

// Cause returns the cause of the call's error as kube-proxy's metrics name it, "" for
// success.
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

// Use returns the purpose of a load balancer as kube-proxy's metrics name it. For a load
// balancer that this process did not create, the result may be an external IP or a
// ClusterIP instead.
func (lb *LoadBalancer) Use() string {
	switch {
	case !lb.VIP.IsValid():
		return "nodeport"
	case lb.Flags&VIPExternalIP == 0 && lb.Kind == service.LoadBalancerIP:
		return "healthcheck"
	case lb.Flags&VIPExternalIP == 0:
		return "clusterip"
	case lb.Kind == service.LoadBalancerIP:
		return "ingressip"
	}
	return "externalip"
}

// Metered returns a Driver that calls report after each call of d.
func Metered(d Driver, report func(Call)) Driver { return meteredDriver{d, report} }

type meteredDriver struct {
	driver Driver
	report func(Call)
}

func (m meteredDriver) reportCall(operation string, began time.Time, err error) {
	m.report(Call{Operation: operation, Took: time.Since(began), Err: err})
}

func (m meteredDriver) reportBalancerCall(operation string, lb LoadBalancer, began time.Time, err error) {
	m.report(Call{Operation: operation, Took: time.Since(began), Err: err, Balancer: &lb})
}

func (m meteredDriver) List(ctx context.Context, what ObjectKinds) (Listing, error) {
	began, operation := time.Now(), "list"
	if what == Endpoints {
		operation = "list_endpoints"
	}
	l, err := m.driver.List(ctx, what)
	m.reportCall(operation, began, err)
	return l, err
}

func (m meteredDriver) CreateEndpoint(ctx context.Context, e Endpoint) (Endpoint, error) {
	began := time.Now()
	created, err := m.driver.CreateEndpoint(ctx, e)
	m.reportCall("create_endpoint", began, err)
	return created, err
}

func (m meteredDriver) HasEndpoint(ctx context.Context, id string) (bool, error) {
	began := time.Now()
	has, err := m.driver.HasEndpoint(ctx, id)
	m.reportCall("find_endpoint", began, err)
	return has, err
}

func (m meteredDriver) DeleteEndpoint(ctx context.Context, id string) error {
	began := time.Now()
	err := m.driver.DeleteEndpoint(ctx, id)
	m.reportCall("delete_endpoint", began, err)
	return err
}

func (m meteredDriver) CreateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	began := time.Now()
	made, err := m.driver.CreateLoadBalancer(ctx, lb)
	m.reportBalancerCall(CreateBalancer, lb, began, err)
	return made, err
}

func (m meteredDriver) UpdateLoadBalancer(ctx context.Context, lb LoadBalancer) (LoadBalancer, error) {
	began := time.Now()
	now, err := m.driver.UpdateLoadBalancer(ctx, lb)
	m.reportBalancerCall(ChangeBalancer, lb, began, err)
	return now, err
}

// PortsLeft is not reported, because it does not call HNS.
func (m meteredDriver) PortsLeft(ctx context.Context, k Key) (bool, error) {
	return m.driver.PortsLeft(ctx, k)
}

func (m meteredDriver) DeleteLoadBalancer(ctx context.Context, lb LoadBalancer) error {
	began := time.Now()
	err := m.driver.DeleteLoadBalancer(ctx, lb)
	m.reportBalancerCall(DeleteBalancer, lb, began, err)
	return err
}
