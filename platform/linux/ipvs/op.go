// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// verb is what an op does.
type verb uint8

const (
	addDevice verb = iota
	addServer
	setServer
	addDest
	setDest
	delDest
	delServer
	addRoute
	delRoute
	delAddr // kube-proxy's, of the interface
)

// op is one step. Which fields count depends on the verb.
type op struct {
	verb   verb
	key    key
	server server
	dest   dest
	route  localRoute
}

// localRoute leads an address to the node itself.
type localRoute struct {
	addr netip.Addr
	// source is what the node's own connections to addr come from, invalid
	// for addr itself.
	source netip.Addr
}

// errUnmade is why a destination is not made: its virtual server was to be made,
// and was not. There may be one of somebody else.
var errUnmade = errors.New("its virtual server was not made")

// inTurn does ops by do, each for itself but for destinations of virtual
// servers that could not be made, and returns what went wrong by index.
func inTurn(ops []op, do func(*op) error) map[int]error {
	failed := map[int]error{}
	unmade := map[key]bool{}
	for i := range ops {
		o := &ops[i]
		err := errUnmade
		if o.verb != addDest || !unmade[o.key] {
			err = do(o)
		}
		if err == nil {
			continue
		}
		failed[i] = err
		if o.verb == addServer {
			unmade[o.key] = true
		}
	}
	return failed
}

// text is one line for people.
func (o op) text() string {
	switch o.verb {
	case addDevice:
		return "+ interface " + Device
	case addServer:
		return fmt.Sprintf("+ virtual server %s%s", o.key, o.server.text())
	case setServer:
		return fmt.Sprintf("~ virtual server %s%s", o.key, o.server.text())
	case delServer:
		return fmt.Sprintf("- virtual server %s", o.key)
	case addDest:
		return fmt.Sprintf("+ destination %s of %s", o.dest.addr, o.key)
	case delDest:
		return fmt.Sprintf("- destination %s of %s", o.dest.addr, o.key)
	case addRoute:
		if o.route.source.IsValid() {
			return fmt.Sprintf("+ address %s, reached from %s", o.route.addr, o.route.source)
		}
		return fmt.Sprintf("+ address %s", o.route.addr)
	case delRoute:
		return fmt.Sprintf("- address %s", o.route.addr)
	case delAddr:
		return fmt.Sprintf("- address %s of interface %s", o.route.addr, Device)
	}
	if o.dest.weight == 0 {
		return fmt.Sprintf("~ destination %s of %s drains, for %s at most", o.dest.addr, o.key, DrainBound)
	}
	return fmt.Sprintf("~ destination %s of %s has weight %d", o.dest.addr, o.key, o.dest.weight)
}

func (s server) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, ", scheduler %s", s.scheduler)
	if s.flags&flagPersistent != 0 {
		fmt.Fprintf(&b, ", clients stay for %d s", s.timeout)
	}
	return b.String()
}

// drifted says what must have happened for o to be needed.
func drifted(o op) string {
	text := o.text()
	switch o.verb {
	case addDevice, addServer, addDest, addRoute:
		return "missing: " + strings.TrimPrefix(text, "+ ")
	case delServer, delDest, delRoute:
		return "foreign: " + strings.TrimPrefix(text, "- ")
	}
	return "altered: " + strings.TrimPrefix(text, "~ ")
}
