// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"kubeproxy/test/netlab"
)

// process is a running peer.
type process struct {
	cmd   *exec.Cmd
	began time.Time
	log   string       // file
	rules *generations // nil if they are not used
}

// peerConfig makes a proxy work at once and leave the node's sysctls alone.
const peerConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
hostnameOverride: ` + ownNode + `
clusterCIDR: ` + clusterCIDR + `
detectLocalMode: ClusterCIDR
healthzBindAddress: 127.0.0.1:10256
metricsBindAddress: 127.0.0.1:10249
clientConnection:
  kubeconfig: %s
  contentType: application/json
nftables:
  minSyncPeriod: 1ms
  syncPeriod: 1h
conntrack:
  maxPerCore: 0
  min: 0
  tcpEstablishedTimeout: 0s
  tcpCloseWaitTimeout: 0s
`

const peerKubeconfig = `apiVersion: v1
kind: Config
current-context: bench
contexts: [{name: bench, context: {cluster: bench, user: bench}}]
clusters: [{name: bench, cluster: {server: "http://%s"}}]
users: [{name: bench, user: {}}]
`

// startProcess starts program on n's node, with an API server at addr. Its files are in
// dir.
func startProcess(n *network, program, addr, dir string) (*process, error) {
	kubeconfig, config := filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "config.yaml")
	p := &process{log: filepath.Join(dir, "log"), rules: &generations{}}
	for file, text := range map[string]string{
		kubeconfig: fmt.Sprintf(peerKubeconfig, addr),
		config:     fmt.Sprintf(peerConfig, kubeconfig),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return nil, fmt.Errorf("write the peer's configuration: %w", err)
		}
	}
	if err := n.node.Do(p.rules.open); err != nil {
		return nil, fmt.Errorf("ask for the generation of the rules: %w", err)
	}
	return p, p.launch(n.node, program, "--config", config)
}

// launch starts program on h.
func (p *process) launch(h *netlab.Host, program string, args ...string) error {
	log, err := os.Create(p.log)
	if err != nil {
		return fmt.Errorf("make the log of %s: %w", program, err)
	}
	defer log.Close()
	p.cmd = exec.Command(program, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // to end with its child processes
	p.began = time.Now()
	return h.Start(p.cmd)
}

// stop ends the process and returns the peak resident set of it or of one of its child
// processes.
func (p *process) stop() (float64, error) {
	if p.rules != nil {
		p.rules.close()
	}
	kill := time.AfterFunc(5*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return 0, errors.Join(fmt.Errorf("stop the peer: %w", err), p.logTail())
	}
	// Neither its exit code nor a remaining child process matters here.
	_ = p.cmd.Wait()
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
	u, ok := p.cmd.ProcessState.SysUsage().(*syscall.Rusage)
	if !ok {
		return 0, errors.New("no resource usage of the peer")
	}
	return float64(u.Maxrss) * 1024, nil
}

// logTail returns the end of the process's log as an error.
func (p *process) logTail() error {
	const most = 2000
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err
	}
	return fmt.Errorf("the peer's log ends with:\n%s", text[max(0, len(text)-most):])
}

func (p *process) pid() string { return strconv.Itoa(p.cmd.Process.Pid) }

// ended returns whether the process has ended by itself.
func (p *process) ended() bool {
	text, err := os.ReadFile("/proc/" + p.pid() + "/stat")
	return err != nil || bytes.Contains(text, []byte(") Z "))
}

// usedCPU returns the CPU time of the process and of the children that it has waited for.
func (p *process) usedCPU() time.Duration {
	text, err := os.ReadFile("/proc/" + p.pid() + "/stat")
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), ") ")
	words := strings.Fields(after)
	const utime, tick = 11, 10 * time.Millisecond // USER_HZ, the unit of times in /proc
	ticks := 0
	for i := utime; i < utime+4 && i < len(words); i++ {
		n, err := strconv.Atoi(words[i])
		if err != nil {
			return 0
		}
		ticks += n
	}
	return time.Duration(ticks) * tick
}

// children returns whether the process is running programs, if the kernel shows them.
func (p *process) children() bool {
	lists, err := filepath.Glob("/proc/" + p.pid() + "/task/*/children")
	if err != nil {
		return false
	}
	for _, file := range lists {
		if text, err := os.ReadFile(file); err == nil && len(text) > 0 {
			return true
		}
	}
	return false
}

// waitForChildren waits until the CPU time of the process includes that of its child
// processes.
func (p *process) waitForChildren(ctx context.Context) error {
	for range ticks(ctx, time.Millisecond) {
		if !p.children() || p.ended() {
			return nil
		}
	}
	return ctx.Err()
}

// errSlow means that the peer took too long.
var errSlow = errors.New("the peer took too long")

// awaitIdle waits until the process is idle and returns when it last changed the rules.
func (p *process) awaitIdle(ctx context.Context, limit time.Duration) (time.Time, error) {
	const quiet = 500 * time.Millisecond
	deadline := time.Now().Add(limit)
	cpu, since := p.usedCPU(), time.Now()
	for tick := range ticks(ctx, 10*time.Millisecond) {
		busy := p.usedCPU()
		if busy > cpu+10*time.Millisecond || p.children() || tick.Sub(p.rules.changed()) < quiet {
			cpu, since = busy, tick
		}
		switch {
		case tick.Sub(since) >= quiet:
			return p.rules.changed(), nil
		case p.ended():
			return time.Time{}, fmt.Errorf("the peer has ended: %w", p.logTail())
		case tick.After(deadline):
			return time.Time{}, errSlow
		}
	}
	return time.Time{}, ctx.Err()
}

// generations follows the generation number of a namespace's nftables rules.
type generations struct {
	conn *netlink.Conn
	last atomic.Int64 // time of the last change, in Unix nanoseconds
	done chan struct{}
}

// open opens a socket in the calling thread's namespace.
func (g *generations) open() (err error) {
	if g.conn, err = netlink.Dial(unix.NETLINK_NETFILTER, nil); err != nil {
		return err
	}
	g.done = make(chan struct{})
	go g.follow()
	return nil
}

func (g *generations) close() {
	close(g.done)
	g.conn.Close()
}

func (g *generations) changed() time.Time { return time.Unix(0, g.last.Load()) }

// follow polls: with a subscription to changes, the kernel would write a message for
// each.
func (g *generations) follow() {
	last := uint32(0)
	for {
		select {
		case <-g.done:
			return
		case <-time.After(200 * time.Microsecond):
		}
		id, err := g.ask()
		if err != nil || id == last {
			continue
		}
		if last != 0 {
			g.last.Store(time.Now().UnixNano())
		}
		last = id
	}
}

func (g *generations) ask() (uint32, error) {
	answers, err := g.conn.Execute(netlink.Message{
		Header: netlink.Header{
			Type:  netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN),
			Flags: netlink.Request,
		},
		Data: []byte{unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil {
		return 0, err
	}
	for _, m := range answers {
		if len(m.Data) < 4 {
			continue
		}
		a, err := netlink.NewAttributeDecoder(m.Data[4:])
		if err != nil {
			return 0, err
		}
		a.ByteOrder = binary.BigEndian
		for a.Next() {
			if a.Type() == unix.NFTA_GEN_ID {
				return a.Uint32(), a.Err()
			}
		}
	}
	return 0, errors.New("the kernel reported no generation")
}
