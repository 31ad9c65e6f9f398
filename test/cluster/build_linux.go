// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

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

	"golang.org/x/sys/unix"

	"kubeproxy/test/vm"
)

// Programs are the paths of the control plane's programs.
type Programs struct{ Etcd, APIServer string }

// The tools in test/e2e/go.mod that are built, in this order.
var (
	controlPlane = []product{
		{"etcd", "go.etcd.io/etcd/server/v3"},
		{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
	}
	upstreamProxy = []product{{"kube-proxy.exe", "k8s.io/kubernetes/cmd/kube-proxy"}}
)

// cacheLifetime is how long unused programs are kept.
const cacheLifetime = 30 * 24 * time.Hour

// Build returns the programs of the control plane. The first call on a machine builds
// them, which takes minutes and is reported to out; later ones find them in the folder
// kubeproxy/e2e of the user's cache. It works only below the product's module, which
// provides the versions of the sources. A virtual machine cannot build, so the programs
// are installed there in advance.
func Build(ctx context.Context, out io.Writer) (Programs, error) {
	if folder := os.Getenv(vm.ControlPlaneVariable); folder != "" {
		return programsIn(folder), nil
	}
	b, err := newBuilder(ctx, out, command)
	if err != nil {
		return Programs{}, err
	}
	return b.programs(ctx)
}

// UpstreamProxy returns the path of Kubernetes' own kube-proxy.exe for windows/amd64, of
// the control plane's version. It is built and kept as the control plane is.
func UpstreamProxy(ctx context.Context, out io.Writer) (string, error) {
	b, err := newBuilder(ctx, out, commandWindows)
	if err != nil {
		return "", err
	}
	folder, err := b.folder(ctx, upstreamProxy)
	return filepath.Join(folder, upstreamProxy[0].name), err
}

func newBuilder(ctx context.Context, out io.Writer, run runner) (builder, error) {
	b := builder{out: out, run: run}
	root, err := b.run(ctx, ".", "env", "GOMOD")
	if err != nil {
		return b, fmt.Errorf("find the module: %w", err)
	}
	b.recipe = filepath.Join(filepath.Dir(root), "test", "e2e")
	cache, err := os.UserCacheDir()
	if err != nil {
		return b, fmt.Errorf("find the cache folder: %w", err)
	}
	b.cache = filepath.Join(cache, "kubeproxy", "e2e")
	return b, nil
}

func programsIn(folder string) Programs {
	return Programs{Etcd: filepath.Join(folder, "etcd"), APIServer: filepath.Join(folder, "kube-apiserver")}
}

// builder builds the tools of a recipe, which is a Go module, into a cache folder.
type builder struct {
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

// product is a program and the package it is built from.
type product struct{ name, pkg string }

func (b builder) programs(ctx context.Context) (Programs, error) {
	folder, err := b.folder(ctx, controlPlane)
	return programsIn(folder), err
}

// folder returns the cache folder of products, and builds missing ones under a lock. An
// interrupted build leaves nothing that looks complete.
func (b builder) folder(ctx context.Context, products []product) (string, error) {
	key, err := b.key(ctx)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", b.recipe, err)
	}
	folder := filepath.Join(b.cache, key)
	if touch(folder) {
		return folder, nil
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return folder, fmt.Errorf("lock %s: %w", b.cache, err)
	}
	defer unlock()
	if touch(folder) { // by the previous holder of the lock
		return folder, nil
	}
	part := folder + ".part"
	err = os.RemoveAll(part)
	for _, p := range products {
		if err == nil {
			err = b.build(ctx, p.pkg, filepath.Join(part, p.name))
		}
	}
	if err == nil {
		err = os.Rename(part, folder)
	}
	if err != nil {
		return folder, errors.Join(err, os.RemoveAll(part))
	}
	return folder, b.prune()
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
	fmt.Fprintln(h, env, flags("version"))
	return fmt.Sprintf("%x", h.Sum(nil))[:16], nil
}

// flags are those of go build. Without a version in them, an API server reports v0.0.0.
func flags(version string) []string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	const variable = " -X k8s.io/component-base/version."
	return []string{
		"-trimpath", "-buildvcs=false",
		"-ldflags=-s -w" + variable + "gitVersion=" + version + variable + "gitMajor=" + major + variable + "gitMinor=" + minor,
	}
}

func (b builder) build(ctx context.Context, pkg, file string) error {
	name := filepath.Base(file)
	version, err := b.run(ctx, b.recipe, "list", "-f", "{{.Module.Version}}", pkg)
	if err != nil {
		return fmt.Errorf("find the version of %s: %w", name, err)
	}
	fmt.Fprintf(b.out, "building %s %s for the tests, kept in %s (minutes the first time)\n", name, version, b.cache)
	start := time.Now()
	defer b.reportProgress(name, start)()
	args := append([]string{"build", "-o", file}, flags(version)...)
	if _, err := b.run(ctx, b.recipe, append(args, pkg)...); err != nil {
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

// lock waits until no other process builds. The kernel releases the lock of a process
// that dies, see flock(2).
func (b builder) lock(ctx context.Context) (unlock func(), err error) {
	if err := os.MkdirAll(b.cache, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(b.cache, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	told := false
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(err, f.Close())
		}
		if !told {
			fmt.Fprintln(b.out, "waiting for another build of the control plane")
			told = true
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// touch marks an existing folder as used, and returns whether it exists.
func touch(folder string) bool {
	now := time.Now()
	return os.Chtimes(folder, now, now) == nil
}

// prune removes programs that have long been unused.
func (b builder) prune() error {
	entries, err := os.ReadDir(b.cache)
	if err != nil {
		return fmt.Errorf("list old programs: %w", err)
	}
	var errs []error
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && e.IsDir() && time.Since(info.ModTime()) > cacheLifetime {
			errs = append(errs, os.RemoveAll(filepath.Join(b.cache, e.Name())))
		}
	}
	return errors.Join(errs...)
}
