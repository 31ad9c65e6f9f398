// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"kubeproxy/test/dump"
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
			if e := got.objects[services].value.(*discoveryv1.EndpointSlice).Endpoints; len(e) != dump.Endpoints || len(e[0].TargetRef.UID) != 36 {
				t.Errorf("endpoints = %v", e)
			}
			if took := peakOf(string(text)); took > 10 {
				t.Errorf("%.1f times the file's size in memory, want at most 10", took)
			}
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
			if diff := cmp.Diff(want, r.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
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
			if len(got.objects) < 2 || got.rejectedCount > 0 {
				t.Errorf("%d objects, problems %v; want both Services and no problem", len(got.objects), got.rejected)
			}
			if len(d.noted) != 1 {
				t.Errorf("notes = %v, want one about the other kind", d.noted)
			}
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
			if (tt.err == "") != (len(got.rejected) == 0) || !strings.Contains(text, tt.err) {
				t.Errorf("problems = %s, want %q", text, tt.err)
			}
			if text := strings.Join(notes, "; "); (tt.note == "") != (text == "") || !strings.Contains(text, tt.note) {
				t.Errorf("notes = %s, want %q", text, tt.note)
			}
			if name == "v1beta1 slice" {
				e := got.objects[0].value.(*discoveryv1.EndpointSlice).Endpoints[0]
				if e.NodeName == nil || *e.NodeName != "n1" || e.Zone == nil || *e.Zone != "z1" {
					t.Errorf("endpoint = %v, want node n1 and zone z1", e)
				}
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
