// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/test/kit"
)

// TestWriteToPipe writes an archive to a named pipe whose reader ends. The pipe stays.
func TestWriteToPipe(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	kit.Must(t, unix.Mkfifo(pipe, 0o600))
	reader, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	kit.Must(t, err)
	d := &Dump{Folder: "x", Timeout: time.Minute, Secrets: &Secrets{}, Parts: []Part{{Name: "a", Collect: func(_ context.Context, w io.Writer) error {
		reader.Close()
		_, err := io.WriteString(w, "text")
		return err
	}}}}
	_, err = Write(t.Context(), d, pipe, io.Discard)
	kit.Check(t, err != nil && strings.Contains(err.Error(), "broken pipe"), "%v, want a broken pipe", err)
	if info, err := os.Lstat(pipe); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
		t.Errorf("the pipe has gone: %v", err)
	}
}

// TestLogsOfPods tells the log of the proxy from those of others with such names.
func TestLogsOfPods(t *testing.T) {
	for path, want := range map[string]bool{
		"/var/log/pods/kube-system_kubeproxy-x7k2p_0c6e/kube-proxy/0.log":  true,
		"/var/log/pods/kube-system_kube-proxy-abcde_1c6e/kube-proxy/3.log": true,
		"/var/log/kube-proxy.log": true,
		"/var/log/pods/zz-tenant_kube-proxy-evil_2c6e/kube-proxy/0.log":   false,
		"/var/log/pods/kube-system-x_kube-proxy_2c6e/kube-proxy/0.log":    false,
		"/var/log/pods/kube-system_coredns-kube-proxy_2c6e/coredns/0.log": false,
		"/var/log/pods/kube-system_kubeproxy-x7k2p_0c6e/settings/0.log":   false,
	} {
		got := slices.ContainsFunc(logPatterns("kube-system"), func(p string) bool { ok, _ := filepath.Match(p, path); return ok })
		kit.Check(t, got == want, "%s: %t, want %t", path, got, want)
	}
}

// TestLogsShare collects a long log, a short one that is newer, and one that is no file.
func TestLogsShare(t *testing.T) {
	dir := t.TempDir()
	long, short, pipe := filepath.Join(dir, "long.log"), filepath.Join(dir, "short.log"), filepath.Join(dir, "pipe.log")
	for path, text := range map[string]string{long: strings.Repeat("long\n", 2<<20) + "\x1b]0;owned\a the end of it\n", short: "short\r\n"} {
		kit.WriteFile(t, path, text)
	}
	hour := time.Now().Add(-time.Hour)
	kit.Must(t, os.Chtimes(long, hour, hour))
	x := &collector{Options: Options{LogFiles: []string{short, long, "", short, filepath.Join(dir, "none.log")}}}
	d := &Dump{Folder: "x", Timeout: time.Minute, Secrets: &Secrets{}, Parts: []Part{x.logPart()}}
	var archive bytes.Buffer
	_, err := d.Write(t.Context(), &archive)
	kit.Must(t, err)
	files := unpack(t, archive.Bytes())
	log := files["x/log.txt"]
	if len(log) < mostLog || len(log) > mostLog+1000 || !strings.Contains(log, `\x1b]0;owned\a the end of it`) || !strings.Contains(log, "short.log, 7 bytes <==\nshort\n") ||
		strings.Index(log, "long.log") > strings.Index(log, "short.log") {
		t.Errorf("%d bytes: %q ... %q", len(log), log[:min(len(log), 100)], log[max(0, len(log)-200):])
	}
	want := ": " + long + ", " + short
	kit.Check(t, strings.Contains(files["x/CONTENTS.txt"], want), "want %q in %s", want, files["x/CONTENTS.txt"])
	kit.Must(t, unix.Mkfifo(pipe, 0o600))
	x = &collector{Options: Options{LogFiles: []string{pipe}}}
	err = x.log(t.Context(), io.Discard)
	kit.Check(t, err != nil && strings.Contains(err.Error(), "is a named pipe"), "a named pipe: %v", err)
}
