// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package netlink

import (
	"encoding/binary"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// ErrInterrupted means that a table changed while the kernel listed it.
var ErrInterrupted = errors.New("the table changed while it was read")

// Err returns the error in a message of type NLMSG_ERROR or NLMSG_DONE, nil for an
// acknowledgement. It includes the kernel's own words if there are any.
func (m Message) Err() error {
	if len(m.Body) < 4 {
		if m.Type == unix.NLMSG_DONE {
			return nil
		}
		return errors.New("short netlink error")
	}
	code := int32(binary.NativeEndian.Uint32(m.Body))
	if code == 0 || m.Type == unix.NLMSG_DONE && code > 0 {
		return nil
	}
	err := error(unix.Errno(-code))
	if text := Text(Attribute(m.errorAttributes(), unix.NLMSGERR_ATTR_MSG)); text != "" {
		err = fmt.Errorf("%w (%s)", err, text)
	}
	return err
}

// errorAttributes returns the attributes of an error. They follow the header of the
// request, or the whole request if it is repeated, see https://docs.kernel.org/userspace-api/netlink/intro.html.
func (m Message) errorAttributes() []byte {
	if m.Flags&unix.NLM_F_ACK_TLVS == 0 {
		return nil
	}
	at := 4
	if m.Type == unix.NLMSG_ERROR {
		if len(m.Body) < at+messageHeader {
			return nil
		}
		if m.Flags&unix.NLM_F_CAPPED == 0 {
			at += align(int(binary.NativeEndian.Uint32(m.Body[at:])))
		} else {
			at += messageHeader
		}
	}
	return m.Body[min(max(at, 0), len(m.Body)):]
}
