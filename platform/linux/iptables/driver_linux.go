// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-iptables/iptables"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/sysctl"
)

// New returns the Backend for one family, working in the network namespace of
// the calling thread. It changes nothing yet. The error says what the node
// lacks.
func New(f service.Family, o Options) (*Backend, error) {
	d, err := NewDriver(f, o)
	if err != nil {
		return nil, err
	}
	return NewWith(f, o, d), nil
}

// NewDriver returns the Driver of this node for one family. Of o the folder of
// the commands counts, and the role. The error says what the node lacks.
func NewDriver(f service.Family, o Options) (Driver, error) {
	r := &runner{family: f, role: o.Role, dir: o.Dir}
	if err := r.open(); err != nil {
		return nil, fmt.Errorf("iptables for %s: %w", f, err)
	}
	return r, nil
}

// lockSeconds bounds how long iptables-legacy waits for the lock that it
// shares with all others on the node, where it takes that by itself.
const lockSeconds = "5"

// runner is the Driver of a real node.
type runner struct {
	family service.Family
	role   Role
	dir    string
	name   string // of the commands, but for what is added to it
	// programs are what the commands were at the start, by what is added to the
	// name, see settle.
	programs map[string]string

	lock     *lock // nil if there is none that we could hold
	monitor  changeMonitor
	isolated bool // nothing is changed that others share, so no lock is needed

	mu        sync.Mutex // held while a command changes the tables
	holdsLock bool       // the lock, too
}

// changeMonitor tells whether others have changed the tables.
type changeMonitor interface {
	// beginRestore is called when process pid, still waiting for its input, is about
	// to change the tables for us, and settled when it has ended.
	beginRestore(pid int) error
	endRestore() error
	// reset forgets what was heard so far.
	reset() error
	touched() (bool, error)
	close()
}

// open finds the command and what tells of changes to its tables.
func (r *runner) open() error {
	proto := iptables.ProtocolIPv4
	if r.family == service.IPv6 {
		proto = iptables.ProtocolIPv6
	}
	r.name = command(r.family)
	if r.dir == "" {
		r.name = commandPrefix(r.family)
	}
	ipt, err := iptables.New(iptables.IPFamily(proto), iptables.Path(r.path("")))
	if errors.Is(err, exec.ErrNotFound) {
		return fmt.Errorf("the command %s is missing: install iptables", command(r.family))
	}
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", command(r.family), err)
	}
	for _, suffix := range []string{"-save", "-restore"} {
		if _, err := exec.LookPath(r.path(suffix)); err != nil {
			return fmt.Errorf("the command %s%s is missing: install iptables", command(r.family), suffix)
		}
	}
	if !ipt.HasRandomFully() {
		v1, v2, v3 := ipt.GetIptablesVersion()
		return fmt.Errorf("%s is version %d.%d.%d: 1.6.2 or later is needed", command(r.family), v1, v2, v3)
	}
	out, err := exec.Command(r.path(""), "--version").Output()
	if err != nil {
		return fmt.Errorf("ask %s for its version: %w", command(r.family), err)
	}
	r.resolvePrograms()
	if strings.Contains(string(out), "nf_tables") {
		r.monitor, err = newNFTMonitor(r.family, r.role)
		return err
	}
	r.lock = newLock(r.path("-restore"))
	r.monitor, err = newLegacyMonitor(r.family, r.role, r.lock)
	return err
}

// resolvePrograms notes what programs of iptables the commands are now.
func (r *runner) resolvePrograms() {
	r.programs = map[string]string{}
	for _, suffix := range []string{"", "-save", "-restore"} {
		r.programs[suffix] = r.program(suffix)
	}
}

// program returns what program of iptables a command is, "" if it is anything
// else.
func (r *runner) program(suffix string) string {
	path, err := exec.LookPath(r.path(suffix))
	if err == nil {
		path, err = filepath.EvalSymlinks(path)
	}
	if err != nil || !strings.HasPrefix(filepath.Base(path), "xtables-") {
		return ""
	}
	return path
}

// path returns how to call one of the commands.
func (r *runner) path(suffix string) string { return filepath.Join(r.dir, r.name+suffix) }

// command returns one of the commands with its arguments. The node's administrator
// may have the names stand for the other variant at any time, and changes that
// were planned for the tables of one would go to those of the other. So it is the
// program of before that is called then.
func (r *runner) command(ctx context.Context, suffix string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, r.path(suffix), args...)
	before, now := r.programs[suffix], r.program(suffix)
	if before != "" && now != "" && filepath.Base(before) != filepath.Base(now) {
		c.Path = before
	}
	return c
}

func (r *runner) close() {
	r.monitor.close()
	if r.lock != nil {
		r.lock.close()
	}
}

// Restore implements Driver.
func (r *runner) Restore(ctx context.Context, text string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lock != nil {
		if err := r.lock.hold(ctx, lockWait); err != nil {
			return fmt.Errorf("%w: %w", errBusy, err)
		}
		r.holdsLock = true
		defer func() {
			r.holdsLock = false
			r.lock.release()
		}()
	}
	err := r.run(ctx, text, "--noflush", "-w", lockSeconds)
	return errors.Join(err, r.monitor.endRestore())
}

// run runs iptables-restore with text as its input.
func (r *runner) run(ctx context.Context, text string, args ...string) error {
	c := r.command(ctx, "-restore", args...)
	switch {
	case r.holdsLock:
		r.lock.passTo(c)
	case r.isolated:
		c.Env = append(os.Environ(), noLockEnv)
	}
	var stderr bytes.Buffer
	c.Stderr = &stderr
	in, err := c.StdinPipe()
	if err != nil {
		return fmt.Errorf("%w: %w", errBusy, err)
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("%w: %w", errBusy, err)
	}
	monitorErr := r.monitor.beginRestore(c.Process.Pid)
	_, _ = io.WriteString(in, text) // if it breaks off, the command says why
	_ = in.Close()
	if err := c.Wait(); err != nil {
		return restoreError(err, stderr.String(), text)
	}
	return monitorErr
}

// errNoSocket is why the command takes no rule that asks a set: it finds the set
// through a raw socket, whatever the variant.
var errNoSocket = errors.New("the right CAP_NET_RAW is needed to ask for ipsets")

// restoreError tells what iptables-restore said of text, with the line it is about.
func restoreError(err error, output, text string) error {
	output = strings.Join(strings.Fields(output), " ")
	var exit *exec.ExitError
	// The code for a lack of resources stands for refused lines, too.
	const lackOfResources = 4
	numbered := strings.Contains(output, "line ")
	if strings.Contains(output, "Can't open socket to ipset") {
		return fmt.Errorf("%w: %s: %w", errNoSocket, output, err)
	}
	if !errors.As(err, &exit) || exit.ExitCode() < 0 || exit.ExitCode() == lackOfResources && !numbered {
		return fmt.Errorf("%w: %w: %s", errBusy, err, output)
	}
	at := regexp.MustCompile(`\bline:? (\d+)`).FindStringSubmatch(output)
	lines := strings.Split(text, "\n")
	if at == nil {
		return fmt.Errorf("%s: %w", output, err)
	}
	n, numErr := strconv.Atoi(at[1])
	switch {
	case numErr != nil || n <= 0 || n > len(lines):
	case lines[n-1] == "COMMIT": // which tells nothing
		return fmt.Errorf("the kernel refuses table %s as a whole: %w", tableAt(lines[:n]), err)
	default: // the number is another one each time, the line is not
		return fmt.Errorf("%s: %q: %w", strings.Replace(output, at[0], "this line", 1), lines[n-1], err)
	}
	return fmt.Errorf("%s: %w", output, err)
}

// tableAt names the table that the last of lines is about.
func tableAt(lines []string) string {
	for _, l := range slices.Backward(lines) {
		if name, found := strings.CutPrefix(l, "*"); found {
			return name
		}
	}
	return ""
}

// Save implements Driver.
func (r *runner) Save(ctx context.Context) (string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.monitor.reset(); err != nil {
		return "", err
	}
	c := r.command(ctx, "-save")
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%s-save: %w: %s", command(r.family), err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return out.String(), nil
}

// List implements lister. It needs no lock, and nobody is to wonder who had it.
func (r *runner) List(ctx context.Context, table, chain string) (string, error) {
	c := r.command(ctx, "", "-w", lockSeconds, "-t", table, "-S", chain, "-v")
	c.Env = append(os.Environ(), noLockEnv)
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return string(out), nil
}

// Touched implements Driver.
func (r *runner) Touched(context.Context) (bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.monitor.touched()
}

// Suspect returns who touched our chains last, where the kernel says so.
func (r *runner) Suspect() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, ok := r.monitor.(*nftMonitor); ok {
		return n.describeLastProcess()
	}
	return ""
}

// watchEvery is how often Watch asks, which is cheap.
const watchEvery = 500 * time.Millisecond

// Watch implements Driver.
func (r *runner) Watch(ctx context.Context, touched func()) error {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	var freed <-chan struct{}
	if r.lock != nil {
		freed = r.lock.freed
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-freed: // what waits for the lock need not wait for its turn
			touched()
			continue
		case <-t.C:
		}
		switch yes, err := r.Touched(ctx); {
		case err != nil:
			return err
		case yes:
			touched()
		}
	}
}

// Liberal implements Driver.
func (r *runner) Liberal() bool { return sysctl.TCPBeLiberal(sysctl.Host()) }

// routeLocalnetPath is the kernel's choice whether packets to 127.0.0.0/8 may be
// routed.
const routeLocalnetPath = "/proc/sys/net/ipv4/conf/all/route_localnet"

// RouteLocalnetEnabled implements Driver.
func (r *runner) RouteLocalnetEnabled() (bool, error) {
	text, err := os.ReadFile(routeLocalnetPath)
	if err != nil || strings.TrimSpace(string(text)) == "1" {
		return err == nil, err
	}
	f, err := os.OpenFile(routeLocalnetPath, os.O_WRONLY, 0) // which changes nothing
	if err != nil {
		return false, err
	}
	return false, f.Close()
}

// EnableRouteLocalnet implements Driver.
func (r *runner) EnableRouteLocalnet() error {
	return os.WriteFile(routeLocalnetPath, []byte("1\n"), 0o644)
}

// DisableRouteLocalnet implements Driver.
func (r *runner) DisableRouteLocalnet() error { return disableRouteLocalnet() }

// disableRouteLocalnet writes nothing where nothing is to change, which may be
// forbidden.
func disableRouteLocalnet() error {
	if text, err := os.ReadFile(routeLocalnetPath); err == nil && strings.TrimSpace(string(text)) == "0" {
		return nil
	}
	return os.WriteFile(routeLocalnetPath, []byte("0\n"), 0o644)
}
