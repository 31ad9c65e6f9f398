// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Read returns the content of a regular file of at most limit bytes, and the FileInfo of
// the file that was read. It never blocks for long. It rejects what is not a regular
// file, even if that has only just replaced a regular file, and it rejects files of
// kernel file systems such as procfs.
func Read(path string, limit int64) ([]byte, fs.FileInfo, error) {
	f, info, err := open(path, limit)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	// Files that can block a reader support deadlines, others return an error.
	_ = f.SetReadDeadline(time.Now().Add(maxWait))
	content := bytes.NewBuffer(make([]byte, 0, info.Size()+bytes.MinRead)) // of the size that ReadFrom needs
	if _, err := content.ReadFrom(io.LimitReader(f, limit+1)); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(content.Len()) > limit {
		return nil, nil, fmt.Errorf("read %s: it grew past %d bytes", path, limit)
	}
	return content.Bytes(), info, nil
}

// Check returns the error that Read would return for path before it reads.
func Check(path string, limit int64) error {
	f, _, err := open(path, limit)
	if err != nil {
		return err
	}
	return f.Close()
}

// open opens a regular file. It rejects a device before opening it, because opening alone
// activates some devices.
func open(path string, limit int64) (*os.File, fs.FileInfo, error) {
	if err := checkName(path); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if err := CheckRegular(info, limit); err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	f, err := openNonblocking(path)
	if err != nil {
		return nil, nil, err
	}
	info, err = f.Stat()
	if err == nil {
		err = CheckRegular(info, limit)
	}
	if err == nil {
		err = checkNotKernelFile(f)
	}
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	return f, info, nil
}

// CheckRegular returns an error unless info is of a regular file of at most limit bytes.
func CheckRegular(info fs.FileInfo, limit int64) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("is %s; want a regular file", kindOf(info))
	}
	if info.Size() > limit {
		return fmt.Errorf("has %d bytes; want at most %d", info.Size(), limit)
	}
	return nil
}
