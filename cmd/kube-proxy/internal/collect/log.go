// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"kubeproxy/common/files"
	"kubeproxy/common/support"
)

const (
	// mostLog bounds what is read of each log file, from its end.
	mostLog = 4 << 20
	// mostLogs bounds what is read of all together, which get equal shares.
	mostLogs = 12 << 20
)

// logPart is the part with all logs. The list of contents names them.
func (x *collector) logPart() support.Part {
	details := func() string { return strings.Join(x.logs, ", ") }
	return support.Part{Name: "log.txt", What: "the last lines of the log", Tail: true, Collect: x.log, Details: details}
}

// log writes the end of each log file that is found, the newest last.
func (x *collector) log(ctx context.Context, w io.Writer) error {
	var errs []error
	found, times := []string{}, map[string]time.Time{}
	for _, path := range x.logFiles() {
		info, err := os.Stat(path)
		switch {
		case err == nil && times[path].IsZero():
			found, times[path] = append(found, path), info.ModTime()
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			errs = append(errs, err)
		}
	}
	slices.SortStableFunc(found, func(a, b string) int { return times[a].Compare(times[b]) })
	share := int64(min(mostLog, mostLogs/max(len(found), 1)))
	for _, path := range found {
		if err := writeEnd(w, path, share); err != nil {
			errs = append(errs, err)
			continue
		}
		x.logs = append(x.logs, path)
	}
	journal, err := writeJournal(ctx, w)
	if journal {
		x.logs = append(x.logs, "journal of the unit kube-proxy")
	}
	if err := errors.Join(append(errs, err)...); err != nil {
		return err
	}
	if len(x.logs) == 0 {
		return support.NotHere("no log file was found: name it with --log-file, or add the output of kubectl logs")
	}
	return nil
}

// logFiles returns where the log may be.
func (x *collector) logFiles() []string {
	namespace := "kube-system"
	if text := strings.TrimSpace(string(content("/var/run/secrets/kubernetes.io/serviceaccount/namespace"))); text != "" {
		namespace = text
	}
	paths := slices.DeleteFunc(slices.Clone(x.LogFiles), func(path string) bool { return path == "" })
	for _, pattern := range logPatterns(namespace) {
		found, _ := filepath.Glob(pattern) // the patterns are valid
		paths = append(paths, found...)
	}
	return paths
}

// writeEnd writes the end of a file.
func writeEnd(w io.Writer, path string, most int64) error {
	if err := files.Check(path, math.MaxInt64); err != nil { // a pipe would block
		return err
	}
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
	if skip := info.Size() - most; skip > 0 {
		if _, err := f.Seek(skip, io.SeekStart); err != nil {
			return err
		}
	}
	_, err = io.Copy(w, io.LimitReader(f, most))
	return err
}
