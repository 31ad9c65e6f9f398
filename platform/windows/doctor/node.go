// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"kubeproxy/common/doctor"
	"kubeproxy/common/lease"
	"kubeproxy/common/service"
	"kubeproxy/platform/windows/hns"
	"kubeproxy/platform/windows/listeners"
	"kubeproxy/platform/windows/scm"
)

// Node is what the checks read.
type Node struct {
	Options hns.Options
	// List and PortsLeft are those of hns.Driver.
	List      func(context.Context, hns.ObjectKinds) (hns.Listing, error)
	PortsLeft func(context.Context, hns.Key) (bool, error)
	Windows   Windows
	CNI       CNI
	// Program is the path of this program. Folder and Files are what the proxy writes to.
	Program, Folder string
	Files           []string
	// Servers are those of the proxy.
	Servers []Server
	// Holder returns the proxy that programs the node, false for none that can be asked.
	Holder func(context.Context) (lease.Identity, bool)
	// Answered is whether a proxy of this kind runs and answered.
	Answered bool
	// Services returns the Services that are to be served, nil if none are known.
	Services func(context.Context) (*service.Snapshot, error)

	once    sync.Once
	listing hns.Listing
	err     error
}

// Windows is what the system lists.
type Windows interface {
	// Service returns the state of a service.
	Service(name string) (ServiceState, error)
	// Listeners lists the TCP listeners. Describe names their processes.
	Listeners() ([]listeners.Listener, error)
	Describe(pid uint32) string
	// Processes returns the processes of this program's name, without this one.
	Processes(name string) ([]Process, error)
	// Services lists all services. The command of one of nssm is followed by the program that nssm runs.
	Services() ([]scm.Status, error)
	// Writers names who may change a file, see files.Writers.
	Writers(path string) ([]string, error)
}

// Process is a process and those that started it, the nearest first, as far as they run.
type Process struct {
	PID   uint32
	Above []Parent
}

// Parent is a process above another one. Name is that of its program.
type Parent struct {
	PID  uint32
	Name string
}

// ServiceState is the state of a service of Windows.
type ServiceState string

// The states.
const (
	Running ServiceState = "running"
	Stopped ServiceState = "stopped"
	Missing ServiceState = "missing"
)

// Server is a server of the proxy.
type Server struct {
	Name string         // "health" or "metrics"
	Flag string         // that sets its address
	Addr netip.AddrPort // where it is to listen
}

// Checks returns all checks of the node.
func (n *Node) Checks() []doctor.Check {
	return []doctor.Check{
		{Name: "HNS", Look: n.service},
		{Name: "HNS version", Look: n.version},
		{Name: "network", Look: n.network},
		{Name: "source VIP", Look: n.sourceVIP},
		{Name: "VFP extension", Look: n.extension},
		{Name: "direct server return", Look: n.directReturn},
		{Name: "dynamic ports", Look: n.dynamicPorts},
		{Name: "other proxies", Look: n.otherProxies},
		{Name: "files of the proxy", Look: n.writableFiles},
		{Name: "ports of the proxy", Look: n.takenPorts},
		{Name: "NodePorts and listeners", Look: n.hiddenListeners},
	}
}

// held returns what HNS has. It is asked once.
func (n *Node) held(ctx context.Context) (hns.Listing, error) {
	n.once.Do(func() { n.listing, n.err = n.List(ctx, hns.All) })
	return n.listing, n.err
}

// withHNS returns a check that is skipped while HNS does not answer, which the first
// check reports.
func (n *Node) withHNS(ctx context.Context, look func(hns.Listing) (doctor.Seen, error)) (doctor.Seen, error) {
	l, err := n.held(ctx)
	if err != nil {
		return doctor.NothingToSee("HNS cannot be asked"), nil
	}
	return look(l)
}

// service checks that HNS answers.
func (n *Node) service(ctx context.Context) (doctor.Seen, error) {
	l, err := n.held(ctx)
	f := doctor.Finding{Topic: doctor.HNS, What: fmt.Sprint(err)}
	switch {
	case err == nil:
		return doctor.Seen{Note: fmt.Sprintf("networks: %d, endpoints: %d, load balancers: %d", len(l.Networks), len(l.Endpoints), len(l.LoadBalancers))}, nil
	case errors.Is(err, hns.ErrNotInstalled):
		f.Fix, f.Advice = `powershell -Command "Install-WindowsFeature Containers"`, "restart Windows after it"
	case errors.Is(err, hns.ErrNotRunning):
		f.Fix, f.Advice = `powershell -Command "Start-Service hns"`, "if it ends again, look at its entries in the event log"
	default:
		return doctor.Seen{}, err
	}
	return doctor.Seen{Findings: []doctor.Finding{f}}, nil
}
