// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"kubeproxy/test/kit"
)

// fleetOf is the variable with the folder of a cluster: a file for each node, with what its pod
// answers after a line with the exit code, the standard error, and how many times it was asked.
const fleetOf = "SVCPROXY_FLEET"

// node is a node of a cluster whose kubectl is fleetKubectl.
type node struct {
	State  string // of the Node
	Phase  string // of its pod, empty for none
	Exit   int
	Out    string // of the command in the pod
	Err    string
	Sleeps time.Duration
	Next   *node  // what it is from the second question on
	Args   string // of the latest question
}

func (n *node) text(id int) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"kube-system","name":"pod-%d","labels":{"app.kubernetes.io/name":"kubeproxy"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"DaemonSet","name":"kubeproxy","uid":"uid-kube-system","controller":true}]},
		"spec":{"nodeName":"node-%d","hostNetwork":true,"serviceAccountName":"kubeproxy","containers":[{"name":"kube-proxy","image":"registry.example:5000/kubeproxy"}]},"status":{"phase":%q}}`, id, id, n.Phase)
}

func load() []node {
	var nodes []node
	text, err := os.ReadFile(os.Getenv(fleetOf))
	if err == nil {
		err = json.Unmarshal(text, &nodes)
	}
	if err != nil {
		panic(err)
	}
	return nodes
}

// fleetKubectl is kubectl for the nodes in a file.
func fleetKubectl(args []string) int {
	all, nodes := strings.Join(args, " "), load()
	asks := func(user, verb string) bool {
		return strings.Contains(all, "--as="+user) && strings.Contains(all, verb)
	}
	switch {
	case asks("eve", "get nodes"):
		fmt.Fprintln(os.Stderr, `Error from server (Forbidden): nodes is forbidden: User "eve" cannot list resource "nodes" in API group "" at the cluster scope`)
		return 1
	case asks("nobody", "get "):
		fmt.Fprint(os.Stderr, "E1129 18:00:00.0 memcache.go:265] couldn't get current server API group list\nerror: You must be logged in to the server (Unauthorized)\n")
		return 1
	case strings.Contains(all, "get nodes"):
		for i, n := range nodes {
			if !strings.Contains(all, "--selector=pool=blue") || i == 0 {
				fmt.Printf("node-%d   %s   <none>   5d   v1.36.0\n", i, n.State)
			}
		}
	case strings.Contains(all, "get daemonsets.apps"):
		fmt.Printf(`{"items":[%s]}`, daemonSetText("kube-system"))
	case strings.Contains(all, "get pods"):
		var pods []string
		for i, n := range nodes {
			if n.Phase != "" {
				pods = append(pods, n.text(i))
			}
		}
		fmt.Printf(`{"items":[%s]}`, strings.Join(pods, ","))
	case strings.Contains(all, "exec "):
		name := args[slices.Index(args, "--")-1]
		i, _ := strconv.Atoi(strings.TrimPrefix(name, "pod-"))
		n := nodes[i]
		mark := filepath.Join(filepath.Dir(os.Getenv(fleetOf)), name)
		if _, err := os.Stat(mark); err == nil && n.Next != nil {
			n = *n.Next
		}
		_ = os.WriteFile(mark, []byte(all), 0o600)
		time.Sleep(n.Sleeps)
		fmt.Print(n.Out)
		fmt.Fprint(os.Stderr, n.Err)
		return n.Exit
	}
	return 0
}

// cluster makes kubectl answer for nodes. The function that it returns says how one was asked.
func cluster(t *testing.T, nodes ...node) (plugin func(args ...string) (int, string, string), asked func(i int) string) {
	t.Helper()
	plugin = session(t)
	file := filepath.Join(t.TempDir(), "nodes.json")
	text, err := json.Marshal(nodes)
	kit.Must(t, err)
	kit.Must(t, os.WriteFile(file, text, 0o600))
	t.Setenv(fleetOf, file)
	t.Setenv("COLUMNS", "")
	return plugin, func(i int) string {
		text, _ := os.ReadFile(filepath.Join(filepath.Dir(file), fmt.Sprint("pod-", i)))
		return string(text)
	}
}

const healthy = `{"ok":true,"mode":"nftables","version":"v1.2.0","generation":7,"endpoints":8,"layers":["acceleration"],"services":[],
	"summary":{"services":3},"health":{"healthy":true,"status":{"IPv4":{"healthy":true,"generation":7}}}}`

func runs(out string) node { return node{State: "Ready", Phase: "Running", Out: out} }

func changed(old, fresh string) string { return strings.Replace(healthy, old, fresh, 1) }

// TestAllNodes has each way in which a node may fail, beside those that are well.
func TestAllNodes(t *testing.T) {
	blocked := changed(`"ok":true`, `"ok":false`)
	blocked = strings.Replace(blocked, `"healthy":true,`, `"healthy":false,"blocked":["setting-x"],"conditions":{"setting-x":"the kernel does not forward"},`, 1)
	blocked = strings.Replace(blocked, `"IPv4":{"healthy":true,`, `"IPv4":{"blocked":true,`, 1)
	forbidden := node{"Ready", "Running", 1, "", "Error from server (Forbidden): pods \"pod-9\" is forbidden: User \"eve\" cannot create resource \"pods/exec\"\n", 0, nil, ""}
	hung := node{"Ready", "Running", 2, `{"ok":false,"error":"127.0.0.1:10249 accepts connections but does not answer in time","exitCode":2}`, "command terminated with exit code 2\n", 0, nil, ""}
	old := changed("v1.2.0", "v1.1.0")
	fewer := changed(`"endpoints":8`, `"endpoints":5`)
	some := changed(`"ok":true`, `"ok":false`)
	some = strings.Replace(some, `"services":3`, `"services":3,"notProgrammed":1`, 1)
	some = strings.Replace(some, `"services":[]`, `"services":[{"namespace":"shop","name":"web","state":"failed","ports":[{"error":"no space"}]}]`, 1)
	plugin, asked := cluster(t,
		runs(healthy), runs(blocked), node{State: "Ready"}, node{State: "NotReady"}, node{State: "Ready", Phase: "Pending"},
		runs("<html>\x1b[31m"), runs(`{"kind":"List"}`), runs(old), runs(fewer), forbidden, hung, runs(some), runs(healthy), runs(healthy), runs(healthy), runs(healthy))
	code, out, problems := plugin("status")
	want := `Nodes: 16, well: 7, not well: 2, without answer: 7

NODE     VERSION  MODE      HEALTH                                            SERVICES  ENDPOINTS  GENERATION  LAYERS        WHY NOT
node-10                     no answer                                                                                        127.0.0.1:10249 accepts connections but does not answer in time
node-2                      no answer                                                                                        no pod of the proxy runs there
node-3                      no answer                                                                                        no pod of the proxy runs there, and the Node is NotReady
node-4                      no answer                                                                                        pod kube-system/pod-4 does not run: it is Pending
node-5                      no answer                                                                                        it answers no JSON: "<html>\x1b[31m"
node-6                      no answer                                                                                        it answers something else than the state of a proxy
node-9                      no answer                                                                                        Error from server (Forbidden): pods "pod-9" is forbidden: User "eve" cannot create resource "pods/exec"
node-1   v1.2.0   nftables  blocked   3/3       8          7           acceleration  the kernel does not forward
node-11  v1.2.0   nftables  healthy                                           2/3       8          7           acceleration  shop/web: failed, no space
node-7   v1.1.0   nftables  healthy                                           3/3       8          7           acceleration  most nodes have version v1.2.0
node-8   v1.2.0   nftables  healthy                                           3/3       5          7           acceleration  most nodes know 8 endpoints, -3 here
node-0   v1.2.0   nftables  healthy                                           3/3       8          7           acceleration
`
	if lines := strings.SplitAfter(out, "\n"); code != 2 || problems != "" || joinedWords(strings.Join(lines[:min(len(lines), 15)], "")) != joinedWords(want) {
		t.Errorf("exit %d, want 2\n%s%s\nwant\n%s", code, problems, out, want)
	}
	kit.Check(t, strings.Contains(asked(0), "-- kube-proxy status --output=json --failing"), "node-0 was asked: %s", asked(0))
	code, out, _ = plugin("status", "--failing", "-o", "name")
	kit.Check(t, code == 2 && out == "node/node-10\nnode/node-2\nnode/node-3\nnode/node-4\nnode/node-5\nnode/node-6\nnode/node-9\nnode/node-1\nnode/node-11\nnode/node-7\nnode/node-8\n", "names: exit %d\n%s", code, out)
	code, out, _ = plugin("status", "shop/web", "-l", "x=y", "--nodes=pool=blue", "--sort=state")
	kit.Check(t, code == 0 && strings.HasPrefix(out, "Nodes: 1, well: 1,"), "one node: exit %d\n%s", code, out)
	kit.Check(t, strings.HasSuffix(asked(0), "-- kube-proxy status --output=json shop/web -l x=y --sort=state"), "it was asked: %s", asked(0))
}

// joinedWords drops what aligns columns.
func joinedWords(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
	}
	return b.String()
}

// TestAllNodesAsData has the answer of a node as it is, also with fields of another version.
func TestAllNodesAsData(t *testing.T) {
	plugin, _ := cluster(t, runs(changed(`"ok":true`, `"ok":true,"newField":"x"`)), node{State: "Ready"})
	code, out, problems := plugin("status", "-o", "json")
	var got results
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 2 || got.OK || got.ExitCode != 2 || len(got.Nodes) != 2 {
		t.Fatalf("exit %d, %v: %s%s", code, err, out, problems)
	}
	a, b := got.Nodes[0], got.Nodes[1]
	if !strings.Contains(string(a.Answer), "newField") || a.Node != "node-0" || a.Pod != "kube-system/pod-0" || a.ExitCode != 0 || b.Answer != nil || b.Error == "" || b.ExitCode != 2 {
		t.Errorf("got %+v", got)
	}
	for format, want := range map[string]string{"jsonpath={.nodes[*].exitCode}": "0 2", "yaml": "exitCode: 2\nnodes:\n- answer:\n"} {
		_, out, problems = plugin("status", "-o="+format)
		kit.Check(t, strings.Contains(out, want), "%s: %s%s", format, out, problems)
	}
}

// TestRights has users who may not do everything. The rest goes on.
func TestRights(t *testing.T) {
	plugin, _ := cluster(t, runs(healthy), node{State: "Ready"})
	for line, want := range map[string]struct {
		code          int
		out, problems string
	}{
		"--as=eve status":                 {0, "Nodes: 1, well: 1,", "nodes without a pod are not named: kubectl get nodes"},
		"--as=eve --nodes=pool=a status":  {2, "", `User "eve" cannot list resource "nodes"`},
		"--as=nobody status":              {2, "", "exit status 1: error: You must be logged in to the server (Unauthorized)\n"},
		"--as=nobody status --node=node0": {2, "", "exit status 1: error: You must be logged in to the server (Unauthorized)\n"},
	} {
		code, out, problems := plugin(strings.Fields(line)...)
		if code != want.code || !strings.HasPrefix(out, want.out) || !strings.Contains(problems, want.problems) || strings.Count(problems, "\n") != 1 {
			t.Errorf("%s: exit %d, want %d\n%s%s", line, code, want.code, out, problems)
		}
	}
}

// TestWait asks until all nodes are well, or the time is over.
func TestWait(t *testing.T) {
	bad, fine := changed(`"ok":true`, `"ok":false`), runs(healthy)
	plugin, _ := cluster(t, fine, node{"Ready", "Running", 1, bad, "", 0, &fine, ""})
	code, out, problems := plugin("status", "--wait", "--timeout=30s")
	kit.Check(t, code == 0 && strings.HasPrefix(out, "Nodes: 2, well: 2,"), "exit %d\n%s%s", code, out, problems)
	plugin, _ = cluster(t, fine, runs(bad))
	code, out, _ = plugin("status")
	kit.Check(t, code == 1 && strings.HasPrefix(out, "Nodes: 2, well: 1, not well: 1,"), "a node that ends with 0 and is not well: exit %d\n%s", code, out)
	plugin, asked := cluster(t, fine, node{State: "Ready"})
	code, _, problems = plugin("status", "--wait=answers", "--timeout", "1s")
	kit.Check(t, code == 2 && strings.Contains(problems, "the condition answers is not true on all nodes after 1s"), "exit %d\n%s", code, problems)
	kit.Check(t, strings.Contains(asked(0), "--timeout 1s"), "node-0 was asked: %s", asked(0))
}

// TestSlowNode ends kubectl where a node does not answer, or does not stop answering.
func TestSlowNode(t *testing.T) {
	cluster(t, node{Sleeps: time.Minute}, runs(strings.Repeat("x", 100)))
	for pod, want := range map[string]string{"pod-0": "no answer in time, within 100ms", "pod-1": "it answers more than 10 bytes"} {
		limit := map[bool]time.Duration{true: 100 * time.Millisecond, false: time.Minute}[pod == "pod-0"]
		out := &bounded{most: 10}
		err := runFor(t.Context(), exec.Command("kubectl", "exec", pod, "--"), limit, out, io.Discard)
		_, code, why := read(out.text, nil, err)
		kit.Check(t, code == 2 && why == want, "%s: %d %q, want %q", pod, code, why, want)
	}
	for line, want := range map[string]time.Duration{"status": nodeTime, "doctor -o json": longTime, "status --timeout 5m": 6 * time.Minute, "top --interval=10s --timeout=0": 70 * time.Second} {
		is := timeOf(strings.Fields(line))
		kit.Check(t, is == want, "%q: %s, want %s", line, is, want)
	}
}

// TestProgress says how far it is, of many nodes.
func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n, want := range map[int]string{mostQuiet: "", mostQuiet + 1: "kubectl svcproxy: 16 of 21 nodes have answered\n"} {
			var progress strings.Builder
			f := &fleet{targets: make([]target, n), progress: &progress}
			f.each(func(int) { time.Sleep(3 * time.Second / 2) })
			kit.Check(t, progress.String() == want, "%d nodes: %q, want %q", n, &progress, want)
		}
	})
}

func passes(state, note string) string {
	return fmt.Sprintf(`{"name":"settings","state":%q,"note":%q}`, state, note)
}

// TestDoctorOfAllNodes has equal findings once, the worst and most frequent first.
func TestDoctorOfAllNodes(t *testing.T) {
	report := func(check, findings string) string {
		return `{"node":"x","system":"linux","modes":["nftables"],"proxy":"kube-proxy v1","checks":[` + check + `],"findings":[` + findings + `]}`
	}
	found := func(id, severity, subject, what string) string {
		return fmt.Sprintf(`{"id":%q,"severity":%q,"subject":%q,"what":%q,"why":"a reason of another version"}`, id, severity, subject, what)
	}
	sick := runs(report(passes("found", ""), found("setting", "risk", "a", "a is 1")+","+found("newer", "risk", "", "new")+","+strings.Replace(found("conntrack-full", "blocks", "", "full"), `"what"`, `"cause":"setting","what"`, 1)))
	worse := runs(report(passes("failed", "no rights"), found("setting", "risk", "a", "a is 2")+","+found("ip-forward", "blocks", "", "off")))
	sick.Exit, worse.Exit = 1, 2
	plugin, asked := cluster(t, runs(report(passes("ok", "all"), "")), sick, worse, runs("{}"), node{State: "Ready"})
	code, out, problems := plugin("doctor", "--all")
	for _, want := range []string{
		"node     all 3 nodes, linux, mode nftables", "failed   settings  1 of 3 nodes (node-2): no rights",
		"1. BLOCKS  ip-forward", "1 of 3 nodes (node-2): off", "2. RISK  setting", "2 of 3 nodes (node-1, node-2): on node-1, a is 1",
		"3. RISK  newer", "4. BLOCKS  conntrack-full", "advice   a reason of another version", "3 findings, 1 of 1 checks could not look",
		"node-3     it answers something else than the findings of a node", "node-4     no pod of the proxy runs there",
	} {
		kit.Check(t, strings.Contains(out, want), "want %q", want)
	}
	kit.Check(t, code == 2 && !t.Failed(), "exit %d\n%s%s", code, problems, out)
	kit.Check(t, strings.HasSuffix(asked(0), "-- kube-proxy doctor --output=json --all"), "node-0 was asked: %s", asked(0))
	code, out, problems = plugin("doctor", "-o", "jsonpath={.nodes[1].answer.findings[*].id}")
	kit.Check(t, code == 2 && out == "setting newer conntrack-full", "as data: exit %d, %s%s", code, out, problems)
}

// TestTopOfAllNodes adds up what nodes carry, also where one has just begun to count.
func TestTopOfAllNodes(t *testing.T) {
	carries := func(n int, rate string) string {
		return fmt.Sprintf(`{"mode":"nftables","time":"2026-01-02T03:04:05Z","since":"2026-01-02T03:00:00Z",
			"services":[{"namespace":"shop","name":"web","connections":%d%s}],"total":{"connections":%[1]d}}`, n, rate)
	}
	rated := func(n int, rate string) node {
		return runs(strings.Replace(carries(n, `,"perSecond":{"connections":`+rate+`}`), `"services"`, `"seconds":2,"services"`, 1))
	}
	plugin, _ := cluster(t, rated(4, "2.5"), runs(carries(37, "")), runs("{}"), rated(1, "1.5"))
	code, out, problems := plugin("top", "--sort=connections")
	want := "SERVICE   CONN/S  CONNECTIONS\nshop/web     4.0           42\n\nNODE    CONN/S  CONNECTIONS\nnode-1     0.0           37\nnode-0     0.0            4\nnode-3     0.0            1\n\nNO ANSWER  WHY\nnode-2     it answers something else than what Services carry\n"
	kit.Check(t, code == 2 && strings.HasPrefix(out, "Node node-0, node-1, node-3, mode nftables: new connections") && strings.HasSuffix(out, want), "exit %d\n%s%s", code, out, problems)
}

// TestArchives has one for each node. What is not whole is removed.
func TestArchives(t *testing.T) {
	part, none := runs("archive"), node{"Ready", "Running", 2, "arch", "kube-proxy: no rights\n", 0, nil, ""}
	part.Exit, part.Err = 1, "kube-proxy: not collected: log\ncommand terminated with exit code 1\n"
	plugin, asked := cluster(t, runs("archive"), part, none, node{State: "Ready"})
	t.Chdir(t.TempDir())
	kit.Must(t, os.Mkdir("a.b", 0o700))
	code, out, problems := plugin("support-dump", "a.b/dump.tar.gz")
	want := "a.b/dump-node-0.tar.gz\na.b/dump-node-1.tar.gz\n\nNO ANSWER  WHY\nnode-2     kube-proxy: no rights\nnode-3     no pod of the proxy runs there\n"
	kit.Check(t, code == 2 && out == want && problems == "kubectl svcproxy: warning: node node-1: kube-proxy: not collected: log\n", "exit %d\n%s%s", code, out, problems)
	names, err := filepath.Glob("a.b/*")
	kit.Check(t, err == nil && len(names) == 2 && strings.HasSuffix(asked(0), "-- kube-proxy support-dump -"), "%v, %q, %s", err, names, asked(0))
	code, out, _ = plugin("support-dump", "-l", "pool=blue", "a.b/dump.tar.gz")
	kit.Check(t, code == 2 && strings.Contains(out, "file exists") && strings.Count(out, "\n") == 3, "again: exit %d\n%s", code, out)
	code, _, problems = plugin("support-dump", "-")
	kit.Check(t, code == 2 && strings.Contains(problems, "want a FILE, or --node NODE"), "to standard output: exit %d\n%s", code, problems)
}
