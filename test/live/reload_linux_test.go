// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
	"kubeproxy/test/netlab"
	"kubeproxy/test/program"
)

// configHead begins every configuration file.
const configHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// volume is a mounted volume that holds a configuration file.
type volume struct{ dir string }

// mount installs a version of the file in one step, by swapping a link, as kubelet does.
// See
// https://kubernetes.io/docs/concepts/configuration/configmap/#mounted-configmaps-are-updated-automatically
func (v volume) mount(t *testing.T, version, body string) {
	t.Helper()
	dir, next := filepath.Join(v.dir, version), filepath.Join(v.dir, "..data_tmp")
	err := errors.Join(
		os.Mkdir(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "config.conf"), []byte(configHead+body), 0o600),
		os.Symlink(version, next),
		os.Rename(next, filepath.Join(v.dir, "..data")))
	if err != nil {
		t.Fatal(err)
	}
}

// newVolume mounts a first version and returns the file's path as well.
func newVolume(t *testing.T, body string) (v volume, path string) {
	t.Helper()
	v = volume{t.TempDir()}
	v.mount(t, "..first", body)
	path = filepath.Join(v.dir, "config.conf")
	if err := os.Symlink(filepath.Join("..data", "config.conf"), path); err != nil {
		t.Fatal(err)
	}
	return v, path
}

// TestReload swaps the volume. Settings that a running proxy can apply are then in force,
// and no connection is lost.
func TestReload(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	v, path := newVolume(t, "")
	c.mode.flags = append(c.mode.flags, "--config="+path)
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	p := c.start(t)
	want := c.awaitProgrammed(t)
	c.checkNodePorts(t, want, web)
	lines := c.converse(t, "tcp", web, 1)
	load := c.Host("shopper").Load(t.Context(), netlab.LoadConfig{
		Query: netlab.Query{Proto: "tcp", To: web.at(service.ClusterIP, service.IPv4)}, Pause: 5 * time.Millisecond,
	})

	v.mount(t, "..second", "nodePortAddresses: [10.244.1.0/24, 'fd00:10:244:1::/64']\nipvs: {scheduler: sh}\n")
	p.AwaitLog(t, "is in force", "nodePortAddresses: [] -> ", "10.244.1.0/24", "notInUse", "ipvs.scheduler")
	c.mode.trackOptions.NodePorts = prefixes("10.244.1.0/24", "fd00:10:244:1::/64")
	want = c.awaitProgrammed(t)
	c.check(t, want, c.cells(c.clientHosts(), web))
	c.checkNodePorts(t, want, web)
	lines.checkSameServer(t)

	v.mount(t, "..third", "nftables: {masqueradeAll: true, syncPeriod: 20s}\nhealthzBindAddress: 127.0.0.1:10256\n")
	p.AwaitLog(t, "is in force", "nftables.masqueradeAll: false -> true", "healthzBindAddress", "nftables.syncPeriod")
	c.mode.trackOptions.NodePorts, c.mode.trackOptions.MasqueradeAll = nil, true
	want = c.awaitProgrammed(t)
	c.check(t, want, c.cells(c.clientHosts(), web))
	c.checkNodePorts(t, want, web)
	lines.checkSameServer(t)
	kit.Until(t, "the health server at its new address", func() bool {
		return p.Status(t, program.HealthAddr, "/healthz") == http.StatusOK && p.Status(t, "192.0.2.10:10256", "/healthz") == 0
	})
	if report := load.Stop(); report.Lost() > 0 {
		t.Errorf("connections were lost meanwhile: %s", report)
	}
	if n, _ := p.Metric(t, "kubeproxy_config_reloads_total", "result", "applied"); n != 2 {
		t.Errorf("%v reloads are counted, want 2", n)
	}
	var shown struct {
		Config struct {
			NFTables struct{ MasqueradeAll bool }
		} `json:"kubeproxy.config.k8s.io"`
	}
	if p.JSON(t, "/configz", &shown); !shown.Config.NFTables.MasqueradeAll {
		t.Error("/configz does not show what is in force")
	}
}

// TestReloadBadFile checks that a faulty file changes nothing, is reported once, and that
// the condition ends when it is good again.
func TestReloadBadFile(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	path := filepath.Join(t.TempDir(), "config.yaml")
	put := func(body string) { // in one step: half a file may be taken for a faulty one
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".next", []byte(configHead+body), 0o600), os.Rename(path+".next", path)); err != nil {
			t.Fatal(err)
		}
	}
	put("nodePortAddresses: [10.244.1.0/24]\n")
	c.mode.flags = append(c.mode.flags, "--config="+path)
	c.mode.trackOptions.NodePorts = prefixes("10.244.1.0/24")
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	p := c.start(t)
	want, rules := c.awaitProgrammed(t), program.Generation(t, c.Node)
	for i, tc := range []struct {
		name   string
		change func()
		said   []string
	}{
		{"no YAML", func() { put("mode: [\n") }, []string{"not YAML"}},
		{"a misspelt field", func() { put("nodePortAdresses: []\n") }, []string{"config.yaml:3", "nodePortAdresses", "did you mean"}},
		{"an impossible value", func() { put("nodePortAddresses: [all, everywhere]\n") }, []string{"config.yaml:3", "everywhere"}},
		{"gone", func() { os.Remove(path) }, []string{"no such file"}},
	} {
		tc.change()
		p.AwaitLog(t, append(tc.said, "cannot be used", "stays")...)
		page := p.Fetch(t, program.HealthAddr, "/healthz")
		if page.Status != http.StatusOK || !strings.Contains(string(page.Body), tc.said[0]) {
			t.Errorf("%s: health is %d, %s; want 200 and the reason", tc.name, page.Status, page.Body)
		}
		if n, _ := p.Metric(t, "kubeproxy_config_reloads_total", "result", "rejected"); n != float64(i+1) {
			t.Errorf("%s: %v rejections are counted, want %d", tc.name, n, i+1)
		}
	}
	c.check(t, want, c.cells(c.clientHosts()[:1], web))
	put("# good again\nnodePortAddresses: [10.244.1.0/24]\n")
	p.AwaitLog(t, "means the same")
	if err := syscall.Kill(p.Pid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	kit.Until(t, "a second look, which was asked for", func() bool { return p.Log.Count("means the same") == 2 })
	if page := p.Fetch(t, program.HealthAddr, "/healthz"); strings.Contains(string(page.Body), "configuration") {
		t.Errorf("the condition stays: %s", page.Body)
	}
	if n, _ := p.Metric(t, "kubeproxy_config_last_reload_successful"); n != 1 {
		t.Errorf("the last reload counts as %v, want 1", n)
	}
	if now := program.Generation(t, c.Node); now != rules {
		t.Errorf("the rules were written %d times", now-rules)
	}
	p.Stop(t)
}

// TestReloadByRestart checks that the old process exits with success for a setting that
// only a new one can apply. The rules stay, and the new process adopts them.
func TestReloadByRestart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	v, path := newVolume(t, "nftables: {syncPeriod: 30s}\n")
	c.mode.flags = append(c.mode.flags, "--config="+path)
	web := app{name: "web", number: 10}.on(c.webs()...)
	c.save(t, web)
	p := c.start(t)
	want := c.awaitProgrammed(t)
	lines, rules := c.converse(t, "tcp", web, 1), program.Generation(t, c.Node)
	v.mount(t, "..second", "bindAddress: 192.0.2.10\nnodePortAddresses: [192.0.2.10/32, 2001:db8:2::10/128]\n")
	if err := p.Wait(t); err != nil {
		t.Fatalf("the proxy ended with %v, want exit status 0", err)
	}
	if !p.Log.Has("only a new process can apply", "bindAddress") || !p.Log.Has("the rules stay in force") {
		t.Errorf("the log does not say why the proxy ended")
	}
	lines.checkSameServer(t)
	c.check(t, want, c.cells(c.clientHosts()[:1], web))
	p = c.launch(t)
	p.AwaitLog(t, `"Programmed"`, "IPv4", "changed=false")
	p.AwaitLog(t, `"Programmed"`, "IPv6", "changed=false")
	lines.checkSameServer(t)
	if now := program.Generation(t, c.Node); now != rules {
		t.Errorf("the rules were written %d times", now-rules)
	}
	p.Stop(t)
}

// TestReloadEarly checks that a SIGHUP during the start does not end the process, but
// leads to a check of the file as soon as possible.
func TestReloadEarly(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	_, path := newVolume(t, "")
	c.save(t, app{name: "web", number: 10}.on(c.webs()...))
	c.mode.flags = append(c.mode.flags, "--config="+path)
	p := c.launch(t)
	p.AwaitLog(t, "Services come from manifests")
	if err := syscall.Kill(p.Pid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	p.AwaitLog(t, "was read again")
	p.Stop(t)
}
