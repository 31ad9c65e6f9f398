// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package live

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"kubeproxy/test/program"
)

var updateInsight = flag.Bool("update-insight", false, "rewrite the sessions in docs/insight.md")

const insightPage = "../../docs/insight.md"

// shownFolder is where the page says that the manifests are.
const shownFolder = "/srv/services"

// insight is a session at a node, as a user types it.
type insight struct {
	cluster *cluster
	text    strings.Builder
}

// types runs a command line on the node and shows it with what it prints and how it ends.
func (s *insight) types(t *testing.T, line string) {
	t.Helper()
	args := strings.Fields(strings.ReplaceAll(line, shownFolder, s.cluster.dir))
	cmd := s.cluster.command()
	cmd.Args = slices.Concat([]string{kubeProxy.Path}, args[1:])
	out, err := program.Run(t, s.cluster.Node, cmd)
	if err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&s.text, "    $ %s\n", line)
	for l := range strings.Lines(steady(strings.ReplaceAll(out, s.cluster.dir, shownFolder))) {
		s.text.WriteString(strings.TrimRight("    "+l, " \n\t") + "\n")
	}
	fmt.Fprintf(&s.text, "    $ echo $?\n    %d\n", cmd.ProcessState.ExitCode())
}

// changing are parts of an output that differ from run to run, and what stands for them.
// Checks of doctor that find nothing depend on the machine.
var changing = []struct {
	pattern *regexp.Regexp
	shown   string
}{
	{regexp.MustCompile(`(?m)(^  (ok|skipped) .*\n)+`), "  ...\n"},
	{regexp.MustCompile(`hides process \d+\s+\(\S+\),\s+which\s+listens\s+on\s+`), "hides process 4711 (/usr/bin/metrics),\n            which listens on "},
	{regexp.MustCompile(`kill \d+`), "kill 4711"},
}

func steady(text string) string {
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.shown)
	}
	return text
}

// TestInsight runs the sessions of docs/insight.md on a node with real faults, and
// compares what is printed with the page.
func TestInsight(t *testing.T) {
	t.Parallel()
	c := newCluster(t, defaultMode())
	web := app{name: "web", number: 10, plain: true}.on(c.Host("web-1"), c.Host("web-3"))
	web.pods = append(web.pods, pod{c.Host("web-2"), unready})
	local := app{name: "local", number: 11, external: "Local", plain: true}.on(c.Host("web-3"))
	c.save(t, web, local)
	p := c.start(t)
	const flags = " --manifests " + shownFolder + " --hostname-override node-a --cluster-cidr 10.244.0.0/16,fd00:10:244::/48"
	sessions := map[string]func(*insight){
		"endpoint": func(s *insight) { s.types(t, "kube-proxy explain 10.244.1.13 svc/shop/web:lines") },
		"local":    func(s *insight) { s.types(t, "kube-proxy explain outside node:30011") },
		"listener": func(s *insight) {
			c.listen(t, "0.0.0.0:30010")
			s.types(t, "kube-proxy doctor"+flags)
		},
		"change": func(s *insight) {
			next := c.dir + ".new"
			if err := os.CopyFS(next, os.DirFS(c.dir)); err != nil {
				t.Fatal(err)
			}
			text := app{name: "web", number: 10, sticky: 600, plain: true}.on(c.Host("web-1"), c.Host("web-2")).yaml(t)
			if err := os.WriteFile(filepath.Join(next, "web.yaml"), text, 0o600); err != nil {
				t.Fatal(err)
			}
			s.types(t, "kube-proxy diff --from "+shownFolder+" --manifests "+shownFolder+".new --hostname-override node-a")
		},
		"rule": func(s *insight) {
			p.Stop(t)
			nft(t, c.Node, "delete element ip kube-services services { 10.96.0.10 . tcp . 80 }\n")
			s.types(t, "kube-proxy diff"+flags)
			s.types(t, "kube-proxy diff -o diff"+flags)
		},
	}
	page, err := os.ReadFile(insightPage)
	if err != nil {
		t.Fatal(err)
	}
	now := string(page)
	for _, name := range []string{"endpoint", "local", "listener", "change", "rule"} {
		s := &insight{cluster: c}
		sessions[name](s)
		now = replaceSession(t, now, name, s.text.String())
	}
	if *updateInsight {
		if err := os.WriteFile(insightPage, []byte(now), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(string(page), now); diff != "" && !*updateInsight {
		t.Errorf("docs/insight.md shows something else; go test ./test/live -run TestInsight -update-insight rewrites it (-page +session):\n%s", diff)
	}
}

// replaceSession puts text behind the mark of a session, in the place of the block there.
func replaceSession(t *testing.T, page, name, text string) string {
	t.Helper()
	mark := "<!-- session " + name + " -->\n"
	before, after, found := strings.Cut(page, mark)
	if !found {
		t.Fatalf("docs/insight.md lacks %s", mark)
	}
	rest := strings.TrimLeft(after, "\n")
	for strings.HasPrefix(rest, "    ") || strings.HasPrefix(rest, "\n") {
		_, rest, _ = strings.Cut(rest, "\n")
	}
	return before + mark + "\n" + text + "\n" + rest
}
