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
)

// maxCopied is up to which size a file is copied. Larger ones are DLLs that nobody
// writes to; a copy shares them with its original, or else it would have
// 700 MB.
const maxCopied = 16 << 10

// copyTo makes the prefix again in a new folder.
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
		case name == "wineserver": // says where the server of the original is
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

// createCopy makes a new folder among the copies, which is locked while its program
// lives, and removes those of programs that died. Release gives the lock back,
// once the folder is removed.
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
	unlock, err := tryLock(folder + ".lock")
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

// lockCopies has nobody else, in whichever process, make or remove locks of folders
// until done is called. Who sweeps would else take the lock that somebody has
// just made and not locked yet, or has just given back and not removed yet.
func (w Windows) lockCopies(ctx context.Context) (done func(), err error) {
	return lock(ctx, filepath.Join(w.runs, "claims"))
}

// removeStaleCopies removes what a killed program left behind.
func (w Windows) removeStaleCopies() error {
	locks, err := filepath.Glob(filepath.Join(w.runs, "*.lock"))
	var errs []error
	for _, path := range locks {
		unlock, err := tryLock(path)
		if err != nil {
			continue // in use
		}
		errs = append(errs, os.RemoveAll(strings.TrimSuffix(path, ".lock")), os.Remove(path))
		unlock()
	}
	return errors.Join(append(errs, err)...)
}

// setEnvironment adds variables that services get: they do not inherit those
// of any program.
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
