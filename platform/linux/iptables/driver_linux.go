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

// New returns the Backend for one family in the network namespace of the calling thread.
// It changes nothing yet. The error describes what the node lacks.
func New(f service.Family, o Options) (*Backend, error) {
	d, err := NewDriver(f, o)
	if err != nil {
		return nil, err
	}
	return NewWith(f, o, d), nil
}

// NewDriver returns the Driver of this node for one family. It uses only Dir and Role of
// o. The error describes what the node lacks.
func NewDriver(f service.Family, o Options) (Driver, error) {
	r := &runner{family: f, role: o.Role, dir: o.Dir}
	if err := r.open(); err != nil {
		return nil, fmt.Errorf("iptables for %s: %w", f, err)
	}
	return r, nil
}

var _ lister = (*runner)(nil)

// lockSeconds limits how long the command itself waits for the lock of iptables-legacy.
const lockSeconds = "5"

// runner is the Driver of a real node. go-iptables (v0.8.0) finds the command and knows
// its version. It has no iptables-restore and no iptables-save, which make one transaction
// of a round and one list of a comparison. Its list of a chain takes the lock, so others
// would find it taken.
type runner struct {
	family service.Family
	role   Role
	dir    string
	name   string // of the commands, without suffix
	// programs are the resolved paths of the commands at the start, by suffix, see
	// resolvePrograms.
	programs map[string]string

	lock     *lock // nil if we cannot take the lock for the command
	monitor  changeMonitor
	isolated bool // the network namespace is private, so no lock is needed

	mu        sync.Mutex // held while a command changes the tables
	holdsLock bool       // the lock of iptables is held, too
}

// changeMonitor detects changes of the tables by others.
type changeMonitor interface {
	// beginRestore is called before process pid, which still waits for its input,
	// changes the tables for us. endRestore is called after it has ended.
	beginRestore(pid int) error
	endRestore() error
	// reset discards the changes detected so far.
	reset() error
	touched() (bool, error)
	close()
}

// open finds the command and creates the changeMonitor.
func (r *runner) open() error {
	proto := iptables.ProtocolIPv4
	if r.family == service.IPv6 {
		proto = iptables.ProtocolIPv6
	}
	r.chooseName()
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

// chooseName sets the name of the commands.
func (r *runner) chooseName() {
	r.name = command(r.family)
	if r.dir == "" {
		r.name = commandPrefix(r.family)
	}
}

// resolvePrograms records which programs the commands are now.
func (r *runner) resolvePrograms() {
	r.programs = map[string]string{}
	for _, suffix := range []string{"", "-save", "-restore"} {
		r.programs[suffix] = r.program(suffix)
	}
}

// program returns the path of the iptables program that a command resolves to, "" if it
// is anything else.
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

// path returns the path or name of the command with suffix.
func (r *runner) path(suffix string) string { return filepath.Join(r.dir, r.name+suffix) }

// command returns a command with its arguments. An administrator can switch the names to
// the other variant at any time. Then a change that was planned for the tables of one
// variant would go to those of the other. In this case command uses the program that it
// found at the start.
func (r *runner) command(ctx context.Context, suffix string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, r.path(suffix), args...)
	before, now := r.programs[suffix], r.program(suffix)
	if before != "" && now != "" && filepath.Base(before) != filepath.Base(now) {
		c.Path = before
	}
	return c
}

// Close implements Driver.
func (r *runner) Close() {
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
			return fmt.Errorf("%w: %w", ErrBusy, err)
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

// pieceRules bounds the input of iptables-nft-restore, see change.pieces.
const pieceRules = 8000

// PieceRules implements Driver. iptables-legacy-restore replaces the whole table each time
// (iptables: libiptc/libiptc.c, TC_COMMIT), so pieces would cost time and save nothing.
func (r *runner) PieceRules() int {
	if r.lock != nil {
		return 0
	}
	return pieceRules
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
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	if err := c.Start(); err != nil {
		return fmt.Errorf("%w: %w", ErrBusy, err)
	}
	monitorErr := r.monitor.beginRestore(c.Process.Pid)
	_, _ = io.WriteString(in, text) // if the write fails, the error of the command explains why
	_ = in.Close()
	if err := c.Wait(); err != nil {
		return restoreError(err, stderr.String(), text)
	}
	return monitorErr
}

// errNoSocket is the reason why the command refuses rules that match a set: both
// variants look up sets through a raw socket.
var errNoSocket = errors.New("the right CAP_NET_RAW is needed to ask for ipsets")

// restoreError returns the error of iptables-restore for text, with the line that caused
// it.
func restoreError(err error, output, text string) error {
	output = strings.Join(strings.Fields(output), " ")
	var exit *exec.ExitError
	// The exit code for lack of resources also occurs for refused lines.
	const lackOfResources = 4
	numbered := strings.Contains(output, "line ")
	if strings.Contains(output, "Can't open socket to ipset") {
		return fmt.Errorf("%w: %s: %w", errNoSocket, output, err)
	}
	if !errors.As(err, &exit) || exit.ExitCode() < 0 || exit.ExitCode() == lackOfResources && !numbered {
		return fmt.Errorf("%w: %w: %s", ErrBusy, err, output)
	}
	at := regexp.MustCompile(`\bline:? (\d+)`).FindStringSubmatch(output)
	lines := strings.Split(text, "\n")
	if at == nil {
		return fmt.Errorf("%s: %w", output, err)
	}
	n, numErr := strconv.Atoi(at[1])
	switch {
	case numErr != nil || n <= 0 || n > len(lines):
	case lines[n-1] == "COMMIT": // the line does not identify the rule
		return fmt.Errorf("the kernel refuses table %s as a whole: %w", tableAt(lines[:n]), err)
	default: // the line number changes from call to call, the text of the line does not
		return fmt.Errorf("%s: %q: %w", strings.Replace(output, at[0], "this line", 1), lines[n-1], err)
	}
	return fmt.Errorf("%s: %w", output, err)
}

// tableAt returns the table that the last of lines belongs to.
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

// List implements lister. It reads without the lock, so that no other process finds the
// lock taken.
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

// Suspect implements Driver. Only the variant nft reports who changed something.
func (r *runner) Suspect() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n, ok := r.monitor.(*nftMonitor); ok {
		return n.describeLastProcess()
	}
	return ""
}

// watchEvery is the interval between two calls of Touched in Watch. A call is cheap.
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
		case <-freed: // a change that waited for the lock can go on at once
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

// routeLocalnetPath is the sysctl that allows the kernel to route packets to 127.0.0.0/8
// (docs.kernel.org/networking/ip-sysctl.html).
const routeLocalnetPath = "/proc/sys/net/ipv4/conf/all/route_localnet"

// RouteLocalnetEnabled implements Driver.
func (r *runner) RouteLocalnetEnabled() (bool, error) {
	text, err := os.ReadFile(routeLocalnetPath)
	if err != nil || strings.TrimSpace(string(text)) == "1" {
		return err == nil, err
	}
	f, err := os.OpenFile(routeLocalnetPath, os.O_WRONLY, 0) // only tests the permission
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

// disableRouteLocalnet writes only if the value has to change, because writing may be
// forbidden.
func disableRouteLocalnet() error {
	if text, err := os.ReadFile(routeLocalnetPath); err == nil && strings.TrimSpace(string(text)) == "0" {
		return nil
	}
	return os.WriteFile(routeLocalnetPath, []byte("0\n"), 0o644)
}
