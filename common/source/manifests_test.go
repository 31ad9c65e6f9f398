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
	"sync/atomic"
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
		kit.Need(t, !time.Now().After(deadline), "over = %q, standing = %v", over, standing)
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
		kit.Need(t, !time.Now().After(deadline), "calls = %q, want %q", calls, want)
		time.Sleep(2 * time.Millisecond)
	}
}

func write(t *testing.T, path, content string) {
	t.Helper()
	kit.Must(t, os.WriteFile(path, []byte(content), 0o644))
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
			kit.Same(t, "calls (-want +got)", append(tt.want, "synced"), r.calls)
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
	kit.Need(t, len(got) == len(want), "errors = %v, want %d", err, len(want))
	for i, w := range want {
		g := kit.Normalize(got[i].Error(), dir)
		kit.Check(t, strings.HasPrefix(g, w), "error %d = %q, want %q", i, g, w)
	}
}

func TestLoadNotes(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "a.yaml"), strings.Repeat("---\napiVersion: apps/v1\nkind: Deployment\n", 3))
	var r recorder
	err := (&Manifests{Paths: []string{dir}, Note: r.note}).Load(context.Background(), &r)
	kit.Check(t, err == nil, "Load = %v, want no error", err)
	kit.Check(t, len(r.notes) == 1 && strings.Contains(r.notes[0], "apps/v1 Deployment"),
		"notes = %q, want one about apps/v1 Deployment", r.notes)

	parent := t.TempDir()
	write(t, filepath.Join(parent, "README.md"), "")
	kit.Must(t, os.Mkdir(filepath.Join(parent, "shop.yaml.d"), 0o755))
	r = recorder{}
	err = (&Manifests{Paths: []string{parent}, Note: r.note}).Load(context.Background(), &r)
	kit.Check(t, err == nil, "Load = %v, want no error", err)
	kit.Check(t, len(r.notes) == 1 && strings.Contains(r.notes[0], parent+": no file"),
		"notes = %q, want one that says that nothing is there", r.notes)
}

func TestMissingPath(t *testing.T) {
	var r recorder
	m := &Manifests{Paths: []string{filepath.Join(t.TempDir(), "none")}}
	for name, err := range map[string]error{"Run": m.Run(context.Background(), &r), "Load": m.Load(context.Background(), &r)} {
		kit.Check(t, err != nil && strings.Contains(err.Error(), "none"),
			"%s = %v, want an error naming the path", name, err)
	}
	kit.Check(t, len(r.calls) == 0, "calls = %q, want none", r.calls)
}

// run starts m on the paths and waits for Synced. It returns the calls before Synced.
func run(t *testing.T, m *Manifests) (*recorder, []string) {
	t.Helper()
	r := start(t, m)
	r.wait(t, "synced")
	calls, _ := r.take()
	return r, calls
}

func start(t *testing.T, m *Manifests) *recorder {
	t.Helper()
	r := &recorder{}
	m.Report = r.report
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx, r) }()
	t.Cleanup(func() {
		cancel()
		err := <-done
		kit.Check(t, err == nil, "Run = %v, want nil", err)
	})
	return r
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	kit.Must(t, os.Rename(from, to))
}

func remove(t *testing.T, path string) {
	t.Helper()
	kit.Must(t, os.RemoveAll(path))
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	kit.Must(t, os.Mkdir(path, 0o755))
}

var saves = map[string]struct {
	change func(t *testing.T, dir string)
	want   []string
}{
	"written in place": {
		func(t *testing.T, dir string) { write(t, dir+"/a.yaml", serviceYAML("a", "10.96.0.9")) },
		[]string{"set service shop/a 10.96.0.9"},
	},
	"renamed over": {
		func(t *testing.T, dir string) {
			write(t, dir+"/.a.tmp", serviceYAML("a", "10.96.0.9"))
			rename(t, dir+"/.a.tmp", dir+"/a.yaml")
		},
		[]string{"set service shop/a 10.96.0.9"},
	},
	"moved away and written anew": {
		func(t *testing.T, dir string) {
			rename(t, dir+"/a.yaml", dir+"/a.yaml~")
			write(t, dir+"/a.yaml", serviceYAML("a", "10.96.0.9"))
		},
		[]string{"set service shop/a 10.96.0.9"},
	},
	"new file": {
		func(t *testing.T, dir string) {
			write(t, dir+"/c.json", `{"apiVersion":"v1","kind":"Service","metadata":{"name":"c"}}`)
		},
		[]string{"set service default/c "},
	},
	"file removed": {
		func(t *testing.T, dir string) { remove(t, dir+"/a.yaml") },
		[]string{"delete service shop/a"},
	},
	"directory replaced": {
		func(t *testing.T, dir string) {
			rename(t, dir, dir+".old")
			mkdir(t, dir)
			write(t, dir+"/b.yaml", serviceYAML("b", "10.96.0.7"))
		},
		[]string{"set service shop/b 10.96.0.7", "delete service shop/a"},
	},
	"object moved to another file": {
		func(t *testing.T, dir string) {
			write(t, dir+"/b.yaml", serviceYAML("b", "10.96.0.2")+"---\n"+serviceYAML("a", "10.96.0.8"))
			remove(t, dir+"/a.yaml")
		},
		[]string{"set service shop/a 10.96.0.8"},
	},
}

func TestRunFollows(t *testing.T) {
	for name, tt := range saves {
		t.Run(name, func(t *testing.T) {
			retryTest(t, func() string {
				dir := filepath.Join(t.TempDir(), "m")
				mkdir(t, dir)
				write(t, dir+"/a.yaml", serviceYAML("a", "10.96.0.1"))
				write(t, dir+"/b.yaml", serviceYAML("b", "10.96.0.2"))
				r, before := run(t, &Manifests{Paths: []string{dir}, Poll: time.Hour})
				kit.Same(t, "first calls (-want +got)", []string{"set service shop/a 10.96.0.1", "set service shop/b 10.96.0.2", "synced"}, before)
				tt.change(t, dir)
				r.wait(t, tt.want...)
				got, errs := r.take()
				if diff := cmp.Diff(tt.want, got); diff != "" || len(errs) > 0 {
					return fmt.Sprintf("calls (-want +got):\n%s\nproblems: %q", diff, errs)
				}
				return ""
			})
		})
	}
}

// retryTest requires that try finds no fault, if necessary in a later attempt. A change
// of several steps counts as one if it is faster than a watch's wait for the next step.
// On a busy machine it is sometimes slower.
func retryTest(t *testing.T, try func() (wrong string)) {
	t.Helper()
	wrong := try()
	for again := 0; wrong != "" && again < 10; again++ {
		t.Logf("tries again: %s", wrong)
		wrong = try()
	}
	kit.Check(t, wrong == "", "%v", wrong)
}

// In a ConfigMap volume the files are links through ..data, which is swapped: kubernetes:
// pkg/volume/util/atomic_writer.go.
func TestRunVolume(t *testing.T) {
	dir := t.TempDir()
	version := func(name, ip string) {
		mkdir(t, filepath.Join(dir, name))
		write(t, filepath.Join(dir, name, "a.yaml"), serviceYAML("a", ip))
		kit.Must(t, os.Symlink(name, filepath.Join(dir, "..tmp")))
		rename(t, filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data"))
	}
	version("..1", "10.96.0.1")
	kit.Must(t, os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")))
	for name, path := range map[string]string{"directory": dir, "file": filepath.Join(dir, "a.yaml")} {
		r, _ := run(t, &Manifests{Paths: []string{path}, Poll: time.Hour})
		version("..2"+name, "10.96.0.2")
		r.wait(t, "set service shop/a 10.96.0.2")
		remove(t, filepath.Join(dir, "..1"))
		version("..3"+name, "10.96.0.1")
		r.wait(t, "set service shop/a 10.96.0.1")
	}
}

var breakages = map[string]struct {
	change func(t *testing.T, dir string)
	errs   []string // prefix of each
}{
	"broken file": {
		func(t *testing.T, dir string) { write(t, dir+"/a.yaml", "kind: [") },
		[]string{"manifest DIR/a.yaml: document at line 1: line 1: did not find expected node content; the last good version of what is missing stays in force"},
	},
	"bad object": {
		func(t *testing.T, dir string) {
			write(t, dir+"/a.yaml", strings.Replace(serviceYAML("a", "10.96.0.9"), "clusterIP", "clusterIp", 1))
		},
		[]string{`manifest DIR/a.yaml: document at line 1: Service shop/a: unknown field "spec.clusterIp"; did you mean clusterIP?; its last good version stays in force`},
	},
	"link to nowhere": {
		func(t *testing.T, dir string) {
			kit.Must(t, os.Symlink("nowhere", dir+"/.l"))
			rename(t, dir+"/.l", dir+"/a.yaml")
		},
		[]string{"manifest DIR/a.yaml: no such file or directory; the file's last good state"},
	},
	"directory in its place": {
		func(t *testing.T, dir string) {
			remove(t, dir+"/a.yaml")
			mkdir(t, dir+"/a.yaml")
		},
		[]string{"manifest DIR/a.yaml: is a directory; want a regular file; the file's last good state"},
	},
	"path gone": {
		func(t *testing.T, dir string) { rename(t, dir, dir+".old") },
		[]string{"read manifests: stat DIR: no such file or directory; what it held stays in force"},
	},
	"too large": {
		func(t *testing.T, dir string) { kit.Must(t, os.Truncate(dir+"/a.yaml", maxFile+1)) },
		[]string{"manifest DIR/a.yaml: has 67108865 bytes; want at most 67108864; the file's"},
	},
}

func TestRunKeepsTheLastGoodState(t *testing.T) {
	for name, tt := range breakages {
		t.Run(name, func(t *testing.T) {
			retryTest(t, func() string {
				dir := filepath.Join(t.TempDir(), "m")
				mkdir(t, dir)
				write(t, dir+"/a.yaml", serviceYAML("a", "10.96.0.1"))
				r, _ := run(t, &Manifests{Paths: []string{dir}, Poll: 30 * time.Millisecond})
				tt.change(t, dir)
				calls, errs := afterProblem(t, r)
				if len(calls) > 0 || len(errs) != len(tt.errs) {
					return fmt.Sprintf("calls = %q, want none; problems = %q, want %q", calls, errs, tt.errs)
				}
				for i, want := range tt.errs {
					if got := kit.Normalize(errs[i], dir); !strings.HasPrefix(got, want) {
						return fmt.Sprintf("problem = %q, want %q", got, want)
					}
				}
				return ""
			})
		})
	}
}

// afterProblem waits for a problem and then for some more checks, which must not report
// it again.
func afterProblem(t *testing.T, r *recorder) (calls, errs []string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for idle := 0; idle < 60; {
		time.Sleep(2 * time.Millisecond)
		r.mu.Lock()
		n := len(r.errs)
		r.mu.Unlock()
		if n > 0 {
			idle++
		}
		kit.Need(t, !time.Now().After(deadline), "no problem was reported")
	}
	return r.take()
}

// TestRunRecovers starts with a broken file. Nothing has synced before it is repaired.
func TestRunRecovers(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.yaml", "kind: [")
	var never atomic.Int32
	r := start(t, &Manifests{Paths: []string{dir}, Poll: time.Hour, Contact: func(_ time.Duration, n int) { never.Store(int32(n)) }})
	if calls, _ := afterProblem(t, r); !slices.Equal(calls, []string{"unread 1"}) || never.Load() != 1 {
		t.Errorf("calls = %q, %d files never readable", calls, never.Load())
	}
	write(t, dir+"/a.yaml", serviceYAML("a", "10.96.0.1"))
	r.wait(t, "set service shop/a 10.96.0.1", "unread 0", "synced")
	if never.Load() != 0 {
		t.Errorf("%d files never readable, want none", never.Load())
	}
}

// TestRunReportsWhatIsOver breaks two objects and repairs them one by one.
func TestRunReportsWhatIsOver(t *testing.T) {
	dir := t.TempDir()
	bad := func(name string) string {
		return strings.Replace(serviceYAML(name, "10.96.0.1"), "clusterIP", "clusterIp", 1)
	}
	path := filepath.Join(dir, "m.yaml")
	write(t, filepath.Join(dir, "good.yaml"), serviceYAML("good", "10.96.0.9"))
	write(t, path, bad("a")+"---\n"+bad("b"))
	r, _ := run(t, &Manifests{Paths: []string{dir}, Poll: time.Hour})
	for _, step := range []struct {
		content string
		over    []string
		faults  int
	}{
		{serviceYAML("a", "10.96.0.2") + "---\n" + bad("b"), []string{path + ": Service shop/a"}, 1},
		{serviceYAML("a", "10.96.0.3") + "---\n" + serviceYAML("b", "10.96.0.3"), []string{path + ": Service shop/b"}, 0},
		{"kind: [", nil, 1},
		{serviceYAML("a", "10.96.0.4"), []string{path + ": document at line 1"}, 0},
		{bad("c"), nil, 1},
	} {
		write(t, path+".next", step.content)
		rename(t, path+".next", path)
		r.waitFor(t, func() bool { return slices.Equal(r.over, step.over) && len(r.standing) == step.faults })
		r.mu.Lock()
		r.over = nil
		r.mu.Unlock()
	}
	remove(t, path)
	r.waitFor(t, func() bool { return len(r.standing) == 0 })
}

// A shell empties a file before the command writes to it.
func TestRunEmptied(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.yaml")
	write(t, path, serviceYAML("a", "10.96.0.1"))
	f := &file{path: path}
	d := &decoder{noted: map[string]bool{}}
	start := time.Now()
	f.refresh(d, start)
	write(t, path, "")
	for _, tt := range []struct {
		after time.Duration
		want  int
	}{{0, 1}, {emptyGrace - 1, 1}, {emptyGrace, 0}} {
		if f.refresh(d, start.Add(tt.after)); len(f.objects) != tt.want {
			t.Errorf("%v after it was emptied: %d objects, want %d", tt.after, len(f.objects), tt.want)
		}
	}
}

// A file is read again if it may have changed, and only then.
func TestRefreshNotices(t *testing.T) {
	const before, after = "10.96.0.1", "10.96.0.9" // of the same length
	old := time.Now().Add(-time.Hour)
	inPlace := func(t *testing.T, path string) { write(t, path, serviceYAML("a", after)) }
	renamed := func(t *testing.T, path string) {
		write(t, path+"~", serviceYAML("a", after))
		rename(t, path+"~", path)
	}
	for name, tt := range map[string]struct {
		change   func(t *testing.T, path string)
		readAt   time.Duration // after the file was written
		modified time.Duration // after that, with the time set back
		want     string
	}{
		"later time":                      {inPlace, time.Minute, time.Second, after},
		"same time, read long after":      {inPlace, time.Minute, 0, before},
		"same time, read within a grain":  {inPlace, mtimeGranularity, 0, after},
		"same time and size, other inode": {renamed, time.Minute, 0, after},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.yaml")
			f := &file{path: path}
			d := &decoder{noted: map[string]bool{}}
			write(t, path, serviceYAML("a", before))
			setTime(t, path, old)
			f.refresh(d, old.Add(tt.readAt))
			tt.change(t, path)
			setTime(t, path, old.Add(tt.modified))
			f.refresh(d, old.Add(2*time.Minute))
			kit.Equal(t, f.objects[0].value.(*corev1.Service).Spec.ClusterIP, tt.want, "clusterIP")
		})
	}
}

func setTime(t *testing.T, path string, to time.Time) {
	t.Helper()
	kit.Must(t, os.Chtimes(path, to, to))
}
