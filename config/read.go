// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"io"

	"kubeproxy/common/files"
)

// maxFile bounds a configuration file. A file with all settings has 2 kB.
const maxFile = 1 << 20

// ReadFile reads the file that f names. It returns nil if f names none.
func (f *Flags) ReadFile() ([]byte, error) {
	if f.Config == "" {
		return nil, nil
	}
	return readFile(f.Config)
}

// Read reads a configuration of at most the size that ReadFile takes.
func Read(from io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("it has more than %d bytes", maxFile)
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return data, nil
}

// readFile reads a regular file. Symbolic links are followed.
func readFile(path string) ([]byte, error) {
	data, _, err := files.Read(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return data, nil
}
