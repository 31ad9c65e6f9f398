// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/condition"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/proc"
	"kubeproxy/platform/linux/sysctl"
	"kubeproxy/platform/mode"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// TestHidden checks that a listener is reported only if a NodePort really takes its
// clients away.
func TestHidden(t *testing.T) {
	port := func(f service.Family, proto service.Protocol, kind service.Kind) *service.Port {
		return &service.Port{
			Name:      service.PortName{Namespace: "shop", Name: "web", Protocol: proto},
			Family:    f,
			Frontends: []service.Frontend{{Kind: kind, Port: 30080}},
		}
	}
	plain := port(service.IPv4, service.TCP, service.NodePort)
	for situation, test := range map[string]struct {
		ports  []*service.Port
		listen string
		want   string
	}{
		"on every address":           {[]*service.Port{plain}, "tcp 0.0.0.0:30080", "1 NodePorts are ports that programs of this node listen on, the first of them: shop/web hides a program that listens on 0.0.0.0:30080/tcp"},
		"on every address of both":   {[]*service.Port{plain}, "tcp [::]:30080", "1 NodePorts are ports that programs of this node listen on, the first of them: shop/web hides a program that listens on [::]:30080/tcp"},
		"on an answering address":    {[]*service.Port{plain}, "tcp 192.0.2.1:30080", "1 NodePorts are ports that programs of this node listen on, the first of them: shop/web hides a program that listens on 192.0.2.1:30080/tcp"},
		"both families":              {[]*service.Port{plain, port(service.IPv6, service.TCP, service.NodePort)}, "tcp [::]:30080", "2 NodePorts are ports that programs of this node listen on, the first of them: shop/web hides a program that listens on [::]:30080/tcp"},
		"on another of the node's":   {[]*service.Port{plain}, "tcp 198.51.100.1:30080", ""},
		"on loopback":                {[]*service.Port{plain}, "tcp 127.0.0.1:30080", ""},
		"another port":               {[]*service.Port{plain}, "tcp 0.0.0.0:30081", ""},
		"another protocol":           {[]*service.Port{plain}, "udp 0.0.0.0:30080", ""},
		"another family":             {[]*service.Port{port(service.IPv6, service.TCP, service.NodePort)}, "tcp 0.0.0.0:30080", ""},
		"the port of an external IP": {[]*service.Port{port(service.IPv4, service.TCP, service.ExternalIP)}, "tcp 0.0.0.0:30080", ""},
	} {
		t.Run(situation, func(t *testing.T) {
			node := &service.Node{NodePorts: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}}
			proto, addr, _ := strings.Cut(test.listen, " ")
			l := proc.Listener{Protocol: service.TCP, Addr: netip.MustParseAddrPort(addr)}
			if proto == "udp" {
				l.Protocol = service.UDP
			}
			kit.Equal(t, hiddenListeners(service.New(1, node, test.ports), []proc.Listener{l}), test.want, "hidden")
		})
	}
	own := []proc.Listener{{Protocol: service.TCP, Addr: netip.MustParseAddrPort("127.0.0.1:30080")}}
	got := hiddenListeners(service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{plain}), own)
	kit.Check(t, got == "", "on loopback, where every address answers: %q", got)
	kit.Equal(t, hiddenListeners(nil, []proc.Listener{{}}), "", "before the first snapshot")
}

// TestRoute looks up routes that lead somewhere and nowhere, over both families.
func TestRoute(t *testing.T) {
	lab := netlab.Start(t, netlab.Config{})
	kit.Must(t, lab.Node.Do(func() error {
		for _, line := range strings.Split(`link add out type bridge
link set out up
addr add 198.18.0.1/24 dev out
route add 198.18.1.0/24 via 198.18.0.9
route add blackhole 198.18.2.0/24
route add unreachable 198.18.3.0/24
route add prohibit 198.18.4.0/24
route add blackhole 2001:db8:99::/64`, "\n") {
			out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
			kit.Check(t, err == nil, "ip %s: %v\n%s", line, err, out)
		}
		for to, want := range map[string]string{
			"198.18.0.7":     "",
			"198.18.1.7":     "",
			"198.18.0.1":     "",
			"198.18.2.1":     "blackhole",
			"198.18.3.1":     "unreachable",
			"198.18.4.1":     "prohibited",
			"2001:db8:99::1": "blackhole",
		} {
			got := ""
			if err := Route(netip.MustParseAddr(to)); err != nil {
				got = err.Error()
			}
			kit.Check(t, got == want, "%s: %q, want %q", to, got, want)
		}
		return nil
	}))
}

const (
	connections = "proc/sys/net/netfilter/nf_conntrack_max"
	hashsize    = "sys/module/nf_conntrack/parameters/hashsize"
	forward4    = "proc/sys/net/ipv4/ip_forward"
	oomScore    = "proc/self/oom_score_adj"
)

// newSysctlDir returns a directory with sysctl files of a kernel.
func newSysctlDir(t *testing.T, files map[string]string) sysctl.Dir {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		kit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		kit.WriteFile(t, path, text+"\n")
	}
	return sysctl.Dir(dir)
}

func wantedSettings() *config.Config {
	c := &config.Config{OS: config.Linux}
	c.OOMScoreAdj = new(int32(-999))
	k := &c.Conntrack
	k.MaxPerCore, k.Min = new(int32(1)), new(int32(131072))
	k.TCPEstablishedTimeout, k.TCPCloseWaitTimeout = newDuration(0), newDuration(0)
	return c
}

// TestKeepPrepared lets settings fail at first, as in a container without write access.
// Later another program corrects one of them, and the proxy another.
func TestKeepPrepared(t *testing.T) {
	files := newSysctlDir(t, map[string]string{connections: "65536", hashsize: "16384", forward4: "0"}) // no oom_score_adj
	kit.Must(t, os.MkdirAll(filepath.Join(string(files), "proc/self"), 0o755))
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		var conditions conditionRecorder
		var used atomic.Pointer[[]service.Family]
		used.Store(&[]service.Family{service.IPv4})
		var log program.Log
		p := &nodePreparer{
			files:     files,
			log:       textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))),
			condition: conditions.set,
		}
		go p.run(ctx, Preparation{Config: wantedSettings}, func() []service.Family { return *used.Load() })
		expect := func(situation, want string) {
			t.Helper()
			if got := conditions.names(); got != want {
				t.Errorf("%s: conditions %q, want %q\n%s", situation, got, want, log.String())
			}
		}
		pass := func() { time.Sleep(2 * settingsRetry); synctest.Wait() }
		put := func(name, text string) { kit.WriteFile(t, filepath.Join(string(files), name), text) }

		synctest.Wait()
		expect("at first", "setting-net.ipv4.ip_forward setting-oom_score_adj")
		b, err := files.ReadFile(connections)
		kit.Check(t, err == nil && string(b) == "131072", "connections: %q, %v", b, err)
		time.Sleep(5 * settingsRetry)
		synctest.Wait()
		if n := strings.Count(log.String(), "Warning"); n != 2 {
			t.Errorf("%d warnings, want each once:\n%s", n, log.String())
		}
		used.Store(&[]service.Family{})
		pass()
		expect("without Services", "setting-oom_score_adj")
		used.Store(&[]service.Family{service.IPv4})
		pass()
		expect("with Services again", "setting-net.ipv4.ip_forward setting-oom_score_adj")
		put(forward4, "1")
		pass()
		expect("after forwarding was switched on", "setting-oom_score_adj")
		put(oomScore, "0")
		pass()
		expect("in the end", "")
		put(connections, "131071")
		pass()
		if b, _ := files.ReadFile(connections); string(b) != "131071" {
			t.Errorf("what somebody changed after it was right is %s", b)
		}
	})
}

// conditionRecorder records conditions. It needs a lock even in a synctest bubble: Wait
// orders what goroutines did before it, but nothing orders what they do after the caller
// continues.
type conditionRecorder struct {
	mu  sync.Mutex
	all map[string]string
}

func (c *conditionRecorder) set(named condition.Name, message string) {
	name := string(named)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all == nil {
		c.all = map[string]string{}
	}
	if c.all[name] = message; message == "" {
		delete(c.all, name)
	}
}

// names returns the names of those that hold, in order.
func (c *conditionRecorder) names() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(slices.Sorted(maps.Keys(c.all)), " ")
}

func newDuration(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }

// TestSettingsThatSuffice checks that a sufficient setting is no fault, even if it cannot
// be written: a large table in a container.
func TestSettingsThatSuffice(t *testing.T) {
	files := newSysctlDir(t, map[string]string{connections: "262144", hashsize: "262144", oomScore: "-999"})
	reported := map[string]string{}
	p := &nodePreparer{files: readOnly{files}, condition: func(name condition.Name, message string) {
		if message != "" {
			reported[string(name)] = message
		}
	}}
	c := wantedSettings()
	kit.Check(t, p.report(p.apply(c)) && len(reported) == 0, "conditions %v, want none", reported)
	*c.Conntrack.Min = 1 << 30
	kit.Check(t, !p.report(p.apply(c)), "a table that is too small does")
	kit.Same(t, "conditions (-want +got)", "setting-net.netfilter.nf_conntrack_max", strings.Join(slices.Sorted(maps.Keys(reported)), " "))
}

// readOnly is a directory of files that cannot be written.
type readOnly struct{ sysctl.Dir }

func (readOnly) WriteFile(name string, _ []byte) error {
	return &os.PathError{Op: "open", Path: "/" + name, Err: os.ErrPermission}
}

func (readOnly) Writable(string) bool { return false }

// shared is a directory of files that belong to all network namespaces.
type shared struct{ readOnly }

func (s shared) WriteFile(name string, data []byte) error {
	return fmt.Errorf("%w: %w", sysctl.ErrFixed, s.readOnly.WriteFile(name, data))
}

// TestForwarded checks that only families with Services need forwarding, and none where the proxy relays.
func TestForwarded(t *testing.T) {
	six := &service.Port{Name: service.PortName{Namespace: "shop", Name: "web", Protocol: service.TCP}, Family: service.IPv6}
	s := service.New(1, &service.Node{NodePorts: service.AnyAddress()}, []*service.Port{six})
	got := forwarded(mode.Descriptor{}, nil)
	kit.Check(t, got == nil, "before the first snapshot: %v", got)
	kit.Same(t, "(-want +got)", []service.Family{service.IPv6}, forwarded(mode.Descriptor{}, s))
	got = forwarded(mode.Descriptor{Relays: true}, s)
	kit.Check(t, got == nil, "in a mode that relays: %v", got)
}

// TestSettingsError checks the error of --init-only when some or all settings fail. It is the
// same the second time: an init container that ran once has to succeed again.
func TestSettingsError(t *testing.T) {
	const todo = "; run --init-only as root on the node's network, in a container with privileged: true"
	full := map[string]string{connections: "65536", hashsize: "16384"}
	for name, tt := range map[string]struct {
		files sysctl.Files
		want  string
	}{
		"all":               {newSysctlDir(t, full), ""},
		"enough":            {readOnly{newSysctlDir(t, map[string]string{connections: "262144", hashsize: "65536"})}, ""},
		"part":              {newSysctlDir(t, map[string]string{connections: "65536"}), ""},
		"nothing":           {readOnly{newSysctlDir(t, full)}, "prepare the node: 1 of 1 settings are not as wanted, and none can be made: net.netfilter.nf_conntrack_max stays 65536, wanted 131072: "},
		"one is as wanted":  {readOnly{newSysctlDir(t, map[string]string{connections: "262144", hashsize: "16384"})}, "prepare the node: 1 of 2 settings are not as wanted, and none can be made: nf_conntrack hashsize stays 16384, wanted 32768: "},
		"of all namespaces": {shared{readOnly{newSysctlDir(t, full)}}, ""},
	} {
		for range 2 {
			err := settingsError(sysctl.Apply(tt.files, Settings(wantedSettings())))
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("%s: %v", name, err)
			case tt.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tt.want) || !strings.HasSuffix(err.Error(), todo)):
				t.Errorf("%s: %v, want %s...%s", name, err, tt.want, todo)
			}
		}
	}
}
