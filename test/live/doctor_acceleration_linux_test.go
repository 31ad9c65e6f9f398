// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/program"
)

// TestDoctorOfSocketAcceleration makes faults of socket acceleration. Doctor names each, and
// the command that it prints mends it.
func TestDoctorOfSocketAcceleration(t *testing.T) {
	t.Parallel()
	c := newPinned(t)
	on, off := append(slices.Clip(c.flags), "--socket-acceleration"), c.flags
	if d := c.diagnose(t, off); d.has("acceleration-left") || !slices.Contains(d.Checks, check{"socket acceleration", "skipped", "it is off, and nothing of it is in the kernel"}) {
		t.Errorf("before the start: %s", d)
	}
	c.mends(t, "socket-acceleration", "/sys/fs/bpf", on, func() { c.shell(t, "umount /sys/fs/bpf") })

	p := c.start(t)
	for _, args := range [][]string{on, off} { // the proxy answers that it is on
		if d := c.diagnose(t, args); d.has("acceleration-left") || d.has("acceleration-detached") || d.has("socket-acceleration") {
			t.Errorf("a proxy that runs: %s", d)
		}
	}
	p.Stop(t)
	if d := c.diagnose(t, on); d.has("acceleration-left") || d.has("acceleration-detached") || d.has("leftovers") {
		t.Errorf("after a stop: %s", d)
	}
	c.mends(t, "acceleration-detached", "connect4", on, func() { c.shell(t, "rm /sys/fs/bpf/kube-services/*/ipv4/connect4") })
	c.mends(t, "acceleration-left", "which is off", off, func() { c.start(t).Stop(t) })
	c.mends(t, "acceleration-left", "does not update it", off, func() {
		c.start(t).Stop(t)
		c.startNamesake(t)
	})
}

// TestSocketAccelerationIsRemovedWithoutPins has --init-only and --cleanup remove the layer
// where its pins are not mounted. Where nothing was installed, they say nothing of it.
func TestSocketAccelerationIsRemovedWithoutPins(t *testing.T) {
	t.Parallel()
	c := newPinned(t)
	web := app{name: "web", number: 10}.on(c.webs()...)
	outside := *c
	outside.inside = func(cmd *exec.Cmd) *exec.Cmd { return cmd }
	remove := func(flag string) string {
		t.Helper()
		out, err := program.Run(t, c.Node, c.command(flag))
		if err != nil {
			t.Fatalf("%s: %v\n%s", flag, err, out)
		}
		return out
	}
	const left = "acceleration-left"
	for _, flag := range []string{"--init-only", "--cleanup"} {
		checkSilent(t, flag, remove(flag))
		c.start(t).Stop(t)
		c.connectSome(t, web)
		c.checkTracked(t, web, false)
		if d := outside.diagnose(t, c.flags); !d.has(left) {
			t.Errorf("before %s: %s", flag, d)
		}
		out := remove(flag)
		if flag == "--cleanup" && strings.Count(out, `"Cleaned up" place="socket acceleration of `) != len(service.Families) {
			t.Errorf("%s does not say what it removed:\n%s", flag, out)
		}
		if d := outside.diagnose(t, c.flags); d.has(left) {
			t.Errorf("after %s: %s", flag, d)
		}
		if flag == "--init-only" { // it leaves the rules
			c.connectSome(t, web)
			c.checkTracked(t, web, true)
		}
		checkSilent(t, flag, remove(flag))
		fix, found := c.diagnose(t, c.flags).find(left) // pins of programs that are detached
		if !found {
			t.Errorf("%s cannot have removed the pins", flag)
		}
		c.shell(t, fix)
		if d := c.diagnose(t, c.flags); d.has(left) {
			t.Errorf("after %s: %s", fix, d)
		}
		c.shell(t, "conntrack -F")
	}
}

// checkSilent fails if what a command said names something of socket acceleration.
func checkSilent(t *testing.T, flag, said string) {
	t.Helper()
	for line := range strings.Lines(said) {
		if strings.Contains(line, "acceleration") && !strings.Contains(line, `"Nothing to clean up"`) {
			t.Errorf("%s where there is nothing: %s", flag, line)
		}
	}
}

// pinned is a cluster with a Service, whose commands see a BPF file system.
type pinned struct {
	*cluster
	inside func(*exec.Cmd) *exec.Cmd
	// flags are those of a proxy, without --socket-acceleration.
	flags []string
}

func newPinned(t *testing.T) *pinned {
	t.Helper()
	m := defaultMode()
	m.plain = true
	c := newCluster(t, m)
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	return &pinned{c, c.withPins(t), append([]string{"--manifests=" + c.dir}, m.flags...)}
}

// start starts the proxy with socket acceleration, and waits until it has programmed all.
func (c *pinned) start(t *testing.T) *program.Proxy {
	t.Helper()
	p := program.Start(t, c.Node, c.inside(c.command(append(slices.Clip(c.flags), "--socket-acceleration")...)))
	for _, f := range service.Families {
		p.AwaitLog(t, `"Programmed"`, "nftables "+f.String())
	}
	c.awaitProgrammed(t)
	return p
}

func (c *pinned) diagnose(t *testing.T, args []string) diagnosis {
	t.Helper()
	cmd := c.command(args...)
	cmd.Args = slices.Insert(cmd.Args, 1, "doctor")
	cmd.Args = append(cmd.Args, "-o=json")
	return c.readDiagnosis(t, c.inside(cmd))
}

func (c *pinned) shell(t *testing.T, command string) {
	t.Helper()
	if out, err := program.Run(t, c.Node, c.inside(program.With(exec.Command("sh", "-c", command), c.commands))); err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
}

// mends is that of a cluster, with flags of doctor. The finding has to say word.
func (c *pinned) mends(t *testing.T, id, word string, args []string, fault func()) {
	t.Helper()
	if d := c.diagnose(t, args); d.has(id) {
		t.Fatalf("%s is found before it is there: %s", id, d)
	}
	fault()
	d := c.diagnose(t, args)
	fix, _ := d.find(id)
	if !strings.Contains(d.String(), word) || fix == "" && !d.has("socket-acceleration") {
		t.Fatalf("%s, %q, with a command is not found: %s", id, word, d)
	}
	fix = cmp.Or(fix, "mount -t bpf bpf /sys/fs/bpf") // doctor has no command in a container
	c.shell(t, fix)
	if d = c.diagnose(t, args); d.has(id) {
		t.Fatalf("%s is found after %s: %s", id, fix, d)
	}
}

// startNamesake starts what is kube-proxy of Kubernetes as far as its name says.
func (c *cluster) startNamesake(t *testing.T) {
	t.Helper()
	tail, err := exec.LookPath("tail")
	kit.Must(t, err)
	text, err := os.ReadFile(tail)
	kit.Must(t, err)
	name := filepath.Join(t.TempDir(), "kube-proxy")
	kit.Must(t, os.WriteFile(name, text, 0o700))
	cmd := exec.Command(name, "-f", "/dev/null")
	kit.Must(t, c.Node.Start(cmd))
	go func() { _ = cmd.Wait() }()
}
