// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// maxFile bounds a configuration file. A full one is 2 kB.
const maxFile = 1 << 20

// ReadFile reads the file that f names, nothing if it names none.
func (f *Flags) ReadFile() ([]byte, error) {
	if f.Config == "" {
		return nil, nil
	}
	return readFile(f.Config)
}

// readFile reads a regular file, also through a symbolic link. Anything else
// is refused before it is opened, as opening a FIFO would wait for a writer.
func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, fmt.Errorf("read configuration: %w", err)
	case info.IsDir():
		return nil, fmt.Errorf("read configuration: %s is a directory: want a file", path)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("read configuration: %s is a %s: want a regular file", path, kindOf(info.Mode()))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", path, err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read configuration: %s is larger than %d bytes: want a KubeProxyConfiguration", path, maxFile)
	}
	return data, nil
}

func kindOf(m os.FileMode) string {
	switch {
	case m&os.ModeNamedPipe != 0:
		return "named pipe"
	case m&os.ModeSocket != 0:
		return "socket"
	}
	return "device"
}
