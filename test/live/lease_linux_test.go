// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/platform/linux/abstract"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// leaseAttack is the variable for which this program attacks the lease of its network
// namespace instead of running tests. Its value is one of the attacks below.
const leaseAttack = "KUBEPROXY_TEST_LEASE_ATTACK"

const (
	holdName   = "hold"  // and answer "yielded" to whoever asks
	askForIt   = "ask"   // with what the holder sent on another connection
	floodRoot  = "flood" // as root
	floodUsers = "users" // as another user
)

// attackingLease attacks the lease, if this program is to.
func attackingLease() {
	attack := os.Getenv(leaseAttack)
	if attack == "" {
		return
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil || unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DEBUG, 1) == nil {
		fmt.Println("has CAP_NET_ADMIN", err)
		os.Exit(1)
	}
	switch attack {
	case holdName:
		holdLease()
	case askForIt:
		askForLease()
	case floodUsers:
		if err := syscall.Setresuid(65534, 65534, 65534); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fallthrough
	case floodRoot:
		floodLease()
	}
}

// holdLease has the name of the lease, sends proofs back and claims to have yielded.
func holdLease() {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: abstract.Name})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("begins")
	for {
		c, err := l.AcceptUnix()
		if err != nil {
			continue
		}
		go func() {
			defer c.Close()
			_, _ = c.Write(append([]byte{2}, make([]byte, 32)...))
			forward(c, c)
			sayLease(c, `{"identity":{},"yielded":true,"inForce":true}`)
			_, _ = io.Copy(io.Discard, c)
		}()
	}
}

// askForLease asks for the lease for ever, with the proof that the holder sent on another
// connection.
func askForLease() {
	fmt.Println("begins")
	for {
		a, b := dialLease(true), dialLease(true)
		if a == nil || b == nil {
			continue
		}
		fd, _ := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
		_, _, _ = a.WriteMsgUnix([]byte{0}, unix.UnixRights(fd), nil)
		_ = unix.Close(fd)
		_, _ = io.ReadFull(a, make([]byte, 33))
		_, _ = io.ReadFull(b, make([]byte, 33))
		forward(a, b)
		sayLease(b, `{"identity":{"mode":"nftables"},"ask":"take"}`)
		answer, _ := io.ReadAll(b)
		if strings.Contains(string(answer), "yielded") {
			fmt.Println("took the lease")
		}
		_ = a.Close()
		_ = b.Close()
	}
}

// floodLease opens connections for ever and says nothing.
func floodLease() {
	fmt.Println("begins")
	var open []net.Conn
	for {
		c := dialLease(false)
		if c == nil {
			time.Sleep(time.Millisecond)
			continue
		}
		if open = append(open, c); len(open) > 400 {
			_ = open[0].Close()
			open = open[1:]
		}
	}
}

// dialLease connects to the holder, nil if there is none.
func dialLease(withAddress bool) *net.UnixConn {
	var from *net.UnixAddr
	if withAddress {
		name := abstract.Name + "/client/"
		for len(name) < 108 {
			name += fmt.Sprintf("%x", rand.N(16))
		}
		from = &net.UnixAddr{Net: "unix", Name: name}
	}
	c, err := net.DialUnix("unix", from, &net.UnixAddr{Net: "unix", Name: abstract.Name})
	if err != nil {
		return nil
	}
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c
}

// forward passes a message with descriptors on.
func forward(from, to *net.UnixConn) {
	text, control := make([]byte, 64), make([]byte, 64)
	if n, m, _, _, err := from.ReadMsgUnix(text, control); err == nil {
		_, _, _ = to.WriteMsgUnix(text[:n], control[:m], nil)
	}
}

// sayLease sends a message as proxies do.
func sayLease(c net.Conn, text string) {
	_, _ = c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(text))), text...))
}

// attackLease starts an attack as root of a container: with its usual capabilities, but
// not CAP_NET_ADMIN.
func (c *cluster) attackLease(t *testing.T, attack string) *program.Proxy {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	const rights = "-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,+setuid,+setpcap,+net_bind_service,+net_raw,+sys_chroot,+mknod,+audit_write,+setfcap"
	cmd := exec.Command("setpriv", "--inh-caps=-all", "--bounding-set="+rights, self)
	cmd.Env = append(os.Environ(), leaseAttack+"="+attack)
	p := program.Start(t, c.Node, cmd)
	p.AwaitLog(t, "begins")
	return p
}

// TestLeaseAttacks checks that root without CAP_NET_ADMIN, in the network namespace of the
// node, can neither keep a proxy from programming it, nor take its lease, nor keep two
// proxies from finding each other.
func TestLeaseAttacks(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}
	c.save(t, web.on(c.Host("web-1")))
	holder := c.attackLease(t, holdName)
	p := c.start(t)
	c.awaitReached(t, web, "web-1")
	condition := func() string { return reportOf(t, p, program.MetricsAddr).Conditions["other-proxy"] }
	kit.Until(t, "that the proxy names the process", func() bool {
		return strings.Contains(condition(), fmt.Sprintf("may not program this node, process %d (", holder.Pid()))
	})
	if !p.Log.Has("Warning: it is unknown which service proxy programs this node") {
		t.Error("the log does not say it")
	}
	c.save(t, web.on(c.Host("web-2")))
	c.awaitReached(t, web, "web-2")
	holder.Kill()
	kit.Until(t, "that the proxy has the lease", func() bool { return condition() == "" })
	attacks := []*program.Proxy{c.attackLease(t, askForIt), c.attackLease(t, floodRoot), c.attackLease(t, floodUsers)}
	d, q := c.startSecond(t, defaultMode(), web.on(c.Host("web-1")))
	d.awaitReached(t, web, "web-1")
	kit.Until(t, "that the first proxy stands by", func() bool {
		return strings.Contains(condition(), fmt.Sprintf("process %d (", q.Pid()))
	})
	d.save(t, web.on(c.Host("web-2")))
	d.awaitReached(t, web, "web-2")
	for _, a := range attacks {
		if a.Log.Has("took the lease") || a.Ended() {
			t.Errorf("an attack says\n%s", a.Log)
		}
		a.Kill()
	}
	q.Stop(t)
	kit.Until(t, "that the first proxy is alone", func() bool { return condition() == "" })
}
