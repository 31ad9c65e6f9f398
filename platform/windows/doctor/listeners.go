// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"kubeproxy/common/doctor"
	"kubeproxy/common/service"
)

// takenPorts checks that the servers of the proxy can listen. It ignores other service
// proxies, because otherProxies reports them.
func (n *Node) takenPorts(context.Context) (doctor.Seen, error) {
	if n.Answered {
		return doctor.NothingToSee("the running proxy has them; its conditions say what it lacks"), nil
	}
	found, err := n.Windows.Listeners()
	if err != nil {
		return doctor.Seen{}, err
	}
	var seen doctor.Seen
	var names []string
	for _, s := range n.Servers {
		names = append(names, fmt.Sprintf("%s %s", s.Name, s.Addr))
		for _, l := range found {
			who := n.Windows.Describe(l.PID)
			if !l.Keeps(s.Addr) || strings.Contains(strings.ToLower(who), program) {
				continue
			}
			seen.Findings = append(seen.Findings, doctor.Finding{Topic: doctor.PortTaken, Subject: s.Addr.String(),
				What: fmt.Sprintf("the %s server of the proxy cannot listen on %s: %s listens on %s", s.Name, s.Addr, who, l.Addr),
				Fix:  fmt.Sprintf("taskkill /F /PID %d", l.PID), Advice: "or give the server of the proxy another address with --" + s.Flag})
			break
		}
	}
	seen.Note = strings.Join(names, ", ")
	return seen, nil
}

// hiddenListeners checks for programs whose port is the NodePort of a Service. HNS of
// Windows Server 2019 refuses the load balancer (kubernetes/community#8883), a newer one
// takes the clients of the program.
func (n *Node) hiddenListeners(ctx context.Context) (doctor.Seen, error) {
	want, err := n.Services(ctx)
	if err != nil {
		return doctor.Seen{}, err
	}
	if want == nil {
		return doctor.NothingToSee("no Services are known"), nil
	}
	found, err := n.Windows.Listeners()
	if err != nil {
		return doctor.Seen{}, err
	}
	seen := doctor.Seen{Note: fmt.Sprintf("listeners: %d", len(found))}
	for p := range want.Ports(service.IPv4) {
		port := p.NodePort()
		for _, l := range found {
			if port == 0 || p.Name.Protocol != service.TCP || l.Addr.Addr().IsLoopback() || !l.Keeps(netip.AddrPortFrom(netip.IPv4Unspecified(), port)) {
				continue
			}
			seen.Findings = append(seen.Findings, doctor.Finding{Topic: doctor.NodePortHidden, Subject: fmt.Sprintf("%d/%s", port, p.Name.Protocol),
				What: fmt.Sprintf("the NodePort %d/%s of Service %s/%s is the port of %s, which listens on %s", port, p.Name.Protocol, p.Name.Namespace, p.Name.Name, n.Windows.Describe(l.PID), l.Addr),
				Fix:  fmt.Sprintf("taskkill /F /PID %d", l.PID), Advice: "or let the program listen on another port, or give the Service another NodePort"})
			break
		}
	}
	return seen, nil
}
