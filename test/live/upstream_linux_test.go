// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// upstreamTables are the rules of kube-proxy in mode iptables for two protocols of a
// Service with two endpoints, with leftovers of its other modes.
func upstreamTables(f service.Family, a app) string {
	var nat, rules strings.Builder
	for _, proto := range []string{"tcp", "udp"} {
		up := strings.ToUpper(proto)
		fmt.Fprintf(&nat, ":KUBE-SVC-%s - [0:0]\n:KUBE-EXT-%s - [0:0]\n", up, up)
		fmt.Fprintf(&rules, "-A KUBE-SERVICES -d %s -p %s -m comment --comment \"shop/web cluster IP\" -m %s --dport 80 -j KUBE-SVC-%s\n", a.address(service.ClusterIP, f), proto, proto, up)
		fmt.Fprintf(&rules, "-A KUBE-NODEPORTS -p %s -m comment --comment shop/web -m %s --dport %d -j KUBE-EXT-%s\n", proto, proto, a.nodePort(), up)
		fmt.Fprintf(&rules, "-A KUBE-EXT-%s -j KUBE-MARK-MASQ\n-A KUBE-EXT-%s -j KUBE-SVC-%s\n", up, up, up)
		for i, to := range a.backends(f) {
			fmt.Fprintf(&nat, ":KUBE-SEP-%s%d - [0:0]\n", up, i)
			draw := ""
			if i == 0 {
				draw = " -m statistic --mode random --probability 0.50000000000"
			}
			fmt.Fprintf(&rules, "-A KUBE-SVC-%s%s -j KUBE-SEP-%s%d\n", up, draw, up, i)
			fmt.Fprintf(&rules, "-A KUBE-SEP-%s%d -s %s -j KUBE-MARK-MASQ\n", up, i, to.Addr())
			fmt.Fprintf(&rules, "-A KUBE-SEP-%s%d -p %s -m %s -j DNAT --to-destination %s\n", up, i, proto, proto, to)
		}
	}
	return `*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-PROXY-CANARY - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-NODEPORTS - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-LOAD-BALANCER - [0:0]
:KUBE-PORTALS-HOST - [0:0]
` + nat.String() + `-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" -j KUBE-PORTALS-HOST
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
` + rules.String() + `-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
COMMIT
*filter
:KUBE-PROXY-CANARY - [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-NODEPORTS - [0:0]
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes load balancer firewall" -j KUBE-PROXY-FIREWALL
-A INPUT -m comment --comment "kubernetes health check service ports" -j KUBE-NODEPORTS
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A KUBE-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
COMMIT
`
}

// upstreamTable is the table of kube-proxy in mode nftables for the same.
func upstreamTable(f service.Family, a app) string {
	ip := []string{"ip", "ip6"}[f]
	var services, ports, chains strings.Builder
	for _, proto := range []string{"tcp", "udp"} {
		var draws []string
		for i, to := range a.backends(f) {
			fmt.Fprintf(&chains, "\tchain endpoint-%d-%s {\n\t\tmeta l4proto %s dnat to %s\n\t}\n", i, proto, proto, to)
			draws = append(draws, fmt.Sprintf("%d : goto endpoint-%d-%s", i, i, proto))
		}
		fmt.Fprintf(&chains, "\tchain service-%s {\n\t\tnumgen random mod %d vmap { %s }\n\t}\n", proto, len(draws), strings.Join(draws, ", "))
		fmt.Fprintf(&chains, "\tchain external-%s {\n\t\tjump mark-for-masquerade\n\t\tgoto service-%s\n\t}\n", proto, proto)
		fmt.Fprintf(&services, "%s . %s . 80 : goto service-%s, ", a.address(service.ClusterIP, f), proto, proto)
		fmt.Fprintf(&ports, "%s . %d : goto external-%s, ", proto, a.nodePort(), proto)
	}
	return fmt.Sprintf(`table %s kube-proxy {
	set cluster-ips { type %sv%d_addr; elements = { %s } }
	chain mark-for-masquerade { meta mark set mark or 0x4000; }
%s
	map service-ips { type %sv%d_addr . inet_proto . inet_service : verdict; elements = { %s } }
	map service-nodeports { type inet_proto . inet_service : verdict; elements = { %s } }
	chain services {
		%s daddr . meta l4proto . th dport vmap @service-ips
		fib daddr type local meta l4proto . th dport vmap @service-nodeports
	}
	chain cluster-ips-check { %s daddr @cluster-ips reject; }
	chain nat-prerouting { type nat hook prerouting priority dstnat; policy accept; jump services; }
	chain nat-output { type nat hook output priority -100; policy accept; jump services; }
	chain nat-postrouting {
		type nat hook postrouting priority srcnat; policy accept;
		meta mark & 0x4000 == 0x4000 meta mark set meta mark xor 0x4000 masquerade fully-random
	}
	chain filter-forward { type filter hook forward priority -101; policy accept; ct state new jump cluster-ips-check; }
	chain filter-output { type filter hook output priority -90; policy accept; ct state new jump cluster-ips-check; }
}
`, ip, "ip", []int{4, 6}[f], a.address(service.ClusterIP, f), chains.String(), "ip", []int{4, 6}[f], services.String(), ports.String(), ip, ip)
}

// backends are the addresses of the endpoints of a.
func (a app) backends(f service.Family) []netip.AddrPort {
	var all []netip.AddrPort
	for _, p := range a.pods {
		all = append(all, netip.AddrPortFrom([2]netip.Addr{p.host.IPv4, p.host.IPv6}[f], target))
	}
	return all
}

// restore passes text for a family to one of the implementations of rules.
func (c *cluster) restore(t *testing.T, f service.Family, variant, text string) {
	t.Helper()
	name := []string{"iptables-", "ip6tables-"}[f]
	cmd := exec.Command("/usr/sbin/"+name+variant+"-restore", "--noflush", program.AwaitLock)
	cmd.Stdin = strings.NewReader(text)
	out, err := program.Run(t, c.Node, cmd)
	kit.Need(t, err == nil, "%s: %v\n%s\nwas given:\n%s", cmd, err, out, text)
}

// listAllRules lists the rules of both variants, and those of another program.
func (c *cluster) listAllRules(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, name := range []string{"iptables", "ip6tables"} {
		for _, v := range program.IPTablesVariants {
			out, err := program.Run(t, c.Node, exec.Command("/usr/sbin/"+name+"-"+v+"-save"))
			kit.Need(t, err == nil, "%s-%s-save: %v\n%s", name, v, err, out)
			out = regexp.MustCompile(`(?m)^# Warning.*\n`).ReplaceAllString(out, "")
			fmt.Fprintf(&all, "%s-%s\n%s", name, v, regexp.MustCompile(savedCounters).ReplaceAllString(out, ""))
		}
	}
	return all.String() + nft(t, c.Node, "list table inet neighbour\n", "-a")
}

// installForeignRules installs rules of others, including kubelet, in all
// implementations.
func (c *cluster) installForeignRules(t *testing.T) {
	t.Helper()
	for _, f := range service.Families {
		for _, v := range program.IPTablesVariants {
			c.restore(t, f, v, foreignIPTables)
		}
	}
	nft(t, c.Node, "table inet neighbour {\n\tset allowed { type inet_service; elements = { 22 } }\n\tchain c { type filter hook input priority 0; tcp dport @allowed accept; }\n}\n")
}

// TestTakeoverFromUpstream switches a node from kube-proxy to this proxy without a lost
// connection. kube-proxy's rules serve until ours do. Then they are removed, and nothing
// else.
func TestTakeoverFromUpstream(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ from, to string }{
		{"iptables-legacy", "nftables"},
		{"iptables-nft", "nftables"},
		{"iptables-nft", "iptables-nft"},
		{"nftables", "nftables"},
		{"nftables", "iptables-legacy"},
	} {
		t.Run(tc.from+" to "+tc.to, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, switchableModes()[tc.to])
			c.installForeignRules(t)
			theirs := c.listAllRules(t)
			web := app{name: "web", number: 10}.on(c.Host("web-1"), c.Host("web-3"))
			c.installUpstream(t, tc.from, web)
			c.save(t, web)
			loads := c.loads(t, web)
			lines, packets := c.converseTo(t, "tcp", web), c.converseTo(t, "udp", web)
			p := c.launch(t)
			for _, f := range service.Families {
				p.AwaitLog(t, "Found what an earlier service proxy left", f.String())
				if tc.from != tc.to || tc.from == "nftables" {
					p.AwaitLog(t, "Removed what an earlier service proxy left", f.String())
				}
			}
			want := c.awaitProgrammed(t)
			lines.checkSameServer(t)
			packets.checkSameServer(t)
			c.check(t, want, c.cells(c.clientHosts()[:1], web))
			c.checkOnlyMode(t, tc.to)
			lossless(t, loads, service.SCTP) // which those rules do not forward
			p.Stop(t)
			out, err := program.Run(t, c.Node, c.command("--cleanup"))
			kit.Check(t, err == nil, "cleanup: %v\n%s", err, out)
			kit.Same(t, "after a cleanup (-rules of others +all rules)", theirs, c.listAllRules(t))
			for _, f := range service.Families {
				what := c.finds(t, nftables.Leftovers{Family: f, Table: nftables.UpstreamTable})
				kit.Check(t, what == "", "kube-proxy still has %s", what)
			}
		})
	}
}

// relayTables are the rules of kube-proxy in its former mode userspace. Some of their
// chains have the names of ours.
const relayTables = `*nat
:KUBE-PORTALS-CONTAINER - [0:0]
:KUBE-PORTALS-HOST - [0:0]
:KUBE-NODEPORT-CONTAINER - [0:0]
:KUBE-NODEPORT-HOST - [0:0]
-A PREROUTING -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" -j KUBE-PORTALS-CONTAINER
-A PREROUTING -m addrtype --dst-type LOCAL -m comment --comment "handle service NodePorts; NOTE: this must be the last rule in the chain" -j KUBE-NODEPORT-CONTAINER
-A OUTPUT -m comment --comment "handle ClusterIPs; NOTE: this must be before the NodePort rules" -j KUBE-PORTALS-HOST
-A OUTPUT -m addrtype --dst-type LOCAL -m comment --comment "handle service NodePorts; NOTE: this must be the last rule in the chain" -j KUBE-NODEPORT-HOST
-A KUBE-NODEPORT-CONTAINER -p tcp -m comment --comment "shop/web:lines" -m tcp --dport 30010 -j REDIRECT --to-ports 36521
COMMIT
*filter
:KUBE-NODEPORT-NON-LOCAL - [0:0]
-A INPUT -m comment --comment "Ensure that non-local NodePort traffic can flow" -j KUBE-NODEPORT-NON-LOCAL
COMMIT
`

// TestUserspaceFromUpstream takes over from kube-proxy's mode userspace. No old rule may
// remain that ignores nodePortAddresses.
func TestUserspaceFromUpstream(t *testing.T) {
	withUserspace(t, func(t *testing.T, m mode) {
		m.flags = append(m.flags, "--nodeport-addresses=10.244.1.0/24,fd00:10:244:1::/64")
		m.trackOptions.NodePorts = prefixes("10.244.1.0/24", "fd00:10:244:1::/64")
		c := newCluster(t, m)
		c.restoreBothFamilies(t, relayTables)
		web := app{name: "web", number: 10}.on(c.webs()...)
		c.start(t, web)
		want := c.awaitProgrammed(t)
		c.check(t, want, c.cells(c.clientHosts(), web))
		c.checkNodePorts(t, want, web)
	})
}

// installUpstream installs the rules of kube-proxy in a mode.
func (c *cluster) installUpstream(t *testing.T, mode string, a app) {
	t.Helper()
	for _, f := range service.Families {
		if variant, is := strings.CutPrefix(mode, "iptables-"); is {
			c.restore(t, f, variant, upstreamTables(f, a))
			what := c.finds(t, iptables.Leftovers{Variant: iptables.Variant(variant), Family: f})
			kit.Need(t, strings.Contains(what, "another service proxy"), "the rules of kube-proxy count as %q", what)
			continue
		}
		nft(t, c.Node, upstreamTable(f, a))
	}
}

// converseTo opens conversations of a pod with the ClusterIP and the NodePort of a.
func (c *cluster) converseTo(t *testing.T, proto string, a app) conversations {
	t.Helper()
	return c.converseFrom(t, c.clientHosts()[0], proto, a)
}

func (c *cluster) converseFrom(t *testing.T, h *netlab.Host, proto string, a app) conversations {
	t.Helper()
	var all conversations
	from := []*netlab.Host{h}
	for _, f := range service.Families {
		for _, x := range append(c.dials(from, a, service.ClusterIP, f), c.dials(from, a, service.NodePort, f)...) {
			if x.Proto.String() != proto {
				continue
			}
			o := open(t, x, c.port())
			answer, err := o.conn.Ask(t.Context())
			kit.Need(t, err == nil, "%s: %v", o.name, err)
			o.server = answer.Backend
			all = append(all, o)
		}
	}
	return all
}

// TestPagesForTheNode checks that a metrics server on every address of the node gives
// Prometheus elsewhere the metrics alone. Services and the configuration are for the node.
func TestPagesForTheNode(t *testing.T) {
	m := defaultMode()
	m.flags = append(m.flags[:len(m.flags):len(m.flags)], "--metrics-bind-address=0.0.0.0:10249")
	c := newCluster(t, m)
	p := c.start(t)
	node := c.Node.IPv4.String()
	for path, elsewhere := range map[string]int{
		"/metrics": http.StatusOK, "/proxyMode": http.StatusOK,
		"/services": http.StatusForbidden, "/configz": http.StatusForbidden, "/statusz": http.StatusForbidden, "/flagz": http.StatusForbidden,
	} {
		kit.Equal(t, p.Status(t, program.MetricsAddr, path), http.StatusOK, "%s on the node", path)
		page, err := program.Fetch(t.Context(), c.clientHosts()[0], net.JoinHostPort(node, "10249"), path)
		kit.Check(t, err == nil && page.Status == elsewhere,
			"%s from elsewhere = %d, %v; want %d", path, page.Status, err, elsewhere)
	}
}

// TestHTTPS checks that the servers speak HTTPS where flags name a certificate, that
// status finds out, and that the certificate may be renewed while the proxy runs.
func TestHTTPS(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	writeKeyPair(t, cert, key)
	m := defaultMode()
	m.flags = append(m.flags[:len(m.flags):len(m.flags)], "--tls-cert-file="+cert, "--tls-private-key-file="+key)
	c := newCluster(t, m)
	p := c.start(t)
	for _, addr := range []string{program.HealthAddr, program.MetricsAddr} {
		if page := p.Fetch(t, addr, "/healthz"); page.Status != http.StatusBadRequest || !strings.Contains(string(page.Body), "HTTPS") {
			t.Errorf("%s answers plain HTTP with %d: %s", addr, page.Status, page.Body)
		}
	}
	if out, err := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status")); err != nil {
		t.Errorf("status: %v\n%s", err, out)
	}
	first := served(t, c.Node, program.MetricsAddr)
	writeKeyPair(t, cert, key)
	for _, addr := range []string{program.HealthAddr, program.MetricsAddr} {
		kit.Until(t, "the renewed certificate at "+addr, func() bool { return served(t, c.Node, addr).Cmp(first) != 0 })
	}
	kit.WriteFile(t, key, "torn")
	renewed := served(t, c.Node, program.MetricsAddr)
	kit.Until(t, "status with a word on the torn key", func() bool {
		out, err := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "status"))
		return err == nil && strings.Contains(strings.Join(strings.Fields(out), " "), "failed to find any PEM data in key input")
	})
	now := served(t, c.Node, program.MetricsAddr)
	kit.Check(t, now.Cmp(renewed) == 0, "a key that cannot be read changed the certificate")
	out, err := program.Run(t, c.Node, exec.Command(kubeProxy.Path, "--tls-cert-file="+cert, "--manifests="+c.dir, "--hostname-override="+netlab.NodeName))
	kit.Check(t, err != nil && strings.Contains(out, "want both, or neither"),
		"a certificate without a key: %v\n%s", err, out)
}

// served returns the number of the certificate of a server on h.
func served(t *testing.T, h *netlab.Host, addr string) *big.Int {
	t.Helper()
	raw, err := h.Dial(t.Context(), "tcp", addr)
	kit.Must(t, err)
	defer raw.Close()
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true}) // it is signed by itself
	kit.Must(t, c.HandshakeContext(t.Context()))
	return c.ConnectionState().PeerCertificates[0].SerialNumber
}

// writeKeyPair writes a certificate with a new number, and its key.
func writeKeyPair(t *testing.T, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	kit.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotAfter: time.Now().Add(time.Hour)}
	public, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	kit.Must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	kit.Must(t, err)
	err = errors.Join(
		os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: public}), 0o600),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	kit.Must(t, err)
}
