// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kubeproxy/test/kit"
)

// TestMain is kubectl, too, under that name.
func TestMain(m *testing.M) {
	if strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe") == "kubectl" {
		os.Exit(kubectl(os.Args[1:]))
	}
	os.Exit(m.Run())
}

// exitOfPod is the variable with the exit code of the command in the pod, or as CODE@POD in one.
const exitOfPod = "SVCPROXY_EXIT"

// kubectl answers from a cluster with two nodes. It prints how it was called to run a
// command in a pod.
func kubectl(args []string) int {
	all := strings.Join(args, " ")
	switch {
	case os.Getenv(fleetOf) != "":
		return fleetKubectl(args)
	case strings.Contains(all, "get daemonsets.apps"):
		if strings.Contains(all, "--as=adam") {
			fmt.Fprintln(os.Stderr, `Error from server (Forbidden): daemonsets.apps is forbidden: User "adam" cannot list resource "daemonsets" in API group "apps" at the cluster scope`)
			return 1
		}
		fmt.Printf(`{"items":[%s,%s,%s]}`, daemonSetText("kube-system"), daemonSetText("labelled"), daemonSetText("tenant"))
	case strings.Contains(all, "exec ") && strings.Contains(all, "svc/shop/far") && strings.Contains(all, "--output=json"):
		fmt.Print(halves[args[slices.Index(args, "pod/shop/cart-0")+1]])
	case strings.Contains(all, "exec "):
		fmt.Println(all)
		if strings.Contains(all, "hostile") {
			fmt.Print("\x1b]0;owned\a")
			fmt.Fprint(os.Stderr, "\x1b]0;owned\a")
		}
		text, pod, _ := strings.Cut(os.Getenv(exitOfPod), "@")
		if code, _ := strconv.Atoi(text); strings.Contains(all, pod+" -- ") {
			return code
		}
		return 0
	case strings.Contains(all, "--as=eve") && strings.Contains(all, "--all-namespaces"):
		fmt.Fprintln(os.Stderr, `Error from server (Forbidden): pods is forbidden: User "eve" cannot list resource "pods" in API group "" at the cluster scope`)
		return 1
	case strings.Contains(all, "get pod --namespace=shop --output=json -- cart-0"):
		fmt.Print(podText("cart-0", "node-b", "Running", 1, ""))
	case strings.Contains(all, "get pod "):
		fmt.Fprintln(os.Stderr, `Error from server (NotFound): pods "x" not found`)
		return 1
	case strings.Contains(all, "spec.nodeName=node-a"):
		fmt.Printf(`{"items":[%s,%s,%s]}`, podText("old", "node-a", "Running", 1, ""), podText("new", "node-a", "Running", 2, ""),
			podText("failed", "node-a", "Failed", 3, ""))
	case strings.Contains(all, "spec.nodeName=node-d"):
		fmt.Printf(`{"items":[%s]}`, strings.Join(tenants(), ","))
	case strings.Contains(all, "spec.nodeName=node-e"):
		second := strings.ReplaceAll(podText("second", "node-e", "Running", 2, ""), "kube-system", "labelled")
		fmt.Printf(`{"items":[%s,%s]}`, podText("first", "node-e", "Running", 1, ""), second)
	case strings.Contains(all, "spec.nodeName=node-f"):
		fmt.Printf(`{"items":[%s]}`, podText("shell", "node-f", "Running", 1, `"command":["/evil/kube-proxy.sh"],`))
	case strings.Contains(all, "spec.nodeName=node-b"):
		fmt.Printf(`{"items":[%s]}`, podText("win", "node-b", "Running", 1, `"command":["$env:X/kube-proxy.exe"],`))
	case strings.Contains(all, "spec.nodeName="), strings.Contains(all, "--selector=app=none"):
		fmt.Print(`{"items":[]}`)
	default:
		fmt.Printf(`{"items":[%s,%s]}`, podText("new", "node-a", "Running", 2, ""), podText("win", "node-b", "Running", 1, ""))
	}
	return 0
}

// halves are what explain answers as JSON, by its destination.
var halves = map[string]string{
	"svc/shop/far":      half("kept", "node-a", "10.244.2.9:8080", "TCP"),
	"svc/shop/far:dns":  half("masqueraded", "node-a", "[fd00::9]:53", "UDP"),
	"svc/shop/far-away": half("kept", "node-c", "10.244.2.9:8080", "TCP"),
	"svc/shop/far-here": half("kept", "node-b", "10.244.2.9:8080", "TCP"),
	"svc/shop/far-fool": "<html>",
	"svc/shop/far-many": strings.Replace(half("kept", "node-c", "10.244.2.9:8080", "TCP"), `"endpoints":[`, `"endpoints":[{"address":"10.244.2.6:80","node":"node-a","chosen":true,"client":"kept"},
		{"address":"10.244.2.6:80","node":"node-x","chosen":true},{"address":"10.244.2.6:80","node":"node-y","chosen":true},`, 1),
}

func half(client, node, address, protocol string) string {
	return fmt.Sprintf(`{"node":"node-b","source":"10.244.1.7","protocol":%q,"endpoints":[{"address":"10.244.3.3:8080","node":"node-f","chosen":false},
		{"address":%q,"node":%q,"chosen":true,"client":%q},{"address":"10.244.2.5:8080","node":%[3]q,"chosen":true,"client":"kept"}]}`, protocol, address, node, client)
}

// TestSecondHalf goes on where the endpoint is, with what arrives there.
func TestSecondHalf(t *testing.T) {
	plugin := session(t)
	const there = "exec --namespace=kube-system --container=kube-proxy new -- kube-proxy explain --config=/etc/kubeproxy/linux.yaml --hostname-override=node-a "
	for to, want := range map[string]string{
		"far":        there + "10.244.1.7 10.244.2.9:8080\n",
		"far -oyaml": there + "10.244.1.7 10.244.2.9:8080 --output=yaml\n",
		"far:dns":    there + "2001:db8::7 [fd00::9]:53/udp\n",
		"far-away":   "", "far-here": "", "far-fool": "", "far-many": there + "10.244.1.7 10.244.2.6:80\n",
	} {
		code, out, problems := plugin(append([]string{"explain", "pod/shop/cart-0"}, strings.Fields("svc/shop/"+to)...)...)
		first, second, _ := strings.Cut(out, "\n\n")
		if code != 0 || !strings.Contains(first, " win -- ") || second != want {
			t.Errorf("%s: exit %d, %s\n got %q\nwant %q", to, code, problems, second, want)
		}
		elsewhere := strings.Contains(problems, "warning: no pod with labels app.kubernetes.io/name=kubeproxy runs on node node-c")
		kit.Check(t, elsewhere == (to == "far-away"), "%s: %s", to, problems)
	}
	for _, pod := range []string{"win", "new"} {
		t.Setenv(exitOfPod, "1@"+pod)
		code, _, problems := plugin("explain", "pod/shop/cart-0", "svc/shop/far")
		kit.Check(t, code == 1, "the half in pod %s differs: exit %d, %s", pod, code, problems)
	}
}

func podText(name, node, phase string, minute int, command string) string {
	namespace, addresses := "kube-system", `,"podIPs":[{"ip":"192.0.2.7"},{"ip":"2001:db8::7"}]`
	if name == "cart-0" {
		namespace, addresses = "shop", `,"podIPs":[{"ip":"10.244.1.7"},{"ip":"fd00::7"}]`
	}
	return fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q,"labels":{"app.kubernetes.io/name":"kubeproxy"},"creationTimestamp":"2026-01-02T03:%02d:00Z",
		"ownerReferences":[{"apiVersion":"apps/v1","kind":"DaemonSet","name":"kubeproxy","uid":"uid-%s","controller":true}]},
		"spec":{"nodeName":%q,"hostNetwork":true,"serviceAccountName":"kubeproxy","containers":[{"name":"kube-proxy","image":"registry.example:5000/kubeproxy:v1@sha256:1",%s
		"args":["--config=/etc/kubeproxy/linux.yaml","--hostname-override=$(NODE_NAME)"]}]},"status":{"phase":%q%s}}`, namespace, name, minute, namespace, node, command, phase, addresses)
}

func daemonSetText(namespace string) string {
	return fmt.Sprintf(`{"metadata":{"namespace":%q,"name":"kubeproxy","uid":"uid-%s","labels":{"app.kubernetes.io/name":"kubeproxy"}},"spec":{"template":{"spec":{"serviceAccountName":"kubeproxy",
		"containers":[{"name":"kube-proxy","image":"registry.example:5000/kubeproxy:v2"}]}}}}`, namespace, namespace)
}

// tenants are the pod of the proxy on node-d, and newer pods that differ from it in one thing
// each, of which others can set the rest.
func tenants() []string {
	all := []string{podText("real", "node-d", "Running", 1, "")}
	for i, change := range []struct{ from, to string }{
		{`"kind":"DaemonSet"`, `"kind":"ReplicaSet"`}, {`"controller":true`, `"controller":false`}, {`"apps/v1"`, `"evil.example/v1"`},
		{`"ownerReferences"`, `"none"`}, {`"hostNetwork":true`, `"hostNetwork":false`}, {`"serviceAccountName":"kubeproxy"`, `"serviceAccountName":"default"`},
		{`"uid-tenant"`, `"uid-kube-system"`}, {`kubeproxy:v1@sha256:1`, `evil:v1`}, {`"app.kubernetes.io/name":"kubeproxy"`, `"app.kubernetes.io/name":"second"`},
	} {
		text := podText(fmt.Sprint("evil-", i), "node-d", "Running", 2+i, `"command":["/evil"],`)
		all = append(all, strings.Replace(strings.ReplaceAll(text, "kube-system", "tenant"), change.from, change.to, 1))
	}
	return all
}

// session puts kubectl into the PATH, and returns what runs the plugin.
func session(t *testing.T) func(args ...string) (code int, out, problems string) {
	t.Helper()
	self, err := os.Executable()
	kit.Must(t, err)
	folder := t.TempDir()
	name := "kubectl"
	if filepath.Ext(self) == ".exe" {
		name += ".exe"
	}
	kit.Must(t, os.Symlink(self, filepath.Join(folder, name)))
	t.Setenv("PATH", folder)
	return func(args ...string) (int, string, string) {
		var out, problems strings.Builder
		code := run(args, &out, &problems)
		return code, out.String(), problems.String()
	}
}

func TestCommands(t *testing.T) {
	plugin := session(t)
	pod := regexp.MustCompile(`^kubectl svcproxy: pod kube-system/(new|win) on node node-[ab]\n$`)
	const config, node = " --config=/etc/kubeproxy/linux.yaml", " --hostname-override="
	const cart = " --pod-address=10.244.1.7 --pod-address=fd00::7 --pod-node=node-b"
	const onA, onB = "exec --namespace=kube-system --container=kube-proxy new -- kube-proxy ", "exec --namespace=kube-system --container=kube-proxy win -- $env:X/kube-proxy.exe "
	for line, want := range map[string]string{
		"status --node node-a":                               onA + "status" + config,
		"--node=node-a status shop/web --watch":              onA + "status" + config + " shop/web --watch",
		"top --interval 0 --node=node-a":                     onA + "top" + config + " --interval 0",
		"doctor -o json --node node-a":                       onA + "doctor" + config + node + "node-a -o json",
		"version --node node-a":                              onA + "version",
		"explain pod/shop/cart-0 svc/shop/web":               onB + "explain" + config + node + "node-b" + cart + " pod/shop/cart-0 svc/shop/web",
		"explain -o json pod/shop/cart-0 svc/shop/web":       onB + "explain" + config + node + "node-b" + cart + " -o json pod/shop/cart-0 svc/shop/web",
		"explain pod/shop/cart-0 svc/shop/web --node node-a": onA + "explain" + config + node + "node-a" + cart + " pod/shop/cart-0 svc/shop/web",
		"explain pod/cart-0 svc/shop/web --node node-a":      onA + "explain" + config + node + "node-a pod/cart-0 svc/shop/web",
		"support-dump - --node node-a":                       onA + "support-dump" + config + node + "node-a -",
		"--context prod --node node-a status -n shop":        "--context=prod " + onA + "status" + config + " -n shop",
	} {
		if code, out, problems := plugin(strings.Fields(line)...); code != 0 || out != want+"\n" || !pod.MatchString(problems) {
			t.Errorf("%s: exit %d, %s\n got %s\nwant %s", line, code, problems, out, want)
		}
	}
	code, out, problems := plugin(strings.Fields("explain pod/shop/x svc/shop/web --node node-a")...)
	if want := onA + "explain" + config + node + "node-a pod/shop/x svc/shop/web\n"; code != 0 || out != want || !strings.Contains(problems, `warning: kubectl get pod`) {
		t.Errorf("a pod that the user may not read, but the proxy may know: exit %d, %s%s", code, out, problems)
	}
	code, out, problems = plugin("hostile", "--node=node-a")
	if code != 0 || strings.Contains(out+problems, "\x1b") || !strings.Contains(out, `\x1b]0;owned\a`) || !strings.Contains(problems, `\x1b]0;owned\a`) {
		t.Errorf("terminal codes: exit %d, %q, %q", code, out, problems)
	}
	code, _, problems = plugin(strings.Fields("--as=adam status --node node-a")...)
	if code != 0 || !strings.Contains(problems, "pods are judged by their own word: kubectl get daemonsets.apps") || !strings.Contains(problems, "want the right to list daemonsets.apps in all namespaces") {
		t.Errorf("a user who may not list DaemonSets: exit %d, %s", code, problems)
	}
	t.Setenv(exitOfPod, "1")
	if code, _, problems := plugin("diff", "--node=node-a"); code != 1 || !pod.MatchString(problems) {
		t.Errorf("a command that ends with 1: exit %d, %s", code, problems)
	}
}

// TestPodsOfOthers finds the pod of the proxy among those of a tenant with the same labels.
func TestPodsOfOthers(t *testing.T) {
	plugin := session(t)
	code, out, problems := plugin("status", "--node=node-d")
	if want := "exec --namespace=kube-system --container=kube-proxy real -- kube-proxy status"; code != 0 || !strings.HasPrefix(out, want) {
		t.Errorf("exit %d, %s%s", code, out, problems)
	}
	for _, want := range []string{
		"pod tenant/evil-0 is not asked, though it has labels app.kubernetes.io/name=kubeproxy: no DaemonSet controls it\n",
		"pod tenant/evil-4 is not asked, though it has labels app.kubernetes.io/name=kubeproxy: it is not in the network of the node\n",
		`its service account is "default", not "kubeproxy"`, "svcproxy: pod kube-system/real on node node-d\n",
		"evil-6 is not asked, though it has labels app.kubernetes.io/name=kubeproxy: there is no DaemonSet kubeproxy that could control it\n",
		"evil-7 is not asked, though it has labels app.kubernetes.io/name=kubeproxy: container kube-proxy does not have the image registry.example:5000/kubeproxy of DaemonSet kubeproxy\n",
		"DaemonSet kubeproxy, which controls it, has the label app.kubernetes.io/name=kubeproxy, not second\n",
	} {
		kit.Check(t, strings.Contains(problems, want), "want %q in\n%s", want, problems)
	}
}

func TestMistakes(t *testing.T) {
	plugin := session(t)
	for line, want := range map[string]string{
		"":                                "want a command of kube-proxy, such as status",
		"--node":                          "--node: want a value",
		"status --node":                   "--node: want the name of a Node",
		"status --nodes":                  "--nodes: want labels of Nodes",
		"--node=a --nodes=b status":       "want one of them",
		"--nodes=b diff":                  "diff runs on one Node: want --node in place of --nodes",
		"status --watch":                  "--watch follows one proxy: want --node NODE with it",
		"status --wait=soon":              `--wait: "soon" is unknown: want ok, programmed or answers`,
		"status -o xml":                   `--output: "xml" is unknown: want table, wide, name, json`,
		"--watch status":                  "unknown flag --watch ahead of the command",
		"version":                         "want --node NODE, one of node-a, node-b",
		"status --node node-c":            "no pod with labels app.kubernetes.io/name=kubeproxy runs on node node-c",
		"--pods app=none -n x version":    "no pod with labels app=none runs in x",
		"explain pod/shop/x svc/shop/web": `pods "x" not found`,
		"-c other --node node-a status":   "has no container other",
		"explain 10.0.0.1 10.0.0.2:80":    "want --node NODE",
		"status --node node-e":            "more than one namespace: want --namespace NAMESPACE of the proxy, one of kube-system, labelled",
		"status --node node-f":            `runs "/evil/kube-proxy.sh": want one that runs kube-proxy`,
		"--as=eve status --node node-a":   "want the right to list pods in all namespaces, or --namespace",
	} {
		if code, out, problems := plugin(strings.Fields(line)...); code != exitFailed || out != "" || !strings.Contains(problems, want) {
			t.Errorf("%s: exit %d, want %d with %q; got %s%s", line, code, exitFailed, want, out, problems)
		}
	}
	code, out, _ := plugin("--help")
	kit.Check(t, code == 0 && out == help, "--help: exit %d\n%s", code, out)
	for line := range strings.Lines(help) {
		kit.Check(t, len(line) <= 101, "more than 100 columns: %s", line)
	}
}

// TestArchive has the archive of support-dump written here.
func TestArchive(t *testing.T) {
	plugin := session(t)
	t.Chdir(t.TempDir())
	for file, args := range map[string][]string{
		"dump.tar.gz":               {"support-dump", "dump.tar.gz", "--node=node-a"},
		"kube-proxy-support.tar.gz": {"support-dump", "--node=node-a"},
	} {
		code, out, problems := plugin(args...)
		text, err := os.ReadFile(file)
		if code != 0 || err != nil || out != file+"\n" || !strings.HasSuffix(string(text), " -\n") || slices.Contains(strings.Fields(string(text)), file) {
			t.Errorf("%s: exit %d, %v, %s%s: %s", file, code, err, out, problems, text)
		}
		if code, _, problems = plugin(args...); code != exitFailed || !strings.Contains(problems, file) {
			t.Errorf("%s is there: exit %d, %s", file, code, problems)
		}
	}
}
