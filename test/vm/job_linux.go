// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Job is a command to run in a machine.
type Job struct {
	// Command and its arguments. A path is one of this machine, and the program is
	// copied; a name without a slash is looked up in the machine.
	Command []string
	// Dir is where the command runs; the folder is created.
	Dir string
	// Env is added to the environment, NAME=VALUE each.
	Env []string
	// Files are copied in: it maps a path on this machine, which may be a folder, to a
	// path in the machine.
	Files map[string]string
	// Outputs are copied out: it maps a path in the machine to a path on this machine.
	// Files that do not exist when the command has ended are left out.
	Outputs map[string]string
	// Proxy installs kube-proxy, freshly built, for tests that run it. The calling
	// program must run below this module.
	Proxy bool
	// Modules are loaded first, with those that are always loaded.
	Modules []string
	// CPUs are 1 if 0. With one processor, the machine's clock counts instructions and
	// skips pauses, so that no test is too slow. With more, and with RealTime, the clock
	// is this machine's.
	CPUs     int
	RealTime bool
	// Fast makes a machine with a clock of its own twice as fast by that clock.
	Fast bool
	// Cmpxchg16b gives the processors that instruction, which QEMU emulates incorrectly:
	// kernel 6.12 crashes. BPF local storage of kernels from 6.19 on works with it alone.
	Cmpxchg16b bool
	// Disk is a file with the image of an ext4 file system, which the machine finds at
	// /disk. What the machine writes there is lost. Nodes of a cluster can run in a machine
	// with a disk, with their files in /root/.cache.
	Disk    string
	Memory  int           // in MB, 0 means 2048
	Timeout time.Duration // in this machine's time, 0 means 10 minutes
	// Stdout and Stderr receive the command's output while it runs. They may be the same
	// writer.
	Stdout, Stderr io.Writer
}

// Run runs j in a new machine and returns the command's exit code. An error means that
// there is none.
func (m Machine) Run(ctx context.Context, j Job) (int, error) {
	if len(j.Command) == 0 {
		return 0, errors.New("no command")
	}
	j = j.complete()
	folder, err := os.MkdirTemp("", "kubeproxy-vm-")
	if err != nil {
		return 0, err
	}
	code, err := m.run(ctx, j, folder)
	return code, errors.Join(err, os.RemoveAll(folder))
}

func (j Job) complete() Job {
	if j.CPUs == 0 {
		j.CPUs = 1
	}
	if j.Memory == 0 {
		j.Memory = 2048
	}
	if j.Timeout == 0 {
		j.Timeout = 10 * time.Minute
	}
	if j.Dir == "" {
		j.Dir = "/root"
	}
	if j.Stdout == nil {
		j.Stdout = io.Discard
	}
	if j.Stderr == nil {
		j.Stderr = io.Discard
	}
	return j
}

func (m Machine) run(ctx context.Context, j Job, folder string) (int, error) {
	if err := m.image(ctx, j, filepath.Join(folder, "image")); err != nil {
		return 0, fmt.Errorf("make the image: %w", err)
	}
	code, files, err := j.boot(ctx, m.kernel, folder)
	if err != nil {
		return 0, err
	}
	if err := j.extract(files); err != nil {
		return 0, fmt.Errorf("fetch the files that the command left, of %d bytes: %w\n%s", len(files), err, tail(folder))
	}
	return code, nil
}

// image writes the base and the files of j, one archive after the other.
func (m Machine) image(ctx context.Context, j Job, file string) error {
	if j.Proxy {
		release, err := m.addProxy(ctx, &j)
		if err != nil {
			return err
		}
		defer release()
	}
	t, err := j.tree()
	if err != nil {
		return err
	}
	base, err := os.Open(m.base)
	if err != nil {
		return err
	}
	defer base.Close()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = f.ReadFrom(base)
	return errors.Join(err, t.write(f), f.Close())
}

// tree returns the files of j.
func (j Job) tree() (tree, error) {
	t := tree{j.Dir: entry{dir: true}, "/tmp": entry{dir: true}}
	for from, to := range j.Files {
		if err := t.addProgram(from, to); err != nil {
			return nil, err
		}
	}
	if program := j.Command[0]; strings.Contains(program, "/") {
		file, err := filepath.Abs(program)
		if err == nil {
			err = t.addProgram(file, file)
		}
		if err != nil {
			return nil, err
		}
		j.Command = append([]string{file}, j.Command[1:]...)
	}
	for file, to := range j.Outputs {
		if info, err := os.Stat(to); err != nil || !info.IsDir() {
			file = filepath.Dir(file)
		}
		t[guestPath(file)] = entry{dir: true} // a program may expect it
	}
	disk := ""
	if j.Disk != "" {
		disk = diskInside
	}
	t["/vm/conf"] = entry{text: fmt.Sprintf("DISK=%s\nMODULES=%s\nOUTPUTS=%s\n", disk,
		quote(strings.Join(slices.Concat(modules, j.Modules), " ")),
		quote(strings.Join(slices.Sorted(maps.Keys(j.Outputs)), " ")))}
	var run strings.Builder
	fmt.Fprintf(&run, "cd %s\n", quote(j.Dir))
	for _, e := range j.Env {
		name, value, ok := strings.Cut(e, "=")
		if !ok {
			return nil, fmt.Errorf("variable %q: must be NAME=VALUE", e)
		}
		fmt.Fprintf(&run, "export %s=%s\n", name, quote(value))
	}
	run.WriteString("exec")
	for _, word := range j.Command {
		run.WriteString(" " + quote(word))
	}
	t["/vm/run"] = entry{text: run.String() + "\n"}
	return t, nil
}

// diskInside is where a machine has its disk.
const diskInside = "/disk"

// quote quotes word for a shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// extract writes the files of an archive to the paths in j.Outputs.
func (j Job) extract(files []byte) error {
	if len(j.Outputs) == 0 {
		return nil
	}
	for r := tar.NewReader(bytes.NewReader(files)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		to, ok := j.target("/" + h.Name)
		if !ok || h.Typeflag != tar.TypeReg {
			continue
		}
		if err := save(to, r, fs.FileMode(h.Mode).Perm()); err != nil {
			return err
		}
	}
}

// target returns the path on this machine for a file of the machine.
func (j Job) target(name string) (string, bool) {
	name = filepath.Clean(name)
	for from, to := range j.Outputs {
		if rest, err := filepath.Rel(from, name); err == nil && filepath.IsLocal(rest) {
			return filepath.Join(to, rest), true
		}
	}
	return "", false
}

func save(file string, content io.Reader, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, mode|0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}
