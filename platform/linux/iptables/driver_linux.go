// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/packet"
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

// runner is the Driver of a real node. go-iptables (v0.8.0) finds the command and its version. It
// has no iptables-restore and iptables-save, which make one transaction of a round and one list of
// a comparison, and its own list takes the lock.
type runner struct {
	family service.Family
	role   *Role
	dir    string
	name   string // of the commands, without suffix
	// programs are the paths of the commands at the start, by suffix, see resolvePrograms.
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

// program returns the path of the iptables program that a command resolves to, else "".
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

// command returns a command with its arguments. An administrator can switch the names to the other
// variant at any time, whose tables the change was not planned for. So command uses the program
// that it found at the start.
func (r *runner) command(ctx context.Context, suffix string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, r.path(suffix), args...)
	before, now := r.programs[suffix], r.program(suffix)
	if before != "" && now != "" && filepath.Base(before) != filepath.Base(now) {
		c.Path = before
	}
	return c
}

func (r *runner) Close() {
	r.monitor.close()
	if r.lock != nil {
		r.lock.close()
	}
}

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

// errNoSocket is why the command refuses rules that match a set: it looks up sets by a raw socket.
var errNoSocket = errors.New("the right CAP_NET_RAW is needed to ask for ipsets")

// restoreError returns the error of iptables-restore with the line of text that caused it.
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

// List implements lister. It reads without the lock, so that nobody finds that taken.
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

// Chains implements chainLister. iptables-legacy reads all of a table in any case.
func (r *runner) Chains(ctx context.Context) oneByOne {
	n, nft := r.monitor.(*nftMonitor)
	s, err := dialNetfilter()
	if err != nil {
		return nil
	}
	one := &chainReader{runner: r, ctx: ctx, socket: s}
	if nft {
		one.family = n.family
		one.generation, one.err = generation(ctx, s)
	}
	if !nft || one.err != nil {
		s.Close()
		return nil
	}
	return one
}

// chainReader reads chains of iptables-nft, by a command each. It asks the kernel first whether
// there is one, because old versions of the command make the chains that they list. It implements oneByOne.
type chainReader struct {
	*runner
	ctx        context.Context
	socket     *netlink.Socket
	family     byte
	generation uint32 // of the ruleset at the beginning
	err        error
}

func (c *chainReader) Has(table, chain string) bool {
	e := &netlink.Encoder{}
	e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_GETCHAIN), 0, c.family, 0)
	e.Text(unix.NFTA_CHAIN_TABLE, table)
	e.Text(unix.NFTA_CHAIN_NAME, chain)
	e.EndMessage()
	err := c.socket.Query(c.ctx, e.Buf, func(netlink.Message) error { return nil })
	if err != nil && !errors.Is(err, unix.ENOENT) {
		c.err = errors.Join(c.err, err)
	}
	return err == nil
}

func (c *chainReader) Read(table, chain string) string {
	out, err := c.command(c.ctx, "", "-w", lockSeconds, "-t", table, "-S", chain).Output()
	c.err = errors.Join(c.err, err)
	text := "*" + table + "\n"
	for line := range strings.Lines(string(out)) {
		for _, head := range []string{"-P ", "-N "} {
			if rest, is := strings.CutPrefix(line, head); is {
				line = ":" + rest
			}
		}
		text += line
	}
	return text
}

func (c *chainReader) Close() error {
	now, err := generation(c.ctx, c.socket)
	c.socket.Close()
	if c.err = errors.Join(c.err, err); c.err == nil && now != c.generation {
		c.err = errors.New("others changed the tables meanwhile")
	}
	return c.err
}

// generation returns the number of the ruleset of nftables, which each change increments.
func generation(ctx context.Context, s *netlink.Socket) (number uint32, err error) {
	e := &netlink.Encoder{}
	e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_GETGEN), 0, unix.AF_UNSPEC, 0)
	e.EndMessage()
	err = s.Query(ctx, e.Buf, func(m netlink.Message) error {
		_, body := m.Netfilter()
		number = netlink.Uint32(netlink.Attribute(body, unix.NFTA_GEN_ID))
		return nil
	})
	return number, err
}

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

func (r *runner) Liberal() bool { return sysctl.TCPBeLiberal(sysctl.Host()) }

// routeLocalnetPath is the sysctl that allows the kernel to route packets to 127.0.0.0/8
// (docs.kernel.org/networking/ip-sysctl.html).
const routeLocalnetPath = "/proc/sys/net/ipv4/conf/all/route_localnet"

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

func (r *runner) EnableRouteLocalnet() error {
	return os.WriteFile(routeLocalnetPath, []byte("1\n"), 0o644)
}

func (r *runner) DisableRouteLocalnet() error { return disableRouteLocalnet() }

// disableRouteLocalnet writes only a change, because writing may be forbidden.
func disableRouteLocalnet() error {
	if text, err := os.ReadFile(routeLocalnetPath); err == nil && strings.TrimSpace(string(text)) == "0" {
		return nil
	}
	return os.WriteFile(routeLocalnetPath, []byte("0\n"), 0o644)
}

// nftChains lists the chains in the tables of iptables-nft.
func nftChains(f service.Family) ([]id, error) {
	s, err := dialNetfilter()
	if err != nil {
		return nil, err
	}
	defer s.Close()
	found, err := netlink.Chains(context.Background(), s, netlink.NFTFamily(f))
	if err != nil {
		return nil, netlink.NFTHint(err)
	}
	all := make([]id, len(found))
	for i, c := range found {
		all[i] = id{c.Table, c.Name}
	}
	return all, nil
}

// legacyChains lists the chains of iptables-legacy. It reads only tables that exist: a request
// makes others (kernel: net/netfilter/x_tables.c, xt_find_table_lock).
func legacyChains(f service.Family) ([]id, error) {
	names, err := packet.LegacyNames(f)
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, nil // no capability is needed in this case
	}
	s, err := newLegacyMonitor(f, nil, nil)
	if errors.Is(err, unix.EAFNOSUPPORT) {
		return nil, nil // the kernel lacks the family, so there are no chains
	}
	if err != nil {
		return nil, err
	}
	defer s.close()
	var all []id
	for _, table := range names {
		if !slices.Contains(allTables, table) {
			continue
		}
		rules, err := s.chains(table)
		if err != nil {
			return nil, fmt.Errorf("read table %s from the kernel: %w", table, err)
		}
		all = append(all, rules...)
	}
	return all, nil
}

// maxTries limits how often a table is read because others change it meanwhile.
const maxTries = 30

// chains lists the user-defined chains of a table.
func (l *legacyMonitor) chains(table string) ([]id, error) {
	var all []id
	err := error(unix.EAGAIN)
	for try := 0; try < maxTries && errors.Is(err, unix.EAGAIN); try++ {
		var info tableInfo
		copy(info[:], table)
		if err := l.getsockopt(getInfo, info[:]); err != nil {
			return nil, err
		}
		all = nil
		err = l.entries(table, info, func(rules []byte) {
			(&blob{table: table, family: l.family, bytes: rules}).rules(func(r blobRule) bool {
				if name, ok := r.chainStart(); ok && name != errorTarget { // marks the end of the table
					all = append(all, id{table, strings.Clone(name)})
				}
				return true
			})
		})
	}
	return all, err
}

// kubeletChains are the chains that kubelet makes in table mangle in any case. They show
// which variant a node uses (kubernetes/kubernetes#109059).
var kubeletChains = []id{{"mangle", "KUBE-IPTABLES-HINT"}, {"mangle", "KUBE-KUBELET-CANARY"}}

// commandPrefix returns the name of the iptables commands for f, without suffix. Rules of the wrong
// variant are not in the tables that all other components use. So it is the variant that kubelet
// has used, if it was one and there are commands for it, otherwise the short name.
func commandPrefix(f service.Family) string {
	var used []string
	for _, v := range Variants {
		long := Leftovers{Variant: v, Family: f}.String()
		if !UsedByKubelet(v) {
			continue
		}
		_, err := exec.LookPath(long + "-restore")
		if _, noSave := exec.LookPath(long + "-save"); err == nil && noSave == nil {
			used = append(used, long)
		}
	}
	if len(used) == 1 {
		return used[0]
	}
	return command(f)
}

// UsedByKubelet reports whether kubelet has made a chain with v, in any family.
func UsedByKubelet(v Variant) bool {
	list := legacyChains
	if v == NFT {
		list = nftChains
	}
	return slices.ContainsFunc(service.Families[:], func(f service.Family) bool {
		all, err := list(f)
		return err == nil && slices.ContainsFunc(all, func(i id) bool { return slices.Contains(kubeletChains, i) })
	})
}

// requirements are what the rules of any node need, with a relay only the first relayRequirements.
// Without the match recent, Services with session affinity are refused.
var requirements = []Requirement{
	{"match comment", "xt_comment", nat, "-m comment --comment probe -j RETURN"},
	{"match tcp", "xt_tcpudp", nat, "-p tcp -m tcp --dport 1 -j RETURN"},
	{"match conntrack", "xt_conntrack", filter, "-m conntrack --ctstate NEW -j RETURN"},
	{"match addrtype", "xt_addrtype", nat, "-m addrtype --dst-type LOCAL -j RETURN"},
	{"match mark", "xt_mark", filter, "-m mark --mark 0x1/0x1 -j RETURN"},
	{"target DNAT", "xt_nat", nat, "-p tcp -j DNAT --to-destination :1"},
	{"target REJECT", "ipt_REJECT", filter, "-p tcp -j REJECT --reject-with tcp-reset"},
	{"match statistic", "xt_statistic", nat, "-m statistic --mode random --probability 0.5 -j RETURN"},
	{"match bpf", "xt_bpf", nat, "-m bpf --bytecode \"1,6 0 0 0\" -j RETURN"},
	{"target MARK", "xt_mark", nat, "-j MARK --set-xmark 0x1/0x1"},
	{"target MASQUERADE with --random-fully", "xt_MASQUERADE", nat, "-j MASQUERADE --random-fully"},
}

// relayRequirements is the number of requirements that apply with a relay.
const relayRequirements = 7

// requirements returns those of l's rules.
func (l layout) requirements() []Requirement {
	switch {
	case l.relays():
		return requirements[:relayRequirements]
	case l.options.Role != nil:
		return slices.Concat(requirements, l.options.Role.Needs)
	}
	return requirements
}

// probeTimeout limits the run time of a command.
const probeTimeout = 30 * time.Second

// Probe checks whether the node has an iptables that accepts our rules for f, and says in one
// sentence what is missing. It tries them in a network namespace of its own. Where it cannot make
// one, only the command checks them, not the kernel.
func Probe(f service.Family, o Options) error { return ProbeWith(f, o, func() error { return nil }) }

// ProbeWith is Probe for rules that refer to objects which prepare creates first, in the
// private network namespace. Without such a namespace it does not try them.
func ProbeWith(f service.Family, o Options, prepare func() error) error {
	r := &runner{family: f, role: o.Role, isolated: true}
	if err := r.open(); err != nil {
		return fmt.Errorf("iptables for %s: %w", f, err)
	}
	defer r.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its namespace
		done <- r.probeIsolated(layout{family: f, options: o}, prepare)
	}()
	return <-done
}

// probeIsolated runs probe in a network namespace of its own thread.
func (r *runner) probeIsolated(l layout, prepare func() error) error {
	args := []string{"--noflush", "-w", lockSeconds}
	if unix.Unshare(unix.CLONE_NEWNET) != nil {
		if l.options.Role != nil {
			return nil // the test would need sets outside of a private namespace
		}
		args = append(args, "--test")
	} else if err := prepare(); err != nil {
		return err
	}
	if err := r.probe(l, args); err != nil {
		return fmt.Errorf("iptables for %s: %w", l.family, err)
	}
	return nil
}

// probe restores the rules that any node has. If they are refused, it finds the cause.
func (r *runner) probe(l layout, args []string) error {
	needs := l.requirements()
	rules := Document(r.family, service.New(0, &service.Node{NodePorts: service.AnyAddress()}, nil), l.options).Objects().String()
	for _, n := range needs {
		rules += n.text()
	}
	allErr := r.tryRestore(rules, args)
	if allErr == nil || errors.Is(allErr, ErrBusy) || errors.Is(allErr, errNoSocket) {
		return allErr
	}
	var missing, modules []string
	var first error // the error for all rules would contain a word about each
	for _, n := range needs {
		if err := r.tryRestore(n.text(), args); err != nil {
			module := n.Module
			if r.family == service.IPv6 {
				module = strings.Replace(module, "ipt_", "ip6t_", 1)
			}
			missing = append(missing, fmt.Sprintf("%s (kernel module %s)", n.Name, module))
			modules = append(modules, module)
			first = cmp.Or(first, err)
		}
	}
	if first == nil {
		return fmt.Errorf("the command refuses the rules: %w", allErr)
	}
	return sysctl.Missing(fmt.Errorf("there is no %s: %w", strings.Join(missing, ", no "), first), modules...)
}

func (r *runner) tryRestore(text string, args []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	return r.run(ctx, text, args...)
}

// text returns the iptables-restore input that tests n, in a chain that nothing uses.
func (r Requirement) text() string {
	return "*" + r.Table + "\n:KUBE-PROBE - [0:0]\n-A KUBE-PROBE " + r.Rule + "\nCOMMIT\n"
}
