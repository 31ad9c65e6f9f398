// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"kubeproxy/common/support"
)

// mostLog bounds what is read of each log file, from its end.
const mostLog = 4 << 20

// log writes the end of each log file that is found.
func (x *collector) log(ctx context.Context, w io.Writer) error {
	paths := x.LogFiles
	if text, err := x.query.Page(ctx, "/flagz"); err == nil {
		paths = append(paths, flagIn(string(text), "log-file"))
	}
	for _, pattern := range logPatterns {
		found, _ := filepath.Glob(pattern) // the patterns are valid
		paths = append(paths, found...)
	}
	found := false
	var errs []error
	seen := map[string]bool{"": true}
	for _, path := range paths {
		if seen[path] {
			continue
		}
		seen[path] = true
		err := writeEnd(w, path)
		found = found || err == nil
		if !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	journal, err := writeJournal(ctx, w)
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if !found && !journal {
		return support.NotHere("no log file was found: name it with --log-file, or add the output of kubectl logs")
	}
	return nil
}

// flagIn returns the value of a flag on the page /flagz.
func flagIn(page, name string) string {
	for line := range strings.Lines(page) {
		if value, found := strings.CutPrefix(strings.TrimSpace(line), name+"="); found {
			return value
		}
	}
	return ""
}

// writeEnd writes the end of a file.
func writeEnd(w io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintf(w, "==> %s, %d bytes <==\n", path, info.Size()); err != nil {
		return err
	}
	if skip := info.Size() - mostLog; skip > 0 {
		if _, err := f.Seek(skip, io.SeekStart); err != nil {
			return err
		}
	}
	_, err = io.Copy(w, io.LimitReader(f, mostLog))
	return err
}
