// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package wine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
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
