// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"kubeproxy/common/document"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/iptables"
	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/platform/linux/nftables"
	"kubeproxy/platform/linux/socketlb"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/nftmonitor"
	"kubeproxy/test/vm"
)

// ChartTool builds the program that renders the chart as Helm does. It is of another
// module, whose dependencies the product does not have.
func ChartTool(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "release")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", file, ".")
	build.Dir = filepath.Join("..", "..", "build", "release")
	out, err := build.CombinedOutput()
	kit.Need(t, err == nil, "build: %v\n%s", err, out)
	return file
}

// The default addresses of the proxy's servers, as dialled on its own host.
const (
	HealthAddr  = "127.0.0.1:10256"
	MetricsAddr = "127.0.0.1:10249"
)

// Response is a response over HTTP.
type Response struct {
	Status int
	Header http.Header
	Body   []byte
}

// Fetch requests a page from h. An error means that there was no response.
func Fetch(ctx context.Context, h *netlab.Host, addr, path string) (Response, error) {
	ctx, cancel := context.WithTimeout(ctx, ReplyTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return Response{}, err
	}
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return h.Dial(ctx, network, addr)
	}}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return Response{}, err
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	return Response{answer.StatusCode, answer.Header, body}, err
}

// Fetch requests a page from the proxy, on its own host. A missing response fails the
// test.
func (r *Proxy) Fetch(t testing.TB, addr, path string) Response {
	t.Helper()
	page, err := Fetch(t.Context(), r.host, addr, path)
	kit.Need(t, err == nil, "GET %s%s: %v", addr, path, err)
	return page
}

// Status returns the HTTP status of a page, 0 without a response. Tests poll it.
func (r *Proxy) Status(t testing.TB, addr, path string) int {
	t.Helper()
	page, err := Fetch(t.Context(), r.host, addr, path)
	if err != nil {
		return 0
	}
	return page.Status
}

// JSON reads a page of the metrics server into to.
func (r *Proxy) JSON(t testing.TB, path string, to any) {
	t.Helper()
	page := r.Fetch(t, MetricsAddr, path)
	kit.Need(t, page.Status == http.StatusOK, "GET %s: status %d\n%s", path, page.Status, page.Body)
	err := json.Unmarshal(page.Body, to)
	kit.Need(t, err == nil, "GET %s: %v\n%s", path, err, page.Body)
}

// Metric returns the sum of all samples of a metric with these labels, given as
// alternating names and values, and whether there is one. For a histogram or a summary it
// sums the counts.
func (r *Proxy) Metric(t testing.TB, name string, labels ...string) (sum float64, found bool) {
	t.Helper()
	page := r.Fetch(t, MetricsAddr, "/metrics")
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(bytes.NewReader(page.Body))
	kit.Need(t, err == nil, "metrics: %v", err)
	for _, m := range all[name].GetMetric() {
		if !hasLabels(m, labels) {
			continue
		}
		found = true
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue() +
			float64(m.GetHistogram().GetSampleCount()) + float64(m.GetSummary().GetSampleCount())
	}
	return sum, found
}

func hasLabels(m *dto.Metric, labels []string) bool {
	has := map[string]string{}
	for _, l := range m.GetLabel() {
		has[l.GetName()] = l.GetValue()
	}
	for i := 0; i+1 < len(labels); i += 2 {
		if has[labels[i]] != labels[i+1] {
			return false
		}
	}
	return true
}

// Memory returns the resident set of the proxy in bytes, and its peak.
func (r *Proxy) Memory(t testing.TB) (now, peak int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.Pid()))
	kit.Need(t, err == nil, "memory of the proxy: %v", err)
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) != 3 || words[2] != "kB" {
			continue
		}
		kilobytes, err := strconv.ParseInt(words[1], 10, 64)
		kit.Need(t, err == nil, "memory of the proxy: %q: %v", line, err)
		switch words[0] {
		case "VmRSS:":
			now = kilobytes << 10
		case "VmHWM:":
			peak = kilobytes << 10
		}
	}
	kit.Need(t, now != 0, "memory of the proxy: it has ended")
	return now, peak
}

// CPU returns the CPU time of the proxy, to a hundredth of a second.
func (r *Proxy) CPU(t testing.TB) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", r.Pid()))
	kit.Need(t, err == nil, "CPU time of the proxy: %v", err)
	// The name in parentheses may contain any character, see proc_pid_stat(5).
	words := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	const user, system, tick = 11, 12, 10 * time.Millisecond // USER_HZ, the unit of times in /proc
	var ticks int64
	for _, i := range []int{user, system} {
		n, err := strconv.ParseInt(words[i], 10, 64)
		kit.Need(t, err == nil, "CPU time of the proxy: %v", err)
		ticks += n
	}
	return time.Duration(ticks) * tick
}

// Pid is its process number.
func (r *Proxy) Pid() int { return r.cmd.Process.Pid }

// IPTablesVariants are the two implementations of iptables.
var IPTablesVariants = []string{"legacy", "nft"}

// AwaitLock makes commands of iptables-legacy wait for their lock, which all namespaces
// share, see iptables(8). iptables-nft ignores it.
const AwaitLock = "--wait=60"

// IPTables returns a folder in which the iptables commands are of a variant.
func IPTables(t testing.TB, variant string) string {
	t.Helper()
	dir := t.TempDir()
	for _, c := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-restore", "-save"} {
			kit.Must(t, os.Symlink(filepath.Join("/usr/sbin", c+"-"+variant+suffix), filepath.Join(dir, c+suffix)))
		}
	}
	return dir
}

// With puts dir, if not empty, first in the PATH of cmd.
func With(cmd *exec.Cmd, dir string) *exec.Cmd {
	if dir != "" {
		cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	}
	return cmd
}

// Kernel reads what is in force on a host without changing it.
type Kernel struct {
	host     *netlab.Host
	backends []reconcile.Backend
	layers   []*socketlb.Backend // empty without socket acceleration
	// proxyDiff, if set, returns what the proxy itself still has to do, and
	// trackedSnapshot the snapshot that conntrack entries follow.
	proxyDiff func(context.Context, *netlab.Host, *service.Snapshot) string
	tracked   func(context.Context, service.Family, *service.Snapshot) (*service.Snapshot, error)
	// silent says that the kernel does not report changes of others, so that a backend
	// would answer from its memory until its next comparison.
	silent bool
}

// NewKernel reads h in mode nftables. bit is the bit of the packet mark that means
// masquerading, 0 for the default one.
func NewKernel(t testing.TB, h *netlab.Host, bit int) *Kernel {
	t.Helper()
	return newKernel(t, h, func(f service.Family) (reconcile.Backend, error) {
		return nftables.New(f, nftables.Options{MasqueradeBit: cmp.Or(bit, 14), DropInvalid: true})
	})
}

// NewIPTablesKernel reads h in mode iptables.
func NewIPTablesKernel(t testing.TB, h *netlab.Host, o iptables.Options) *Kernel {
	t.Helper()
	return newKernel(t, h, func(f service.Family) (reconcile.Backend, error) { return iptables.New(f, o) })
}

// NewIPVSKernel reads h in mode ipvs.
func NewIPVSKernel(t testing.TB, h *netlab.Host, o ipvs.Options) *Kernel {
	t.Helper()
	k := newKernel(t, h, func(f service.Family) (reconcile.Backend, error) { return ipvs.New(f, o) })
	k.silent = true
	return k
}

func newKernel(t testing.TB, h *netlab.Host, audit func(service.Family) (reconcile.Backend, error)) *Kernel {
	t.Helper()
	k := &Kernel{host: h}
	for _, f := range service.Families {
		var b reconcile.Backend
		kit.Must(t, h.Do(func() (err error) {
			b, err = audit(f)
			return err
		}))
		t.Cleanup(func() { _ = b.Close() }) // inotify instances and netlink sockets are scarce
		k.backends = append(k.backends, b)
	}
	return k
}

// Accelerate has k compare socket acceleration, too.
func (k *Kernel) Accelerate(t testing.TB, o socketlb.Options) {
	t.Helper()
	for _, f := range service.Families {
		kit.Must(t, k.host.Do(func() error {
			k.layers = append(k.layers, socketlb.New(f, socketlb.NewDriver(f, o), o))
			return nil
		}))
	}
}

// Taken returns how many connections socket acceleration took.
func (k *Kernel) Taken(t testing.TB) (n uint64) {
	t.Helper()
	for _, b := range k.layers {
		taken, err := b.Taken()
		kit.Must(t, err)
		n += taken
	}
	return n
}

// AwaitProgrammed waits until the kernel holds exactly what want describes, and no UDP
// flow that want does not allow.
func (k *Kernel) AwaitProgrammed(t testing.TB, want *service.Snapshot) {
	t.Helper()
	kit.Need(t, kit.Soon(func() bool { return k.Diff(t, want) == "" && k.StaleFlows(t, want) == 0 }),
		"after %s the kernel still has %d stale UDP flows and lacks:\n%s", kit.Limit, k.StaleFlows(t, want), k.Diff(t, want))
}

// Diff lists the changes that the kernel needs to hold want, empty for none.
func (k *Kernel) Diff(t testing.TB, want *service.Snapshot) string {
	t.Helper()
	for i, audit := range k.backends {
		var p reconcile.Plan
		if k.silent {
			audit.Forget()
		}
		err := k.host.Do(func() (err error) { // some run commands
			p, err = audit.Plan(t.Context(), want)
			return err
		})
		if err != nil { // it changed while it was read
			return err.Error()
		}
		if lack := p.Changes().String(); lack != "" {
			return service.Families[i].String() + ":\n" + lack
		}
	}
	for i, audit := range k.layers {
		audit.Forget() // others change the tables
		p, err := audit.Plan(t.Context(), want)
		if err != nil {
			return err.Error()
		}
		lack := p.Changes().String()
		audit.Forget()
		if lack != "" {
			return "socket acceleration of " + service.Families[i].String() + ":\n" + lack
		}
	}
	if k.proxyDiff != nil {
		return k.proxyDiff(t.Context(), k.host, want)
	}
	return ""
}

// StaleFlows counts the UDP flows that want does not allow. A new client on the port of
// an old one would use its flow.
func (k *Kernel) StaleFlows(t testing.TB, want *service.Snapshot) int {
	t.Helper()
	n := 0
	for _, f := range service.Families {
		flows := conntrack.Reconciler{Driver: readOnlyConntrack{}, Family: f}
		known := want
		if k.tracked != nil {
			var err error
			if known, err = k.tracked(t.Context(), f, want); err != nil {
				t.Fatal(err)
			}
		}
		err := k.host.Do(func() error {
			found, err := flows.Sync(t.Context(), known)
			n += found
			return err
		})
		kit.Need(t, err == nil, "look for stale flows: %v", err)
	}
	return n
}

// readOnlyConntrack is a conntrack driver that lists entries and deletes none.
type readOnlyConntrack struct{ conntrack.Netlink }

// Delete reports success without deleting.
func (readOnlyConntrack) Delete(_ context.Context, flows []conntrack.Flow) (int, error) {
	return len(flows), nil
}

// Generation returns the generation number of the nftables rules on h, whichever program
// changed them.
func Generation(t testing.TB, h *netlab.Host) uint32 {
	t.Helper()
	id, err := nftmonitor.Generation(h)
	kit.Must(t, err)
	return id
}

// Program is the built proxy.
type Program struct {
	// Path is its file, until Main returns.
	Path string
}

// Main is the whole of a TestMain: it enters a namespace in which tests may build
// networks, builds the proxy into p and runs the tests. It returns the exit code. What the
// proxy prints has lines as on a terminal.
func Main(m *testing.M, p *Program) int {
	if err := os.Setenv("COLUMNS", strconv.Itoa(document.Width)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return netlab.Main(func() int {
		remove, err := p.build()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		code := m.Run()
		if err := remove(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return code
	})
}

// build builds the program in a folder of its own, which the caller removes. A virtual
// machine cannot build, so the program is installed there in advance.
func (p *Program) build() (remove func() error, err error) {
	if p.Path = os.Getenv(vm.ProxyVariable); p.Path != "" {
		return func() error { return nil }, nil
	}
	dir, err := os.MkdirTemp("", "kube-proxy-test-")
	if err != nil {
		return nil, err
	}
	p.Path = filepath.Join(dir, "kube-proxy")
	build := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", p.Path, "kubeproxy/cmd/kube-proxy")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	remove = func() error { return os.RemoveAll(dir) }
	if out, err := build.CombinedOutput(); err != nil {
		return nil, errors.Join(fmt.Errorf("build the proxy: %w\n%s", err, out), remove())
	}
	return remove, nil
}

// baseFlags keep the program from changing what namespaces share with the machine, and
// name its node.
var baseFlags = []string{
	"--hostname-override=" + netlab.NodeName, "--conntrack-max-per-core=0", "--oom-score-adj=0",
	"--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0", "-v=2",
}

// Command prepares a run with the flags that every test needs, and then args. The last of
// two equal flags wins.
func (p Program) Command(args ...string) *exec.Cmd {
	return exec.Command(p.Path, append(baseFlags[:len(baseFlags):len(baseFlags)], args...)...)
}

// RunTimeout bounds how long a command may take that should end by itself.
const RunTimeout = 3 * time.Minute

// Run runs cmd on h until it ends, and returns its output. If cmd has a Stdout already,
// that is only its standard error. A command that takes longer than RunTimeout is killed,
// and the test fails.
func Run(t testing.TB, h *netlab.Host, cmd *exec.Cmd) (string, error) {
	t.Helper()
	out := &Log{}
	if cmd.Stdout == nil {
		cmd.Stdout = out
	}
	cmd.Stderr = out
	kit.Must(t, h.Start(cmd))
	limit := time.AfterFunc(RunTimeout, func() { _ = cmd.Process.Kill() })
	err := cmd.Wait()
	kit.Check(t, limit.Stop(), "%s: did not end within %s", cmd, RunTimeout)
	return out.String(), err
}

// ReplyTimeout bounds the wait for a single response. A test that may repeat a request to
// a process that is gone should not wait longer.
const ReplyTimeout = 15 * time.Second

// Proxy is a running kube-proxy.
type Proxy struct {
	// Log is its whole log so far.
	Log *Log

	host  *netlab.Host
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // of the process's end
}

// Start starts the proxy on h, with args as in Command, without waiting for it. It is
// killed at the end of the test. If the test has failed by then, its log becomes part of
// the test's.
func (p Program) Start(t testing.TB, h *netlab.Host, args ...string) *Proxy {
	t.Helper()
	return Start(t, h, p.Command(args...))
}

// Start starts a command with a special environment or special files.
func Start(t testing.TB, h *netlab.Host, cmd *exec.Cmd) *Proxy {
	t.Helper()
	r := &Proxy{Log: &Log{}, host: h, cmd: cmd, ended: make(chan struct{})}
	r.cmd.Stdout, r.cmd.Stderr = r.Log, r.Log
	kit.Must(t, h.Start(r.cmd))
	go func() {
		r.err = r.cmd.Wait()
		close(r.ended)
	}()
	t.Cleanup(func() {
		r.Kill()
		if t.Failed() {
			t.Logf("log of the proxy:\n%s", r.Log)
		}
	})
	return r
}

// Stop stops the proxy as a service manager does, and fails the test unless it exits with
// success.
func (r *Proxy) Stop(t testing.TB) {
	t.Helper()
	kit.Must(t, r.cmd.Process.Signal(syscall.SIGTERM))
	err := r.Wait(t)
	kit.Check(t, err == nil, "stopped, the proxy ended with %v, want exit status 0", err)
}

// Wait waits until the proxy has ended and returns its error.
func (r *Proxy) Wait(t testing.TB) error {
	t.Helper()
	select {
	case <-r.ended:
		return r.err
	case <-time.After(kit.Limit): // see Kill
		t.Fatal("the proxy does not end")
		return nil
	}
}

// Ended returns whether the proxy has ended, for any reason.
func (r *Proxy) Ended() bool {
	select {
	case <-r.ended:
		return true
	default:
		return false
	}
}

// Kill ends the proxy as a crash does, if it still runs. A busy kernel may need a minute
// to free the resources of a killed process; Kill does not wait for that.
func (r *Proxy) Kill() {
	_ = r.cmd.Process.Kill()
	select {
	case <-r.ended:
	case <-time.After(2 * time.Second):
	}
}

// AwaitLog waits until one line of the log contains all of words.
func (r *Proxy) AwaitLog(t testing.TB, words ...string) {
	t.Helper()
	kit.Until(t, "a line of the log with "+strings.Join(words, " and "), func() bool { return r.Log.Has(words...) })
}

// AwaitLogs is AwaitLog for a line of each family, whose name takes the place of FAMILY.
func (r *Proxy) AwaitLogs(t testing.TB, words ...string) {
	t.Helper()
	for _, f := range service.Families {
		r.AwaitLog(t, strings.Split(strings.ReplaceAll(strings.Join(words, "\n"), "FAMILY", f.String()), "\n")...)
	}
}

// NewUserspaceKernel looks at h, where the mode is userspace. Only the proxy itself knows
// which endpoints the listeners have, so it is asked as well.
func NewUserspaceKernel(t testing.TB, h *netlab.Host, o userspace.Options) *Kernel {
	t.Helper()
	k := newKernel(t, h, func(f service.Family) (reconcile.Backend, error) { return userspace.NewAudit(f, o) })
	k.proxyDiff = notProgrammed
	k.tracked = k.trackedSnapshot
	return k
}

// trackedSnapshot returns the snapshot that conntrack entries follow.
func (k *Kernel) trackedSnapshot(ctx context.Context, f service.Family, want *service.Snapshot) (to *service.Snapshot, err error) {
	err = k.host.Do(func() (err error) {
		to, err = k.backends[f].(*userspace.Audit).Tracked(ctx, want)
		return err
	})
	return to, err
}

// notProgrammed returns the differences from want that the proxy on h reports.
func notProgrammed(ctx context.Context, h *netlab.Host, want *service.Snapshot) string {
	page, err := Fetch(ctx, h, MetricsAddr, "/services")
	if err != nil {
		return err.Error()
	}
	var all struct{ Services []servicestate.Service }
	if err := json.Unmarshal(page.Body, &all); err != nil {
		return fmt.Sprintf("%v in %s", err, page.Body)
	}
	seen := map[string]bool{}
	for _, s := range all.Services {
		for _, p := range s.Ports {
			seen[fmt.Sprintf("%s/%s %s %s %s: %d", s.Namespace, s.Name, p.Port, strings.ToLower(p.Protocol), p.Family, p.Endpoints)] = p.State == servicestate.Programmed || p.State == servicestate.Limited
		}
	}
	n := 0
	for _, f := range service.Families {
		for p := range want.Ports(f) {
			n++
			line := fmt.Sprintf("%s/%s %s %s %s: %d", p.Name.Namespace, p.Name.Name, p.Name.Port, p.Name.Protocol, f, len(p.Cluster))
			if !seen[line] {
				return "not in force: " + line
			}
		}
	}
	if n != len(seen) {
		return fmt.Sprintf("%d ports are known, want %d", len(seen), n)
	}
	return ""
}
