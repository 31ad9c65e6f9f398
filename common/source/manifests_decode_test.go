// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"kubeproxy/test/dump"
	"kubeproxy/test/kit"
)

// TestDump reads what kubectl prints of a whole cluster, as YAML and as JSON. All of it
// is used, and takes at most ten times the size of the file in memory.
func TestDump(t *testing.T) {
	const services = 400
	for name, text := range map[string][]byte{"YAML": dump.YAML(services), "JSON": dump.JSON(services)} {
		t.Run(name, func(t *testing.T) {
			d := &decoder{noted: map[string]bool{}, note: func(s string) { t.Error(s) }}
			got := d.decode(text)
			if want := 2*services + 50 + 1; len(got.objects) != want || got.rejectedCount > 0 {
				t.Fatalf("%d objects of %d, problems %v", len(got.objects), want, got.rejected)
			}
			s := got.objects[7].value.(*corev1.Service)
			if a := s.Annotations; s.Spec.ClusterIP != dump.ClusterIP(7) || a["contact"] != `team: "team-7" & friends # always` ||
				!strings.HasSuffix(a["description"], "without telling the team that owns it, see https://wiki.example.com/a?b=1&c=2.") {
				t.Errorf("Service = %v %q", s.Spec, a)
			}
			e := got.objects[services].value.(*discoveryv1.EndpointSlice).Endpoints
			kit.Check(t, len(e) == dump.Endpoints && len(e[0].TargetRef.UID) == 36, "endpoints = %v", e)
			took := peakOf(string(text))
			kit.Check(t, took <= 10, "%.1f times the file's size in memory, want at most 10", took)
		})
	}
}

// BenchmarkDump reads a cluster of 5,000 Services.
func BenchmarkDump(b *testing.B) {
	for name, text := range map[string][]byte{"YAML": dump.YAML(5000), "JSON": dump.JSON(5000)} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				(&decoder{noted: map[string]bool{}}).decode(text)
			}
		})
	}
}

// oneBad has three Services in a List. The second one cannot be parsed.
var oneBad = map[string]string{
	"m.yaml": "apiVersion: v1\nitems:\n" + listed("a", "10.96.0.1") + listed("b", "\"10.96.0.2") + listed("c", "10.96.0.3") + "kind: List\n",
	"m.json": `{"apiVersion":"v1","kind":"List","items":[` + "\n" + asJSON("a", `"10.96.0.1"`) + ",\n" + asJSON("b", `"10.96.0.2"x`) + ",\n" + asJSON("c", `"10.96.0.3"`) + "]}",
}

func listed(name, ip string) string {
	return "- apiVersion: v1\n  kind: Service\n  metadata:\n    name: " + name + "\n    namespace: shop\n  spec:\n    clusterIP: " + ip + "\n"
}

func asJSON(name, ip string) string {
	return `{"apiVersion":"v1","kind":"Service","metadata":{"name":"` + name + `","namespace":"shop"},"spec":{"clusterIP":` + ip + `}}`
}

// TestOneBadItem wants an item that cannot be parsed to be the only one that is missing,
// and to be named. Once it was good, it stays.
func TestOneBadItem(t *testing.T) {
	for name, text := range oneBad {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), name)
			write(t, path, text)
			var r recorder
			err := (&Manifests{Paths: []string{path}}).Load(context.Background(), &r)
			want := []string{"set service shop/a 10.96.0.1", "set service shop/c 10.96.0.3", "unread 1", "synced"}
			kit.Same(t, "calls (-want +got)", want, r.calls)
			if err == nil || !strings.Contains(err.Error(), name+": items[1] at line ") || !strings.Contains(err.Error(), ": Service shop/b: ") {
				t.Errorf("Load = %v, want an error that names the item", err)
			}

			l := newManifestStore(&Manifests{Paths: []string{path}})
			good := strings.NewReplacer(`: "10.96.0.2`, ": 10.96.0.2", `"10.96.0.2"x`, `"10.96.0.2"`).Replace(text)
			write(t, path, good)
			l.refresh(&recorder{}, nil)
			write(t, path, text)
			r = recorder{}
			l.refresh(&r, nil)
			if len(r.calls) > 0 || len(l.problems) != 1 || !strings.Contains(l.problems[0].err.Error(), "its last good version stays in force") {
				t.Errorf("calls = %q, problems = %v; want nothing to change", r.calls, l.problems)
			}
		})
	}
}

// TestOtherKindsCostNothing has documents around a Service that only the library could
// parse, that are too large for it, or that nobody can parse.
func TestOtherKindsCostNothing(t *testing.T) {
	large := strings.Repeat("    - {a: [b, 'c'], d: \"e\"}\n", 40_000)
	for name, other := range map[string]string{
		"flow style":     "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nspec:\n  versions:\n" + large,
		"no alias":       "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: a\ndata:\n  a: '*.b'\n  c: x&y\n  d: |\n" + large,
		"aliases":        "kind: ConfigMap\napiVersion: \"v1\" # core\ndata: &x\n  a: 1\nbinaryData: *x\nmore:\n" + large,
		"broken":         "apiVersion: v1\nkind: Secret\ndata: [\n",
		"keys and tabs":  "apiVersion: v1\nkind: ConfigMap\ndata:\n  größe: \"a\tb\"\n" + large,
		"JSON":           `{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"` + strings.Repeat("[{", 600_000) + `"}}`,
		"item of a List": "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  data: [}\n" + listed("b", "10.96.0.2"),
	} {
		t.Run(name, func(t *testing.T) {
			d := &decoder{noted: map[string]bool{}}
			got := d.decode([]byte(serviceYAML("a", "10.96.0.1") + "---\n" + other + "\n---\n" + serviceYAML("c", "10.96.0.3")))
			kit.Check(t, len(got.objects) >= 2 && got.rejectedCount <= 0,
				"%d objects, problems %v; want both Services and no problem", len(got.objects), got.rejected)
			kit.Check(t, len(d.noted) == 1, "notes = %v, want one about the other kind", d.noted)
		})
	}
}

// TestAliasesInItems has an anchor in one item of a List and its alias in another one.
func TestAliasesInItems(t *testing.T) {
	text := "apiVersion: v1\nkind: List\nitems:\n- apiVersion: v1\n  kind: Service\n  metadata: {name: a}\n  spec: &s\n    clusterIP: None\n" +
		"- apiVersion: v1\n  kind: Service\n  metadata: {name: b}\n  spec: *s\n"
	got := (&decoder{noted: map[string]bool{}}).decode([]byte(text))
	if len(got.objects) != 2 || got.objects[1].value.(*corev1.Service).Spec.ClusterIP != corev1.ClusterIPNone {
		t.Errorf("objects = %v, problems %v; want both", got.objects, got.rejected)
	}
}

// TestVersions has objects as other versions of Kubernetes write them.
func TestVersions(t *testing.T) {
	const uid = "uid: 57e4d0c1-1b2c-4d3e-9f8a-000000000001"
	for name, tt := range map[string]struct{ text, note, err string }{
		"v1beta1 slice": {
			text: "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\nmetadata: {name: a}\naddressType: IPv4\n" +
				"endpoints: [{addresses: [10.1.0.1], topology: {kubernetes.io/hostname: n1, topology.kubernetes.io/zone: z1}}]\n",
			note: "discovery.k8s.io/v1beta1 EndpointSlice are read as discovery.k8s.io/v1",
		},
		"v1alpha1 slice": {
			text: "apiVersion: discovery.k8s.io/v1alpha1\nkind: EndpointSlice\nmetadata: {name: a}\naddressType: IP\n" +
				"endpoints: [{addresses: []}, {addresses: ['fd00::1'], topology: {kubernetes.io/hostname: n1}}]\n",
			note: "discovery.k8s.io/v1alpha1 EndpointSlice are read as discovery.k8s.io/v1",
		},
		"Service of 1.0": {text: serviceWith("", "spec: {clusterIP: None, deprecatedPublicIPs: [203.0.113.7]}"), note: "the field spec.deprecatedPublicIPs"},
		"template":       {text: serviceWith("", "spec:\n  clusterIP: {{.IP}}"), err: "invalid map key; it has {{, as templates have: want what helm template prints"},
		"template, more": {text: serviceWith("labels:\n    {{- include \"x\" . }}", "spec: {}"), err: "line 5: did not find expected node content; it has {{"},
		"retired fields": {text: serviceWith("", "spec: {clusterIP: None, ipFamily: IPv4}"), note: "Service default/a: the field spec.ipFamily"},
		"clusterName":    {text: serviceWith("clusterName: ''", "spec: {clusterIP: None}"), note: "the field metadata.clusterName"},
		"newer status":   {text: serviceWith("", "status: {loadBalancer: {ingress: [{shape: round}]}}"), note: "the field status.loadBalancer.ingress.shape"},
		"newer Node":     {text: "apiVersion: v1\nkind: Node\nmetadata: {name: a}\nspec: {wheels: 4}\nstatus: {speed: {max: 9}}\n", note: "Node a: the field spec.wheels"},
		"from a server":  {text: serviceWith(uid, "spec: {clusterIP: None, colour: red}"), note: "the field spec.colour"},
		"a typo":         {text: serviceWith("", "spec:\n  clusterIp: None"), err: "line 6: unknown field \"spec.clusterIp\"; did you mean clusterIP?"},
		"no such kind":   {text: "apiVersion: v1\nkind: service\nmetadata: {name: a}\n", err: "apiVersion: v1, kind: service is no kind of Kubernetes; want apiVersion: v1, kind: Service"},
		"no such group":  {text: "apiVersion: apps/v1\nkind: Service\nmetadata: {name: a}\n", err: "want apiVersion: v1, kind: Service"},
		"core slice":     {text: "apiVersion: v1\nkind: EndpointSlice\nmetadata: {name: a}\n", err: "want apiVersion: discovery.k8s.io/v1, kind: EndpointSlice"},
		"others' kind":   {text: "apiVersion: serving.knative.dev/v1\nkind: Service\nmetadata: {name: a}\n", note: "objects of kind serving.knative.dev/v1 Service are ignored"},
	} {
		t.Run(name, func(t *testing.T) {
			var notes []string
			d := &decoder{noted: map[string]bool{}, note: func(s string) { notes = append(notes, s) }}
			got := d.decode([]byte(tt.text))
			text := ""
			for _, r := range got.rejected {
				text += r.err.Error()
			}
			kit.Check(t, (tt.err == "") == (len(got.rejected) == 0) && strings.Contains(text, tt.err),
				"problems = %s, want %q", text, tt.err)
			if text := strings.Join(notes, "; "); (tt.note == "") != (text == "") || !strings.Contains(text, tt.note) {
				t.Errorf("notes = %s, want %q", text, tt.note)
			}
			if name == "v1beta1 slice" {
				e := got.objects[0].value.(*discoveryv1.EndpointSlice).Endpoints[0]
				kit.Check(t, e.NodeName != nil && *e.NodeName == "n1" && e.Zone != nil && *e.Zone == "z1",
					"endpoint = %v, want node n1 and zone z1", e)
			}
			if name == "v1alpha1 slice" {
				if s := got.objects[0].value.(*discoveryv1.EndpointSlice); s.AddressType != discoveryv1.AddressTypeIPv6 || s.Endpoints[1].NodeName == nil {
					t.Errorf("slice = %v, want IPv6 and a node", s)
				}
			}
		})
	}
}

func serviceWith(metadata, rest string) string {
	text := "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n"
	if metadata != "" {
		text += "  " + metadata + "\n"
	}
	return text + rest + "\n"
}

// floods are files of a given size that are made to be expensive.
var floods = map[string]func(size int) string{
	"lines and unknown fields": func(size int) string {
		return "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n" + repeated("\n", size) + unknownFields(2000)
	},
	"unknown fields of many": func(size int) string {
		return repeated("---\napiVersion: v1\nkind: Service\nmetadata:\n  name: a\n"+unknownFields(20), size)
	},
	"unknown fields of a List's items": func(size int) string {
		return "apiVersion: v1\nkind: List\nitems:\n" + repeated("- apiVersion: v1\n  kind: Service\n  odd: 1\n  metadata: {name: a}\n", size)
	},
	"tiny documents":          func(size int) string { return repeated("a\n---\n", size) },
	"tiny objects":            func(size int) string { return repeated("kind: a\napiVersion: b\n---\n", size) },
	"tiny objects, flow":      func(size int) string { return repeated("{kind: a, apiVersion: b}\n---\n", size) },
	"empty objects":           func(size int) string { return repeated("{}", size) },
	"a List of empty objects": func(size int) string { return jsonList("{},", size) },
	"a List of numbers":       func(size int) string { return jsonList("1,", size) },
	"one of many ports": func(size int) string {
		return `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"},"spec":{"ports":[` + strings.TrimSuffix(repeated("{},", size), ",") + `]}}`
	},
	"large slices of endpoints":       func(size int) string { return floodOfSlices(`{"addresses":["10.0.0.1"]}`, maxObject-1000, size) },
	"small slices of empty endpoints": func(size int) string { return floodOfSlices(`{}`, 30_000, size) },
	"tiny slices of empty endpoints":  func(size int) string { return floodOfSlices(`{}`, 3000, size) },
	"slices of little endpoints":      func(size int) string { return floodOfSlices(`{"zone":""}`, 100_000, size) },
	"slices of empty addresses": func(size int) string {
		return floodOfSlices(`{"addresses":["","","","","","","","",""]}`, 100_000, size)
	},
	"a sequence":        func(size int) string { return repeated("- a\n", size) },
	"a flow sequence":   func(size int) string { return "[" + repeated("a,", size) + "]" },
	"brackets":          func(size int) string { return repeated("[", size) },
	"dashes":            func(size int) string { return repeated("- ", size) },
	"one key":           func(size int) string { return repeated("a: b\n", size) },
	"many keys":         func(size int) string { return unknownFields(size / 9) },
	"lines":             func(size int) string { return repeated("\n", size) },
	"comments":          func(size int) string { return repeated("#\n", size) },
	"text over lines":   func(size int) string { return `"` + repeated("a\n", size) + `"` },
	"text beyond ASCII": func(size int) string { return repeated("- \u00e4\n", size) },
	"lines of YAML 1.1": func(size int) string { return repeated("- a\u2028", size) },
	"escapes":           func(size int) string { return "a: \"" + repeated("\\u00e4", size) + "\"\n" },
	"aliases of text": func(size int) string {
		return "a: &a " + repeated("x", size/2) + "\nb: [" + repeated("*a,", size/2) + "]\n"
	},
	"aliases of aliases": func(size int) string {
		text := "a: &a0 [x]\n"
		for i := range 20 {
			text += fmt.Sprintf("b%d: &a%d [%s]\n", i, i+1, strings.Repeat(fmt.Sprintf("*a%d,", i), 10))
		}
		return repeated(text+"---\n", size)
	},
}

// floodOfSlices has slices with so many bytes of an endpoint each.
func floodOfSlices(endpoint string, each, size int) string {
	var all []string
	for i := range (size + each - 1) / each {
		all = append(all, fmt.Sprintf(`{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"a%d"},"addressType":"IPv4","endpoints":[%s]}`,
			i, strings.TrimSuffix(repeated(endpoint+",", min(each, size)), ",")))
	}
	return `{"apiVersion":"v1","kind":"List","items":[` + strings.Join(all, ",") + "]}"
}

func repeated(text string, size int) string { return strings.Repeat(text, size/len(text)+1) }

func jsonList(item string, size int) string {
	return `{"apiVersion":"v1","kind":"List","items":[` + strings.TrimSuffix(repeated(item, size), ",") + "]}"
}

func unknownFields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "k%d: 1\n", i)
	}
	return b.String()
}

// nightly is size, or much more in the long version of the test.
func nightly(size int) int {
	if os.Getenv("KUBEPROXY_NIGHTLY") == "1" {
		return 10 * size
	}
	return size
}

// TestFloods measures the cost of floods: memory in proportion to their size, and few
// messages.
func TestFloods(t *testing.T) {
	for name, flood := range floods {
		t.Run(name, func(t *testing.T) {
			small, large := nightly(1<<20), nightly(4<<20)
			few := decodeFlood(t, flood(small))
			many := decodeFlood(t, flood(large))
			linear := few/uint64(small)*uint64(large)*3/2 + 2*maxTree
			kit.Check(t, many <= linear, "%d bytes are allocated for %d, but %d for %d", many, large, few, small)
		})
	}
}

// decodeFlood returns the number of bytes allocated for text.
func decodeFlood(t *testing.T, text string) uint64 {
	t.Helper()
	content := []byte(text)
	d := &decoder{noted: map[string]bool{}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := d.decode(content)
	runtime.ReadMemStats(&after)
	allocated := after.TotalAlloc - before.TotalAlloc
	// A call of the library takes 11 kB.
	most := uint64(25*len(content) + 4*maxTree + 12_000*got.counted)
	kit.Check(t, allocated <= most, "%d bytes are allocated for %d, want at most %d", allocated, len(content), most)
	n := len(got.rejected)
	kit.Check(t, n <= maxProblems, "%d problems are reported, want at most %d", n, maxProblems)
	words := 0
	for _, b := range got.rejected {
		words += len(b.err.Error())
	}
	kit.Check(t, words <= 100_000, "%d bytes of errors", words)
	return allocated
}

// TestLargeTextBeyondASCII loads a file of several megabytes in which each object
// contains text that is not ASCII, as kubectl and people write it. All objects are in
// force.
func TestLargeTextBeyondASCII(t *testing.T) {
	const each = "  annotations:\n    note: für 網路 😀\n    emoji: \"\\U0001F600 \\u00e9\"\n    more: 'größer: ja'\n    text: |\n      Zwölf\n      \"日\"\n"
	size := nightly(1 << 20)
	var text strings.Builder
	n := 0
	for ; text.Len() < size; n++ {
		fmt.Fprintf(&text, "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: s%d\n%s", n, each)
	}
	got := (&decoder{noted: map[string]bool{}}).decode([]byte(text.String()))
	kit.Need(t, len(got.objects) == n && got.rejectedCount <= 0,
		"%d objects of %d, problems %v", len(got.objects), n, got.rejected)
	s := got.objects[n-1].value.(*corev1.Service)
	if want := "😀 é"; s.Annotations["emoji"] != want || s.Annotations["text"] != "Zwölf\n\"日\"\n" {
		t.Errorf("annotations = %q", s.Annotations)
	}
}

// TestLargeObjects reads a slice as large as an API server takes, as kubectl writes it, and
// refuses an object of that size that has far more values.
func TestLargeObjects(t *testing.T) {
	const endpoint = "- addresses:\n  - 10.128.17.204\n  conditions:\n    ready: true\n    serving: true\n    terminating: false\n  nodeName: node-17.example.com\n" +
		"  targetRef:\n    kind: Pod\n    name: web-7d4b9c6f5-x2x9z\n    namespace: shop\n    uid: 57e4d0c1-1b2c-4d3e-9f8a-000000000001\n  zone: zone-a\n"
	large := "addressType: IPv4\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web\nendpoints:\n" + repeated(endpoint, maxObject-2*len(endpoint))
	got := (&decoder{noted: map[string]bool{}}).decode([]byte(large))
	kit.Check(t, len(got.objects) == 1 && got.rejectedCount <= 0,
		"%d bytes: %d objects, problems %v; want it to be read", len(large), len(got.objects), got.rejected)
	dense := "apiVersion: v1\nkind: Service\nmetadata:\n  name: a\n" + unknownFields(maxObject/10)
	got = (&decoder{noted: map[string]bool{}}).decode([]byte(dense))
	if len(got.rejected) != 1 || !strings.Contains(got.rejected[0].err.Error(), "MB to read; want at most 36 MB, or JSON") {
		t.Errorf("%d bytes of values: problems %v, want one about their number", len(dense), got.rejected)
	}
}

// TestProblemLimit has a file with 50 invalid objects: 20 are described, and 30 more are
// counted. Their previous versions remain.
func TestProblemLimit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "m.yaml")
	state := func(field string) {
		var text strings.Builder
		for i := range 50 {
			text.WriteString("---\n" + strings.Replace(serviceYAML(fmt.Sprintf("s%d", i), "10.96.0.1"), "clusterIP", field, 1))
		}
		write(t, path, text.String())
	}
	l := newManifestStore(&Manifests{Paths: []string{path}})
	refresh := func() []problem {
		l.refresh(&recorder{}, nil)
		return l.problems
	}
	state("clusterIP")
	if p := refresh(); len(p) != 0 || len(l.delivered) != 50 {
		t.Fatalf("%d objects, problems %v; want 50 and none", len(l.delivered), p)
	}
	state("clusterIp")
	p := refresh()
	if len(p) != maxProblems+1 || !strings.Contains(p[maxProblems].err.Error(), "30 more objects cannot be used") {
		t.Errorf("problems = %v, want %d and a count of 30", p, maxProblems)
	}
	kit.Check(t, len(l.delivered) == 50, "%d objects are left, want the last good versions of 50", len(l.delivered))
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(serviceYAML("a", "10.96.0.1") + "---\n" + sliceYAML("s", "10.1.0.1")))
	f.Add([]byte(`{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}]}`))
	f.Add([]byte("apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\nsubsets: [{addresses: [{ip: 10.1.0.1}], ports: [{port: 80}]}]"))
	f.Add([]byte("a: &a [1,1]\nb: &b [*a,*a]\nc: [*b,*b]\n...\n--- !!binary x\n? [k]\n: v"))
	f.Add([]byte("{\"apiVersion\":\"v1\",\n\t\"kind\":\"ServiceList\",\"items\":[null,{}]}{}"))
	f.Fuzz(func(t *testing.T, content []byte) {
		d := &decoder{noted: map[string]bool{}}
		got := d.decode(content)
		for _, o := range got.objects {
			kit.Check(t, o.key.name.Name != "" && o.key.kind != "", "object without a key: %v", o.key)
		}
		n := len(got.rejected)
		kit.Check(t, n <= maxProblems, "%d problems are reported, want at most %d", n, maxProblems)
		for _, b := range got.rejected {
			kit.Check(t, strings.Contains(b.err.Error(), " at line "), "error = %q, want it to say where", b.err)
		}
	})
}

func TestDocuments(t *testing.T) {
	for name, tt := range map[string]struct {
		in    string
		lines []int
	}{
		"empty":                   {"", nil},
		"markers only":            {"---\n---\n...\n", nil},
		"no marker":               {"a: 1\n", []int{1}},
		"blank lines first":       {"\n\na: 1\n---\n\nb: 2", []int{3, 6}},
		"on the marker's line":    {"--- {a: 1}\n--- # b\nb: 2\n", []int{1, 2}},
		"not a marker":            {"a: 1\n----\n ---\n", []int{1}},
		"end marker":              {"a: 1\n...\n---\nb: 2\n", []int{1, 4}},
		"json after json":         {"{}\n\n {\n}{}", []int{1, 3, 4}},
		"json cut off":            {"{}\n{", []int{1}},
		"flow style is yaml, too": {"{a: 1}\n---\n{b: 2}\n", []int{1, 3}},
	} {
		t.Run(name, func(t *testing.T) {
			var lines []int
			documents([]byte(tt.in), func(d document) bool {
				all, err := d.jsonObjects()
				if err != nil {
					all = []document{d}
				}
				for _, o := range all {
					lines = append(lines, o.line)
				}
				return true
			})
			kit.Need(t, len(lines) == len(tt.lines), "lines = %v, want %v", lines, tt.lines)
			for i := range lines {
				kit.Check(t, lines[i] == tt.lines[i], "lines = %v, want %v", lines, tt.lines)
			}
		})
	}
}

// TestFloodsMemory wants a file of 10 MB to take at most ten times its size at any
// moment, itself and what it leaves included. Those that take the most are always tried,
// all of them with KUBEPROXY_NIGHTLY=1.
func TestFloodsMemory(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(5)) // so that what lives is known often
	const size, most = 10 << 20, 10
	for name, flood := range floods {
		if !strings.Contains(name, "slices") && nightly(1) == 1 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			text := flood(size)
			// Memory that is allocated during a collection counts as living, so the least
			// value is right.
			took := 1e9
			for try := 0; try < 3 && took > most; try++ {
				took = min(took, peakOf(text))
			}
			t.Logf("%.1f times its size", took)
			kit.Check(t, took <= most, "%.1f times the file's size in memory, want at most %d", took, most)
		})
	}
}

// peakOf returns how many times its size a file takes at most.
func peakOf(text string) float64 {
	runtime.GC()
	before := liveHeap()
	peak := watchHeap()
	got := (&decoder{noted: map[string]bool{}}).decode([]byte(text))
	took := float64(peak()-before) / float64(len(text))
	runtime.KeepAlive(got)
	runtime.KeepAlive(text)
	return took
}

// liveHeap returns the bytes that lived at the end of the last collection.
func liveHeap() uint64 {
	s := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

// watchHeap watches liveHeap until what it returns is called, which returns the most.
func watchHeap() func() uint64 {
	stop, done := make(chan struct{}), make(chan uint64)
	go func() {
		most := liveHeap()
		for every := time.NewTicker(time.Millisecond); ; {
			select {
			case <-stop:
				every.Stop()
				done <- most
				return
			case <-every.C:
				most = max(most, liveHeap())
			}
		}
	}()
	return func() uint64 {
		runtime.GC()
		close(stop)
		return max(<-done, liveHeap())
	}
}
