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

	"kubeproxy/test/cache"
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

// What the cache folder has besides prefixes.
const (
	runsFolder = "runs" // copies that run
	lockFile   = "lock"
)

// Build returns a Windows. The first call on a machine creates it, which takes half a
// minute and is reported to out; later ones find it in the folder kubeproxy/wine of the
// user's cache.
func Build(ctx context.Context, out io.Writer) (Windows, error) {
	p, err := installed()
	if err != nil {
		return Windows{}, err
	}
	folder, err := cache.Folder("wine")
	if err != nil {
		return Windows{}, err
	}
	key, err := p.key(ctx)
	if err != nil {
		return Windows{}, err
	}
	w := Windows{p, filepath.Join(folder, key), filepath.Join(folder, runsFolder)}
	if cache.Touch(w.prefix) {
		return w, nil
	}
	if err := os.MkdirAll(w.runs, 0o755); err != nil {
		return w, err
	}
	unlock, err := cache.Lock(ctx, filepath.Join(folder, lockFile), nil)
	if err != nil {
		return w, err
	}
	defer unlock()
	if cache.Touch(w.prefix) { // by the previous holder of the lock
		return w, nil
	}
	fmt.Fprintf(out, "preparing Wine for the tests, kept in %s (half a minute the first time)\n", folder)
	part := w.prefix + ".part"
	err = errors.Join(os.RemoveAll(part), w.prepare(ctx, part))
	if err == nil {
		err = os.Rename(part, w.prefix)
	}
	if err != nil {
		return w, errors.Join(fmt.Errorf("prepare Wine: %w", err), os.RemoveAll(part))
	}
	return w, cache.Prune(folder, runsFolder, lockFile)
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

// BuildProgram builds a program of this module for Windows.
func BuildProgram(exe, pkg string) error {
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", exe, pkg)
	cmd.Env = append(os.Environ(), "GOOS=windows", "GOARCH=amd64", "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for Windows: %w\n%s", pkg, err, text)
	}
	return nil
}
