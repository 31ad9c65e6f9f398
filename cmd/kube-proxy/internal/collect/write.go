// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"context"
	"errors"
	"io"
	"os"

	"kubeproxy/common/support"
)

// Write writes to a file that only its owner reads, or to out.
func Write(ctx context.Context, d *support.Dump, path string, out io.Writer) (*support.Result, error) {
	if path == "-" {
		return d.Write(ctx, out)
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	r, err := d.Write(ctx, f)
	if err = errors.Join(err, f.Close()); err != nil {
		err = errors.Join(err, os.Remove(path)) // an incomplete archive looks like a complete one
	}
	return r, err
}
