// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"

	"golang.org/x/crypto/ssh"
)

// sshPort is where the tests of Kubernetes expect the nodes of a cloud to let them log in.
const sshPort = ":22"

// allowLogin lets the tests of Kubernetes run commands on the nodes, as on those of a
// cloud, until ctx ends. It returns the variables that say how, see
// test/e2e/framework/ssh in kubernetes/kubernetes.
func (c *Cluster) allowLogin(ctx context.Context) (env []string, err error) {
	key, err := c.newKey("login")
	if err != nil {
		return nil, err
	}
	allowed, err := ssh.NewSignerFromKey(key)
	if err != nil {
		return nil, err
	}
	for i := 1; i <= c.Nodes; i++ {
		s := newLogin(c.Machine(node(i)), allowed)
		if err := s.listen(ctx); err != nil {
			return nil, fmt.Errorf("let tests log in to %s: %w", s.machine.Name, err)
		}
	}
	return []string{"KUBE_SSH_USER=root", "KUBE_SSH_KEY_PATH=" + c.pki("login.key")}, nil
}

// login serves SSH for a machine. It runs outside of the machine, and its commands inside.
type login struct {
	machine *Machine
	config  *ssh.ServerConfig
}

// newLogin returns a server that the holder of one key may use. It has the same key, as
// the tests ask for none.
func newLogin(m *Machine, allowed ssh.Signer) *login {
	config := &ssh.ServerConfig{
		PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
			if !bytes.Equal(key.Marshal(), allowed.PublicKey().Marshal()) {
				return nil, errors.New("another key")
			}
			return nil, nil
		},
	}
	config.AddHostKey(allowed)
	return &login{m, config}
}

// listen serves on the machine's network until ctx ends.
func (s *login) listen(ctx context.Context) error {
	var l net.Listener
	err := s.machine.inside(func() (err error) {
		l, err = net.Listen("tcp", sshPort)
		return err
	})
	if err != nil {
		return err
	}
	context.AfterFunc(ctx, func() { _ = l.Close() }) // serve ends
	go s.serve(ctx, l)
	return nil
}

func (s *login) serve(ctx context.Context, l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go s.client(ctx, c)
	}
}

// client serves one connection. One that ends at once only asked whether somebody listens.
func (s *login) client(ctx context.Context, c net.Conn) {
	defer c.Close()
	_, channels, requests, err := ssh.NewServerConn(c, s.config)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	for offered := range channels {
		if offered.ChannelType() != "session" {
			_ = offered.Reject(ssh.UnknownChannelType, "want a session") // the client has gone if this fails
			continue
		}
		if channel, requests, err := offered.Accept(); err == nil {
			go s.session(ctx, channel, requests)
		}
	}
}

// asRoot stands for sudo(8), which a machine need not have.
const asRoot = "sudo() { \"$@\"; }\n"

// session runs the one command of a session, see RFC 4254, section 6. A client that has
// gone does not need answers.
func (s *login) session(ctx context.Context, channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for r := range requests {
		var command struct{ Text string }
		if r.Type != "exec" || ssh.Unmarshal(r.Payload, &command) != nil {
			_ = r.Reply(false, nil)
			continue
		}
		_ = r.Reply(true, nil)
		status := s.run(ctx, channel, command.Text)
		_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{status}))
		return
	}
}

// run runs a command on the machine and returns its exit status.
func (s *login) run(ctx context.Context, channel ssh.Channel, command string) (status uint32) {
	cmd, err := s.machine.Command(ctx, "sh", "-c", asRoot+command)
	if err == nil {
		cmd.Stdout, cmd.Stderr = channel, channel.Stderr()
		err = cmd.Run()
	}
	if child := (*exec.ExitError)(nil); errors.As(err, &child) && child.Exited() {
		return uint32(child.ExitCode()) // the command has said why
	}
	if err != nil {
		fmt.Fprintln(channel.Stderr(), err) // it did not run, or was ended
		return 255
	}
	return 0
}
