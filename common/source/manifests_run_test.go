// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubeproxy/test/kit"
)

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
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil", err)
		}
	})
	return r
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o755); err != nil {
		t.Fatal(err)
	}
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
				if diff := cmp.Diff([]string{"set service shop/a 10.96.0.1", "set service shop/b 10.96.0.2", "synced"}, before); diff != "" {
					t.Errorf("first calls (-want +got):\n%s", diff)
				}
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
	if wrong != "" {
		t.Error(wrong)
	}
}

// In a ConfigMap volume the files are links through ..data, which is swapped: kubernetes:
// pkg/volume/util/atomic_writer.go.
func TestRunVolume(t *testing.T) {
	dir := t.TempDir()
	version := func(name, ip string) {
		mkdir(t, filepath.Join(dir, name))
		write(t, filepath.Join(dir, name, "a.yaml"), serviceYAML("a", ip))
		if err := os.Symlink(name, filepath.Join(dir, "..tmp")); err != nil {
			t.Fatal(err)
		}
		rename(t, filepath.Join(dir, "..tmp"), filepath.Join(dir, "..data"))
	}
	version("..1", "10.96.0.1")
	if err := os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
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
			if err := os.Symlink("nowhere", dir+"/.l"); err != nil {
				t.Fatal(err)
			}
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
		func(t *testing.T, dir string) {
			if err := os.Truncate(dir+"/a.yaml", maxFile+1); err != nil {
				t.Fatal(err)
			}
		},
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
		if time.Now().After(deadline) {
			t.Fatal("no problem was reported")
		}
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
			if got := f.objects[0].value.(*corev1.Service).Spec.ClusterIP; got != tt.want {
				t.Errorf("clusterIP = %s, want %s", got, tt.want)
			}
		})
	}
}

func setTime(t *testing.T, path string, to time.Time) {
	t.Helper()
	if err := os.Chtimes(path, to, to); err != nil {
		t.Fatal(err)
	}
}
