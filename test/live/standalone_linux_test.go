// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/test/nftcommand"
	"kubeproxy/test/program"
)

// TestBrokenFile checks that a broken file removes nothing: it is reported with the place
// of the fault, and all good objects stay in force.
func TestBrokenFile(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}.on(c.webs()...)
	cart := app{name: "cart", number: 11}.on(c.Host("web-1"))
	c.save(t, web, cart)
	p := c.start(t)
	want := c.awaitProgrammed(t)
	good := cart.yaml(t)

	for _, tc := range []struct {
		name string
		text []byte
		said []string
	}{
		{"no YAML", append(good[:len(good):len(good)], "---\nkind: [\n"...), []string{"cart.yaml", "line "}},
		{"a misspelt field", bytes.Replace(good, []byte("clusterIPs:"), []byte("clusterIps:"), 1),
			[]string{"cart.yaml", "line ", "Service shop/cart", "clusterIps", "did you mean clusterIPs?"}},
		{"a wrong type", bytes.Replace(good, []byte("port: 80\n"), []byte("port: http\n"), 1),
			[]string{"cart.yaml", "Service shop/cart", "spec.ports", "number"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c.write(t, "cart.yaml", tc.text)
			p.AwaitLog(t, append(tc.said, "last good")...)
			c.awaitSnapshot(t, want)
			c.check(t, want, c.cells(c.clientHosts()[:1], web, cart))
		})
	}
	t.Run("a directory", func(t *testing.T) {
		c.remove(t, "cart.yaml")
		if err := os.Mkdir(filepath.Join(c.dir, "cart.yaml"), 0o755); err != nil {
			t.Fatal(err)
		}
		p.AwaitLog(t, "cart.yaml", "directory")
		c.check(t, want, c.cells(c.clientHosts()[:1], web))
		if err := os.Remove(filepath.Join(c.dir, "cart.yaml")); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("another file changes meanwhile", func(t *testing.T) {
		c.write(t, "broken.yaml", []byte("kind: [\n"))
		p.AwaitLog(t, "broken.yaml", "line 1")
		c.save(t, web.on(c.Host("web-2")), cart)
		c.remove(t, "broken.yaml")
		c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web, cart))
	})
	if p.Log.Count("cart.yaml", "did you mean") != 1 {
		t.Errorf("the problem was reported %d times, want once", p.Log.Count("cart.yaml", "did you mean"))
	}
}

// TestMountedVolume checks a volume, which is a directory of links through one link that
// is swapped. It may be given as a whole or file by file.
func TestMountedVolume(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10}
	c.mount(t, "..first", web.on(c.Host("web-1")))
	if err := os.Symlink(filepath.Join("..data", "web.yaml"), filepath.Join(c.dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	p := c.start(t)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], web))
	c.swap(t, "..second", web.on(c.Host("web-2")))
	c.swap(t, "..third", web.on(c.Host("web-3")))
	p.Stop(t)

	file := func(name string) string { return "--manifests=" + filepath.Join(c.dir, name) }
	kubeProxy.Start(t, c.Node, append([]string{file("node.yaml"), file("web.yaml")}, c.mode.flags...)...).
		AwaitLog(t, `"Programmed"`, "IPv4", "changed=false")
	c.swap(t, "..fourth", web.on(c.Host("web-4")))
	c.swap(t, "..fifth", web.on(c.Host("web-1")))
}

// mount writes a version of a volume and swaps the link to it.
func (c *cluster) mount(t *testing.T, version string, a app) {
	t.Helper()
	dir, next := filepath.Join(c.dir, version), filepath.Join(c.dir, "..data_tmp")
	for _, step := range []error{
		os.Mkdir(dir, 0o755),
		os.WriteFile(filepath.Join(dir, a.name+".yaml"), a.yaml(t), 0o600),
		os.Symlink(version, next),
		os.Rename(next, filepath.Join(c.dir, "..data")),
	} {
		if step != nil {
			t.Fatal(step)
		}
	}
}

// swap mounts a version of a and requires that it is in force.
func (c *cluster) swap(t *testing.T, version string, a app) {
	t.Helper()
	c.mount(t, version, a)
	c.check(t, c.awaitProgrammed(t), c.cells(c.clientHosts()[:1], a))
}

// TestRendered checks that render prints what the proxy installs: nft accepts it, and
// connections have the same results.
func TestRendered(t *testing.T) {
	t.Parallel()
	nftcommand.NeedTables(t)
	c := newCluster(t, defaultMode())
	c.withoutBPF(t) // there is no proxy
	apps := c.matrix()
	c.save(t, apps...)
	cmd := kubeProxy.Command(append([]string{"render", "--proxy-mode=nftables", "--manifests=" + c.dir}, c.mode.flags...)...)
	var text bytes.Buffer
	cmd.Stdout = &text
	if out, err := program.Run(t, c.Node, cmd); err != nil {
		t.Fatalf("render: %v\n%s", err, out)
	}
	nft(t, c.Node, text.String(), "-c")
	if left := strings.TrimSpace(nft(t, c.Node, "list ruleset\n")); left != "" {
		t.Fatalf("checking installed something:\n%s", left)
	}
	nft(t, c.Node, text.String())
	want := c.want(t)
	c.check(t, want, c.cells(c.clientHosts(), apps...))

	// A proxy that finds these rules takes them over without an interruption.
	open := c.converse(t, "tcp", apps[0], 1)
	c.start(t)
	open.checkSameServer(t)
}
