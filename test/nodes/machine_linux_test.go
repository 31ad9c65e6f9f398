// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	discovery "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"kubeproxy/test/kit"
)

// TestMain is process 1 of the machines that tests start.
func TestMain(m *testing.M) {
	handled, err := RunCommand(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "machine:", err)
		os.Exit(1)
	}
	if handled {
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startMachine starts a machine, and checks at the end that nothing of it is left.
func startMachine(t *testing.T, m *Machine, l *net.TCPListener) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a machine needs root")
	}
	t.Cleanup(func() {
		err := m.remove()
		kit.Check(t, err == nil, "%v", err)
		for _, found := range leftovers(t, m) {
			t.Errorf("left behind: %s", found)
		}
	})
	kit.Must(t, errors.Join(m.addNamespace(), m.ips("link set lo up")))
	kit.Must(t, m.boot(l))
}

// leftovers returns what names the machine: mounts, network namespaces, cgroups and
// processes.
func leftovers(t *testing.T, m *Machine) []string {
	t.Helper()
	var found []string
	mounts := kit.ReadFile(t, "/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, m.Folder) || strings.Contains(line, m.namespace()) {
			found = append(found, "mount "+line)
		}
	}
	if _, err := os.Stat("/run/netns/" + m.namespace()); err == nil {
		found = append(found, "network namespace")
	}
	err := filepath.WalkDir(cgroupRoot, func(path string, d os.DirEntry, err error) error {
		if errors.Is(err, os.ErrNotExist) { // others come and go
			return nil
		}
		if err == nil && d.IsDir() && d.Name() == m.namespace() {
			found = append(found, "cgroup "+path)
		}
		return err
	})
	kit.Must(t, err)
	return append(found, running(t, m.Folder)...)
}

// running returns processes whose arguments contain a text.
func running(t *testing.T, part string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	kit.Must(t, err)
	var found []string
	for _, file := range files {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), part) {
			found = append(found, file+" "+string(text))
		}
	}
	return found
}

func testMachine(t *testing.T, steps ...Step) *Machine {
	t.Helper()
	return &Machine{
		Name: fmt.Sprintf("test%d", os.Getpid()), Cluster: "test", Folder: t.TempDir(), Path: "/usr/sbin:/usr/bin:/sbin:/bin", Steps: steps,
	}
}

// TestMachine starts a machine whose programs fail, end, leave orphans and go on, and
// checks that it is a host of its own.
func TestMachine(t *testing.T) {
	once := `test -e /var/tmp/tried && exec true; touch /var/tmp/tried; exec false` // fails the first time
	m := testMachine(t,
		Step{"once", []string{"sh", "-c", once}, Once},
		Step{"orphan", []string{"sh", "-c", "(sleep 0.1; echo orphan >>/var/tmp/orphans) & exec true"}, Once},
		Step{"forever", []string{"sh", "-c", "echo begin; echo $$ >>/var/tmp/forever; exec sleep 1000"}, Forever},
	)
	startMachine(t, m, nil)
	awaitFile(t, m.path("var/tmp/orphans"), 1)
	awaitFile(t, m.path("var/tmp/forever"), 1)
	cmd, err := m.Command(t.Context(), "sh", "-c", "hostname; readlink /proc/1/exe >/dev/null && ls -d /sys/fs/cgroup/*; cat /proc/sys/kernel/panic; ls /sys/class/net; kill $(cat /var/tmp/forever)")
	kit.Must(t, err)
	text, err := output(cmd)
	kit.Must(t, err)
	kit.Check(t, strings.HasPrefix(text, m.Name+"\n") && strings.HasSuffix(text, "\nlo\n"),
		"a command sees another host than %s with a loopback interface:\n%s", m.Name, text)
	awaitFile(t, m.path("var/tmp/forever"), 2) // it was started again
	before := kit.ReadFile(t, "/proc/sys/kernel/panic")
	if cmd, err = m.Command(t.Context(), "sh", "-c", "echo 77 >/proc/sys/kernel/panic"); err != nil {
		t.Fatal(err)
	}
	_, err = output(cmd)
	kit.Check(t, err == nil, "a setting that kubelet writes: %v", err)
	if after, err := os.ReadFile("/proc/sys/kernel/panic"); err != nil || string(after) != string(before) {
		t.Errorf("the host's kernel.panic was %q and is %q, %v", before, after, err)
	}
}

// awaitFile waits until a file has a number of lines.
func awaitFile(t *testing.T, file string, lines int) {
	t.Helper()
	var text []byte
	err := poll(t.Context(), 20*time.Second, func() (bool, error) {
		text, _ = os.ReadFile(file) // not there yet
		return strings.Count(string(text), "\n") >= lines, nil
	})
	kit.Need(t, err == nil, "%s: want %d lines: %v\n%s", file, lines, err, text)
}

// TestForward checks that connections to the listener on the host reach the machine.
func TestForward(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	m := testMachine(t, Step{"echo", []string{"socat", "TCP-LISTEN:7,fork,reuseaddr", "EXEC:cat"}, Forever})
	m.Forward = "127.0.0.1:7"
	startMachine(t, m, l.(*net.TCPListener))
	kit.Must(t, l.Close())
	const said = "hello"
	var got []byte
	err = poll(t.Context(), 20*time.Second, func() (bool, error) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return false, err
		}
		defer c.Close()
		if _, err := io.WriteString(c, said); err != nil {
			return false, nil
		}
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			return false, nil
		}
		got, _ = io.ReadAll(c) // what came counts
		return string(got) == said, nil
	})
	kit.Check(t, err == nil, "want %q back, got %q: %v", said, got, err)
}

// TestClusterNames checks that clusters of different names share nothing that the host
// knows by its name, and which names fit.
func TestClusterNames(t *testing.T) {
	folders, namespaces := map[string]bool{}, map[string]bool{}
	for _, name := range []string{"", "a", "b2"} {
		folder, err := Folder(name)
		kit.Must(t, err)
		c := &Cluster{Name: name, folder: folder}
		folders[folder], namespaces[c.Machine("n1").namespace()] = true, true
	}
	kit.Check(t, len(folders) == 3 && len(namespaces) == 3,
		"three clusters have the folders %v and the namespaces %v", folders, namespaces)
	for _, name := range []string{"../a", "A", "a-b", strings.Repeat("a", 21)} {
		folder, err := Folder(name)
		kit.Check(t, err != nil, "name %q: folder %s, want an error", name, folder)
	}
}

// TestUpRefuses checks that a cluster which is there stays as it is, and how many nodes fit.
func TestUpRefuses(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	folder, err := Folder("there")
	kit.Must(t, err)
	file := filepath.Join(folder, "cluster.json")
	kit.Must(t, errors.Join(os.MkdirAll(folder, 0o700), os.WriteFile(file, []byte("{}"), 0o600)))
	if err := Up(t.Context(), io.Discard, &Cluster{Name: "there", Nodes: 3}); !errors.Is(err, ErrThere) || !strings.Contains(err.Error(), "make cluster-down CLUSTER=there") {
		t.Errorf("a second cluster of that name: %v", err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "{}" {
		t.Errorf("its description is %q, %v", text, err)
	}
	for _, n := range []int{0, 10} {
		err := Up(t.Context(), io.Discard, &Cluster{Name: "new", Nodes: n})
		kit.Check(t, err != nil && strings.Contains(err.Error(), "want 1 to 9"), "%d nodes: %v", n, err)
	}
}

// TestPoll checks that a wait ends with its context, and says why it was in vain.
func TestPoll(t *testing.T) {
	reason := errors.New("not yet")
	ctx, cancel := context.WithCancel(t.Context())
	err := poll(ctx, time.Hour, func() (bool, error) {
		cancel()
		return false, reason
	})
	kit.Check(t, errors.Is(err, context.Canceled), "a context that ends: %v", err)
	err = poll(t.Context(), 0, func() (bool, error) { return false, reason })
	kit.Check(t, errors.Is(err, reason), "no time: %v", err)
}

// TestCommandEndsWithContext checks that nothing goes on of a command whose context ends.
func TestCommandEndsWithContext(t *testing.T) {
	m := testMachine(t)
	startMachine(t, m, nil)
	begun := m.path("begun")
	ctx, cancel := context.WithCancel(t.Context())
	cmd, err := m.Command(ctx, "sh", "-c", `echo >"$0"; sleep 1000; exit 1`, begun)
	if err == nil {
		err = cmd.Start()
	}
	kit.Must(t, err)
	awaitFile(t, begun, 1)
	cancel()
	if err := cmd.Wait(); err == nil {
		t.Error("the command has succeeded")
	}
	err = poll(t.Context(), 10*time.Second, func() (bool, error) {
		left := running(t, begun)
		return len(left) == 0, fmt.Errorf("%q", left)
	})
	kit.Check(t, err == nil, "the command goes on: %v", err)
}

// TestDownWithoutDescription checks that nothing is left of a cluster whose description, or
// whose folder, is lost.
func TestDownWithoutDescription(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for what, lose := range map[string]func(c *Cluster) error{
		"a description that is cut off": func(c *Cluster) error { return os.Truncate(c.path(descriptionFile), 0) },
		"a folder":                      func(c *Cluster) error { return os.RemoveAll(c.folder) },
	} {
		t.Run(what, func(t *testing.T) {
			c := &Cluster{Name: fmt.Sprintf("test%d", os.Getpid()), Nodes: most}
			var err error
			if c.folder, err = Folder(c.Name); err != nil {
				t.Fatal(err)
			}
			m := c.Machine(node(most))
			m.Steps = []Step{{"ready", []string{"sh", "-c", "echo ready >/var/tmp/ready"}, Once}}
			startMachine(t, m, nil)
			awaitFile(t, m.path("var/tmp/ready"), 1)
			kit.Must(t, errors.Join(c.save(), lose(c)))
			if _, err := Open(io.Discard, c.Name); err == nil || !strings.Contains(err.Error(), "make cluster") {
				t.Errorf("without %s: %v", what, err)
			}
			found, err := Find(io.Discard, c.Name)
			if err == nil {
				err = found.Down()
			}
			kit.Must(t, err)
			left := leftovers(t, m)
			kit.Check(t, len(left) == 0, "left behind: %v", left)
			_, err = Find(io.Discard, c.Name)
			kit.Check(t, errors.Is(err, ErrNone), "what is removed: %v", err)
		})
	}
}

// slice returns an EndpointSlice with an endpoint on each of some nodes. A node with a
// minus has one that is not ready.
func slice(service string, family discovery.AddressType, nodes ...string) discovery.EndpointSlice {
	s := discovery.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{discovery.LabelServiceName: service}}, AddressType: family}
	for _, n := range nodes {
		name := strings.TrimPrefix(n, "-")
		ready := name == n
		s.Endpoints = append(s.Endpoints, discovery.Endpoint{NodeName: &name, Conditions: discovery.EndpointConditions{Ready: &ready}})
	}
	return s
}

// TestReady checks which endpoints a client can go to.
func TestReachable(t *testing.T) {
	const v4, v6 = discovery.AddressTypeIPv4, discovery.AddressTypeIPv6
	unknown := slice("web", v4, "n1")
	unknown.Endpoints[0].Conditions.Ready = nil
	serving, ended := slice("web", v4, "-n1"), slice("web", v4, "-n1")
	serving.Endpoints[0].Conditions.Terminating, serving.Endpoints[0].Conditions.Serving = new(true), new(true)
	ended.Endpoints[0].Conditions.Terminating, ended.Endpoints[0].Conditions.Serving = new(true), new(false)
	for name, c := range map[string]struct {
		slices []discovery.EndpointSlice
		to     reach
		want   bool
	}{
		"none":                       {nil, reach{service: "web", family: v4}, false},
		"one":                        {[]discovery.EndpointSlice{slice("web", v4, "-n1", "n2")}, reach{service: "web", family: v4}, true},
		"in the second slice":        {[]discovery.EndpointSlice{slice("web", v4, "-n1"), slice("web", v4, "n2")}, reach{service: "web", family: v4}, true},
		"one that is not ready":      {[]discovery.EndpointSlice{slice("web", v4, "-n1")}, reach{service: "web", family: v4}, false},
		"one that is not said to be": {[]discovery.EndpointSlice{unknown}, reach{service: "web", family: v4}, true},
		"one that serves and ends":   {[]discovery.EndpointSlice{serving}, reach{service: "web", family: v4}, true},
		"one that only ends":         {[]discovery.EndpointSlice{ended}, reach{service: "web", family: v4}, false},
		"of another Service":         {[]discovery.EndpointSlice{slice("local", v4, "n1")}, reach{service: "web", family: v4}, false},
		"of the other family":        {[]discovery.EndpointSlice{slice("web", v6, "n1")}, reach{service: "web", family: v4}, false},
		"on the node":                {[]discovery.EndpointSlice{slice("local", v4, "-n1", "n2")}, reach{"local", v4, "n2"}, true},
		"on another node":            {[]discovery.EndpointSlice{slice("local", v4, "-n1", "n2")}, reach{"local", v4, "n1"}, false},
	} {
		r := readiness{now: map[string]discovery.EndpointSlice{}}
		for i, s := range c.slices {
			r.now[strings.Repeat("x", i)] = s
		}
		got := r.reachable(c.to)
		kit.Check(t, got == c.want, "%s: reachable %t, want %t", name, got, c.want)
	}
}

// TestExplainLosses checks which losses count as those of outages, and what the page says
// of them.
func TestExplainLosses(t *testing.T) {
	to := reach{service: "web", family: discovery.AddressTypeIPv4}
	r := readiness{ended: make(chan struct{}), outages: map[reach][]outage{to: nil}}
	close(r.ended)
	begin := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	at := func(seconds float64) time.Time { return begin.Add(time.Duration(seconds * float64(time.Second))) }
	up := map[string]discovery.EndpointSlice{"": slice("web", to.family, "n1")}
	for _, step := range []struct {
		at  float64
		now map[string]discovery.EndpointSlice
	}{{0, up}, {10, nil}, {12, nil}, {13, up}, {14, up}, {30, nil}, {30.5, up}} {
		r.now = step.now
		r.note(at(step.at))
	}
	f := Flow{Name: "a", Counts: Counts{New: 9, NewLost: 6, Kinds: map[string]int{"new: timeout": 6}}}
	for _, s := range []float64{5, 9.5, 11, 13.5, 20, 31} {
		f.LostAt = append(f.LostAt, at(s))
	}
	r.explain(&f, to)
	kit.Check(t, f.Unready == 3500*time.Millisecond && f.LostUnready == 4 && f.LostAt == nil,
		"without a ready endpoint for %s, lost %d then, times kept: %t; want 3.5s, 4 and false", f.Unready, f.LostUnready, f.LostAt != nil)
	d := Document{Changes: []Change{{Name: "api", About: "away", Flows: []Flow{f, {Name: "b", Unready: time.Hour}}}}}
	want := " 4 in up to 3.5s)\n"
	kit.Check(t, strings.Contains(d.Page(), want), "want %q in the page:\n%s", want, d.Page())
}

// TestOutageGoesOn checks that an outage which has no end yet counts.
func TestOutageGoesOn(t *testing.T) {
	to := reach{service: "web", family: discovery.AddressTypeIPv4}
	r := readiness{ended: make(chan struct{}), outages: map[reach][]outage{to: {{from: time.Now().Add(-time.Minute)}}}}
	close(r.ended)
	f := Flow{Counts: Counts{LostAt: []time.Time{time.Now()}}}
	if r.explain(&f, to); f.LostUnready != 1 || f.Unready < time.Minute {
		t.Errorf("without a ready endpoint for %s, lost %d then; want a minute and 1", f.Unready, f.LostUnready)
	}
}

// TestRoom checks that a cluster is refused for which the kernel has too few instances
// left, and that those which it made are ended.
func TestRoom(t *testing.T) {
	const limit = 16
	open := map[int]bool{}
	pipe := func() (int, error) { // in place of inotify, whose instances others need meanwhile
		if len(open) == limit {
			return 0, unix.EMFILE
		}
		var ends [2]int
		if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
			return 0, err
		}
		open[ends[0]] = true
		return ends[0], unix.Close(ends[1])
	}
	err := room(limit, pipe)
	kit.Check(t, err == nil, "all that are left: %v", err)
	clear(open)
	if err := room(limit+1, pipe); err == nil || !strings.Contains(err.Error(), "take 17 instances of inotify, and the kernel has 16 left") {
		t.Errorf("one more than are left: %v", err)
	}
	for fd := range open {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		kit.Check(t, err != nil, "file %d is open", fd)
	}
}
