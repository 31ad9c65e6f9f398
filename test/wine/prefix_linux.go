// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/json"
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

// maxCopied is the size up to which a file is copied. Larger ones are DLLs that are never
// written; a copy links to them, as it would take 700 MB otherwise.
const maxCopied = 16 << 10

// copyTo copies the prefix to a new folder.
func (w Windows) copyTo(folder string) error {
	return filepath.WalkDir(w.prefix, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(w.prefix, path)
		if err != nil {
			return err
		}
		target := filepath.Join(folder, name)
		switch {
		case name == "wineserver": // names the server of the original
			return nil
		case d.IsDir():
			return os.MkdirAll(target, 0o755)
		case d.Type() == fs.ModeSymlink:
			to, err := os.Readlink(path)
			return errors.Join(err, os.Symlink(to, target))
		}
		return share(path, target, d)
	})
}

func share(path, target string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	registry := filepath.Ext(path) == ".reg" // rewritten by the server
	if info.Size() > maxCopied && !registry {
		return os.Link(path, target)
	}
	text, err := os.ReadFile(path)
	return errors.Join(err, os.WriteFile(target, text, 0o644))
}

// createCopy creates a new folder among the copies, and removes those of programs that
// died. The folder is locked while its program lives. release releases the lock after the
// folder is removed.
func (w Windows) createCopy(ctx context.Context) (folder string, release func() error, err error) {
	done, err := w.lockCopies(ctx)
	if err != nil {
		return "", nil, err
	}
	defer done()
	if err := w.removeStaleCopies(); err != nil {
		return "", nil, err
	}
	folder, err = os.MkdirTemp(w.runs, "*")
	if err != nil {
		return "", nil, err
	}
	unlock, err := cache.TryLock(folder + ".lock")
	if err != nil {
		return "", nil, errors.Join(err, os.RemoveAll(folder))
	}
	return folder, func() error { return w.release(folder, unlock) }, nil
}

func (w Windows) release(folder string, unlock func()) error {
	defer unlock()
	done, err := w.lockCopies(context.Background())
	if err != nil {
		return err
	}
	defer done()
	return os.Remove(folder + ".lock")
}

// lockCopies excludes all other processes from creating and removing folder locks until
// done is called. Without it, removeStaleCopies might take a lock that another process
// has created but not locked yet, or has unlocked but not removed yet.
func (w Windows) lockCopies(ctx context.Context) (done func(), err error) {
	return cache.Lock(ctx, filepath.Join(w.runs, "claims"), nil)
}

// removeStaleCopies removes what a killed program left behind.
func (w Windows) removeStaleCopies() error {
	locks, err := filepath.Glob(filepath.Join(w.runs, "*.lock"))
	var errs []error
	for _, path := range locks {
		unlock, err := cache.TryLock(path)
		if err != nil {
			continue // in use
		}
		errs = append(errs, os.RemoveAll(strings.TrimSuffix(path, ".lock")), os.Remove(path))
		unlock()
	}
	return errors.Join(append(errs, err)...)
}

// setEnvironment adds variables for services, which do not inherit those of any program.
func setEnvironment(prefix string, env []string) error {
	if len(env) == 0 {
		return nil
	}
	path := filepath.Join(prefix, "system.reg")
	registry, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	// Newer versions of Wine have a link from the one to the other.
	key := `[System\\CurrentControlSet\\Control\\Session Manager\\Environment]`
	if !strings.Contains(string(registry), key) {
		key = strings.Replace(key, "CurrentControlSet", "ControlSet001", 1)
	}
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`)
	text := "\n" + key + " 1700000000\n"
	for _, e := range env {
		name, value, ok := strings.Cut(e, "=")
		if !ok {
			return fmt.Errorf("variable %q: want NAME=VALUE", e)
		}
		text += fmt.Sprintf("\"%s\"=\"%s\"\n", quote.Replace(name), quote.Replace(value))
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// patches are the changes to Go's standard library that tests need under Wine 8. The
// program itself is built without them.
var patches = []struct{ file, old, new string }{
	// Wine lacks the newer way to delete a file and returns an error code of its own. The
	// library has the older way as a fallback for other codes.
	{
		"internal/syscall/windows/at_windows.go",
		"case STATUS_INVALID_INFO_CLASS, ",
		"case NTStatus(0xC0000002), STATUS_INVALID_INFO_CLASS, ",
	},
	// Wine lacks SIO_UDP_NETRESET, which only matters to a program that evaluates its
	// effect. See https://learn.microsoft.com/windows/win32/winsock/winsock-ioctls
	{
		"net/fd_windows.go",
		"windows.SIO_UDP_NETRESET",
		"",
	},
}

// Overlay writes the patched files and the argument of go test -overlay into a folder,
// and returns the path of that argument.
func Overlay(ctx context.Context, folder string) (string, error) {
	root, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return "", fmt.Errorf("go env GOROOT: %w", err)
	}
	replace := map[string]string{}
	for _, p := range patches {
		from := filepath.Join(strings.TrimSpace(string(root)), "src", filepath.FromSlash(p.file))
		text, err := os.ReadFile(from)
		if err != nil {
			return "", err
		}
		patched, err := patch(string(text), p.old, p.new)
		if err != nil {
			return "", fmt.Errorf("patch %s: %w", from, err)
		}
		to := filepath.Join(folder, filepath.Base(from))
		if err := os.WriteFile(to, []byte(patched), 0o644); err != nil {
			return "", err
		}
		replace[from] = to
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	path := filepath.Join(folder, "overlay.json")
	return path, errors.Join(err, os.WriteFile(path, text, 0o644))
}

// patch replaces a text. If the new text is empty, it makes the first error check after
// the old one ignore WSAEOPNOTSUPP.
func patch(text, old, new string) (string, error) {
	before, after, ok := strings.Cut(text, old)
	if !ok {
		return "", fmt.Errorf("%q is not there: another version of Go", old)
	}
	if new != "" {
		return before + new + after, nil
	}
	const check = "err != nil"
	skipped, rest, ok := strings.Cut(after, check)
	if !ok {
		return "", fmt.Errorf("nothing is checked after %q: another version of Go", old)
	}
	return before + old + skipped + check + " && err != syscall.Errno(10045)" + rest, nil
}

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
