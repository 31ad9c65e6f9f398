// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

func TestExplain(t *testing.T) {
	t.Parallel()
	explains(t, defaultMode())
}

func TestIPTablesExplain(t *testing.T) { eachVariant(t, explains) }

func TestUserspaceExplain(t *testing.T) { withUserspace(t, explains) }

func TestIPVSExplain(t *testing.T) { withIPVS(t, explains) }

// asked is a question, and what the answer must have.
type asked struct {
	source, destination string
	code                int
	want                []string
}

const agrees = "The node does what it should."

// shown are texts that the answer has in a mode: for a connection that is forwarded, one
// to a NodePort and one that is refused. altered is what a deed does that explain has to
// name, and repaired is a command that succeeds once it is repaired.
type shown struct {
	forwarded, nodePort, refused string
	altered, repaired, named     string
}

func (m mode) shown() shown {
	alter := "iptables --wait=60 -t nat -D OUTPUT -j %[1]s\n"
	look := "iptables --wait=60 -t nat -C OUTPUT -j %[1]s\n"
	missing := `chain OUTPUT of table nat lacks the rule "-j %[1]s"`
	switch {
	case m.userspace:
		const root = "KUBE-PORTALS-HOST"
		return shown{"relay it for shop/web:lines, policy Cluster", "nat KUBE-NODEPORT-CONTAINER", "filter KUBE-REFUSE",
			fmt.Sprintf(alter, root), fmt.Sprintf(look, root), fmt.Sprintf(missing, root)}
	case m.iptables != "":
		const root = "KUBE-SERVICES"
		return shown{"nat KUBE-SVC-", "nat KUBE-NODEPORTS", "filter KUBE-REFUSE",
			fmt.Sprintf(alter, root), fmt.Sprintf(look, root), fmt.Sprintf(missing, root)}
	case m.ipvs:
		return shown{"virtual server 10.96.0.10:80 tcp", "nat KUBE-VS-FRONT", "filter KUBE-VS-REFUSE",
			"ipvsadm -D -t 10.96.0.10:80\n", "ipvsadm -Ln -t 10.96.0.10:80\n", "virtual server 10.96.0.10:80 tcp is missing"}
	}
	return shown{"map endpoints", "map nodeports", "goto refuse",
		"nft delete element ip kube-services services '{ 10.96.0.10 . tcp . 80 }'\n",
		"nft get element ip kube-services services '{ 10.96.0.10 . tcp . 80 }'\n",
		"services lacks the element 10.96.0.10 . tcp . 80"}
}

// explains asks what happens to connections, on a node as it should be and on an altered
// one.
func explains(t *testing.T, m mode) {
	c := newCluster(t, m)
	c.save(t, app{name: "web", number: 10}.on(c.webs()...), app{name: "sticky", number: 11, sticky: 600}.on(c.webs()...),
		app{name: "empty", number: 12}, app{name: "local", number: 13, external: "Local"}.on(c.Host("web-1"), c.Host("web-3")))
	c.start(t)
	c.awaitProgrammed(t)
	s := m.shown()
	for _, q := range []asked{
		{"10.244.1.99", "10.96.0.10:80", 0, []string{"Forwarded to one of", s.forwarded, agrees}},
		{"10.244.1.99", "10.96.0.10:80/udp", 0, []string{"Forwarded to one of", agrees}},
		{"10.244.1.99", "svc/shop/sticky:lines", 0, []string{"sessionAffinity", agrees}},
		{"outside", "node:30010", 0, []string{s.nodePort, "masqueraded", agrees}},
		{"outside", "node:30013", 0, []string{"externalTrafficPolicy Local", "Forwarded to the only endpoint", agrees}},
		{"10.244.1.99", "node:30013", 0, []string{"Forwarded to one of 2", agrees}},
		{"node", "node:30013", 0, []string{"Forwarded to one of 2", agrees}},
		{"node", "[fd00:10:96::a]:80", 0, []string{"the node itself", agrees}},
		{"node", "10.96.0.10:80", 0, []string{"the node itself", agrees}},
		{"10.244.1.99", "svc/shop/empty:lines", 0, []string{"Refused at once", s.refused, agrees}},
		{"outside", "10.96.0.10:81", 0, []string{"Refused at once", agrees}},
		{"outside", "192.0.2.77:22", 0, []string{"Left alone", agrees}},
		{"10.244.1.99", "svc/shop/none", 2, []string{"there is no service shop/none"}},
	} {
		c.explain(t, q)
	}
	c.explainConnection(t)
	if m.iptables != "" && !m.userspace {
		c.explainFirewall(t)
	}
	c.explainAltered(t, s)
}

// explainConnection makes connections, which explain then knows.
func (c *cluster) explainConnection(t *testing.T) {
	t.Helper()
	shopper := c.Host("shopper")
	to := netip.MustParseAddrPort("10.96.0.11:80")
	for _, proto := range []string{"tcp", "udp"} {
		a, err := shopper.Ask(t.Context(), netlab.Query{Proto: proto, To: to})
		if err != nil || a.Outcome != netlab.Answered {
			t.Fatalf("%s: %+v, %v", proto, a, err)
		}
		want := []string{"connection of " + a.From.String() + ": tracked to", ", answered", "route to " + a.At.String() + ":", agrees}
		if !c.mode.ipvs { // IPVS keeps to itself which endpoint a client had
			want = append(want, "the client had "+a.At.String()+" before")
		}
		c.explain(t, asked{shopper.IPv4.String(), to.String() + "/" + proto, 0, want})
	}
}

// explainFirewall has rules and policies of others drop what was translated.
func (c *cluster) explainFirewall(t *testing.T) {
	t.Helper()
	q := asked{"outside", "node:30010", 1, []string{
		`rule "-d 10.244.2.11/32 -j DROP" of chain FORWARD of table filter drops packets to 10.244.2.11:8080`, "the node never sends it to 10.244.2.11:8080",
	}}
	c.sh(t, "iptables --wait=60 -I FORWARD -d 10.244.2.11 -j DROP\n")
	c.explain(t, q)
	c.sh(t, "iptables --wait=60 -D FORWARD -d 10.244.2.11 -j DROP\niptables --wait=60 -P FORWARD DROP\n")
	q = asked{"10.244.1.99", "10.96.0.10:80", 1, []string{"the policy of chain FORWARD of table filter drops packets to 10.244.1.11:8080, 10.244.1.12:8080, 10.244.2.11:8080 and 1 more"}}
	c.explain(t, q)
	c.explain(t, asked{"outside", "node:30010", 0, []string{agrees}}) // KUBE-FORWARD accepts what is masqueraded
	c.sh(t, "iptables --wait=60 -P FORWARD ACCEPT\n")
}

// explain asks, and compares the answer.
func (c *cluster) explain(t *testing.T, q asked) {
	t.Helper()
	code, out := c.runExplain(t, q.source, q.destination)
	unwrapped := strings.Join(strings.Fields(out), " ")
	for _, w := range q.want {
		if code != q.code || !strings.Contains(unwrapped, w) {
			t.Errorf("explain %s %s: exit %d, want %d; want %q in\n%s", q.source, q.destination, code, q.code, w, out)
		}
	}
}

func (c *cluster) runExplain(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	return c.ask(t, append([]string{"explain"}, args...)...)
}

// ask runs a command of the program on the node.
func (c *cluster) ask(t *testing.T, args ...string) (code int, out string) {
	t.Helper()
	cmd := exec.Command(kubeProxy.Path, args...)
	out, err := program.Run(t, c.Node, cmd)
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), out
}

// explainAltered alters something, and requires that explain names it. The proxy repairs
// it at once the first times, and later once in a second.
func (c *cluster) explainAltered(t *testing.T, s shown) {
	t.Helper()
	var out string
	kit.Until(t, "explain to see what somebody altered", func() bool {
		c.sh(t, s.altered)
		var code int
		code, out = c.runExplain(t, "node", "10.96.0.10:80")
		if code == 1 {
			return true
		}
		kit.Until(t, "it to be repaired", func() bool { return c.sh(t, "if "+strings.TrimSpace(s.repaired)+"; then echo yes; fi\n") != "" })
		return false
	})
	for _, w := range []string{"The node does not do what it should", s.named} {
		if !strings.Contains(out, w) {
			t.Errorf("no %q in\n%s", w, out)
		}
	}
}
