// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"strings"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/proc"
)

// Server is a server of the proxy.
type Server struct {
	Name string         // "health" or "metrics"
	Flag string         // that sets its address
	Addr netip.AddrPort // where it is to listen
}

// sockets returns the socket tables of this thread's network namespace, see proc(5).
func (n *Node) sockets() (fs.FS, error) { return fs.Sub(n.Files, "proc/thread-self/net") }

// hiddenListeners checks for programs whose port is the NodePort of a Service.
func (n *Node) hiddenListeners(ctx context.Context) (doctor.Seen, error) {
	want, err := n.Services(ctx)
	if err != nil {
		return doctor.Seen{}, err
	}
	if want == nil {
		return doctor.NothingToSee("no Services are known"), nil
	}
	net, err := n.sockets()
	if err != nil {
		return doctor.Seen{}, err
	}
	found, err := proc.Listeners(net)
	if err != nil {
		return doctor.Seen{}, err
	}
	seen := doctor.Seen{Note: fmt.Sprintf("listeners: %d", len(found))}
	for _, h := range proc.HiddenBy(want, found) {
		name := h.Port.Name
		who, fix := n.holder(h.Listener)
		seen.Findings = append(seen.Findings, doctor.Finding{
			Topic: doctor.NodePortHidden, Subject: fmt.Sprintf("%d/%s", h.NodePort, name.Protocol),
			What:   fmt.Sprintf("the NodePort %d/%s of Service %s/%s hides %s, which listens on %s", h.NodePort, name.Protocol, name.Namespace, name.Name, who, h.Listener.Addr),
			Fix:    fix,
			Advice: "or let the program listen on another port, or give the Service another NodePort",
		})
	}
	return seen, nil
}

// holder names the process of a listener, and the command that ends it, or that finds it.
func (n *Node) holder(l proc.Listener) (who, fix string) {
	p, known := proc.BySocketInode(n.Proc, l.Inode)
	if known {
		return p.String(), fmt.Sprintf("kill %d", p.PID)
	}
	option := "t"
	if l.Protocol == service.UDP {
		option = "u"
	}
	return "a program", fmt.Sprintf("ss -ln%sp 'sport = :%d'", option, l.Addr.Port())
}

// takenPorts checks that the servers of the proxy can listen. It ignores other service
// proxies, because otherProxies reports them.
func (n *Node) takenPorts(ctx context.Context) (doctor.Seen, error) {
	if n.Answered {
		return doctor.NothingToSee("the running proxy has them; its conditions say what it lacks"), nil
	}
	own, _ := n.Holder(ctx)
	net, err := n.sockets()
	if err != nil {
		return doctor.Seen{}, err
	}
	found, err := proc.Listeners(net)
	if err != nil {
		return doctor.Seen{}, err
	}
	var names []string
	var seen doctor.Seen
	for _, s := range n.Servers {
		names = append(names, fmt.Sprintf("%s %s", s.Name, s.Addr))
		for _, l := range found {
			if l.Protocol != service.TCP || !l.ConflictsWith(s.Addr) || n.isProxy(l, own.PID) {
				continue
			}
			who, fix := n.holder(l)
			seen.Findings = append(seen.Findings, doctor.Finding{
				Topic: doctor.PortTaken, Subject: s.Addr.String(), What: fmt.Sprintf("the %s server of the proxy cannot listen on %s: %s listens on %s", s.Name, s.Addr, who, l.Addr),
				Fix: fix, Advice: "or give the server of the proxy another address with --" + s.Flag,
			})
			break
		}
	}
	seen.Note = strings.Join(names, ", ")
	return seen, nil
}

// isProxy returns whether a service proxy has the listener: the process own, or another.
func (n *Node) isProxy(l proc.Listener, own int) bool {
	p, known := proc.BySocketInode(n.Proc, l.Inode)
	return known && (p.PID == own || isProxyCommand(p.Command))
}

// proxyName is the name of the program of Kubernetes, and of this one.
const proxyName = "kube-proxy"

func isProxyCommand(command string) bool {
	program, _, _ := strings.Cut(command, " ")
	return path.Base(program) == proxyName
}
