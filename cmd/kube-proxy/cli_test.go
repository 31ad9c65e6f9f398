// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
)

const configHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

type outcome struct {
	Code     int
	Out, Err string
}

// call runs a command line as a user would. DIR in args and in the output stands for dir.
func call(t *testing.T, dir string, args ...string) outcome {
	t.Helper()
	return callUntil(context.Background(), t, dir, args...)
}

// callUntil is call, and ends a proxy that runs when ctx ends.
func callUntil(ctx context.Context, t *testing.T, dir string, args ...string) outcome {
	t.Helper()
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "DIR", dir)
	}
	var out, err bytes.Buffer
	code := execute(ctx, modes.All(), args, streams{&out, &err})
	if dir == "" {
		return outcome{code, out.String(), err.String()}
	}
	return outcome{code, kit.Normalize(out.String(), dir), kit.Normalize(err.String(), dir)}
}

// files writes files into a new directory, by their names.
func files(t *testing.T, content map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		kit.WriteFile(t, filepath.Join(dir, name), text)
	}
	return dir
}

func TestMistakes(t *testing.T) {
	dir := files(t, map[string]string{"bad.yaml": configHead + "mode: magic\noomScoreAdj: 5000\n"})
	tests := map[string]struct {
		args []string
		want string
	}{
		"unknown flag":            {[]string{"--proxymode=x"}, "unknown flag --proxymode; did you mean --proxy-mode?"},
		"unknown, unlike any":     {[]string{"--xyzzy"}, "unknown flag --xyzzy; kube-proxy --help lists all"},
		"one dash":                {[]string{"-config", "x"}, "unknown flag -config; did you mean --config?"},
		"unknown letter":          {[]string{"-z"}, "unknown flag -z; kube-proxy --help lists all"},
		"flag of a subcommand":    {[]string{"render", "--manifest=x"}, "unknown flag --manifest; did you mean --manifests?"},
		"bad number":              {[]string{"--oom-score-adj=x"}, `--oom-score-adj: "x" is no number it accepts: want a whole number that fits into 32 bits`},
		"bad bool":                {[]string{"--masquerade-all=perhaps"}, `--masquerade-all: "perhaps" is neither true nor false`},
		"bad duration":            {[]string{"--config-sync-period=5"}, `--config-sync-period: "5" is no duration: want one such as 30s or 1h30m`},
		"bad rate":                {[]string{"--kube-api-qps=fast"}, `--kube-api-qps: "fast" is no number`},
		"bad port range":          {[]string{"--proxy-port-range=9-1"}, `--proxy-port-range: portRange: "9-1" is no range of ports: want first-last, first+count or one port`},
		"bad gate":                {[]string{"--feature-gates=WinDSR"}, `--feature-gates: "WinDSR" has no value: want WinDSR=true or WinDSR=false`},
		"gate of a stage":         {[]string{"--feature-gates", "AllAlpha"}, `--feature-gates: "AllAlpha" has no value: want AllAlpha=true or AllAlpha=false`},
		"gate, neither":           {[]string{"--feature-gates=AllBeta=maybe"}, `--feature-gates: "AllBeta": "maybe" is neither true nor false`},
		"gate without a name":     {[]string{"--feature-gates= =true"}, `--feature-gates: " =true" has no name: want NAME=true or NAME=false`},
		"bad version":             {[]string{"--version=long"}, `--version: "long" is not accepted: want true, false or raw`},
		"no value":                {[]string{"--config"}, "--config wants a value, FILE: read the configuration from this FILE; flags override it"},
		"unknown command":         {[]string{"rendr"}, `unknown command "rendr"; did you mean "render"?`},
		"argument":                {[]string{"xyzzy"}, `unexpected argument "xyzzy": want flags only; kube-proxy --help lists them`},
		"value of a switch":       {[]string{"--masquerade-all", "true"}, `unexpected argument "true": want flags only; kube-proxy --help lists them; a switch takes its value after =, as in --NAME=true`},
		"value of a unit":         {[]string{"config", "migrate", "--values", "--", "--logtostderr", "false"}, `unexpected argument "false" after --: want flags of kube-proxy; a switch takes its value after =, as in --NAME=false`},
		"no source":               {[]string{"--logtostderr"}, "nothing to read Services from: want --kubeconfig FILE, --master ADDRESS, --manifests PATH, or to run as a pod in a cluster"},
		"value out of range":      {[]string{"--iptables-masquerade-bit=32"}, "--iptables-masquerade-bit: iptables.masqueradeBit: 32 is out of range: want 0 to 31\n--iptables-masquerade-bit: nftables.masqueradeBit: 32 is out of range: want 0 to 31"},
		"no such file":            {[]string{"--config=DIR/nothing"}, "read configuration: stat DIR/nothing: no such file or directory"},
		"every error of a file":   {[]string{"--config=DIR/bad.yaml"}, "DIR/bad.yaml:3: mode: \"magic\" is no mode on linux: want iptables, ipvs, nftables, userspace or nothing\nDIR/bad.yaml:4: oomScoreAdj: 5000 is out of range: want -1000 to 1000"},
		"render without source":   {[]string{"render"}, "nothing to read Services from: want --manifests PATH"},
		"render, unknown format":  {[]string{"render", "--manifests=DIR", "-o", "xml"}, `--output: "xml" is unknown: want text or json`},
		"render, no such path":    {[]string{"render", "--manifests=DIR/nothing"}, "read manifests: stat DIR/nothing: no such file or directory"},
		"config alone":            {[]string{"config"}, "config wants a command: migrate or validate"},
		"config, unknown":         {[]string{"config", "foo"}, `unknown command "foo": config wants migrate or validate`},
		"config, misspelt":        {[]string{"config", "validat"}, `unknown command "validat"; did you mean "validate"?`},
		"service, unknown":        {[]string{"service", "foo"}, `unknown command "foo": service wants install, start, status, stop or uninstall`},
		"completion alone":        {[]string{"completion"}, "completion wants a command: bash, fish, powershell or zsh"},
		"completion, unknown":     {[]string{"completion", "foo"}, `unknown command "foo": completion wants bash, fish, powershell or zsh`},
		"completion, one more":    {[]string{"completion", "bash", "x"}, `unexpected argument "x": want flags only; kube-proxy completion bash --help lists them`},
		"help, unknown":           {[]string{"help", "foo"}, `unexpected argument "foo": want flags only; kube-proxy --help lists them`},
		"validate nothing":        {[]string{"config", "validate"}, "config validate wants one FILE, not 0: kube-proxy config validate FILE [flags] [-- FLAGS]"},
		"validate, other system":  {[]string{"config", "validate", "--os=plan9", "x"}, `--os: "plan9" is unknown: want linux or windows`},
		"validate, a directory":   {[]string{"config", "validate", "--os=linux", "DIR"}, "the configuration cannot be used on linux:\nread configuration: read DIR: is a directory; want a regular file"},
		"migrate, no dashes":      {[]string{"config", "migrate", "--values", "--", "proxy-mode=ipvs"}, `unexpected argument "proxy-mode=ipvs" after --: want flags of kube-proxy`},
		"migrate, no flags":       {[]string{"config", "migrate", "--values", "--"}, "config migrate wants one FILE, not 0: kube-proxy config migrate FILE [flags] [-- FLAGS]"},
		"migrate, a file in them": {[]string{"config", "migrate", "--values", "--", "--config=/a"}, `--config: "/a" is not read: want it as FILE`},
		"migrate, a wrong file":   {[]string{"config", "migrate", "DIR/nothing"}, "read configuration: stat DIR/nothing: no such file or directory"},
		"argument after version":  {[]string{"version", "x"}, `unexpected argument "x": want flags only; kube-proxy version --help lists them`},
		"write to no such folder": {[]string{"--write-config-to=DIR/a/b"}, "write configuration: open DIR/a/b: no such file or directory"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := call(t, dir, tt.args...)
			got.Err = lastLines(got.Err)
			code := 1
			if usage := regexp.MustCompile(`^(unknown command|unexpected argument [^ ]*: )|FLAGS\]$`); usage.MatchString(tt.want) || tt.args[0] == "render" && strings.HasPrefix(tt.want, "unknown flag") {
				code = exitUsage
			}
			kit.Same(t, "outcome (-want +got)", outcome{code, "", "kube-proxy: " + tt.want + "\n"}, got)
		})
	}
}

// lastLines drops log lines, which begin with a severity and the date.
func lastLines(s string) string {
	var keep strings.Builder
	for line := range strings.Lines(s) {
		if len(line) < 5 || !strings.Contains("IE", line[:1]) || line[5] != ' ' {
			keep.WriteString(line)
		}
	}
	return keep.String()
}

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"--version"}, {"--version=true"}, {"version"}} {
		got := call(t, "", args...)
		kit.Check(t, got.Code == 0 && got.Err == "" && strings.HasPrefix(got.Out, "kube-proxy ") && strings.Count(got.Out, "\n") == 1,
			"%q: %+v, want one line beginning with kube-proxy", args, got)
	}
	for _, args := range [][]string{{"--version=raw"}, {"version", "--raw"}} {
		got := call(t, "", args...)
		kit.Check(t, got.Code == 0 && strings.HasPrefix(got.Out, `cli.Build{Version:"`) && strings.Contains(got.Out, `Go:"go1.`),
			"%q: %+v, want cli.Build{...}", args, got)
	}
}

// TestRevision checks that the linker's values override those of the compiler.
func TestRevision(t *testing.T) {
	defer func(v string) { version = v }(version)
	version = "v1-dirty,abc,today"
	want := [...]string{"v1-dirty", "abc", "dirty", "today"}
	b := buildInfo().Metric()
	kit.Check(t, [...]string{b.GitVersion, b.GitCommit, b.GitTreeState, b.BuildDate} == want, "%+v, want %q", b, want)
	version = "v1,abc"
	if b := buildInfo().Metric(); b.GitTreeState != "clean" && buildInfo().Modified != "true" {
		t.Errorf("tree state %q, want clean", b.GitTreeState)
	}
}

// TestEnds checks how commands end that cannot write, that are interrupted, and that are none.
func TestEnds(t *testing.T) {
	closed, err := os.Create(filepath.Join(t.TempDir(), "closed"))
	kit.Must(t, err)
	kit.Must(t, closed.Close())
	code := execute(t.Context(), modes.All(), []string{"status", "--help"}, streams{closed, io.Discard})
	kit.Check(t, code == 1, "help on a full disk: exit code %d", code)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	got := callUntil(ctx, t, "", "top", "--server", "127.0.0.1:1", "-o", "json")
	kit.Check(t, got.Code == exitUnreachable && strings.HasSuffix(got.Err, "interrupted\n"), "interrupted: %+v", got)
	dir := files(t, map[string]string{"json.yaml": configHead + "logging: {format: json}\n"})
	for _, args := range []string{"--logging-format=json --manifests=DIR/none", "--config=DIR/json.yaml --manifests=DIR/none", "--logging-format=json --nosuch", "--nosuch --logging-format=json"} {
		got := call(t, dir, strings.Fields(args+" --hostname-override=node-a")...)
		lines := strings.Split(strings.TrimSpace(got.Err), "\n")
		var last struct{ Level, Err string }
		err := json.Unmarshal([]byte(lines[len(lines)-1]), &last)
		kit.Check(t, err == nil && got.Code == 1 && last.Level == "ERROR" && last.Err != "", "%s: exit code %d, %v: %s", args, got.Code, err, got.Err)
	}
	got = call(t, "", "stauts", "-o", "json")
	kit.Check(t, got.Code == exitUsage && got.Err == "kube-proxy: unknown command \"stauts\"; did you mean \"status\"?\n" && strings.HasSuffix(got.Out, "\"exitCode\": 2\n}\n"),
		"no command: %+v", got)
}

func TestHelp(t *testing.T) {
	got := call(t, "", "--help")
	kit.Need(t, got.Code == 0 && got.Err == "", "exit %d, %q", got.Code, got.Err)
	for line := range strings.Lines(got.Out) {
		kit.Check(t, len(line) <= cli.HelpWidth+1, "line of %d letters: %s", len(line), line)
	}
	newRoot(streams{}, modes.All()).Flags().VisitAll(func(f *pflag.Flag) {
		kit.Check(t, f.Hidden || strings.Contains(got.Out, " --"+f.Name), "--%s is missing", f.Name)
	})
	for _, want := range []string{
		"\nModes iptables and nftables:\n", "\nDeprecated:\n",
		"\n      --conntrack-max NUMBER                   most connections to track, NUMBER in all (deprecated:\n",
		"\n      --healthz-bind-address IP:PORT          IP:PORT of the health server, port 0 for none (default\n",
		"\n      --bind-address-hard-fail[=true|false]   exit if",
		"\n      --count-traffic[=true|false]            count the",
		"\n      --version[=true]                            print the",
		"\n  render       Print what a node would install\n",
		"\n  -v, --v LEVEL                              LEVEL of detail, 0 for the least\n",
	} {
		kit.Check(t, strings.Contains(got.Out, want), "%q is missing in\n%s", want, got.Out)
	}
	if got := call(t, "", "render", "--help"); strings.Contains(got.Out, "      --cleanup ") || !strings.Contains(got.Out, "-o, --output FORMAT") {
		t.Errorf("help of render:\n%s", got.Out)
	}
}

// TestHelpFitsOnAScreen checks that the help of a command shows its own flags, and refers
// to that of the proxy for the settings which it takes as well.
func TestHelpFitsOnAScreen(t *testing.T) {
	each(newRoot(streams{}, modes.All()), func(cmd *cobra.Command) {
		if !cmd.HasParent() {
			return
		}
		got := call(t, "", append(strings.Fields(cmd.CommandPath())[1:], "--help")...)
		if n := strings.Count(got.Out, "\n"); n > 70 {
			t.Errorf("%s --help has %d lines, want 70 at most", cmd.CommandPath(), n)
		}
		const more = "kube-proxy --help lists them.\n"
		if want := cmd.Flags().Lookup("ipvs-scheduler") != nil; strings.HasSuffix(got.Out, more) != want {
			t.Errorf("%s --help: refers to the settings of the proxy: %t, want %t", cmd.CommandPath(), !want, want)
		}
	})
}

// configMap returns a ConfigMap with a configuration.
func configMap(text string) string {
	return "kind: ConfigMap\nmetadata: {name: b}\ndata:\n  a: |\n    " + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n    ") + "\n"
}

func TestConfigCommands(t *testing.T) {
	const misspelt = "unknown field; did you mean iptables.masqueradeBit?"
	const mistaken = "kube-proxy: the configuration has mistakes that the proxy only warns of without --strict-config:\n"
	dir := files(t, map[string]string{
		"good.yaml":  configHead + "mode: nftables\n",
		"old.yaml":   "# ours\n" + configHead + "udpIdleTimeout: 1s # gone\nconntrack:\n  max: 5\n  min: 7 # kept\nwinkernel: {networkName: a}\n",
		"odd.yaml":   configHead + "iptables: {masqueradBit: 1}\n",
		"bad.yaml":   configHead + "iptables: {masqueradBit: 1}\nbindAddress: {}\n",
		"map.yaml":   configMap(configHead + "mode: nftables\n"),
		"maps.yaml":  configMap(configHead+"mode: nftables\n") + "---\n" + configMap(configHead+"m: nftables\n"),
		"alias.yaml": configHead + "udpIdleTimeout: &a 1s\nconfigSyncPeriod: *a\n",
	})
	tests := map[string]struct {
		args []string
		want outcome
	}{
		"valid": {[]string{"validate", "--os=linux", "DIR/good.yaml"}, outcome{0, "DIR/good.yaml: valid for linux\n", ""}},
		"valid with notes": {[]string{"validate", "--os=linux", "DIR/old.yaml"}, outcome{0, `note: DIR/old.yaml:4: udpIdleTimeout: is not a field any more; it has an effect in mode userspace, like --udp-timeout, and elsewhere conntrack.udpTimeout has
note: DIR/old.yaml:6: conntrack.max: is ignored: set conntrack.maxPerCore and conntrack.min
note: DIR/old.yaml:8: winkernel.networkName: has no effect on linux
DIR/old.yaml: valid for linux
`, ""}},
		"for another system": {[]string{"validate", "--os=windows", "DIR/good.yaml"}, outcome{0, "note: DIR/good.yaml:3: mode: nftables is a mode of linux; on windows the best mode that works is used, as if none were set\nDIR/good.yaml: valid for windows\n", ""}},
		"strict":             {[]string{"validate", "--strict-config", "--os=linux", "DIR/odd.yaml"}, outcome{1, "", mistaken + "DIR/odd.yaml:3: iptables.masqueradBit: " + misspelt + "\n"}},
		"not strict":         {[]string{"validate", "--strict-config=false", "--os=linux", "DIR/odd.yaml"}, outcome{0, "warning: DIR/odd.yaml:3: iptables.masqueradBit: " + misspelt + "\nDIR/odd.yaml: valid for linux\n", ""}},
		"bad": {[]string{"validate", "--os=linux", "DIR/bad.yaml"}, outcome{1, "", `kube-proxy: the configuration cannot be used on linux:
DIR/bad.yaml:3: iptables.masqueradBit: unknown field; did you mean iptables.masqueradeBit?
DIR/bad.yaml:4: bindAddress: is a mapping: want text
`}},
		"nothing to migrate": {[]string{"migrate", "DIR/good.yaml"}, outcome{0, configHead + "mode: nftables\n", ""}},
		"migrate": {[]string{"migrate", "DIR/old.yaml"}, outcome{
			0, "# ours\n" + configHead + "conntrack:\n  min: 7 # kept\nwinkernel: {networkName: a}\n",
			`left out: DIR/old.yaml:4: udpIdleTimeout: is not a field any more; it has an effect in mode userspace, like --udp-timeout, and elsewhere conntrack.udpTimeout has
left out: DIR/old.yaml:6: conntrack.max: is ignored: set conntrack.maxPerCore and conntrack.min
`,
		}},
		"migrate an alias": {[]string{"migrate", "DIR/alias.yaml"}, outcome{0, configHead + "configSyncPeriod: 1s\n",
			"left out: DIR/alias.yaml:3: udpIdleTimeout: is not a field any more; it has an effect in mode userspace, like --udp-timeout, and elsewhere conntrack.udpTimeout has\n"}},
		"of a ConfigMap": {[]string{"validate", "--os=linux", "DIR/map.yaml"}, outcome{0, "DIR/map.yaml: data[\"a\"] of ConfigMap b: valid for linux\n", ""}},
		"of two": {[]string{"validate", "--os=linux", "DIR/maps.yaml"}, outcome{1, "DIR/maps.yaml: data[\"a\"] of ConfigMap b: valid for linux\n",
			mistaken + "DIR/maps.yaml:15: m: unknown field\n"}},
		"migrate two": {[]string{"migrate", "DIR/maps.yaml"}, outcome{1, "", "kube-proxy: DIR/maps.yaml has several configurations: data[\"a\"] of ConfigMap b, and data[\"a\"] of ConfigMap b: want a file with one\n"}},
		"with flags": {[]string{"validate", "--os=linux", "DIR/good.yaml", "--", "--proxy_mode=iptables", "--nodeport-addresses=primary", "--config=/other"}, outcome{
			0, "override: --proxy-mode overrides mode of the configuration file: \"iptables\", not \"nftables\"\nDIR/good.yaml: valid for linux\n", ""}},
		"with a command line": {[]string{"validate", "--os=linux", "DIR/good.yaml", "--", "/usr/bin/kube-proxy", "--manifests", "x"}, outcome{0, "DIR/good.yaml: valid for linux\n", ""}},
		"with a bad flag":     {[]string{"validate", "--os=linux", "DIR/good.yaml", "--", "--proxy-mod=ipvs"}, outcome{1, "", "kube-proxy: unknown flag --proxy-mod; did you mean --proxy-mode?\n"}},
		"with a bad value":    {[]string{"validate", "--os=linux", "DIR/good.yaml", "--", "--cluster-cidr=x"}, outcome{1, "", "kube-proxy: the configuration cannot be used on linux:\n--cluster-cidr: clusterCIDR: \"x\" is no prefix: want one such as 10.0.0.0/8 or fd00::/48\n"}},
		"with words":          {[]string{"validate", "--os=linux", "DIR/good.yaml", "--", "--v=1", "x"}, outcome{1, "", "kube-proxy: unexpected argument \"x\" after --: want flags of kube-proxy\n"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := call(t, dir, append([]string{"config"}, tt.args...)...)
			kit.Same(t, "outcome (-want +got)", tt.want, got)
		})
	}
}

func TestWriteConfig(t *testing.T) {
	dir := files(t, map[string]string{"in.yaml": configHead + "clusterCIDR: 10.0.0.0/8\nenableProfiling: true\n"})
	got := call(t, dir, "--config=DIR/in.yaml", "--cluster-cidr=11.0.0.0/8", "--udp-timeout=1s", "--write-config-to=DIR/out.yaml")
	kit.Need(t, got.Code == 0, "%v", got.Err)
	for _, want := range []string{`--cluster-cidr overrides clusterCIDR of the configuration file`, "--udp-timeout: has an effect in mode userspace only"} {
		kit.Check(t, strings.Count(got.Err, want) == 1, "log:\n%s\nwant one line with %q", got.Err, want)
	}
	if got := call(t, dir, "--config=DIR/out.yaml", "--write-config-to=DIR/again.yaml"); got.Code != 0 {
		t.Fatal(got.Err)
	}
	printed := call(t, dir, "--config=DIR/out.yaml", "--write-config-to=-", "--boot-id-file=/x", "--machine-id-file=/y")
	_, err := os.Stat("-")
	kit.Check(t, err != nil && printed.Code == 0, "exit %d, a file named -: %v", printed.Code, err == nil)
	first, _ := os.ReadFile(filepath.Join(dir, "out.yaml"))
	kit.Same(t, "printed (-written +printed)", string(first), printed.Out)
	second, _ := os.ReadFile(filepath.Join(dir, "again.yaml"))
	diff := cmp.Diff(string(first), string(second))
	kit.Check(t, diff == "" && strings.Contains(string(first), "clusterCIDR: 11.0.0.0/8\n"), "second writing (-first +second):\n%s\nfirst:\n%s", diff, first)
}

// TestConfigFromStandardInput checks that - stands for standard input, in messages too.
func TestConfigFromStandardInput(t *testing.T) {
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	for text, want := range map[string]string{
		head + "mode: nftables\n":        "standard input: valid for linux",
		head + "mode: bulletproof\n":     "standard input:3: mode:",
		strings.Repeat("#", 1<<20) + "#": "it has more than 1048576 bytes",
	} {
		var out bytes.Buffer
		root := newRoot(streams{&out, &out}, modes.All())
		root.SetIn(strings.NewReader(text))
		root.SetArgs([]string{"config", "validate", "--os=linux", "-"})
		err := root.Execute()
		got := fmt.Sprint(out.String(), err)
		kit.Check(t, strings.Contains(got, want), "%.200s: no %q in %s", text, want, got)
	}
}

// TestOneWordForOneThing reads all help texts side by side: a flag of one name means the
// same in every command, texts fit on a screen, and no word has another one beside it.
func TestOneWordForOneThing(t *testing.T) {
	usages := map[string]string{}
	each(newRoot(streams{}, modes.All()), func(cmd *cobra.Command) {
		for line := range strings.Lines(cmd.Long) {
			if n := utf8.RuneCountInString(line); n > 83 {
				t.Errorf("%s: a line of %d letters: %s", cmd.CommandPath(), n, line)
			}
		}
		for other, word := range map[string]string{"Tell": "Say", "Show": "Print", "seconds to wait": "how much TIME", "bundle": "archive"} {
			if text := cmd.Short + "\n" + cmd.Long; strings.Contains(text, other) {
				t.Errorf("%s: %q in the help: other commands have %q", cmd.CommandPath(), other, word)
			}
		}
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			switch f.Name {
			case "help", "output", "sort", "timeout", "manifests", "config", "strict-config", "metrics-bind-address": // of each command
				return
			}
			if before, seen := usages[f.Name]; seen && before != f.Usage {
				t.Errorf("%s --%s: %q, elsewhere %q", cmd.CommandPath(), f.Name, f.Usage, before)
			}
			usages[f.Name] = f.Usage
		})
	})
}

// each calls do for cmd and the commands below it, except for those that cobra writes.
func each(cmd *cobra.Command, do func(*cobra.Command)) {
	if cmd.Name() == "completion" || cmd.Name() == "help" {
		return
	}
	do(cmd)
	for _, c := range cmd.Commands() {
		each(c, do)
	}
}

// TestCompletion asks as the scripts of shells do.
func TestCompletion(t *testing.T) {
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"mode":"nftables","health":{"status":{"IPv4":{"healthy":true}}},"services":[{"namespace":"shop","name":"web","state":"programmed","ports":[{"port":"lines","protocol":"TCP","family":"IPv4"},{"port":"lines","protocol":"TCP","family":"IPv6"},{"port":"names","protocol":"UDP","family":"IPv4"}]},{"namespace":"shop","name":"cart","state":"programmed"}]}`))
	}))
	defer proxy.Close()
	server := "--server=" + strings.TrimPrefix(proxy.URL, "http://")
	for _, tt := range []struct{ line, want string }{
		{"--proxy-mode ", "iptables userspace ipvs nftables kernelspace"},
		{"render --proxy-mode ", "iptables userspace ipvs nftables kernelspace"},
		{"render -o ", "text json"},
		{"diff -o ", "plan diff json yaml"},
		{"status -o ", "table wide name json yaml"},
		{"status --sort ", "name state endpoints since"},
		{"service status -o ", "text json"},
		{"doctor -o ", "text json yaml"},
		{"explain -o ", "text json yaml"},
		{"config validate --os ", "linux windows"},
		{"--detect-local-mode ", "ClusterCIDR NodeCIDR BridgeInterface InterfaceNamePrefix"},
		{"status " + server + " ", "shop/web shop/cart"},
		{"explain " + server + " ", "node outside"},
		{"explain " + server + " outside ", "svc/shop/web svc/shop/cart"},
		{"explain " + server + " outside svc/shop/web ", ""},
		{"explain " + server + " outside svc/shop/web:", "svc/shop/web:lines svc/shop/web:names/udp"},
		{"explain " + server + " outside svc/shop/cart:", ""},
		{"status --server=127.0.0.1:1 ", ""},
	} {
		args := strings.Split(tt.line, " ")
		got := call(t, "", append([]string{cobra.ShellCompNoDescRequestCmd}, args...)...)
		values, _, _ := strings.Cut("\n"+got.Out, "\n:") // then a number for the shell
		kit.Check(t, got.Code == 0 && strings.Join(strings.Fields(values), " ") == tt.want,
			"%q: exit %d, %q, want %q", tt.line, got.Code, got.Out, tt.want)
	}
}

// TestOutputsAreCompleted checks that no command has formats that shells do not know of.
func TestOutputsAreCompleted(t *testing.T) {
	var check func(*cobra.Command)
	check = func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if _, completed := cmd.GetFlagCompletionFunc(f.Name); f.Name == "output" && !completed {
				t.Errorf("%s: the values of --output are not completed", cmd.CommandPath())
			}
		})
		for _, c := range cmd.Commands() {
			check(c)
		}
	}
	check(newRoot(streams{}, modes.All()))
}

// manFolder is where make release wants the pages. They are written by a test, so that the
// program does not link what writes them.
var manFolder = flag.String("man", "", "write the man pages to this folder")

// TestManPages writes the man pages, one for each command, and checks that each has what
// the help has.
func TestManPages(t *testing.T) {
	folder := *manFolder
	if folder == "" {
		folder = t.TempDir()
	} else if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	root := newRoot(streams{}, modes.All())
	root.DisableAutoGenTag = true // which has a date of its own
	header := &doc.GenManHeader{Title: "KUBE-PROXY", Section: "8", Source: "kube-proxy " + buildInfo().Version, Manual: "Service proxy"}
	kit.Must(t, doc.GenManTree(root, header, folder))
	each(root, func(cmd *cobra.Command) {
		name := strings.ReplaceAll(cmd.CommandPath(), " ", "-") + ".8"
		text := kit.ReadFile(t, filepath.Join(folder, name))
		page := strings.ReplaceAll(string(text), `\-`, "-")
		for _, want := range append([]string{".TH", cmd.Short}, strings.Fields(cmd.Use)[:1]...) {
			kit.Check(t, strings.Contains(page, want), "%s lacks %q", name, want)
		}
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			kit.Check(t, f.Name == "help" || f.Hidden || strings.Contains(page, "--"+f.Name),
				"%s lacks --%s", name, f.Name)
		})
	})
}
