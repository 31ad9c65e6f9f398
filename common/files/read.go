// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
)

// Read returns the content of a regular file of at most that many bytes, with
// what the system says of the very file that was read. It waits for nobody: what is
// no regular file is refused by its kind, also if it took a file's place only just
// now, and so are files that the kernel makes up.
func Read(path string, limit int64) ([]byte, fs.FileInfo, error) {
	f, info, err := open(path, limit)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	// A file that can keep a reader waiting has deadlines, others refuse them.
	_ = f.SetReadDeadline(time.Now().Add(maxWait))
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w", path, err)
	}
	if int64(len(content)) > limit {
		return nil, nil, fmt.Errorf("read %s: it grew past %d bytes", path, limit)
	}
	return content, info, nil
}

// Check tells why Read would not return path.
func Check(path string, limit int64) error {
	f, _, err := open(path, limit)
	if err != nil {
		return err
	}
	return f.Close()
}

// open opens a regular file. A device is refused before it is opened, as that alone
// starts some of them.
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

// CheckRegular returns why something is no regular file of at most that many bytes.
func CheckRegular(info fs.FileInfo, limit int64) error {
	mode := info.Mode()
	what := ""
	switch {
	case mode.IsRegular():
	case mode.IsDir():
		what = "a directory"
	case mode&fs.ModeNamedPipe != 0:
		what = "a named pipe"
	case mode&fs.ModeDevice != 0:
		what = "a device"
	case mode&fs.ModeSocket != 0:
		what = "a socket"
	default:
		what = "of type " + mode.Type().String()
	}
	if what != "" {
		return fmt.Errorf("is %s; want a regular file", what)
	}
	if info.Size() > limit {
		return fmt.Errorf("has %d bytes; want at most %d", info.Size(), limit)
	}
	return nil
}
