// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/netip"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// sh runs a shell script on the node.
func (c *cluster) sh(t *testing.T, text string) string {
	t.Helper()
	cmd := program.With(exec.Command("bash", "-e", "-o", "pipefail"), c.commands)
	cmd.Stdin = strings.NewReader(text)
	out, err := program.Run(t, c.Node, cmd)
	if err != nil {
		t.Fatalf("%v\n%s\nof\n%s", err, out, text)
	}
	return out
}

// upstreamIPVS is a script that installs the state of kube-proxy in mode ipvs for a: an
// interface with addresses, virtual servers on them and on the node's addresses for
// NodePorts, ipsets, and iptables rules that use them. See pkg/proxy/ipvs in
// kubernetes/kubernetes.
func upstreamIPVS(f service.Family, variant string, a app) string {
	version, family, prefix, tables := "-4", "inet", "KUBE-", "iptables"
	if f == service.IPv6 {
		version, family, prefix, tables = "-6", "inet6", "KUBE-6-", "ip6tables"
	}
	var b strings.Builder
	cluster := a.address(service.ClusterIP, f)
	fmt.Fprintf(&b, "ip link show kube-ipvs0 >/dev/null 2>&1 || ip link add kube-ipvs0 type dummy\n")
	fmt.Fprintf(&b, "ip %s addr add %s/%d dev kube-ipvs0\n", version, cluster, cluster.BitLen())
	for _, set := range []string{"LOOP-BACK hash:ip,port,ip", "CLUSTER-IP hash:ip,port", "LOAD-BALANCER-SOURCE-CIDR hash:ip,port,net", "NODE-PORT-LOCAL-SCTP-HASH hash:ip,port"} {
		name, kind, _ := strings.Cut(prefix+set, " ")
		fmt.Fprintf(&b, "ipset create %s %s family %s\n", name[:min(31, len(name))], kind, family)
	}
	node := [2]string{"192.0.2.10", "2001:db8:2::10"}[f]
	for _, proto := range []string{"tcp", "udp"} {
		ports := prefix + "NODE-PORT-" + strings.ToUpper(proto)
		fmt.Fprintf(&b, "ipset create %s bitmap:port range 0-65535\nipset add %s %d\n", ports, ports, a.nodePort())
		fmt.Fprintf(&b, "ipset add %sCLUSTER-IP %s,%s:80\n", prefix, cluster, proto)
		for _, at := range []string{netip.AddrPortFrom(cluster, 80).String(), netip.AddrPortFrom(netip.MustParseAddr(node), a.nodePort()).String()} {
			fmt.Fprintf(&b, "ipvsadm -A -%c %s -s rr\n", proto[0], at)
			for _, to := range a.backends(f) {
				fmt.Fprintf(&b, "ipvsadm -a -%c %s -r %s -m -w 1\n", proto[0], at, to)
			}
		}
	}
	fmt.Fprintf(&b, `%s-%s-restore --noflush %[4]s <<'END'
*nat
:KUBE-SERVICES - [0:0]
:KUBE-NODE-PORT - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A OUTPUT -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-SERVICES -m set --match-set %[3]sCLUSTER-IP dst,dst -j KUBE-MARK-MASQ
-A KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT
-A KUBE-NODE-PORT -p tcp -m set --match-set %[3]sNODE-PORT-TCP dst -j KUBE-MARK-MASQ
-A KUBE-NODE-PORT -p udp -m set --match-set %[3]sNODE-PORT-UDP dst -j KUBE-MARK-MASQ
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-POSTROUTING -j MARK --set-xmark 0x4000/0x0
-A KUBE-POSTROUTING -j MASQUERADE --random-fully
COMMIT
END
`, tables, variant, prefix, program.AwaitLock)
	return b.String()
}

// foreignIPVS is IPVS state of others: a virtual server on an address of the node, one on
// an address of their own, some with names and ports like kube-proxy's, and ipsets.
const foreignIPVS = `ip link add dummy-mine type dummy
ip link set dummy-mine up
ip addr add 198.51.100.77/32 dev dummy-mine
ipvsadm -A -t 192.0.2.10:8443 -s wlc
ipvsadm -a -t 192.0.2.10:8443 -r 10.244.1.9:443 -m -w 7
ipvsadm -A -u 198.51.100.77:53 -s sh -p 60
ipvsadm -a -u 198.51.100.77:53 -r 10.244.1.9:53 -m -w 3
ipvsadm -A -f 77 -s rr
ipvsadm -A -t [2001:db8:2::10]:8443 -s rr
ipset create mine hash:ip
ipset add mine 192.0.2.3
ipset create KUBE-MINE hash:ip
ipset create KUBE-IPVS-IPS hash:net
iptables-legacy --wait=60 -A INPUT -m set --match-set mine src -j ACCEPT
`

// listIPVS lists virtual servers, ipsets and interfaces.
func (c *cluster) listIPVS(t *testing.T) string {
	t.Helper()
	text := c.sh(t, "ipvsadm -S -n\nipset save -sorted\nip -o addr show\n") + c.listAllRules(t)
	return regexp.MustCompile(`(?m) (initval|valid_lft) .*$| bucketsize \d+| hashsize \d+`).ReplaceAllString(text, "")
}

// TestIPVSFromUpstream switches a node from kube-proxy in mode ipvs to this proxy in each
// mode. Connections through virtual servers go on, and foreign state stays unchanged.
func TestIPVSFromUpstream(t *testing.T) {
	needIPVS(t)
	t.Parallel()
	for _, to := range []string{"nftables", "ipvs", "iptables-nft"} {
		t.Run(to, func(t *testing.T) { fromUpstreamIPVS(t, to) })
	}
}

func fromUpstreamIPVS(t *testing.T, to string) {
	c := newCluster(t, switchableModes()[to])
	c.installForeignRules(t)
	c.sh(t, "echo 1 >/proc/sys/net/ipv4/vs/conntrack\n"+foreignIPVS)
	theirs := c.listIPVS(t)
	web := app{name: "web", number: 10}.on(c.Host("web-1"), c.Host("web-3"))
	for _, f := range service.Families {
		c.sh(t, upstreamIPVS(f, "legacy", web))
	}
	c.save(t, web)
	lines := append(c.converseTo(t, "tcp", web), c.converseFrom(t, c.Node, "tcp", web)...) // the node's come from the ClusterIP
	load := c.Host("customer").Load(t.Context(), netlab.LoadConfig{
		Query: netlab.Query{Proto: "tcp", To: web.at(service.NodePort, service.IPv4)}, Pause: emulatedPause,
	})
	p := c.launch(t)
	for _, f := range service.Families {
		p.AwaitLog(t, "Found what an earlier service proxy left", `place="kube-proxy's IPVS for `+f.String(), "4 virtual servers, 1 addresses on kube-ipvs0, 6 ipsets")
	}
	want := c.awaitProgrammed(t)
	done := "takes no new connections from now on"
	if to == "ipvs" { // ours took them over
		done = "Removed what an earlier service proxy left"
	}
	for _, f := range service.Families {
		p.AwaitLog(t, done, `place="kube-proxy's IPVS for `+f.String())
	}
	c.check(t, want, only(service.TCP, c.cells(c.clientHosts()[:1], web)))
	lines.checkSameServer(t)
	if r := load.Stop(); r.Lost() > 0 {
		t.Errorf("load: %s", r)
	}
	for _, o := range lines {
		o.conn.Close()
	}
	if to != "ipvs" { // connections are remembered for two minutes
		for _, f := range service.Families {
			c.awaitGone(t, p, ipvs.Upstream{Family: f})
		}
	}
	p.Stop(t)
	c.cleanUp(t, "", 0)
	if diff := cmp.Diff(theirs, c.listIPVS(t)); diff != "" {
		t.Errorf("after a cleanup (-what others have +all):\n%s", diff)
	}
}

// awaitGone waits until a place is empty, for as long as IPVS keeps entries of closed
// connections.
func (c *cluster) awaitGone(t *testing.T, p *program.Proxy, place interface {
	finder
	String() string
}) {
	t.Helper()
	deadline := time.After(3 * time.Minute)
	look := time.NewTicker(time.Second) // more often costs an emulated processor too much
	defer look.Stop()
	for c.finds(t, place) != "" {
		select {
		case <-look.C:
		case <-deadline:
			t.Fatalf("%s still has %s", place.String(), c.finds(t, place))
		}
	}
	p.AwaitLog(t, "Removed what an earlier service proxy left", `place="`+place.String())
}
