// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"

	"kubeproxy/common/files"
	"kubeproxy/common/support"
)

// Write writes to a new file that only its owner reads, to a device or named pipe, or to out.
func Write(ctx context.Context, d *support.Dump, path string, out io.Writer) (*support.Result, error) {
	if path == "-" || isStdout(path) {
		return d.Write(ctx, out)
	}
	f, err := files.Create(path, 0o600)
	if err != nil {
		return nil, err
	}
	r, err := d.Write(ctx, f)
	if err != nil {
		return r, errors.Join(err, f.Discard()) // an incomplete archive looks like a complete one
	}
	return r, f.Close()
}

// isStdout returns whether path, such as /dev/stdout, is a link to standard output.
func isStdout(path string) bool {
	link, lstatErr := os.Lstat(path)
	to, err := os.Stat(path)
	own, ownErr := os.Stdout.Stat()
	return errors.Join(lstatErr, err, ownErr) == nil && link.Mode()&fs.ModeSymlink != 0 && os.SameFile(to, own)
}
