// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf16"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/types"

	"kubeproxy/test/kit"
)

// recorder is a Sink that records the calls as text.
type recorder struct {
	mu       sync.Mutex
	calls    []string
	errs     []string
	over     []string         // faults
	standing map[string]error // faults that are not over
	notes    []string
	open     bool // a batch
}

func (r *recorder) add(format string, args ...any) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.open && format != "synced" {
		panic("reported outside of a batch: " + fmt.Sprintf(format, args...))
	}
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
	return true
}

func (r *recorder) SetService(s *corev1.Service) bool {
	return r.add("set service %s/%s %s", s.Namespace, s.Name, s.Spec.ClusterIP)
}

func (r *recorder) DeleteService(n types.NamespacedName) bool { return r.add("delete service %s", n) }

func (r *recorder) SetSlice(s *discoveryv1.EndpointSlice) bool {
	var eps []string
	for _, e := range s.Endpoints {
		state := ""
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			state = "!"
		}
		eps = append(eps, state+e.Addresses[0])
	}
	ports := ""
	for _, p := range s.Ports {
		ports += fmt.Sprintf(" %d", *p.Port)
	}
	return r.add("set slice %s/%s of %s%s %v", s.Namespace, s.Name, s.Labels[discoveryv1.LabelServiceName], ports, eps)
}

func (r *recorder) DeleteSlice(n types.NamespacedName) bool { return r.add("delete slice %s", n) }
func (r *recorder) SetNode(n *corev1.Node)                  { r.add("set node %s", n.Name) }
func (r *recorder) DeleteNode()                             { r.add("delete node") }
func (r *recorder) SetServiceCIDR(o *networkingv1.ServiceCIDR) {
	r.add("set range %s %v", o.Name, o.Spec.CIDRs)
}
func (r *recorder) DeleteServiceCIDR(name string) { r.add("delete range %s", name) }
func (r *recorder) Synced()                       { r.add("synced") }
func (r *recorder) Unread(n int)                  { r.add("unread %d", n) }

func (r *recorder) Batch(apply func()) {
	r.open = true
	apply()
	r.open = false
}

func (r *recorder) report(f Fault) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if f.Err == nil {
		if r.standing[f.Object] == nil {
			panic("over, but never reported: " + f.Object)
		}
		delete(r.standing, f.Object)
		r.over = append(r.over, f.Object)
		return
	}
	if r.standing == nil {
		r.standing = map[string]error{}
	}
	r.standing[f.Object] = f.Err
	r.errs = append(r.errs, f.Err.Error())
}

func (r *recorder) note(s string) { r.notes = append(r.notes, s) }

// take returns and clears the calls and problems so far.
func (r *recorder) take() (calls, errs []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls, errs = r.calls, r.errs
	r.calls, r.errs = nil, nil
	return calls, errs
}

// waitFor polls until holds returns true.
func (r *recorder) waitFor(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(2 * time.Millisecond) {
		r.mu.Lock()
		ok := holds()
		over, standing := slices.Clone(r.over), maps.Clone(r.standing)
		r.mu.Unlock()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("over = %q, standing = %v", over, standing)
		}
	}
}

// wait polls until the calls, including earlier ones, contain want.
func (r *recorder) wait(t *testing.T, want ...string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		r.mu.Lock()
		missing := slices.ContainsFunc(want, func(w string) bool { return !slices.Contains(r.calls, w) })
		calls := slices.Clone(r.calls)
		r.mu.Unlock()
		if !missing {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("calls = %q, want %q", calls, want)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func serviceYAML(name, ip string) string {
	return "apiVersion: v1\nkind: Service\nmetadata: {name: " + name + ", namespace: shop}\nspec: {clusterIP: " + ip + "}\n"
}

func sliceYAML(name, addr string) string {
	return "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: " + name +
		", namespace: shop, labels: {kubernetes.io/service-name: web}}\naddressType: IPv4\n" +
		"endpoints: [{addresses: [" + addr + "]}]\n"
}

var loads = map[string]struct {
	files map[string]string
	want  []string
	errs  []string
}{
	"several documents, in delivery order": {
		files: map[string]string{"a.yaml": "# only a comment\n---\n" + sliceYAML("web-1", "10.1.0.1") + "---\n" +
			serviceYAML("web", "10.96.0.1") + "---\n{apiVersion: v1, kind: Node, metadata: {name: N1}}\n---\n{apiVersion: v1, kind: Node, metadata: {name: n2}}\n"},
		want: []string{"set node N1", "set service shop/web 10.96.0.1", "set slice shop/web-1 of web [10.1.0.1]"},
	},
	"json, one after the other": {
		files: map[string]string{"a.json": `{"apiVersion":"v1","kind":"Service","metadata":{"name":"a"}}` + "\n\t" +
			`{"apiVersion":"v1","kind":"Service","metadata":{"name":"b"}}`},
		want: []string{"set service default/a ", "set service default/b "},
	},
	"lists, typed and nested": {
		files: map[string]string{"a.yml": `{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: ServiceList, items: [{metadata: {name: a}}]}]}`},
		want:  []string{"set service default/a "},
	},
	"names that are not read": {
		files: map[string]string{".a.yaml": serviceYAML("a", "10.96.0.1"), "b.txt": serviceYAML("b", "10.96.0.1"), "c.yaml~": serviceYAML("c", "10.96.0.1")},
	},
	"a broken document leaves the others": {
		files: map[string]string{"a.yaml": serviceYAML("a", "10.96.0.1") + "---\nkind: [\n", "b.yaml": serviceYAML("b", "10.96.0.2")},
		want:  []string{"set service shop/a 10.96.0.1", "set service shop/b 10.96.0.2", "unread 1"},
		errs:  []string{"manifest DIR/a.yaml: document at line 6: line 6: did not find expected node content"},
	},
	"bad objects leave the others": {
		files: map[string]string{"a.yaml": serviceYAML("a", "10.96.0.1") + "---\n" +
			"apiVersion: v1\nkind: Service\nmetadata: {name: b}\nspec:\n  prots: []\n" + "---\n" +
			"apiVersion: v1\nkind: Service\nmetadata: {name: c}\nspec: {ports: [{port: http}]}\n" + "---\n" +
			"apiVersion: v1\nkind: Service\nmetadata: {}\n" + "---\nkind: Service\n---\n- 1\n---\n" +
			"apiVersion: v1\nkind: Service\nkind: Service\nmetadata: {name: d}\n---\n" +
			"apiVersion: v1\nkind: Service\nmetadata: {name: \"e\\nf\"}\n"},
		want: []string{"set service shop/a 10.96.0.1", "unread 1"},
		errs: []string{
			`manifest DIR/a.yaml: document at line 6: Service default/b: line 10: unknown field "spec.prots"; did you mean ports?`,
			`manifest DIR/a.yaml: document at line 12: Service default/c: spec.ports.port: want a number that fits int32, found a string`,
			`manifest DIR/a.yaml: document at line 17: Service default/: metadata.name is missing`,
			`manifest DIR/a.yaml: document at line 21: an object without apiVersion or kind; want such as apiVersion: v1, kind: Service`,
			`manifest DIR/a.yaml: document at line 23: want an object, found a list`,
			`manifest DIR/a.yaml: document at line 25: Service default/d: line 27: key "kind" already set in map`,
			`manifest DIR/a.yaml: document at line 30: Service default/"e\nf": metadata.name: "e\nf" is no name; want at most 253 lower-case letters, digits, dashes and dots`,
		},
	},
	"the first of two files counts": {
		files: map[string]string{"a.yaml": serviceYAML("a", "10.96.0.1"), "b.yaml": serviceYAML("a", "10.96.0.2")},
		want:  []string{"set service shop/a 10.96.0.1"},
		errs:  []string{"manifest DIR/b.yaml: Service shop/a is ignored: DIR/a.yaml has it already"},
	},
	"endpoints become slices": {
		files: map[string]string{"a.yaml": "apiVersion: v1\nkind: Endpoints\nmetadata: {name: web}\nsubsets:\n" +
			"- addresses: [{ip: 10.1.0.1}, {ip: 'fd00::1'}]\n  notReadyAddresses: [{ip: 10.1.0.2}]\n  ports: [{name: a, port: 80}, {name: b, port: 81}]\n" +
			"- addresses: [{ip: 10.1.0.3}]\n  ports: [{port: 82}]\n"},
		want: []string{
			"set slice default/web/0/IPv4 of web 80 81 [10.1.0.1 !10.1.0.2]",
			"set slice default/web/0/IPv6 of web 80 81 [fd00::1]",
			"set slice default/web/1/IPv4 of web 82 [10.1.0.3]",
		},
	},
	"lists without end": {
		files: map[string]string{"a.yml": strings.Repeat("{apiVersion: v1, kind: List, items: [", 6) + strings.Repeat("]}", 6)},
		want:  []string{"unread 1"},
		errs:  []string{"manifest DIR/a.yml: items[0].items[0].items[0].items[0] at line 1: more than 4 Lists within each other"},
	},
	"endpoints that are not to be mirrored": {
		files: map[string]string{"a.yaml": "apiVersion: v1\nkind: Endpoints\nmetadata: {name: web, labels: {endpointslice.kubernetes.io/skip-mirror: 'true'}}\n" +
			"subsets: [{addresses: [{ip: 10.1.0.9}]}]\n"},
	},
	"endpoints beside slices do not count": {
		files: map[string]string{"a.yaml": sliceYAML("web-1", "10.1.0.1") +
			"---\napiVersion: v1\nkind: Endpoints\nmetadata: {name: web, namespace: shop}\nsubsets: [{addresses: [{ip: 10.1.0.9}]}]\n"},
		want: []string{"set slice shop/web-1 of web [10.1.0.1]"},
	},
	"byte order mark and carriage returns": {
		files: map[string]string{"a.yaml": "\xef\xbb\xbf---\r\n" + strings.ReplaceAll(serviceYAML("a", "10.96.0.1"), "\n", "\r\n") + "...\r\n"},
		want:  []string{"set service shop/a 10.96.0.1"},
	},
	"several in a file that a console of Windows wrote": {
		files: map[string]string{"a.yaml": wide(serviceYAML("a", "10.96.0.1") + "---\n" + serviceYAML("b", "10.96.0.2"))},
		want:  []string{"set service shop/a 10.96.0.1", "set service shop/b 10.96.0.2"},
	},
}

// wide returns text in UTF-16.
func wide(text string) string {
	b := []byte{0xff, 0xfe}
	for _, unit := range utf16.Encode([]rune(text)) {
		b = append(b, byte(unit), byte(unit>>8))
	}
	return string(b)
}

func TestLoad(t *testing.T) {
	for name, tt := range loads {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range tt.files {
				write(t, filepath.Join(dir, name), content)
			}
			var r recorder
			err := (&Manifests{Paths: []string{dir}, NodeName: " n1 "}).Load(context.Background(), &r)
			if diff := cmp.Diff(append(tt.want, "synced"), r.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
			compareErrors(t, dir, tt.errs, err)
		})
	}
}

// compareErrors checks that each joined error starts with its text in want.
func compareErrors(t *testing.T, dir string, want []string, err error) {
	t.Helper()
	var got []error
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		got = all.Unwrap()
	}
	if len(got) != len(want) {
		t.Fatalf("errors = %v, want %d", err, len(want))
	}
	for i, w := range want {
		if g := kit.Normalize(got[i].Error(), dir); !strings.HasPrefix(g, w) {
			t.Errorf("error %d = %q, want %q", i, g, w)
		}
	}
}

func TestLoadNotes(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), strings.Repeat("---\napiVersion: apps/v1\nkind: Deployment\n", 3))
	var r recorder
	if err := (&Manifests{Paths: []string{dir}, Note: r.note}).Load(context.Background(), &r); err != nil {
		t.Errorf("Load = %v, want no error", err)
	}
	if len(r.notes) != 1 || !strings.Contains(r.notes[0], "apps/v1 Deployment") {
		t.Errorf("notes = %q, want one about apps/v1 Deployment", r.notes)
	}

	parent := t.TempDir()
	write(t, filepath.Join(parent, "README.md"), "")
	if err := os.Mkdir(filepath.Join(parent, "shop.yaml.d"), 0o755); err != nil {
		t.Fatal(err)
	}
	r = recorder{}
	if err := (&Manifests{Paths: []string{parent}, Note: r.note}).Load(context.Background(), &r); err != nil {
		t.Errorf("Load = %v, want no error", err)
	}
	if len(r.notes) != 1 || !strings.Contains(r.notes[0], parent+": no file") {
		t.Errorf("notes = %q, want one that says that nothing is there", r.notes)
	}
}

func TestMissingPath(t *testing.T) {
	var r recorder
	m := &Manifests{Paths: []string{filepath.Join(t.TempDir(), "none")}}
	for name, err := range map[string]error{"Run": m.Run(context.Background(), &r), "Load": m.Load(context.Background(), &r)} {
		if err == nil || !strings.Contains(err.Error(), "none") {
			t.Errorf("%s = %v, want an error naming the path", name, err)
		}
	}
	if len(r.calls) > 0 {
		t.Errorf("calls = %q, want none", r.calls)
	}
}
