// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package logging

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"kubeproxy/test/kit"
)

func TestStart(t *testing.T) {
	defer klog.ClearLogger()
	defer klog.StopFlushDaemon()
	c := &logsapi.LoggingConfiguration{Format: "json", Verbosity: 2}
	c.FlushFrequency.Duration.Duration = time.Second
	var b bytes.Buffer
	log, err := Start(c, &b)
	kit.Must(t, err)
	log.V(2).Info("shown", "service", "a/b", "took", 2*time.Second)
	log.V(3).Info("hidden")
	var line map[string]any
	if err := json.Unmarshal(b.Bytes(), &line); err != nil || line["msg"] != "shown" || line["service"] != "a/b" || line["took"] != "2s" {
		t.Errorf("json: %v, %s", err, b.String())
	}
	b.Reset()
	log.WithName("part").WithValues("a", 1).Info("Warning: odd", "list", []string{"x"})
	if got := b.String(); !strings.Contains(got, `"level":"WARN","msg":"odd"`) || !strings.Contains(got, `"list":["x"]`) {
		t.Errorf("a warning: %s", got)
	}

	b.Reset()
	c = &logsapi.LoggingConfiguration{Format: "text", VModule: logsapi.VModuleConfiguration{{FilePattern: "logging_*", Verbosity: 4}}}
	c.FlushFrequency.Duration.Duration = time.Second
	if log, err = Start(c, &b); err != nil {
		t.Fatal(err)
	}
	log.V(4).Info("shown")
	log.V(5).Info("hidden")
	klog.Background().Info("also shown")
	var got []string
	for line := range strings.Lines(b.String()) {
		_, text, _ := strings.Cut(line, "] ")
		got = append(got, line[:1]+" "+strings.TrimSpace(text))
	}
	kit.Same(t, "text (-want +got)", []string{`I "shown"`, `I "also shown"`}, got)
}

const megabyte = 1 << 20

// writeHalves writes lines of half a megabyte. A full file is named by the millisecond.
func writeHalves(t *testing.T, path string, megabytes, lines int) {
	t.Helper()
	log := OpenFile(path, megabytes)
	for range lines {
		for now := time.Now().UnixMilli(); time.Now().UnixMilli() == now; {
			runtime.Gosched()
		}
		if n, err := log.Write(make([]byte, megabyte/2)); n != megabyte/2 || err != nil {
			t.Fatal(n, err)
		}
	}
	err := log.Close()
	kit.Check(t, err == nil, "%v", err)
}

// sizes returns the sizes of the files in a folder, those of backups under "backup".
func sizes(t *testing.T, dir string) map[string][]int64 {
	t.Helper()
	all := map[string][]int64{}
	entries, err := os.ReadDir(dir)
	kit.Must(t, err)
	for _, e := range entries {
		info, err := e.Info()
		kit.Must(t, err)
		name := e.Name()
		if strings.HasPrefix(name, "a-2") {
			name = "backup"
		}
		all[name] = append(all[name], info.Size())
	}
	return all
}

// TestFile checks that a large log is rotated, and that the number of files is bounded.
func TestFile(t *testing.T) {
	for _, tt := range []struct{ megabytes, lines, backups, last int }{{1, 5, 2, 1}, {1, 4, 1, 2}, {1, 30, maxBackups, 2}, {0, 5, 0, 5}} {
		dir := filepath.Join(t.TempDir(), "logs")
		writeHalves(t, filepath.Join(dir, "a.log"), tt.megabytes, tt.lines)
		got := sizes(t, dir)
		n := len(got["backup"])
		kit.Check(t, n == tt.backups && len(got["a.log"]) == 1 && got["a.log"][0] == int64(tt.last)*megabyte/2, "%+v: %v", tt, got)
	}
}

// TestFileOfEarlierProcess goes on with a log that is there, keeps its permissions, and does not
// touch files with similar names.
func TestFileOfEarlierProcess(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.log")
	others := []string{"a-1.log", "a-2026.log", "b-2000-01-01T00-00-00.000.log", "a-2000-01-01T00-00-00.000.log.gz", "a.log.crash"}
	for _, name := range append(others, "a.log") {
		kit.Must(t, os.WriteFile(filepath.Join(dir, name), make([]byte, megabyte/2), 0o640))
	}
	writeHalves(t, path, 1, 15)
	for _, name := range others {
		_, err := os.Lstat(filepath.Join(dir, name))
		kit.Check(t, err == nil, "%s has gone: %v", name, err)
	}
	backups, _ := filepath.Glob(filepath.Join(dir, "a-20[1-9]?-*.log"))
	for _, file := range append(backups, path) {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o640 && filepath.Separator == '/' {
			t.Errorf("%s: mode %v, %v; want that of the first file", file, info.Mode(), err)
		}
	}
	kit.Check(t, len(backups) == maxBackups, "%d backups: %q", len(backups), backups)
}

// TestFileLinks neither removes a link nor follows it.
func TestFileLinks(t *testing.T) {
	dir := t.TempDir()
	path, victim := filepath.Join(dir, "a.log"), filepath.Join(t.TempDir(), "victim")
	link := filepath.Join(dir, "a-2000-01-01T00-00-00.000.log")
	kit.Must(t, errors.Join(os.WriteFile(victim, []byte("root\n"), 0o600), os.Symlink(victim, link)))
	writeHalves(t, path, 1, 15)
	_, err := os.Lstat(link)
	kit.Check(t, err == nil, "the link has gone: %v", err)
	kit.Must(t, os.Remove(path))
	kit.Must(t, os.Symlink(victim, path))
	if _, err := OpenFile(path, 1).Write([]byte("line\n")); err == nil || !strings.Contains(err.Error(), "is a symbolic link: want a regular file") {
		t.Errorf("a link in place of the log: %v", err)
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "root\n" {
		t.Errorf("a link was followed: %q, %v", text, err)
	}
}

// blockedWriter is a Writer that blocks until it is opened.
type blockedWriter struct {
	open chan struct{}
	bytes.Buffer
}

func (b *blockedWriter) Write(text []byte) (int, error) {
	<-b.open
	return b.Buffer.Write(text)
}

// TestStalledLog stalls the log for a while and for more lines than fit into the buffer.
func TestStalledLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &blockedWriter{open: make(chan struct{})}
		u := NewWriter(g)
		begin := time.Now()
		const lines = 3000
		for i := range lines {
			fmt.Fprintf(u, "%04d %s\n", i, strings.Repeat("x", 994))
		}
		took := time.Since(begin)
		kit.Check(t, took == stallAfter, "%d lines took %s, want %s for the first and nothing for the rest", lines, took, stallAfter)
		close(g.open)
		synctest.Wait()
		text := g.String()
		kept := strings.Count(text, "x\n")
		if want := fmt.Sprintf("kube-proxy: %d lines of the log were dropped while nobody read it\n", lines-kept); kept < stallBuffer/1000 || !strings.HasSuffix(text, want) {
			t.Errorf("%d lines are kept, and the end is %q", kept, text[max(len(text)-200, 0):])
		}
		g.Reset()
		fmt.Fprintln(u, "after")
		kit.Check(t, g.String() == "after\n", "the first line after a stall: %q, want it written when Write returns", g.String())
	})
}

// brokenWriter fails as long as it has no reader.
type brokenWriter struct {
	read bool
	bytes.Buffer
}

func (b *brokenWriter) Write(text []byte) (int, error) {
	if !b.read {
		return 0, syscall.EPIPE
	}
	return b.Buffer.Write(text)
}

// TestLostLog loses the reader of the log for some lines.
func TestLostLog(t *testing.T) {
	for first, want := range map[string]string{
		"text 1\n":       "kube-proxy: 2 lines of the log were dropped while nobody read it\n",
		`{"n":1}` + "\n": `"level":"ERROR","msg":"Lines of the log were dropped while nobody read it","lines":2}` + "\n",
	} {
		b := &brokenWriter{}
		w := NewWriter(b)
		fmt.Fprint(w, first)
		fmt.Fprint(w, first)
		b.read = true
		fmt.Fprint(w, first)
		kit.Until(t, "the log is written", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return !w.writing
		})
		got := b.String()
		kit.Check(t, strings.HasPrefix(got, first) && strings.HasSuffix(got, want), "%q, want %q", got, want)
	}
}
