// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package modes

import (
	"context"
	"io"

	"kubeproxy/common/document"
	"kubeproxy/common/service"
	"kubeproxy/config"
	"kubeproxy/platform/linux/socketlb"
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

// ReadBack returns what the node holds in mode d, and what it would hold for want, with
// what accompanies the mode, see mode.System.
func ReadBack(ctx context.Context, d mode.Descriptor, s mode.Setup, f service.Family, want *service.Snapshot) (held, wanted string, err error) {
	if held, wanted, err = d.System.ReadBack(ctx, s, f, want); err != nil || d.OS != config.Linux {
		return held, wanted, err
	}
	h, w, err := readBackAcceleration(s.Config, f, want)
	return held + h, wanted + w, err
}
