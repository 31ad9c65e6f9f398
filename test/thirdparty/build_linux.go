// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package thirdparty

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"kubeproxy/test/cache"
)

// Build returns a folder that has the named programs, and those of the module that were
// built before. The first call on a machine builds them, which takes minutes and is
// reported to out. It works only below the product's module.
func (m Module) Build(ctx context.Context, out io.Writer, names ...string) (folder string, err error) {
	b, err := m.builder(ctx, out)
	if err != nil {
		return "", err
	}
	return b.folder(ctx, names)
}

// Missing returns which of the named programs Build would have to build.
func (m Module) Missing(ctx context.Context, names ...string) ([]string, error) {
	b, err := m.builder(ctx, io.Discard)
	if err != nil {
		return nil, err
	}
	key, err := b.key(ctx)
	return missing(filepath.Join(b.cache, key), names), err
}

// Source returns the folder of a package that a program of the module is built from.
func (m Module) Source(ctx context.Context, pkg string) (folder string, err error) {
	b, err := m.builder(ctx, io.Discard)
	if err != nil {
		return "", err
	}
	return b.run(ctx, b.recipe, "list", "-f", "{{.Dir}}", pkg)
}

func (m Module) builder(ctx context.Context, out io.Writer) (builder, error) {
	b := builder{module: m, out: out, run: command}
	if m.windows {
		b.run = commandWindows
	}
	file, err := b.run(ctx, ".", "env", "GOMOD")
	if err != nil {
		return b, fmt.Errorf("find the module: %w", err)
	}
	b.recipe = filepath.Join(filepath.Dir(file), filepath.FromSlash(m.folder))
	b.cache, err = cache.Folder("e2e")
	return b, err
}

// builder builds the programs of a module into a cache folder.
type builder struct {
	module        Module
	recipe, cache string
	out           io.Writer
	run           runner
}

// runner runs the go command in a folder and returns its output.
type runner func(ctx context.Context, dir string, args ...string) (string, error)

// command is the go command without cgo, so that the programs need no library of the
// machine.
func command(ctx context.Context, dir string, args ...string) (string, error) {
	return goCommand(ctx, dir, nil, args)
}

// commandWindows is the go command that builds for Windows.
func commandWindows(ctx context.Context, dir string, args ...string) (string, error) {
	return goCommand(ctx, dir, []string{"GOOS=windows", "GOARCH=amd64"}, args)
}

func goCommand(ctx context.Context, dir string, env, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = dir, append(append(os.Environ(), "CGO_ENABLED=0"), env...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	text, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = fmt.Errorf("go %s: %w\n%s", args[0], err, exit.Stderr)
	}
	return strings.TrimSpace(string(text)), err
}

// folder returns the module's cache folder after it has built the named programs that are
// missing there, each under a lock. An interrupted build leaves nothing that looks complete.
func (b builder) folder(ctx context.Context, names []string) (string, error) {
	key, err := b.key(ctx)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", b.recipe, err)
	}
	folder := filepath.Join(b.cache, key)
	if len(missing(folder, names)) == 0 {
		return folder, nil
	}
	for _, name := range names {
		if err := b.add(ctx, folder, name); err != nil {
			return folder, err
		}
	}
	return folder, cache.Prune(b.cache)
}

// add builds a program that is missing in a folder.
func (b builder) add(ctx context.Context, folder, name string) error {
	return cache.Make(ctx, filepath.Join(folder, name), b.waiting, func(part string) error { return b.build(ctx, name, part) })
}

func (b builder) waiting() { fmt.Fprintln(b.out, "waiting for another build") }

// missing returns which programs a folder lacks. The folder counts as used.
func missing(folder string, names []string) []string {
	cache.Touch(folder)
	var lacks []string
	for _, name := range names {
		if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
			lacks = append(lacks, name)
		}
	}
	return lacks
}

// key covers everything that the programs depend on.
func (b builder) key(ctx context.Context) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(b.recipe, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n%s", name, len(text), text)
	}
	env, err := b.run(ctx, b.recipe, "env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOARM64")
	if err != nil {
		return "", err
	}
	fmt.Fprintln(h, env, b.flags("version"))
	return fmt.Sprintf("%x", h.Sum(nil))[:16], nil
}

// flags are those of go build. Without a version in them, an API server reports v0.0.0,
// and containerd v2 reports none.
func (b builder) flags(version string) []string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	const variable = " -X k8s.io/component-base/version."
	all := []string{
		"-trimpath", "-buildvcs=false",
		"-ldflags=-s -w" + variable + "gitVersion=" + version + variable + "gitMajor=" + major + variable + "gitMinor=" + minor +
			" -X github.com/containerd/containerd/v2/version.Version=" + version,
	}
	if b.module.tags != "" {
		all = append(all, "-tags="+b.module.tags)
	}
	return all
}

func (b builder) build(ctx context.Context, name, file string) error {
	pkg, ok := b.module.programs[name]
	if !ok {
		return fmt.Errorf("%s has no program %s", b.module.folder, name)
	}
	version, err := b.run(ctx, b.recipe, "list", "-f", "{{.Module.Version}}", pkg)
	if err != nil {
		return fmt.Errorf("find the version of %s: %w", name, err)
	}
	fmt.Fprintf(b.out, "building %s for the tests, kept in %s (minutes the first time)\n", strings.TrimSpace(name+" "+version), b.cache)
	start := time.Now()
	defer b.reportProgress(name, start)()
	args := []string{"build", "-o", file}
	if strings.HasSuffix(name, ".test") {
		args = []string{"test", "-c", "-o", file}
	}
	if _, err := b.run(ctx, b.recipe, append(append(args, b.flags(version)...), pkg)...); err != nil {
		return fmt.Errorf("build %s: %w", name, err)
	}
	fmt.Fprintf(b.out, "built %s in %s\n", name, time.Since(start).Round(time.Second))
	return nil
}

// reportProgress reports twice a minute that a build goes on, until stop returns.
func (b builder) reportProgress(name string, start time.Time) (stop func()) {
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		ticks := time.NewTicker(30 * time.Second)
		defer ticks.Stop()
		for {
			select {
			case <-done:
				return
			case <-ticks.C:
				fmt.Fprintf(b.out, "building %s, %s so far\n", name, time.Since(start).Round(time.Second))
			}
		}
	}()
	return func() { close(done); <-stopped }
}
