// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package collect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"

	"kubeproxy/common/support"
)

// command is a part that a program of the system prints. It is left out if the program
// does not exist.
func command(name, what, program string, args ...string) support.Part {
	return support.Part{Name: name, What: what, Collect: func(ctx context.Context, w io.Writer) error {
		return run(ctx, w, program, args...)
	}}
}

func run(ctx context.Context, w io.Writer, program string, args ...string) error {
	var stderr bytes.Buffer
	c := exec.CommandContext(ctx, program, args...)
	c.Stdout, c.Stderr = w, &stderr
	err := c.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return support.NotHere("the command " + program + " is missing")
	case err != nil:
		return fmt.Errorf("%s: %w: %s", strings.Join(c.Args, " "), err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return nil
}
