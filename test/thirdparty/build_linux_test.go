// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package thirdparty

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"kubeproxy/test/cache"
	"kubeproxy/test/kit"
)

// toolchain stands for the go command: it creates files instead of programs.
type toolchain struct {
	mu     sync.Mutex
	built  []string
	broken string        // the program whose build fails
	pause  chan struct{} // if not nil, builds wait for it
}

func (g *toolchain) run(_ context.Context, _ string, args ...string) (string, error) {
	switch args[0] {
	case "env":
		return "go1.26.8\nlinux", nil
	case "list":
		return "v1.2.3", nil
	}
	if g.pause != nil {
		<-g.pause
	}
	file := args[slices.Index(args, "-o")+1]
	g.mu.Lock()
	defer g.mu.Unlock()
	g.built = append(g.built, strings.TrimSuffix(filepath.Base(file), ".part"))
	if strings.TrimSuffix(filepath.Base(file), ".part") == g.broken {
		return "", errors.New("no space left")
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return "", err
	}
	return "", os.WriteFile(file, []byte(args[len(args)-1]), 0o755)
}

// testBuilder returns a builder with a recipe of its own.
func testBuilder(t *testing.T, g *toolchain) builder {
	t.Helper()
	b := builder{module: Kubernetes, recipe: t.TempDir(), cache: filepath.Join(t.TempDir(), "a", "b"), out: &strings.Builder{}, run: g.run}
	for _, name := range []string{"go.mod", "go.sum"} {
		kit.Must(t, os.WriteFile(filepath.Join(b.recipe, name), []byte(name), 0o600))
	}
	return b
}

var builtOnce = []string{"etcd", "kube-apiserver"}

func TestBuildUsesCache(t *testing.T) {
	g := &toolchain{}
	b := testBuilder(t, g)
	first, err := b.folder(t.Context(), builtOnce)
	kit.Must(t, err)
	second, err := b.folder(t.Context(), builtOnce)
	kit.Must(t, err)
	kit.Check(t, first == second, "programs = %v, then %v", first, second)
	kit.Same(t, "built, -want +got", builtOnce, g.built)
	for _, name := range builtOnce {
		want := Kubernetes.programs[name]
		text, err := os.ReadFile(filepath.Join(first, name))
		kit.Check(t, err == nil && string(text) == want, "%s = %q, %v; want %q", name, text, err, want)
	}
}

func TestChangedRecipeBuildsAnew(t *testing.T) {
	for _, name := range []string{"go.mod", "go.sum"} {
		t.Run(name, func(t *testing.T) {
			g := &toolchain{}
			b := testBuilder(t, g)
			_, err := b.folder(t.Context(), builtOnce)
			kit.Must(t, err)
			kit.Must(t, os.WriteFile(filepath.Join(b.recipe, name), []byte("other"), 0o600))
			_, err = b.folder(t.Context(), builtOnce)
			kit.Must(t, err)
			kit.Same(t, "built, -want +got", append(builtOnce, builtOnce...), g.built)
		})
	}
}

func TestFailedBuildLeavesNothing(t *testing.T) {
	g := &toolchain{broken: "kube-apiserver"}
	b := testBuilder(t, g)
	folder, err := b.folder(t.Context(), builtOnce)
	kit.Check(t, err != nil && strings.Contains(err.Error(), "build kube-apiserver: no space left"),
		"folder = %v, want the build's error", err)
	kit.Same(t, "built, -want +got", []string{"etcd", "lock"}, names(t, folder))
	g.broken = ""
	_, err = b.folder(t.Context(), builtOnce)
	kit.Check(t, err == nil, "the next try: %v", err)
}

func TestTwoBuildersBuildOnce(t *testing.T) {
	g := &toolchain{pause: make(chan struct{})}
	b := testBuilder(t, g)
	results := make(chan error)
	waiting := &textSignal{text: "waiting for another build", seen: make(chan struct{})}
	for range 2 {
		go func() {
			b := b
			b.out = waiting
			_, err := b.folder(t.Context(), builtOnce)
			results <- err
		}()
	}
	select {
	case <-waiting.seen:
	case <-time.After(time.Minute):
		t.Error("nobody waits for the other")
	}
	close(g.pause)
	for range 2 {
		err := <-results
		kit.Check(t, err == nil, "%v", err)
	}
	kit.Same(t, "built, -want +got", builtOnce, g.built)
}

func TestPruneOldPrograms(t *testing.T) {
	b := testBuilder(t, &toolchain{})
	for name, age := range map[string]time.Duration{"old": cache.Lifetime + time.Hour, "recent": time.Hour} {
		folder, when := filepath.Join(b.cache, name), time.Now().Add(-age)
		kit.Must(t, errors.Join(os.MkdirAll(folder, 0o755), os.Chtimes(folder, when, when)))
	}
	p, err := b.folder(t.Context(), builtOnce)
	kit.Must(t, err)
	want := []string{filepath.Base(p), "recent"}
	slices.Sort(want)
	kit.Same(t, "cache, -want +got", want, names(t, b.cache))
}

func names(t *testing.T, folder string) []string {
	t.Helper()
	entries, err := os.ReadDir(folder)
	kit.Must(t, err)
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// textSignal closes heard when a text is written to it.
type textSignal struct {
	text string
	once sync.Once
	seen chan struct{}
}

func (s *textSignal) Write(b []byte) (int, error) {
	if strings.Contains(string(b), s.text) {
		s.once.Do(func() { close(s.seen) })
	}
	return len(b), nil
}

// TestBuildsWhatIsMissing checks that programs that were built before stay.
func TestBuildsWhatIsMissing(t *testing.T) {
	g := &toolchain{}
	b := testBuilder(t, g)
	for _, names := range [][]string{{"etcd"}, {"etcd", "kubelet", "e2e.test"}} {
		_, err := b.folder(t.Context(), names)
		kit.Must(t, err)
	}
	kit.Same(t, "built, -want +got", []string{"etcd", "kubelet", "e2e.test"}, g.built)
	_, err := b.folder(t.Context(), []string{"kubemark"})
	kit.Check(t, err != nil && strings.Contains(err.Error(), "test/e2e has no program kubemark"), "folder = %v, want the unknown program's name", err)
}
