// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"github.com/Microsoft/hcsshim/hcn"
	"golang.org/x/sys/windows"

	"kubeproxy/common/service"
)

// NewDriver returns the Driver that calls the Host Networking Service.
func NewDriver() Driver { return driver{} }

type driver struct{}

// call runs do and wraps its error with op. The hcsshim library panics if a DLL of
// Windows lacks a function, as on editions without containers.
func call(op string, do func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &Error{Op: op, Err: fmt.Errorf("%w, or is too old: add the Windows feature Containers, on Windows Server 2019 or newer: %v", ErrNotInstalled, r)}
		}
	}()
	if err := do(); err != nil {
		return wrapError(op, err)
	}
	return nil
}

// wrapError extracts the code from an error of the library, where errors.As rarely finds it.
func wrapError(op string, err error) error {
	e := &Error{Op: op, Err: err}
	var answer *hcn.HcnError
	var number syscall.Errno
	var library *windows.DLLError
	switch {
	case errors.As(err, &library):
		e.Err = fmt.Errorf("%w: %w: add the Windows feature Containers", ErrNotInstalled, err)
	case errors.As(err, &answer) && answer.HcsError != nil && errors.As(answer.Err, &number), errors.As(err, &number):
		e.Code = uint32(number)
	case hcn.IsNotFoundError(err):
		e.Code = 0x490
	default:
		e.Code = parseCode(err.Error())
	}
	return e
}

// parseCode returns the code at the end of a text, where alone some errors have it, else 0.
func parseCode(text string) uint32 {
	_, code, ok := strings.Cut(text[strings.LastIndexByte(text, '(')+1:], "0x")
	code, end := strings.CutSuffix(code, ")")
	n, err := strconv.ParseUint(code, 16, 32)
	if !ok || !end || err != nil {
		return 0
	}
	return uint32(n)
}

// listAttempts bounds restarts of a listing, which fails if an object disappears meanwhile
// (microsoft/hcsshim, hcn/hcnloadbalancer.go, enumerateLoadBalancers).
const listAttempts = 4

func list[T, D any](op string, all func() ([]D, error), parse func([]byte) (T, error)) ([]T, error) {
	var found []D
	var err error
	for range listAttempts {
		err = call(op, func() (err error) { found, err = all(); return err })
		if !errors.Is(err, ErrNotFound) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	values := make([]T, 0, len(found))
	for _, d := range found {
		v, err := convert(d, parse)
		if err != nil {
			return nil, &Error{Op: op, Err: err}
		}
		values = append(values, v)
	}
	return values, nil
}

func convert[T any](document any, parse func([]byte) (T, error)) (T, error) {
	text, err := json.Marshal(document)
	if err != nil {
		var none T
		return none, err
	}
	return parse(text)
}

// toHCN converts a document of this package to one of the library.
func toHCN(document, to any) error {
	text, err := json.Marshal(document)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, to)
}

func version() (v Version, err error) {
	err = call("ask for the version of HNS", func() error {
		globals, err := hcn.GetGlobals()
		if err == nil {
			v = Version{globals.Version.Major, globals.Version.Minor}
		}
		return err
	})
	return v, err
}

func (driver) List(_ context.Context, what ObjectKinds) (l Listing, err error) {
	if what&Networks != 0 {
		if l.Networks, err = list("list networks", hcn.ListNetworks, parseNetwork); err != nil {
			return l, err
		}
		if l.Version, err = version(); err != nil {
			return l, err
		}
	}
	if what&Endpoints != 0 {
		if l.Endpoints, err = list("list endpoints", hcn.ListEndpoints, parseEndpoint); err != nil {
			return l, err
		}
	}
	if what&LoadBalancers != 0 {
		l.LoadBalancers, err = list("list load balancers", hcn.ListLoadBalancers, parseBalancer)
	}
	return l, err
}

// write sends a document to HNS, and returns what HNS made of it.
func write[H, T any](r request, document any, parse func([]byte) (T, error), send func(*H) (any, error)) (made T, err error) {
	err = call(r.String(), func() error {
		var h H
		if err := toHCN(document, &h); err != nil {
			return err
		}
		got, err := send(&h)
		if err == nil {
			made, err = convert(got, parse)
		}
		return err
	})
	return made, err
}

func (driver) CreateEndpoint(_ context.Context, e Endpoint) (Endpoint, error) {
	network := hcn.HostComputeNetwork{Id: e.Network}
	return write(request{opCreateEndpoint, e}, e.document(), parseEndpoint, func(h *hcn.HostComputeEndpoint) (any, error) { return network.CreateEndpoint(h) })
}

func (driver) HasEndpoint(_ context.Context, id string) (bool, error) {
	err := call(request{opFindEndpoint, id}.String(), func() error {
		_, err := hcn.GetEndpointByID(id)
		return err
	})
	if errors.Is(err, ErrNotFound) {
		return false, nil
	}
	return err == nil, err
}

func (driver) DeleteEndpoint(_ context.Context, id string) error {
	return call(request{opDeleteEndpoint, id}.String(), func() error { return (&hcn.HostComputeEndpoint{Id: id}).Delete() })
}

func (driver) CreateLoadBalancer(_ context.Context, lb LoadBalancer) (LoadBalancer, error) {
	return write(request{CreateBalancer, lb}, lb.document(), parseBalancer, func(h *hcn.HostComputeLoadBalancer) (any, error) { return h.Create() })
}

func (driver) UpdateLoadBalancer(_ context.Context, lb LoadBalancer) (LoadBalancer, error) {
	return write(request{ChangeBalancer, lb}, lb.document(), parseBalancer, func(h *hcn.HostComputeLoadBalancer) (any, error) { return h.Update(lb.ID) })
}

func (driver) DeleteLoadBalancer(_ context.Context, lb LoadBalancer) error {
	return call(request{DeleteBalancer, lb}.String(), func() error { return (&hcn.HostComputeLoadBalancer{Id: lb.ID}).Delete() })
}

// acquireReservation is SIO_ACQUIRE_PORT_RESERVATION of mstcpip.h. Closing the socket
// releases the reservation, see
// https://learn.microsoft.com/windows/win32/winsock/sio-acquire-port-reservation.
const acquireReservation = 0x98000064

// portRange is INET_PORT_RANGE. If start is 0, Windows chooses one.
type portRange struct{ start, number uint16 }

// portReservation is INET_PORT_RESERVATION_INSTANCE.
type portReservation struct {
	ports portRange
	_     uint32
	token uint64
}

// nonPortErrors are errors of a reservation that do not concern ports, according to the
// documentation of Winsock, and the error for missing permission.
var nonPortErrors = []error{
	windows.WSAEINVAL, windows.WSAEOPNOTSUPP, windows.WSAEFAULT, windows.WSAENETDOWN, windows.WSAEINTR,
	windows.ERROR_OPERATION_ABORTED, windows.WSAEINPROGRESS, windows.WSAENOTSOCK, windows.WSAEACCES,
}

// PortsLeft implements Driver: it reserves a block of ports as HNS does, and releases it.
func (driver) PortsLeft(_ context.Context, k service.Address) (bool, error) {
	var data windows.WSAData
	if err := windows.WSAStartup(0x202, &data); err != nil {
		return false, fmt.Errorf("start Winsock: %w", err)
	}
	defer func() { _ = windows.WSACleanup() }()
	family, kind, protocol := windows.AF_INET, windows.SOCK_STREAM, windows.IPPROTO_TCP
	if k.Family == service.IPv6 {
		family = windows.AF_INET6
	}
	if k.Protocol == service.UDP {
		kind, protocol = windows.SOCK_DGRAM, windows.IPPROTO_UDP
	}
	s, err := windows.Socket(family, kind, protocol)
	if err != nil {
		return false, fmt.Errorf("open a socket to look for dynamic ports: %w", err)
	}
	defer func() { _ = windows.Closesocket(s) }()
	in, out, n := portRange{number: PortBlockSize}, portReservation{}, uint32(0)
	err = windows.WSAIoctl(s, acquireReservation, (*byte)(unsafe.Pointer(&in)), uint32(unsafe.Sizeof(in)),
		(*byte)(unsafe.Pointer(&out)), uint32(unsafe.Sizeof(out)), &n, nil, 0)
	if slices.ContainsFunc(nonPortErrors, func(e error) bool { return errors.Is(err, e) }) {
		return false, fmt.Errorf("look for dynamic ports: %w", err)
	}
	return err == nil, nil
}

// Dump returns everything that HNS holds, of all owners, in the format of ReadState.
func Dump() ([]byte, error) {
	as := func(text []byte) (json.RawMessage, error) { return text, nil }
	var d dump
	var err error
	if d.Version, err = version(); err != nil {
		return nil, err
	}
	if d.Networks, err = list("list networks", hcn.ListNetworks, as); err != nil {
		return nil, err
	}
	if d.Endpoints, err = list("list endpoints", hcn.ListEndpoints, as); err != nil {
		return nil, err
	}
	if d.LoadBalancers, err = list("list load balancers", hcn.ListLoadBalancers, as); err != nil {
		return nil, err
	}
	return json.MarshalIndent(d, "", "  ")
}
