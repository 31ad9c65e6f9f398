// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"kubeproxy/config"
	"kubeproxy/platform/modes"
	"kubeproxy/test/kit"
)

const chart = `kind: Service
apiVersion: v1
metadata: {name: web, namespace: shop}
spec: {type: NodePort, ports: [{port: 80}]}
---
kind: Service
apiVersion: v1
metadata: {name: dual, namespace: shop}
spec: {ipFamilyPolicy: PreferDualStack, ports: [{port: 81}]}
---
kind: Service
apiVersion: v1
metadata: {name: fixed, namespace: shop}
spec: {clusterIP: 10.96.0.2, ports: [{port: 82}]}
`

// TestChart renders Services without addresses from a pipe.
func TestChart(t *testing.T) {
	render := func(args ...string) outcome {
		r, w, err := os.Pipe()
		kit.Must(t, err)
		old := os.Stdin
		os.Stdin = r
		defer func() { os.Stdin = old; r.Close() }()
		_, _ = w.WriteString(chart)
		w.Close()
		return call(t, "", append([]string{"render", "--manifests=-", "--hostname-override=node-a"}, args...)...)
	}
	if got := render(); got.Code != 1 || !strings.Contains(got.Err, "--assign-cluster-ips") {
		t.Errorf("without addresses: exit %d, %s", got.Code, got.Err)
	}
	// A range of two addresses, of which one is taken.
	if got := render("--assign-cluster-ips=10.96.0.0/30"); got.Code != 1 || !strings.Contains(got.Err, "there is no free IPv4 address") ||
		strings.Count(got.Out, "10.96.0.2 .") != 1 || strings.Count(got.Out, "10.96.0.1 .") != 1 {
		t.Errorf("in a small range: exit %d, %s\n%s", got.Code, got.Err, got.Out)
	}
	got := render("--assign-cluster-ips=10.96.0.0/16,fd00:10:96::/112")
	for _, want := range []string{`. tcp . 80 comment "shop/web"`, `. tcp . 81 comment "shop/dual"`, "fd00:10:96::", "tcp . 3"} {
		kit.Check(t, got.Code == 0 && strings.Contains(got.Out, want),
			"exit %d, no %q: %s\n%s", got.Code, want, got.Err, got.Out)
	}
	again := render("--assign-cluster-ips=10.96.0.0/16,fd00:10:96::/112")
	kit.Check(t, again.Out == got.Out, "another time, other addresses:\n%s\n%s", got.Out, again.Out)
	if got := render("--assign-cluster-ips=10.96.0.0/16,10.97.0.0/16"); got.Code != 1 || !strings.Contains(got.Err, "second range") {
		t.Errorf("two ranges: exit %d, %s", got.Code, got.Err)
	}
}

// TestRenderFaults has Services of which nothing, or not what they want, can be served.
func TestRenderFaults(t *testing.T) {
	const head = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n"
	for text, want := range map[string]struct {
		code int
		text string
	}{
		head + "spec: {ports: [{port: 80}]}\n":                                                                                                           {1, "want of a clusterIP"},
		head + "spec: {clusterIP: 10.96.0.300, ports: [{port: 80}]}\n":                                                                                   {1, "spec.clusterIPs[0]"},
		head + "spec: {clusterIP: 10.96.0.3, ports: [{port: 80, protocol: tcp}]}\n":                                                                      {1, `"tcp" is not TCP`},
		head + "spec: {clusterIP: 10.96.0.3, type: loadbalancer, ports: [{port: 80}]}\n":                                                                 {1, `"loadbalancer" is not ClusterIP`},
		head + "spec: {clusterIP: 10.96.0.3, type: NodePort, ports: [{port: 80, nodePort: 99}]}\n":                                                       {1, "99 is not in 30000-32767"},
		head + "spec: {clusterIP: 10.96.0.3, type: NodePort, ports: [{port: 80, nodePort: 70000}]}\n":                                                    {1, "70000 is not a port"},
		strings.Replace(head, "Service", "service", 1):                                                                                                   {1, "want apiVersion: v1, kind: Service"},
		head + "spec: {clusterIP: None, ports: [{port: 80}]}\n":                                                                                          {0, ""},
		head + "spec: {type: ExternalName, externalName: a.example.com}\n":                                                                               {0, ""},
		head + "spec: {clusterIP: 10.96.0.3, ports: [{port: 80}, {name: b, port: 81, protocol: tcp}]}\n":                                                 {0, "problem: "},
		strings.Replace(head, "{name: a}", "{name: a, uid: x}", 1) + "spec: {clusterIP: 10.96.0.3, type: NodePort, ports: [{port: 80, nodePort: 99}]}\n": {0, ""},
	} {
		dir := files(t, map[string]string{"a.yaml": text})
		if got := call(t, dir, "render", "--manifests=DIR", "--hostname-override=node-a"); got.Code != want.code || !strings.Contains(got.Err, want.text) {
			t.Errorf("%sexit %d, want %d and %q; %s", text, got.Code, want.code, want.text, got.Err)
		}
	}
}

// TestDiffWithoutABadObject compares manifests of which one object cannot be used.
func TestDiffWithoutABadObject(t *testing.T) {
	bad := "---\napiVersion: v1\nkind: Service\nmetadata: {name: bad}\nspec: {clusterIP: [}\n"
	for more, want := range map[string]int{"": 2, "---\napiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec: {clusterIP: 10.96.0.77, ports: [{port: 80}]}\n": 1} {
		dir := files(t, map[string]string{"old.yaml": shop, "new.yaml": shop + bad + more})
		got := call(t, dir, "diff", "--from=DIR/old.yaml", "--manifests=DIR/new.yaml", "--hostname-override=node-a")
		kit.Check(t, got.Code == want && strings.Contains(got.Err, "warning: manifest "),
			"exit %d, want %d; %s\n%s", got.Code, want, got.Err, got.Out)
	}
}

// TestChartValues compares values of the chart, which a test of the chart renders, and what
// the command says of them.
func TestChartValues(t *testing.T) {
	const dir = "testdata/values/"
	noServer := "apiServer: is not known here: helm install asks the cluster, and helm template needs one like https://192.0.2.1:6443"
	notLocal := "linux.config.iptables.localhostNodePorts: is false in the chart: NodePorts no longer answer on 127.0.0.1; true keeps that"
	primary := "linux.config.nodePortAddresses: is [primary] in mode nftables: NodePorts answer on the addresses of the Node, no longer on all of the machine; [all] keeps that"
	ipvs := []string{
		noServer,
		"metricsBindAddress: is left out: the chart always has this server",
		"DIR/ipvs.yaml:13: conntrack.max: is ignored: set conntrack.maxPerCore and conntrack.min",
		"DIR/ipvs.yaml:12: iptables.localhostNodePorts: has no effect in mode ipvs, only in mode iptables or userspace",
		"DIR/ipvs.yaml:14: winkernel.networkName: has no effect on linux",
		"DIR/ipvs.yaml:13: conntrack.tcpBeLiberal: has no effect in mode ipvs, only in mode iptables or nftables",
		"DIR/ipvs.yaml:11: ipvs.excludeCIDRs: has no prefix of the primary family IPv6",
		"DIR/ipvs.yaml:6: healthzBindAddress: 0.0.0.0:10356 answers IPv4 only, while the primary family is IPv6",
		"DIR/ipvs.yaml:16: nodePortAddress: unknown field; did you mean nodePortAddresses?",
	}
	rke2 := "--cluster-cidr=10.42.0.0/16 --conntrack-max-per-core=0 --conntrack-tcp-timeout-close-wait=0s --conntrack-tcp-timeout-established=0s " +
		"--healthz-bind-address=127.0.0.1 --hostname-override=node-a --kubeconfig=/var/lib/rancher/rke2/agent/kubeproxy.kubeconfig"
	for name, tt := range map[string]struct {
		file, flags string
		notes       []string
	}{
		"kubeadm": {"kubeadm.yaml", "", []string{
			"linux.mode: is iptables, kube-proxy's mode where none is set; with -- --proxy-mode=nftables the values are for nftables, the default of the chart", notLocal}},
		"kubeadm-nftables": {"kubeadm.yaml", "--proxy-mode=nftables", []string{
			"linux.mode: is nftables, and was iptables", "linux.config.nodePortAddresses: has no localhost: NodePorts no longer answer on 127.0.0.1; with it they do", primary}},
		"kubeadm-all":       {"kubeadm.yaml", "--proxy-mode=nftables --nodeport-addresses=all,localhost", []string{"linux.mode: is nftables, and was iptables"}},
		"kubeadm-localhost": {"kubeadm.yaml", "--iptables-localhost-nodeports=true --proxy-mode=iptables", nil},
		"eks": {"eks.yaml", "", []string{notLocal,
			"DIR/eks.yaml:62: udpIdleTimeout: is not a field any more; it has an effect in mode userspace, like --udp-timeout, and elsewhere conntrack.udpTimeout has"}},
		"rke2": {"", rke2 + " --proxy-mode=ipvs --ipvs-strict-arp", []string{noServer,
			"linux.config.healthzBindAddress: is left out: the kubelet does not reach 127.0.0.1:10256; the chart has [::]:10256"}},
		"ipvs": {"ipvs.yaml", "", ipvs},
		"ipvs-nftables": {"ipvs.yaml", "--proxy-mode=nftables --masquerade-all --service-proxy-name=team --nodeport-addresses=primary,10.0.0.0/8 --master=https://192.0.2.1:6443",
			append([]string{"linux.mode: is nftables, and was ipvs", ipvs[1], ipvs[2],
				"DIR/ipvs.yaml:12: iptables.localhostNodePorts: has no effect in mode nftables, only in mode iptables or userspace",
				"DIR/ipvs.yaml:11: ipvs.minSyncPeriod: has no effect in mode nftables, only in mode ipvs",
				"DIR/ipvs.yaml:11: ipvs.scheduler: has no effect in mode nftables, only in mode ipvs",
				"DIR/ipvs.yaml:11: ipvs.excludeCIDRs: has no effect in mode nftables, only in mode ipvs",
				"DIR/ipvs.yaml:11: ipvs.strictARP: has no effect in mode nftables, only in mode ipvs", ipvs[4]}, ipvs[7:]...)},
		"userspace": {"", "--proxy-mode=userspace --udp-timeout=1s --expose-admin-pages --cleanup-ipvs --socket-acceleration=node --count-traffic --iptables-localhost-nodeports=false --metrics-bind-address=0.0.0.0:9999", []string{
			"--expose-admin-pages: is left out: other values, such as extraArgs, have its effect", noServer,
			"--cleanup-ipvs: is deprecated: --cleanup removes what mode ipvs made, too; only false has an effect, which leaves that alone"}},
	} {
		t.Run(name, func(t *testing.T) {
			args := []string{"config", "migrate", "--values"}
			if tt.file != "" {
				args = append(args, dir+tt.file)
			}
			want, err := os.ReadFile(dir + name + ".values.yaml")
			kit.Check(t, err == nil, "%v", err)
			var notes strings.Builder
			for _, n := range tt.notes {
				notes.WriteString("note: " + strings.ReplaceAll(n, "DIR/", dir) + "\n")
			}
			got := call(t, "", append(append(args, "--"), strings.Fields(tt.flags)...)...)
			kit.Same(t, "outcome (-want +got)", outcome{0, string(want), notes.String()}, got)
		})
	}
}

// TestDeployedConfig checks that the proxy has no remarks on the deployed configuration.
func TestDeployedConfig(t *testing.T) {
	for _, tt := range []struct {
		name string
		os   config.OS
	}{
		{"linux", config.Linux}, {"iptables", config.Linux}, {"ipvs", config.Linux}, {"userspace", config.Linux},
		{"windows", config.Windows}, {"mixed", config.Linux}, {"mixed", config.Windows},
	} {
		t.Run(tt.name+" on "+string(tt.os), func(t *testing.T) {
			c, err := config.Load(&config.Flags{Modes: modes.All().Config(), Config: "../../build/deploy/" + tt.name + "/" + string(tt.os) + ".yaml", StrictConfig: true}, tt.os)
			kit.Must(t, err)
			for _, n := range c.Notes {
				if mode := c.Mode; mode == "nftables" || mode == "" { // the others are advised against
					t.Errorf("note: %s: %s", n.Path, n.Text)
				}
			}
		})
	}
}

// TestDeployedStartWaits checks that a proxy that starts without an API server waits for
// an hour before kubelet restarts it.
func TestDeployedStartWaits(t *testing.T) {
	for _, name := range []string{"linux", "windows"} {
		for _, c := range deployedPod(t, name).Containers {
			p := c.StartupProbe
			kit.Check(t, p != nil && time.Duration(p.PeriodSeconds*p.FailureThreshold)*time.Second >= time.Hour,
				"%s: container %s has the startup probe %v, want one that waits for an hour", name, c.Name, p)
		}
	}
}

// deployedPod returns the pod of a folder's DaemonSet.
func deployedPod(t *testing.T, name string) corev1.PodSpec {
	t.Helper()
	text := kit.ReadFile(t, "../../build/deploy/"+name+"/objects.yaml")
	for document := range strings.SplitSeq(string(text), "---\n") {
		var set struct {
			Kind string
			Spec struct{ Template corev1.PodTemplateSpec }
		}
		err := yaml.Unmarshal([]byte(document), &set)
		kit.Need(t, err == nil, "%s: %v", name, err)
		if set.Kind == "DaemonSet" {
			return set.Spec.Template.Spec
		}
	}
	t.Fatalf("%s has no DaemonSet", name)
	return corev1.PodSpec{}
}

// TestDeployedMetricsAreForTheNode checks that metrics are served to the node only, as
// they name Services of all namespaces.
func TestDeployedMetricsAreForTheNode(t *testing.T) {
	var files []string
	for _, system := range []config.OS{config.Linux, config.Windows} {
		found, err := filepath.Glob("../../build/deploy/*/" + string(system) + ".yaml")
		kit.Need(t, err == nil && len(found) >= 2, "%q, %v", found, err)
		files = append(files, found...)
	}
	for _, f := range files {
		system := config.OS(strings.TrimSuffix(filepath.Base(f), ".yaml"))
		c, err := config.Load(&config.Flags{Modes: modes.All().Config(), Config: f, StrictConfig: true}, system)
		kit.Must(t, err)
		kit.Check(t, c.MetricsBindAddress == "127.0.0.1:10249", "%s: metrics are at %s", f, c.MetricsBindAddress)
	}
}

// chartFlags returns the patterns of the flags that extraArgs of the chart may have.
func chartFlags(t *testing.T) []string {
	t.Helper()
	text := kit.ReadFile(t, "../../build/chart/values.schema.json")
	var schema struct {
		Properties struct {
			ExtraArgs struct {
				Items struct{ AnyOf []struct{ Pattern string } }
			}
		}
	}
	kit.Must(t, yaml.Unmarshal(text, &schema))
	var all []string
	for _, p := range schema.Properties.ExtraArgs.Items.AnyOf {
		all = append(all, p.Pattern)
	}
	return all
}

// TestChartKnowsFlags checks that each flag that extraArgs of the chart may have is one of
// the program.
func TestChartKnowsFlags(t *testing.T) {
	var names []string
	for _, pattern := range chartFlags(t) {
		_, list, _ := strings.Cut(pattern, "(")
		list, _, _ = strings.Cut(list, ")")
		names = append(names, strings.Split(list, "|")...)
	}
	kit.Check(t, len(names) >= 5, "flags %q", names)
	flags := newRoot(streams{}, modes.All()).Flags()
	for _, name := range names {
		kit.Check(t, flags.Lookup(name) != nil, "there is no flag --%s", name)
	}
}

// TestChartRefusesWhatFlagsRefuse compares the patterns of extraArgs with the program. The
// program also takes a flag and its value in two arguments, and a list there has one for each.
func TestChartRefusesWhatFlagsRefuse(t *testing.T) {
	pattern := regexp.MustCompile(strings.Join(chartFlags(t), "|"))
	for want, args := range map[bool][]string{
		true: {
			"--v=2", "--vmodule=round=3,nft*=4", "--logging-format=json", "--service-proxy-name=team", "--service-proxy-name=A.b_c-9",
			"--expose-admin-pages", "--strict-config=false", "--ignore-source-ranges=true", "--kube-api-burst=20", "--kube-api-qps=7.5",
			"--kube-api-content-type=application/json", "--udp-timeout=1m30s", "--udp-timeout=250ms", "--proxy-mode-fallback",
		},
		false: {
			"--v=abc", "--v=-1", "--v", "--vmodule=round", "--vmodule==3", "--logging-format=xml", "--service-proxy-name", "--service-proxy-name=",
			"--service-proxy-name=a/b", "--service-proxy-name=-a", "--expose-admin-pages=maybe", "--kube-api-burst=many", "--kube-api-qps=fast",
			"--kube-api-content-type=text/plain", "--udp-timeout=250", "--udp-timeout=1.2.3s", "--no-such-flag",
		},
	} {
		for _, arg := range args {
			kit.Equal(t, pattern.MatchString(arg), want, "%s: the chart accepts it", arg)
			o := call(t, "", arg, "--write-config-to=-")
			kit.Check(t, (o.Code == 0) == want, "%s: the program has exit code %d, want accepted %v\n%s", arg, o.Code, want, o.Err)
		}
	}
}
