// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winservice

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
	"kubeproxy/test/wine"
)

// site is a Windows with the proxy's program and a simulated HNS, whose network
// has one pod.
type site struct {
	*wine.Wine
	hns      *hns.Server
	folder   string // with a blank in its name, as folders of Windows have
	exe      string
	manifest string
	metrics  string
}

func newSite(t *testing.T) *site {
	t.Helper()
	h := hns.Start(t, hns.Options{Version: hns.Version{Major: 13, Minor: 3}, Steady: true})
	const network = "l2"
	if _, err := h.AddNetwork(hns.NetworkConfig{Name: network, Type: "L2Bridge", Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")}}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.AddPod(network, "web", netip.MustParseAddr("10.244.3.5")); err != nil {
		t.Fatal(err)
	}
	s := &site{hns: h, folder: filepath.Join(t.TempDir(), "Program Files"), metrics: freeAddr(t)}
	s.Wine = wine.Start(t, wine.Options{Env: []string{"HNS_SIM_ADDR=" + h.Addr}})
	s.exe, s.manifest = filepath.Join(s.folder, "kube-proxy.exe"), filepath.Join(s.folder, "web.yaml")
	t.Cleanup(func() {
		if logs, _ := filepath.Glob(filepath.Join(s.Prefix(), data, "*.log*")); t.Failed() {
			for _, path := range logs {
				text, err := os.ReadFile(path)
				t.Logf("%s: %v\n%s", filepath.Base(path), err, text)
			}
		}
	})
	s.write(t, "web.yaml", web)
	kit.Must(t, wine.BuildProgram(s.exe, "kubeproxy/cmd/kube-proxy"))
	return s
}

// data is where services of ours keep files.
var data = filepath.Join("drive_c", "ProgramData", "kube-proxy")

const web = `apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 8080, protocol: TCP}]
endpoints: [{addresses: [10.244.3.5], nodeName: win, conditions: {ready: true}}]
`

// freeAddr returns an address that nobody listened on a moment ago, with none
// of the ports that the system gives to who asks for any.
func freeAddr(t *testing.T) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", 10300+rand.IntN(9000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no address is free")
	return ""
}

func (s *site) write(t *testing.T, name, text string) {
	t.Helper()
	kit.Must(t, os.MkdirAll(s.folder, 0o755))
	kit.Must(t, os.WriteFile(filepath.Join(s.folder, name), []byte(text), 0o644))
}

// run runs the program in its folder and wants an exit code and, in its
// output, each of some texts.
func (s *site) run(t *testing.T, args string, code int, texts ...string) (output string) {
	t.Helper()
	return s.command(t, s.exe, strings.Fields(args), code, texts...)
}

func (s *site) command(t *testing.T, program string, args []string, code int, texts ...string) (output string) {
	t.Helper()
	got, output, err := s.Run(t.Context(), wine.Program{Path: program, Args: args, Dir: s.folder})
	kit.Check(t, err == nil && got == code, "%q: exit code %d, %v, want %d:\n%s", args, got, err, code, output)
	for _, text := range texts {
		kit.Check(t, strings.Contains(output, text), "%q: want %q in\n%s", args, text, output)
	}
	return output
}

// registered is what the service manager keeps of the service kube-proxy.
func (s *site) registered(t *testing.T, texts ...string) string {
	t.Helper()
	return s.command(t, "reg", []string{"query", `HKLM\System\CurrentControlSet\Services\kube-proxy`}, 0, texts...)
}

// log returns the log of a service.
func (s *site) log(name string) string {
	text, err := os.ReadFile(filepath.Join(s.Prefix(), data, name+".log"))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (s *site) balancers() int { return len(s.hns.Objects(hns.LoadBalancer)) }

// flags are those of a service that has the site's manifest, as a person types
// them in its folder.
func (s *site) flags() string {
	return "--manifests web.yaml --hostname-override win --bind-address 192.0.2.1 --healthz-bind-address 127.0.0.1:0 --metrics-bind-address " + s.metrics
}

// TestService is a service's life: what it programs stays when it stops, and
// when it starts again it is adopted.
func TestService(t *testing.T) {
	s := newSite(t)
	s.run(t, "service status", 2, "is not installed")
	s.run(t, "service start", 1, "is not installed: kube-proxy service install does that")
	s.run(t, "service install --proxy-mode=nftables "+s.flags(), 1, "is no mode on windows")
	s.run(t, "service status", 2, "is not installed")
	s.command(t, "sc", []string{"create", "kube-proxy", "binPath=", `C:\k\nssm.exe`}, 0)
	s.run(t, "service install "+s.flags(), 1, `is installed already, and runs another program, C:\k\nssm.exe`)
	s.run(t, "service uninstall", 1, `is none of this program, but runs C:\k\nssm.exe`)
	s.run(t, "service stop", 1, `is none of this program, but runs C:\k\nssm.exe`)
	s.run(t, "service start", 1, `is none of this program, but runs C:\k\nssm.exe`)
	s.registered(t, "ImagePath    REG_SZ    C:\\k\\nssm.exe\n")
	s.command(t, "sc", []string{"delete", "kube-proxy"}, 0)
	installed := s.run(t, "service install "+s.flags(), 0, "service kube-proxy is installed")
	// It starts with the system, after HNS. A delayed start, two minutes after the others, would be a level that Wine lacks.
	text := s.registered(t, "Start    REG_DWORD    0x2", "DependOnService    REG_MULTI_SZ    hns", "Kubernetes service proxy", "Programs the Host Network Service")
	if n := strings.Count(installed, "Invalid level"); n != 1 || !strings.Contains(installed, "restarts after an end with an exit code: Invalid level") || strings.Contains(text, "DelayedAutostart") {
		t.Errorf("Wine refuses %d properties, want one, and has no delayed start: %s%s", n, installed, text)
	}
	s.run(t, "service install "+s.flags(), 1, "is installed already: uninstall it first")
	// The blank in the path is quoted, or else another program would start.
	s.run(t, "service status", 1, "stopped", "automatic",
		`"`+wine.File(s.exe)+`" --windows-service `, `"--manifests=`+wine.File(s.manifest)+`"`, `--log-file=C:\ProgramData\kube-proxy\kube-proxy.log`)
	s.command(t, "reg", []string{"query", `HKLM\System\CurrentControlSet\Services\EventLog\Application\kube-proxy`}, 0, "EventMessageFile")
	s.run(t, "service start", 0, "service kube-proxy runs")
	s.run(t, "service start", 1, "is running already")
	s.run(t, "service status", 0, "running, process ")
	kit.Until(t, "the Service is programmed", func() bool { return s.balancers() == 1 && strings.Contains(s.log("kube-proxy"), `"Programmed"`) })
	s.run(t, "status --server="+s.metrics, 0, "mode kernelspace", "shop/web")
	s.run(t, "service stop", 0, "is stopped; what it programmed stays in force")
	s.run(t, "service stop", 1, "is not running")
	s.run(t, "service status", 1, "stopped\n")
	n := s.balancers()
	kit.Check(t, n == 1, "%d load balancers after the stop, want 1", n)
	if log := s.log("kube-proxy"); !strings.Contains(log, "Stopped; the rules stay in force") {
		t.Errorf("log: %s", log)
	}
	made := s.hns.CreatedCount(hns.LoadBalancer)
	s.run(t, "service start", 0)
	kit.Until(t, "the Service is adopted", func() bool { return strings.Count(s.log("kube-proxy"), "\"Starting\"") == 2 })
	s.run(t, "service uninstall", 0, "is uninstalled; what it programmed stays in force") // stops it, too
	s.run(t, "service uninstall", 1, "is not installed")
	if n, again := s.balancers(), s.hns.CreatedCount(hns.LoadBalancer)-made; n != 1 || again != 0 {
		t.Errorf("%d load balancers in the end, %d made by the second run, want 1 and 0", n, again)
	}
}

// TestServiceFails ends services by themselves. The service manager starts them again for
// each exit code, and the log says why.
func TestServiceFails(t *testing.T) {
	s := newSite(t)
	const head = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"
	s.write(t, "c.yaml", head+"hostnameOverride: win\nbindAddress: 192.0.2.1\nhealthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: "+s.metrics+"\n")
	s.run(t, "service install --name changing --config c.yaml --manifests web.yaml", 0)
	s.write(t, "c.yaml", head+"oomScoreAdj: 5000\n")
	s.run(t, "service start --name changing", 1, "ended while it was starting, with exit code 1")
	s.run(t, "service status --name changing", 1, "stopped, with exit code 1")
	if log := s.log("changing"); !strings.Contains(log, "c.yaml:3: oomScoreAdj: 5000 is out of range") {
		t.Errorf("log: %s", log)
	}
	good := head + "bindAddress: 192.0.2.1\nhealthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: " + s.metrics + "\n"
	s.write(t, "c.yaml", good+"hostnameOverride: win\n")
	s.run(t, "service start --name changing", 0)
	kit.Until(t, "it works", func() bool { return s.balancers() == 1 })
	s.write(t, "c.yaml", good+"hostnameOverride: win-2\n")
	kit.Until(t, "it has taken in the change", func() bool { return strings.Contains(s.log("changing"), "asks to be started again") })
	kit.Until(t, "it has stopped, with exit code 2", func() bool {
		code, output, err := s.Run(t.Context(), wine.Program{Path: s.exe, Args: strings.Fields("service status --name changing"), Dir: s.folder})
		return err == nil && code == 1 && strings.Contains(output, "stopped, with exit code 2")
	})
	s.run(t, "service uninstall --name changing", 0)
}

// TestServiceByConfig has a service that only its configuration makes one, as
// some other tool than ours installed it.
func TestServiceByConfig(t *testing.T) {
	s := newSite(t)
	s.write(t, "c.yaml", "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nwindowsRunAsService: true\nhostnameOverride: win\nbindAddress: 192.0.2.1\nhealthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: "+s.metrics+"\n")
	s.run(t, "--config c.yaml --manifests web.yaml", 1, "was not started by the service manager: start it with kube-proxy service start, or leave --windows-service and windowsRunAsService out")
	s.run(t, "--config c.yaml --manifests web.yaml --write-config-to out.yaml", 0) // is no service
	command := `"` + wine.File(s.exe) + `" --config "` + wine.File(filepath.Join(s.folder, "c.yaml")) + `" --manifests "` + wine.File(s.manifest) + `"`
	s.command(t, "sc", []string{"create", "plain", "binPath=", command}, 0)
	s.run(t, "service start --name plain", 0, "service plain runs")
	kit.Until(t, "the Service is programmed", func() bool { return s.balancers() == 1 })
	s.run(t, "service uninstall --name plain", 0)
	// In Wine, services have another ProgramData than programs.
	log, err := os.ReadFile(filepath.Join(s.Prefix(), "drive_c", "users", "Public", "kube-proxy", "kube-proxy.log"))
	kit.Check(t, strings.Contains(string(log), "Stopped; the rules stay in force"), "log: %s, %v", log, err)
}

// TestServicePaths installs the service by the command of docs/windows.md, and with a blank in each path of it.
func TestServicePaths(t *testing.T) {
	const documented = `service install --config C:\k\kube-proxy.yaml --kubeconfig C:\k\config`
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "windows.md"))
	kit.Check(t, err == nil && strings.Contains(string(page), "    kube-proxy "+documented+"\n"),
		"docs/windows.md has another command (%v), want %s", err, documented)
	s := newSite(t)
	program := kit.ReadFile(t, s.exe)
	for _, folder := range []string{"k", "k of node"} {
		s.folder = filepath.Join(s.Prefix(), "drive_c", folder)
		s.write(t, "kube-proxy.exe", string(program))
		s.write(t, "kube-proxy.yaml", "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nhostnameOverride: win\nbindAddress: 192.0.2.1\nhealthzBindAddress: 127.0.0.1:0\nmetricsBindAddress: "+s.metrics+"\n")
		s.write(t, "config", "apiVersion: v1\nkind: Config\nclusters: [{name: a, cluster: {server: \"https://"+freeAddr(t)+"\"}}]\nusers: [{name: a, user: {token: a}}]\ncontexts: [{name: a, context: {cluster: a, user: a}}]\ncurrent-context: a\n")
		exe, in := filepath.Join(s.folder, "kube-proxy.exe"), `C:\`+folder+`\`
		args := strings.Fields(documented)
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], `C:\k\`, in)
		}
		quoted := func(word string) string {
			if strings.Contains(word, " ") {
				return `"` + word + `"`
			}
			return word
		}
		s.command(t, exe, append(args, "--log-file", in+"the log.txt"), 0, "service kube-proxy is installed")
		s.command(t, exe, []string{"service", "status"}, 1, quoted(in+"kube-proxy.exe")+" --windows-service "+
			quoted("--config="+in+"kube-proxy.yaml")+" "+quoted("--kubeconfig="+in+"config")+` "--log-file=`+in+`the log.txt"`)
		s.command(t, exe, []string{"service", "start"}, 0, "service kube-proxy runs")
		kit.Until(t, "it reads its files in "+folder, func() bool {
			text, _ := os.ReadFile(filepath.Join(s.folder, "the log.txt"))
			return strings.Contains(string(text), `node="win"`) && strings.Contains(string(text), "The API server cannot be read")
		})
		s.command(t, exe, []string{"service", "uninstall"}, 0)
	}
}
