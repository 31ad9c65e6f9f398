// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"kubeproxy/test/kit"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, data string) { kit.Must(t, os.WriteFile(in(name), []byte(data), 0o600)) }
	write("good", head)
	write("large", strings.Repeat("#", maxFile+1))
	kit.Must(t, syscall.Mkfifo(in("fifo"), 0o600))
	l, err := net.Listen("unix", in("socket"))
	kit.Must(t, err)
	defer l.Close()
	for _, name := range []string{"good", "fifo", "nothing"} {
		kit.Must(t, os.Symlink(name, in("to-"+name)))
	}
	tests := map[string]string{
		in("good"): "", in("to-good"): "",
		in("fifo"): "is a named pipe; want", in("to-fifo"): "is a named pipe; want", in("socket"): "is a socket; want",
		"/dev/zero": "is a device; want", dir: "is a directory; want",
		in("nothing"): "no such file", in("to-nothing"): "no such file", in("large"): "bytes; want at most",
	}
	for path, want := range tests {
		_, err := Load(&Flags{Modes: testModes, Config: path, StrictConfig: true}, Linux)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: %v", path, err)
		case want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path)):
			t.Errorf("%s: error %v, want one with %q and the path", path, err, want)
		}
	}
}
