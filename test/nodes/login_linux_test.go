// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"errors"
	"net"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"

	"kubeproxy/test/authority"
)

// testKey returns a new key.
func testKey(t *testing.T) ssh.Signer {
	t.Helper()
	key, err := authority.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// logIn returns a client on the machine's network with a key.
func logIn(t *testing.T, m *Machine, key ssh.Signer) (client *ssh.Client, err error) {
	t.Helper()
	var c net.Conn
	if err := m.inside(func() (err error) { c, err = net.Dial("tcp", "127.0.0.1"+sshPort); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() }) // the client closes it, too
	conn, channels, requests, err := ssh.NewClientConn(c, m.Name, &ssh.ClientConfig{
		User: "root", Auth: []ssh.AuthMethod{ssh.PublicKeys(key)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(),
	})
	if err != nil {
		return nil, err
	}
	return ssh.NewClient(conn, channels, requests), nil
}

// TestLogin checks that commands run on the machine, with their output and how they
// ended, and that the key counts.
func TestLogin(t *testing.T) {
	m, key := testMachine(t, Step{"up", []string{"sh", "-c", "echo up >/var/tmp/up"}, Once}), testKey(t)
	startMachine(t, m, nil)
	awaitFile(t, m.path("var/tmp/up"), 1) // it has its name
	if err := newLogin(m, key).listen(t.Context()); err != nil {
		t.Fatal(err)
	}
	client, err := logIn(t, m, key)
	if err != nil {
		t.Fatal(err)
	}
	session, err := client.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	session.Stderr = &said
	out, err := session.Output("sudo hostname; echo worse >&2; exit 3")
	if want := m.Name + "\n"; string(out) != want || said.String() != "worse\n" {
		t.Errorf("said %q and complained %q, want %q and worse", out, said.String(), want)
	}
	if end := (*ssh.ExitError)(nil); !errors.As(err, &end) || end.ExitStatus() != 3 {
		t.Errorf("the command ended with %v, want status 3", err)
	}
	if _, err := logIn(t, m, testKey(t)); err == nil {
		t.Error("another key may log in")
	}
}
