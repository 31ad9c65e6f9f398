// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"

	"kubeproxy/common/service"
)

// NewCounters returns the Counters of one family. It uses only Dir and Role of o.
func NewCounters(f service.Family, o Options) *Counters {
	r := &runner{family: f, role: o.Role, dir: o.Dir}
	r.chooseName()
	r.resolvePrograms()
	return &Counters{family: f, list: r.saveCounters}
}

// saveCounters lists table nat with counters. It reads without the lock, so that no other
// process finds the lock taken.
func (r *runner) saveCounters(ctx context.Context) (string, error) {
	c := r.command(ctx, "-save", "-c", "-t", nat)
	c.Env = append(os.Environ(), noLockEnv)
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	if err := c.Run(); err != nil {
		return "", fmt.Errorf("%w: %s", err, strings.Join(strings.Fields(stderr.String()), " "))
	}
	return out.String(), nil
}
