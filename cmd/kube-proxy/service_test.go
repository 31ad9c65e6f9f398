// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"kubeproxy/cmd/kube-proxy/internal/cli"
	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/config"
	"kubeproxy/platform/modes"
	"kubeproxy/platform/windows/scm"
	"kubeproxy/test/kit"
)

// fakeSCM is a service control manager with one service at most.
type fakeSCM struct {
	spec    *scm.Spec
	state   scm.State
	command string
}

func (f *fakeSCM) Create(s scm.Spec) error {
	if f.spec != nil {
		return syscall.Errno(1073)
	}
	f.spec, f.state, f.command = &s, scm.Stopped, "kube-proxy.exe x"
	return nil
}

func (f *fakeSCM) Configure(scm.Spec) error { return nil }

// withService calls do with the service of that name.
func (f *fakeSCM) withService(name string, do func()) error {
	if f.spec == nil || f.spec.Name != name {
		return syscall.Errno(1060)
	}
	do()
	return nil
}

func (f *fakeSCM) Delete(name string) error { return f.withService(name, func() { f.spec = nil }) }
func (f *fakeSCM) Start(name string) error {
	return f.withService(name, func() { f.state = scm.Running })
}
func (f *fakeSCM) Stop(name string) error {
	return f.withService(name, func() { f.state = scm.Stopped })
}

func (f *fakeSCM) Query(name string) (s scm.Status, err error) {
	err = f.withService(name, func() {
		s = scm.Status{Name: name, State: f.state, StartType: "automatic", Command: f.command, DependsOn: f.spec.DependsOn}
		if f.state == scm.Running {
			s.PID = 7
		} else {
			s.ExitCode = 2
		}
	})
	return s, err
}

// runServiceCommand runs a subcommand of service with d in place of Windows.
func runServiceCommand(t *testing.T, d *fakeSCM, dir string, args ...string) outcome {
	t.Helper()
	var out, errs bytes.Buffer
	root := &cobra.Command{Use: "kube-proxy", SilenceErrors: true, SilenceUsage: true}
	root.SetFlagErrorFunc(cli.FlagError)
	root.AddCommand(newServiceCommandFor(&serviceCommands{to: streams{&out, &errs}, modes: modes.All(), driver: func() (scm.Driver, error) { return d, nil }}))
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "DIR", dir)
	}
	root.SetArgs(append([]string{"service"}, args...))
	code := exitCode(root.ExecuteContext(context.Background()), &errs)
	return outcome{code, out.String(), kit.Normalize(errs.String(), dir)}
}

func TestServiceCommands(t *testing.T) {
	d := &fakeSCM{}
	dir := files(t, map[string]string{"none.yaml": ""})
	for _, step := range []struct {
		args string
		want outcome
	}{
		{"status", outcome{2, "", "kube-proxy: query service kube-proxy: is not installed: kube-proxy service install does that; --name if it has another name\n"}},
		{"install --manifests=DIR --log-file=DIR/log", outcome{0, "service kube-proxy is installed and starts with the system; kube-proxy service start starts it now\n", ""}},
		{"install --manifests=DIR", outcome{1, "", "kube-proxy: install service kube-proxy: is installed already: uninstall it first, or choose another name with --name\n"}},
		{"status", outcome{1, "service   kube-proxy\nstate     stopped, with exit code 2\nstart     automatic\nneeds     hns\ncommand   kube-proxy.exe x\n", ""}},
		{"start", outcome{0, "service kube-proxy runs\n", ""}},
		{"status", outcome{0, "service   kube-proxy\nstate     running, process 7\nstart     automatic\nneeds     hns\ncommand   kube-proxy.exe x\n", ""}},
		{"status -o json", outcome{0, "{\n  \"name\": \"kube-proxy\",\n  \"state\": \"running\",\n  \"pid\": 7,\n  \"exitCode\": 0,\n  \"startType\": \"automatic\",\n  \"command\": \"kube-proxy.exe x\",\n  \"dependsOn\": [\n    \"hns\"\n  ]\n}\n", ""}},
		{"stop --name other", outcome{1, "", "kube-proxy: stop service other: is not installed: kube-proxy service install does that; --name if it has another name\n"}},
		{"stop", outcome{0, "service kube-proxy is stopped; what it programmed stays in force\n", ""}},
		{"stop", outcome{1, "", "kube-proxy: stop service kube-proxy: is not running: kube-proxy service start starts it\n"}},
		{"uninstall", outcome{0, "service kube-proxy is uninstalled; what it programmed stays in force until kube-proxy --cleanup\n", ""}},
		{"start --name=", outcome{1, "", "kube-proxy: --name: \"\" names no service: want 1 to 256 letters without slashes\n"}},
		{"status -o xml", outcome{2, "", "kube-proxy: --output: \"xml\" is unknown: want text or json\n"}},
		{"", outcome{1, "", "kube-proxy: service wants a command: install, uninstall, start, stop or status\n"}},
		{"instal", outcome{1, "", "kube-proxy: unknown command \"instal\"; did you mean \"install\"?\n"}},
	} {
		kit.Same(t, fmt.Sprintf("%s (-want +got)", step.args), step.want, runServiceCommand(t, d, dir, strings.Fields(step.args)...))
	}
}

// TestServicesOfOthers checks that services of other programs are not replaced, stopped
// or removed, whatever their name.
func TestServicesOfOthers(t *testing.T) {
	for command, ours := range map[string]bool{
		`C:\k\nssm.exe`: false,
		`C:\windows\system32\svchost.exe -k netsvcs`:  false,
		`"C:\kube-proxy\other.exe" kube-proxy.exe`:    false,
		`C:\k\KUBE-PROXY.EXE --config c.yaml`:         true,
		`"C:\Program Files\k p\kube-proxy.exe" -v=2`:  true,
		`"C:\k\proxy-2.exe" --windows-service -v=2`:   true,
		`C:\k\kube-proxy.exe`:                         true,
		`C:\k\proxy.exe --windows-service --name=hns`: true,
	} {
		d := &fakeSCM{spec: &scm.Spec{Name: "kube-proxy"}, state: scm.Running, command: command}
		slashes := strings.NewReplacer(`\`, "/")
		dir, commandText := t.TempDir(), slashes.Replace(command)
		again := runServiceCommand(t, d, dir, "install", "--manifests=DIR")
		refused := strings.Contains(slashes.Replace(again.Err), "runs another program, "+commandText)
		kit.Check(t, again.Code == 1 && refused != ours, "install over %s: %+v", command, again)
		for _, do := range []string{"stop", "uninstall"} {
			got := runServiceCommand(t, d, dir, do)
			if done := got.Code == 0 || strings.Contains(got.Err, "is not running"); done != ours || !ours && !strings.Contains(slashes.Replace(got.Err), "is none of this program, but runs "+commandText) {
				t.Errorf("%s %s: %+v", do, command, got)
			}
		}
		removed := d.spec == nil
		kit.Check(t, removed == ours, "%s: removed %t, want %t", command, removed, ours)
	}
}

// TestServiceInstall checks the installed service: it gets the given flags and no others,
// with absolute paths, and parses them to the same values.
func TestServiceInstall(t *testing.T) {
	t.Setenv("ProgramData", "/data")
	t.Chdir(files(t, map[string]string{"c.yaml": configHead + "clusterCIDR: 10.0.0.0/8\n", "k": "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://10.0.0.1'}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: t}}]\ncurrent-context: x\n"}))
	here, err := filepath.Abs(".")
	kit.Must(t, err)
	d := &fakeSCM{}
	got := runServiceCommand(t, d, here, "install", "--name=second", "--config=c.yaml", "--kubeconfig", "k", "--cluster_cidr", "11.0.0.0/8",
		"--nodeport-addresses=10.0.0.0/8,11.0.0.0/8", "--network-name", `my "net"`, "--feature-gates=WinDSR=true,WinOverlay=true", "-v=2", "--vmodule=a=1,b=2", "--enable-dsr", "--windows-service=false")
	kit.Need(t, got.Code == 0, "%v", got.Err)
	want := &scm.Spec{
		Name: "second", DisplayName: "Kubernetes service proxy (second)", Executable: d.spec.Executable, Description: d.spec.Description, DependsOn: []string{"hns"},
		Args: []string{
			"--windows-service", "--config=" + filepath.Join(here, "c.yaml"), "--kubeconfig=" + filepath.Join(here, "k"), "--cluster-cidr=11.0.0.0/8",
			"--nodeport-addresses=10.0.0.0/8", "--nodeport-addresses=11.0.0.0/8", `--network-name=my "net"`, "--feature-gates=WinDSR=true,WinOverlay=true", "--v=2", "--vmodule=a=1,b=2", "--enable-dsr=true",
			"--log-file=" + filepath.Join("/data", "kube-proxy", "second.log"),
		},
	}
	sorted := cmp.Transformer("sorted", func(all []string) map[string]int {
		count := map[string]int{}
		for _, s := range all {
			count[s]++
		}
		return count
	})
	kit.Same(t, "installed (-want +got)", want, d.spec, sorted)
	kit.Check(t, filepath.IsAbs(d.spec.Executable) && d.spec.Args[0] == "--windows-service",
		"command %s %q", d.spec.Executable, d.spec.Args)
	again := newRoot(streams{}, modes.All())
	err = again.ParseFlags(d.spec.Args)
	kit.Check(t, err == nil, "the service does not understand its command line: %v", err)
}

// TestServiceRefused checks that a service that could not start is not installed.
func TestServiceRefused(t *testing.T) {
	dir := files(t, map[string]string{
		"bad.yaml":      configHead + "oomScoreAdj: 5000\n",
		"relative.yaml": configHead + "clientConnection: {kubeconfig: k}\n",
		"good.yaml":     configHead,
		"linux.yaml":    configHead + "conntrack: {min: 1000}\n",
	})
	for args, want := range map[string]string{
		"--config=DIR/bad.yaml":                      "the service could not start:\nDIR/bad.yaml:3: oomScoreAdj: 5000 is out of range: want -1000 to 1000",
		"--config=DIR/relative.yaml":                 `the service could not start: DIR/relative.yaml: clientConnection.kubeconfig: "k" is no absolute path, and a service starts in the folder of the system: want one with drive and folders`,
		"--config=DIR/nothing.yaml":                  "read configuration: ",
		"--config=DIR/good.yaml":                     "nothing to read Services from: want --kubeconfig FILE",
		"--manifests=DIR --cleanup":                  "--cleanup is an action that ends by itself, so a service cannot run it: leave it out",
		"--manifests=DIR --write-config-to=x":        "--write-config-to is an action that ends by itself",
		"--manifests=DIR --init-only":                "--init-only is an action that ends by itself",
		"--manifests=DIR --cleanup-iptables":         "--cleanup-iptables is an action that ends by itself",
		"--manifests=DIR --version":                  "--version is an action that ends by itself",
		"--manifests=DIR --proxy-mode=nftables":      `--proxy-mode: mode: "nftables" is no mode on windows`,
		"--manifests=DIR --log-file-max-size=-1":     "--log-file-max-size: -1 is too small: want 0 or more",
		"--manifests=DIR --source-vip=x":             "--source-vip: winkernel.sourceVip:",
		"--manifests=DIR --name=a/b":                 `--name: "a/b" names no service`,
		"--manifests=DIR --manifest=x":               "unknown flag --manifest; did you mean --manifests?",
		"--manifests=DIR something":                  `unexpected argument "something"`,
		"--manifests=DIR --healthz-bind-address=any": "--healthz-bind-address: healthzBindAddress:",
	} {
		d := &fakeSCM{}
		got := runServiceCommand(t, d, dir, append([]string{"install"}, strings.Fields(args)...)...)
		kit.Check(t, got.Code == 1 && strings.Contains(got.Err, want) && d.spec == nil,
			"%s: exit code %d, installed %v, %s\nwant %s", args, got.Code, d.spec != nil, got.Err, want)
	}
	// Settings of the other system are no reason to refuse, and are remarked on.
	d := &fakeSCM{}
	got := runServiceCommand(t, d, dir, "install", "--manifests=DIR", "--config=DIR/linux.yaml")
	kit.Check(t, got.Code == 0 && d.spec != nil && strings.Contains(got.Err, "note: ") && strings.Contains(got.Err, "conntrack"),
		"settings of Linux: %+v", got)
	// A file that may be created later is no reason either.
	d = &fakeSCM{}
	got = runServiceCommand(t, d, dir, "install", "--kubeconfig=DIR/later", "--manifests=DIR/later")
	kit.Check(t, got.Code == 0 && d.spec != nil && strings.HasPrefix(got.Err, "note: --manifests: "),
		"manifests to come: %+v", got)
	d = &fakeSCM{}
	got = runServiceCommand(t, d, dir, "install", "--kubeconfig=DIR/later")
	kit.Check(t, got.Code == 0 && d.spec != nil && strings.Contains(got.Err, "DIR/later is not there; the service cannot start before it is"),
		"kubeconfig to come: %+v", got)
}

// TestServiceUnsupportedOS covers the other systems.
func TestServiceUnsupportedOS(t *testing.T) {
	if host.OS == config.Windows {
		return
	}
	for _, args := range []string{"", "install", "uninstall", "start", "stop"} {
		got := call(t, "", append([]string{"service"}, strings.Fields(args)...)...)
		kit.Check(t, got.Code == 1 && strings.Contains(got.Err, "service is for Windows"), "service %s: %+v", args, got)
	}
	got := call(t, "", "service", "status")
	kit.Check(t, got.Code == 2 && strings.Contains(got.Err, "service is for Windows"), "service status: %+v", got)
	if got := call(t, "", "--windows-service", "--write-config-to="+filepath.Join(t.TempDir(), "x")); got.Code != 0 || !strings.Contains(got.Err, "has no effect on linux") {
		t.Errorf("--windows-service: %+v", got)
	}
}
