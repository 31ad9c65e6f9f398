// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"kubeproxy/common/files"
)

// maxBackups is how many log files are kept beside the current one.
const maxBackups = 5

// backupTime is in the names of the files beside the current one, in UTC.
const backupTime = "2006-01-02T15-04-05.000"

// OpenFile returns a log file that is rotated when it reaches a number of megabytes, 0 for
// never. The first line creates it.
func OpenFile(path string, megabytes int) io.WriteCloser {
	return &rotatedFile{path: path, limit: int64(megabytes) << 20, mode: 0o600}
}

// rotatedFile is a log file. When it is full, it gets the time as a part of its name, and the
// oldest of these files are removed.
type rotatedFile struct {
	path  string
	limit int64 // bytes, 0 for none

	mu   sync.Mutex
	file *os.File // nil until a line comes
	size int64
	mode fs.FileMode // of the next file
}

// Write implements io.Writer.
func (r *rotatedFile) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		if err := r.open(); err != nil {
			return 0, err
		}
	}
	if full := r.size > 0 && r.size+int64(len(line)) > r.limit; r.limit > 0 && full {
		if err := r.rotate(); err != nil {
			return 0, err
		}
	}
	n, err := r.file.Write(line)
	r.size += int64(n)
	return n, err
}

// Close implements io.Closer.
func (r *rotatedFile) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}

func (r *rotatedFile) open() error {
	if err := files.MkdirPrivate(filepath.Dir(r.path)); err != nil {
		return err
	}
	f, err := files.Append(r.path, r.mode)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return errors.Join(err, f.Close())
	}
	r.file, r.size, r.mode = f, info.Size(), info.Mode().Perm()
	return nil
}

// rotate begins a new file. Where the full one cannot be renamed, lines go on into it.
func (r *rotatedFile) rotate() error {
	err := r.file.Close()
	r.file = nil
	backup := r.backup(time.Now().UTC().Format(backupTime))
	if _, lstatErr := os.Lstat(backup); errors.Is(lstatErr, fs.ErrNotExist) {
		err = errors.Join(err, os.Rename(r.path, backup), r.prune())
	}
	if openErr := r.open(); openErr != nil {
		return errors.Join(err, openErr)
	}
	return nil
}

// backup returns the name of a file beside the current one.
func (r *rotatedFile) backup(at string) string {
	ext := filepath.Ext(r.path)
	return fmt.Sprintf("%s-%s%s", strings.TrimSuffix(r.path, ext), at, ext)
}

// prune removes the oldest files that rotate has named.
func (r *rotatedFile) prune() error {
	entries, err := os.ReadDir(filepath.Dir(r.path))
	if err != nil {
		return err
	}
	prefix, ext, _ := strings.Cut(filepath.Base(r.backup("\n")), "\n")
	var names []string
	for _, e := range entries {
		at, begins := strings.CutPrefix(e.Name(), prefix)
		at, ends := strings.CutSuffix(at, ext)
		if _, err := time.Parse(backupTime, at); err == nil && begins && ends && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	for _, name := range names[:max(len(names)-maxBackups, 0)] {
		err = errors.Join(err, os.Remove(filepath.Join(filepath.Dir(r.path), name)))
	}
	return err
}

// CaptureCrash writes the crash report of the Go runtime, which would be lost, to a file
// beside the log. It returns nil if that is not possible.
func CaptureCrash(log string) *os.File {
	if files.MkdirPrivate(filepath.Dir(log)) != nil {
		return nil
	}
	f, err := files.Append(log+".crash", 0o644)
	if err != nil {
		return nil
	}
	if debug.SetCrashOutput(f, debug.CrashOptions{}) != nil {
		_ = f.Close()
		return nil
	}
	return f
}
