// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"flag"
	"regexp"
	"strings"
	"testing"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/wine"
)

var updateInsight = flag.Bool("update-insight", false, "rewrite the sessions in docs/insight.md")

// shownFolder is where the page says that the manifests are.
const shownFolder = `C:\srv\services`

// notWindows are parts of an output that only Wine causes: it lacks the extension VFP and
// lists the addresses of another machine. The rest are checks that find nothing.
var notWindows = []struct {
	pattern *regexp.Regexp
	shown   string
}{
	{regexp.MustCompile(`\r|(?m)^kube-proxy: \d+ of \d+ checks done.*\n`), ""}, // of a slow machine
	{regexp.MustCompile(`(?s)\d\. \w+ +(vfp-extension|node-unknown)\n.*?\n\n`), ""},
	{regexp.MustCompile(`(?m)(^  (ok|skipped|found) +(VFP extension|Node)( .*)?\n)`), "  ok\n"},
	{regexp.MustCompile(`(?m)(^  (ok|skipped)( .*)?\n( {20,}.*\n)*)+`), "  ...\n"},
	{regexp.MustCompile(`(?m)^\d\. `), "1. "},
	{regexp.MustCompile(`\d findings?\n`), "1 finding\n"},
}

// TestInsight runs sessions of docs/insight.md that need Windows.
func TestInsight(t *testing.T) {
	n := newNode(t, hns.Options{Version: hns.Version{Major: 10, Minor: 1}})
	web, _, _ := shop()
	n.save(t, web)
	n.start(t, "--enable-dsr")
	n.awaitProgrammed(t, web)
	const line = "kube-proxy doctor --enable-dsr --hostname-override node-a --manifests " + shownFolder
	args := strings.Fields(strings.ReplaceAll(line, shownFolder, wine.File(n.dir)))
	code, out := n.run(t, args[1:]...)
	for _, x := range notWindows {
		out = x.pattern.ReplaceAllString(out, x.shown)
	}
	s := &kit.Session{Name: "dsr", Prompt: ">", Status: "echo %ERRORLEVEL%"}
	s.Typed(line, out, code)
	n.stop(t)
	kit.Page{Path: "../../docs/insight.md", Rewrite: *updateInsight}.Compare(t, s)
}
