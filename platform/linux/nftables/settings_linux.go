// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
)

// The settings with which a proxy runs are in a table of their own, in every mode: they have to
// outlive the process and its container, and to end with the network namespace, as the rules do.
// The table has no chain, so no packet meets it. Comments hold the text, which is packed, since nft
// could not load its own listing again with longer comments or with quotes in them.
const settingsTable, commentSize = "kube-settings", 120

var settings = &set{name: "settings", key: []field{slot}}

// SettingsPlace is where the settings of the proxy that serves the Services labelled with name are.
func SettingsPlace(f service.Family, name string) Leftovers {
	return Leftovers{Family: f, Table: strings.TrimSuffix(settingsTable+"-"+name, "-")}
}

// KeepSettings replaces the text in the table, if it is another one.
func (l Leftovers) KeepSettings(ctx context.Context, text []byte) error {
	has, err := l.Settings()
	if err == nil && bytes.Equal(has, text) {
		return nil
	}
	var packed bytes.Buffer
	encoder64 := base64.NewEncoder(base64.StdEncoding, &packed)
	z := gzip.NewWriter(encoder64)
	_, _ = z.Write(text) // a buffer takes all
	_, _ = z.Close(), encoder64.Close()
	ops := []op{{verb: addTable}, {verb: addSet, set: settings}}
	for i := uint32(0); packed.Len() > 0; i++ {
		ops = append(ops, op{verb: addElement, element: element{in: settings, key: binary.NativeEndian.AppendUint32(nil, i), comment: string(packed.Next(commentSize))}})
	}
	if len(has) > 0 {
		ops, err = append([]op{{verb: delTable}}, ops...), nil
	} else { // there is no table, or none that can be read
		err = l.Remove(ctx)
	}
	if err == nil {
		err = l.withSocket(func(s *netlink.Socket, e *encoder) error { return transact(s, e, ops) })
	}
	if err != nil {
		return fmt.Errorf("%s: %w", l, netlink.NFTHint(err))
	}
	return nil
}

// Settings returns the text in the table, nil if there is no table.
func (l Leftovers) Settings() ([]byte, error) {
	r, err := dialReader(l.Family, Options{Table: l.Table})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	found := newObservedSet(setSpec{})
	err = retryRead(func() error {
		clear(found.elements)
		if err := r.find(); err != nil || r.table == nil {
			return err
		}
		return r.elements(settings.name, found)
	})
	switch {
	case netlink.LacksNFTables(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read %s: %w", l, netlink.NFTHint(err))
	case len(found.elements) == 0:
		return nil, nil
	}
	var packed strings.Builder
	for i := uint32(0); ; i++ {
		e, more := found.get(string(binary.NativeEndian.AppendUint32(nil, i)))
		if !more {
			break
		}
		packed.WriteString(e.comment)
	}
	z, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(packed.String())))
	if err != nil {
		return nil, fmt.Errorf("read %s: it was altered: %w", l, err)
	}
	text, err := io.ReadAll(io.LimitReader(z, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("read %s: it was altered: %w", l, err)
	}
	return text, nil
}
