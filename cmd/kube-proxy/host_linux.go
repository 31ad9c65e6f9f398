// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"kubeproxy/common/track"
	"kubeproxy/platform/linux/listeners"
)

// listeningSockets lists the sockets that programs of the node listen on.
func listeningSockets() ([]track.Socket, error) {
	found, err := listeners.List(sockets())
	if err != nil {
		return nil, err
	}
	all := make([]track.Socket, len(found))
	for i, l := range found {
		all[i] = track.Socket(l)
	}
	return all, nil
}
