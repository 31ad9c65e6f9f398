// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
)

const cluster, local = service.PolicyCluster, service.PolicyLocal

// externalService is a Service with an external address, whose endpoints are local or
// remote.
func externalService(internal, external service.Policy, localAddrs, remoteAddrs string) *service.Port {
	p := web(0, 0, service.TCP)
	p.Internal, p.External = internal, external
	p.Frontends = append(p.Frontends, service.Frontend{Kind: service.ExternalIP, Addr: netip.MustParseAddr("198.51.100.9"), Port: 80})
	for _, a := range strings.Fields(localAddrs) {
		p.Local = append(p.Local, service.Endpoint{Addr: netip.MustParseAddrPort(a + ":8080"), Local: true})
	}
	p.Cluster = append(p.Cluster, p.Local...)
	for _, a := range strings.Fields(remoteAddrs) {
		p.Cluster = append(p.Cluster, service.Endpoint{Addr: netip.MustParseAddrPort(a + ":8080"), Remote: true})
	}
	if internal == cluster && external == cluster {
		p.Local = nil
	}
	return p
}

// summarize returns a word for each op on the external address's virtual server.
func summarize(ops []op) string {
	var words []string
	for _, o := range ops {
		if o.key.Addr != netip.MustParseAddr("198.51.100.9") {
			continue
		}
		host := o.dest.addr.Addr()
		switch {
		case o.verb == addServer:
			words = append(words, "+server")
		case o.verb == delServer:
			words = append(words, "-server")
		case o.verb == addDest, o.dest.weight > 0:
			words = append(words, "+"+host.String())
		default:
			words = append(words, "-"+host.String())
		}
	}
	return strings.Join(words, " ")
}

// opsAroundRules returns the ops on the external address before the rules change, and
// after.
func opsAroundRules(t *testing.T, old, next *service.Port, whole bool) (first, then string) {
	t.Helper()
	b := newBackend(service.IPv4, newFake(service.IPv4), Options{})
	s := snapshot(old)
	apply(t, b, s)
	b.poller.requested.Store(whole)
	p := planOf(t, b, s.With(2, s.Node, []service.Change{{Old: old, New: next}})).(*plan)
	var before, after []op
	for _, u := range p.units {
		before, after = append(before, u.beforeRules...), append(after, u.afterRules...)
	}
	return summarize(before), summarize(after)
}

// TestOrderOfDatagrams checks that a server without connections to wait for is also
// deleted before the rules reject everything.
func TestOrderOfDatagrams(t *testing.T) {
	for _, whole := range []bool{false, true} {
		old, next := externalService(cluster, cluster, "10.244.1.1", ""), externalService(cluster, cluster, "", "")
		old.Name.Protocol, next.Name.Protocol = service.UDP, service.UDP
		if before, after := opsAroundRules(t, old, next, whole); before != "-server" || after != "" {
			t.Errorf("%q before the rules change, and %q after", before, after)
		}
	}
}

// TestOrderAroundTheRules covers each way in which changes of destinations and rules are
// ordered.
func TestOrderAroundTheRules(t *testing.T) {
	const here, there, far = "10.244.1.1", "10.244.2.1", "10.244.2.2"
	bare := externalService(cluster, cluster, here, there)
	bare.Frontends = bare.Frontends[:1]
	for name, x := range map[string]struct {
		old, next     *service.Port
		before, after string
	}{
		"endpoints elsewhere come when they are masqueraded": {
			externalService(cluster, local, here, there), externalService(cluster, cluster, here, there), "", "+" + there,
		},
		"and leave while they are": {
			externalService(cluster, cluster, here, there), externalService(cluster, local, here, there), "-" + there, "",
		},
		"pods go on to the ClusterIP before the last one leaves": {
			externalService(cluster, cluster, "", there), externalService(cluster, local, "", there), "", "-" + there,
		},
		"an address begins with its rules": {
			bare, externalService(cluster, cluster, here, there), "", "+server +" + here + " +" + there,
		},
		"and ends before them": {
			externalService(cluster, cluster, here, there), bare, "-server", "",
		},
		"the first endpoint is there when the rules let in": {
			externalService(cluster, local, "", there), externalService(cluster, cluster, "", there), "+server +" + there, "",
		},
		"but not before they say whom, where all were refused": {
			externalService(cluster, cluster, "", ""), externalService(cluster, cluster, here, ""), "", "+server +" + here,
		},
		"and the last one leaves before they refuse all": {
			externalService(cluster, cluster, here, ""), externalService(cluster, cluster, "", ""), "-" + here, "",
		},
		"all are replaced, by those that come": {
			externalService(cluster, cluster, "", there), externalService(cluster, cluster, "", far), "", "+" + far + " -" + there,
		},
		"all are replaced, while they are masqueraded": {
			externalService(cluster, cluster, "", there), externalService(cluster, local, here, ""), "+" + here + " -" + there, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, whole := range []bool{false, true} { // compared with the kernel
				before, after := opsAroundRules(t, x.old, x.next, whole)
				if diff := cmp.Diff([]string{x.before, x.after}, []string{before, after}); diff != "" {
					t.Errorf("before the rules change, and after (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// TestOrderAfterARefusal starts with a virtual server without destinations behind rules
// that admit clients, as a failed sync or a killed process leaves it.
func TestOrderAfterARefusal(t *testing.T) {
	const here, there = "10.244.1.1", "10.244.2.1"
	k := newFake(service.IPv4)
	b := newBackend(service.IPv4, k, Options{})
	k.refuse = func(o op) error {
		if o.verb == addDest {
			return errInjected
		}
		return nil
	}
	if err := planOf(t, b, snapshot(externalService(cluster, local, here, there))).Apply(t.Context()).Err; err == nil {
		t.Fatal("Apply says nothing of what was refused")
	}
	k.refuse = nil
	p := planOf(t, b, snapshot(externalService(cluster, cluster, "", there))).(*plan)
	if u := p.units[0]; summarize(u.beforeRules) != "" || summarize(u.afterRules) != "+"+there {
		t.Errorf("%q before the rules masquerade, and %q after", summarize(u.beforeRules), summarize(u.afterRules))
	}
}
