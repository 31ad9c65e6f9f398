// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
)

// This file sends requests for ipsets itself, because the library panics when a list is
// interrupted.

// setsModule exists if the kernel has loaded ipsets. A request for them would load the
// module.
const setsModule = "/sys/module/ip_set"

// headersOnly requests a list of sets without elements.
const headersOnly = 1 << 2

// requestIPSet sends a request and returns the replies without headers.
func requestIPSet(command int, attrs ...*nl.RtAttr) ([][]byte, error) {
	req := nl.NewNetlinkRequest(command|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(command))
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_INET, Version: nl.NFNETLINK_V0})
	req.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	for _, a := range attrs {
		req.AddData(a)
	}
	messages, err := req.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return nil, err
	}
	for i, m := range messages {
		messages[i] = m[min(len(m), nl.SizeofNfgenmsg):]
	}
	return messages, nil
}

func setName(name string) *nl.RtAttr {
	return nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name))
}

// readSets reads the ipsets of kube-proxy and the NodePorts in them.
func (u *upstreamState) readSets(f service.Family) error {
	if _, err := os.Stat(setsModule); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	heads, err := requestIPSet(nl.IPSET_CMD_LIST, nl.NewRtAttr(nl.IPSET_ATTR_FLAGS|int(nl.NLA_F_NET_BYTEORDER), binary.BigEndian.AppendUint32(nil, headersOnly)))
	if err != nil {
		return fmt.Errorf("list ipsets: %w", err)
	}
	for _, head := range heads {
		name, kind := "", ""
		for _, text := range attributes(head, nl.IPSET_ATTR_SETNAME) {
			name = nl.BytesToString(text)
		}
		for _, text := range attributes(head, nl.IPSET_ATTR_TYPENAME) {
			kind = nl.BytesToString(text)
		}
		proto, is := upstreamSet(f, name, kind)
		if !is {
			continue
		}
		u.sets = append(u.sets, name)
		if proto == 0 {
			continue
		}
		if err := u.readPorts(proto, name); err != nil {
			return err
		}
	}
	slices.Sort(u.sets)
	return nil
}

// readPorts reads the elements of a set.
func (u *upstreamState) readPorts(proto service.Protocol, name string) error {
	parts, err := requestIPSet(nl.IPSET_CMD_LIST, setName(name))
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list ipset %s: %w", name, err)
	}
	for _, part := range parts {
		for _, list := range attributes(part, nl.IPSET_ATTR_ADT) {
			for _, element := range attributes(list, nl.IPSET_ATTR_DATA) {
				u.addPorts(proto, element)
			}
		}
	}
	return nil
}

func (u *upstreamState) addPorts(proto service.Protocol, element []byte) {
	for _, port := range attributes(element, nl.IPSET_ATTR_PORT) {
		if len(port) >= 2 {
			u.ports[nodePort{proto, binary.BigEndian.Uint16(port)}] = true
		}
	}
}

// attributes returns the values of one type, none if text cannot be parsed.
func attributes(text []byte, typ uint16) [][]byte {
	all, err := nl.ParseRouteAttr(text)
	if err != nil {
		return nil
	}
	var values [][]byte
	for _, a := range all {
		if a.Attr.Type&nl.NLA_TYPE_MASK == typ {
			values = append(values, a.Value)
		}
	}
	return values
}

// destroySet destroys a set that no rule refers to. It succeeds if the set does not
// exist.
func destroySet(name string) error {
	_, err := requestIPSet(nl.IPSET_CMD_DESTROY, setName(name))
	var number unix.Errno
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case errors.As(err, &number) && number == nl.IPSET_ERR_BUSY:
		return fmt.Errorf("destroy ipset %s: a rule refers to it", name)
	case err != nil:
		return fmt.Errorf("destroy ipset %s: %w", name, err)
	}
	return nil
}
