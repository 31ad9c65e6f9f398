// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"crypto/sha256"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ErrMissing means that this machine cannot run Windows programs.
var ErrMissing = errors.New("wine64 or its C compiler is missing; on Debian: apt-get install wine64 gcc-mingw-w64-x86-64-win32")

//go:embed shim
var shim embed.FS

// programs are those of the machine.
type programs struct {
	wine, server, compiler string
	setarch                []string // the command that runs Wine, or nil
}

// find returns the first of some programs that exists, given as paths or names.
func find(names ...string) (string, error) {
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrMissing
}

func installed() (programs, error) {
	var p programs
	var errs [3]error
	p.wine, errs[0] = find("/usr/lib/wine/wine64", "wine64")
	p.server, errs[1] = find("/usr/lib/wine/wineserver64", "wineserver64", "/usr/lib/wine/wineserver", "wineserver")
	p.compiler, errs[2] = find("x86_64-w64-mingw32-gcc")
	for _, err := range errs {
		if err != nil {
			return p, err
		}
	}
	p.setarch = setarchCommand()
	return p, nil
}

// setarchCommand returns a command prefix that disables address space randomization, see
// setarch(8). Wine needs the page at 0x7ffe0000. If nothing reserves it, as on Debian,
// Linux may place the heap there: one start in some thousand exits with code 1 and
// without a message. The result is nil if it is not permitted, as in some containers.
func setarchCommand() []string {
	path, err := exec.LookPath("setarch")
	if err != nil || exec.Command(path, "-R", "true").Run() != nil {
		return nil
	}
	return []string{path, "-R"}
}

// Windows is a prepared Wine prefix in which no program runs: each Wine gets a copy.
type Windows struct {
	programs
	prefix string
	runs   string // the folder for copies, on the same disk
}

// cacheLifetime is how long an unused prefix is kept.
const cacheLifetime = 30 * 24 * time.Hour

// Build returns a Windows. The first call on a machine creates it, which takes half a
// minute and is reported to out; later ones find it in the folder kubeproxy/wine of the
// user's cache.
func Build(ctx context.Context, out io.Writer) (Windows, error) {
	p, err := installed()
	if err != nil {
		return Windows{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return Windows{}, fmt.Errorf("find the cache folder: %w", err)
	}
	cache = filepath.Join(cache, "kubeproxy", "wine")
	key, err := p.key(ctx)
	if err != nil {
		return Windows{}, err
	}
	w := Windows{p, filepath.Join(cache, key), filepath.Join(cache, "runs")}
	if touch(w.prefix) {
		return w, nil
	}
	if err := os.MkdirAll(w.runs, 0o755); err != nil {
		return w, err
	}
	unlock, err := lock(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return w, fmt.Errorf("lock %s: %w", cache, err)
	}
	defer unlock()
	if touch(w.prefix) { // by the previous holder of the lock
		return w, nil
	}
	fmt.Fprintf(out, "preparing Wine for the tests, kept in %s (half a minute the first time)\n", cache)
	part := w.prefix + ".part"
	err = errors.Join(os.RemoveAll(part), w.prepare(ctx, part))
	if err == nil {
		err = os.Rename(part, w.prefix)
	}
	if err != nil {
		return w, errors.Join(fmt.Errorf("prepare Wine: %w", err), os.RemoveAll(part))
	}
	return w, prune(cache)
}

// key covers everything that a prefix depends on.
func (p programs) key(ctx context.Context) (string, error) {
	h := sha256.New()
	for _, program := range []string{p.wine, p.compiler} {
		text, err := exec.CommandContext(ctx, program, "--version").Output()
		if err != nil {
			return "", fmt.Errorf("%s --version: %w", program, err)
		}
		fmt.Fprintf(h, "%s %s\n", program, text)
	}
	err := fs.WalkDir(shim, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := shim.ReadFile(path)
		fmt.Fprintf(h, "%s %d\n%s", path, len(text), text)
		return err
	})
	return fmt.Sprintf("%x", h.Sum(nil))[:16], err
}

// system32 is where Windows finds its DLLs.
const system32 = "drive_c/windows/system32"

// keepProgram is the program of shim/keep.c.
const keepProgram = "keep.exe"

// dlls lists the DLLs with their sources and libraries.
var dlls = []struct {
	file, source string
	flags        []string
}{
	{"computenetwork.dll", "hns.c", []string{"-shared", "-lws2_32", "-lole32"}},
	{"vmcompute.dll", "hns.c", []string{"-shared", "-lws2_32", "-lole32"}},
	{"bcryptprimitives.dll", "random.c", []string{"-shared", "-ladvapi32"}},
	{keepProgram, "keep.c", []string{"-mwindows"}},
}

// prepare creates a prefix in a folder.
func (w Windows) prepare(ctx context.Context, folder string) error {
	sources := filepath.Join(folder, "sources")
	if err := os.CopyFS(sources, shim); err != nil {
		return err
	}
	sources = filepath.Join(sources, "shim")
	run := &Wine{programs: w.programs, prefix: folder, thread: newThread()}
	if err := run.serve(ctx); err != nil {
		return err
	}
	err := run.run(ctx, "wineboot", "-i")
	for _, d := range dlls {
		target := filepath.Join(folder, system32, d.file)
		args := append([]string{"-O2", "-s", "-Wall", "-Wextra", "-Werror", "-o", target, filepath.Join(sources, d.source)}, d.flags...)
		if err == nil {
			err = output(exec.CommandContext(ctx, w.compiler, args...))
		}
	}
	if err == nil {
		err = run.run(ctx, "regedit", "/S", filepath.Join(sources, "server2022.reg"))
	}
	return errors.Join(err, run.end())
}

// output runs a program, and returns its output as an error if it fails.
func output(cmd *exec.Cmd) error {
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, text)
	}
	return nil
}

// touch marks an existing folder as used, and returns whether it exists.
func touch(folder string) bool {
	now := time.Now()
	return os.Chtimes(folder, now, now) == nil
}

// lock waits until no other process holds a lock. The kernel releases the lock of a
// process that dies, see flock(2).
func lock(ctx context.Context, path string) (unlock func(), err error) {
	for {
		unlock, err := tryLock(path)
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return unlock, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func tryLock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() { f.Close() }, nil
}

// prune removes prefixes that have long been unused.
func prune(cache string) error {
	entries, err := os.ReadDir(cache)
	if err != nil {
		return fmt.Errorf("list old prefixes: %w", err)
	}
	var errs []error
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && e.IsDir() && e.Name() != "runs" && time.Since(info.ModTime()) > cacheLifetime {
			errs = append(errs, os.RemoveAll(filepath.Join(cache, e.Name())))
		}
	}
	return errors.Join(errs...)
}
