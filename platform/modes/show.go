// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"io"
	"slices"

	"kubeproxy/common/document"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/socketlb"
	"kubeproxy/platform/linux/userspace"
	"kubeproxy/platform/mode"
)

// Render prints what a node would install in mode d, with what accompanies the mode.
func Render(w io.Writer, d mode.Descriptor, want *service.Snapshot, r mode.Rendering) error {
	if err := d.Render(w, want, r); err != nil || d.OS != config.Linux || r.Config.SocketAcceleration == config.AccelerateNone {
		return err
	}
	if r.Format != document.Text {
		r.Note("socket acceleration is part of the text only")
		return nil
	}
	for _, f := range service.Families {
		if _, err := io.WriteString(w, socketlb.Text(want, f)); err != nil {
			return err
		}
	}
	return nil
}

// Limits lists what mode d, with what accompanies it, would do otherwise than the Services of want ask, a line each.
func Limits(d mode.Descriptor, want *service.Snapshot, r mode.Rendering) ([]string, error) {
	var lines []string
	for _, f := range service.Families {
		var out reconcile.Outcome
		if d.Limits != nil {
			var err error
			if out, err = d.Limits(want, f, r); err != nil {
				return nil, err
			}
		}
		if d.ListensOnLocalhost(f) {
			out.Notes = userspace.LocalhostNotes(want, f)
		}
		unsupported, notes := out.Limits(want, f)
		lines = slices.Concat(lines, unsupported, notes)
	}
	return lines, nil
}

// ReadBack returns what the node holds in mode d, and what it would hold for want, with
// what accompanies the mode, see mode.System.
func ReadBack(ctx context.Context, d mode.Descriptor, s mode.Setup, f service.Family, want *service.Snapshot) (held, wanted string, err error) {
	if held, wanted, err = d.System.ReadBack(ctx, s, f, want); err != nil || d.OS != config.Linux {
		return held, wanted, err
	}
	h, w, err := readBackAcceleration(s.Config, f, want)
	return held + h, wanted + w, err
}
