// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logging makes the log of the process.
//
// The logging configuration of Kubernetes and a writer go in. The one logger comes out,
// which the functions of klog use as well. The package also has settings that change at
// run time, writers that do not block, and files that are rotated.
package logging

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"kubeproxy/common/files"
	"kubeproxy/common/printable"
)

// Log is the logger of the process, with those of its settings that can change.
type Log struct {
	klog.Logger
	Verbosity flag.Value
	vmodule   flag.Value // nil in format json
}

// JSON is the format of a log with an object a line.
const JSON = "json"

// Start creates the one logger, which the functions of klog use as well. Nothing
// is buffered, so a crash loses nothing. If there was another logger, as in a service
// that restarts within the process, nothing may use klog during the call.
func Start(c *logsapi.LoggingConfiguration, w io.Writer) (*Log, error) {
	klog.StopFlushDaemon()
	w = printable.Writer(w)
	l := &Log{}
	if c.Format == JSON {
		level := &slogLevel{}
		klog.SetSlogLogger(slog.New(warnings{slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level, ReplaceAttr: spellDurations})}))
		l.Verbosity = level
	} else {
		text := textlogger.NewConfig(textlogger.Output(w))
		klog.SetLoggerWithOptions(textlogger.NewLogger(text), klog.ContextualLogger(true))
		l.Verbosity, l.vmodule = text.Verbosity(), text.VModule()
	}
	l.Logger = klog.Background()
	return l, l.Reconfigure(c)
}

// Reconfigure applies all settings except the format.
func (l *Log) Reconfigure(c *logsapi.LoggingConfiguration) error {
	if d := c.FlushFrequency.Duration.Duration; d > 0 { // klog would exit the process for 0
		klog.StartFlushDaemon(d)
	}
	var modules []string
	for _, m := range c.VModule {
		modules = append(modules, fmt.Sprintf("%s=%d", m.FilePattern, m.Verbosity))
	}
	if l.vmodule != nil {
		if err := l.vmodule.Set(strings.Join(modules, ",")); err != nil {
			return fmt.Errorf("set vmodule: %w", err)
		}
	}
	return l.Verbosity.Set(strconv.Itoa(int(c.Verbosity)))
}

// slogLevel converts klog verbosity to a slog level. klog levels grow with detail, slog
// levels shrink. It implements flag.Value.
type slogLevel struct{ slog.LevelVar }

func (l *slogLevel) String() string { return strconv.Itoa(-int(l.Level())) }

func (l *slogLevel) Set(s string) error {
	n, err := strconv.ParseUint(s, 10, 31)
	if err != nil {
		return err
	}
	l.LevelVar.Set(slog.Level(-int(n)))
	return nil
}

// warning begins the text of a warning, as klog has no level between Info and Error.
const warning = "Warning: "

// warnings gives warnings their level, and takes it from their text. It implements slog.Handler.
type warnings struct{ slog.Handler }

func (w warnings) Handle(ctx context.Context, r slog.Record) error {
	if text, is := strings.CutPrefix(r.Message, warning); is && r.Level == slog.LevelInfo {
		r.Message, r.Level = text, slog.LevelWarn
	}
	return w.Handler.Handle(ctx, r)
}

func (w warnings) WithAttrs(all []slog.Attr) slog.Handler { return warnings{w.Handler.WithAttrs(all)} }
func (w warnings) WithGroup(name string) slog.Handler     { return warnings{w.Handler.WithGroup(name)} }

// LastError writes why the process ends as a line of a log in JSON.
func LastError(w io.Writer, err error) {
	slog.New(slog.NewJSONHandler(printable.Writer(w), nil)).Error("The proxy ends", "err", printable.Error(err))
}

// spellDurations writes "30s" where slog would write nanoseconds.
func spellDurations(_ []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	return a
}

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
// oldest of these files are removed. It implements io.Writer and io.Closer.
type rotatedFile struct {
	path  string
	limit int64 // bytes, 0 for none

	mu   sync.Mutex
	file *os.File // nil until a line comes
	size int64
	mode fs.FileMode // of the next file
}

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

// Writer is a log writer that does not block for long. Each Write returns when it is written, so a
// crash loses nothing. If the output blocks, as a full pipe or a hanging disk, lines are buffered.
// When the buffer is full, or the output fails, as a full disk or a pipe without reader, they are
// dropped, and the next line that is written has their count behind it.
type Writer struct {
	to io.Writer

	mu      sync.Mutex
	lines   []logLine // not written yet
	size    int       // of lines, in bytes
	dropped int
	json    bool // the last line is an object
	writing bool // a goroutine writes
	stalled bool // for longer than stallAfter
}

// NewWriter returns a Writer with an output.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

type logLine struct {
	text []byte
	done chan struct{} // closed when it is written
	lost int           // of how many dropped lines it tells
}

const (
	// stallAfter is how long a line may take.
	stallAfter = time.Second
	// stallBuffer is how many bytes of lines are buffered during a stall.
	stallBuffer = 1 << 20
)

// Write implements io.Writer. It returns no error: there is no other place to report one.
func (w *Writer) Write(text []byte) (int, error) {
	done, wait := w.queue(text)
	if !wait {
		return len(text), nil
	}
	timer := time.NewTimer(stallAfter)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
		w.mu.Lock()
		w.stalled = w.writing
		w.mu.Unlock()
	}
	return len(text), nil
}

// queue buffers a line. done is closed when it is written; wait is whether to wait for that.
func (w *Writer) queue(text []byte) (done chan struct{}, wait bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.size+len(text) > stallBuffer && len(w.lines) > 0 {
		w.dropped++
		return nil, false
	}
	done = make(chan struct{})
	w.lines = append(w.lines, logLine{slices.Clone(text), done, 0})
	w.size += len(text)
	if !w.writing {
		w.writing = true
		go w.drain()
	}
	return done, !w.stalled
}

// drain writes lines until there are none.
func (w *Writer) drain() {
	failing := false
	for {
		line, more := w.next(failing)
		if !more {
			return
		}
		_, err := w.to.Write(line.text)
		if failing = err != nil; failing {
			w.mu.Lock()
			w.dropped += max(line.lost, 1)
			w.mu.Unlock()
		}
		close(line.done)
	}
}

// next returns the line to write next: while lines were dropped and the output works, how many
// that were. Without one, drain ends.
func (w *Writer) next(failing bool) (line logLine, more bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.lines) == 0 && w.dropped > 0 && !failing {
		line = logLine{noticeOf(w.dropped, w.json), make(chan struct{}), w.dropped}
		w.dropped = 0
		return line, true
	}
	if len(w.lines) == 0 {
		w.writing, w.stalled = false, false
		return line, false
	}
	line = w.lines[0]
	w.lines, w.size = w.lines[1:], w.size-len(line.text)
	w.json = bytes.HasPrefix(line.text, []byte("{"))
	return line, true
}

// noticeOf says in the format of the log how many lines are missing.
func noticeOf(dropped int, json bool) []byte {
	if json {
		return fmt.Appendf(nil, `{"time":%q,"level":"ERROR","msg":"Lines of the log were dropped while nobody read it","lines":%d}`+"\n",
			time.Now().Format(time.RFC3339Nano), dropped)
	}
	return fmt.Appendf(nil, "kube-proxy: %d lines of the log were dropped while nobody read it\n", dropped)
}
