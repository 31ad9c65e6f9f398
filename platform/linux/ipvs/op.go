// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// verb is the kind of an op.
type verb uint8

const (
	addDevice        verb = iota
	addSets               // companion.VirtualServerSet and companion.NodeIPSet
	addServerToSet        // to the former
	delServerFromSet      // from the former
	addAddrToSet          // an address of the node, to the latter
	delAddrFromSet        // from the latter
	addServer
	setServer
	addDest
	setDest
	delDest
	delServer
	addRoute
	delRoute
	delAddr // an address that kube-proxy assigned to the interface
)

// op is one step. The verb determines which fields are used.
type op struct {
	verb   verb
	key    key
	server server
	dest   dest
	route  localRoute
}

// localRoute is a route of type local: it delivers packets to an address to the node
// itself.
type localRoute struct {
	addr netip.Addr
	// source is the source address of the node's own connections to addr. If it is
	// invalid, the source is addr itself.
	source netip.Addr
}

// errServerNotCreated means that a destination was not added because its virtual server
// could not be created. A foreign one may exist in its place.
var errServerNotCreated = errors.New("its virtual server was not made")

// errNotInSet means that a virtual server exists but is not reachable.
var errNotInSet = errors.New("it cannot be put into the ipset of virtual servers")

// applyInOrder calls do for each op and returns the errors by index. It skips
// destinations of virtual servers that could not be created.
func applyInOrder(ops []op, do func(*op) error) map[int]error {
	failed := map[int]error{}
	notCreated := map[key]bool{}
	for i := range ops {
		o := &ops[i]
		err := errServerNotCreated
		if o.verb != addDest || !notCreated[o.key] {
			err = do(o)
		}
		if err == nil {
			continue
		}
		failed[i] = err
		if o.verb == addServer {
			notCreated[o.key] = true
		}
	}
	return failed
}

// addsToSet reports whether a virtual server exists after o was tried with the result
// err, so that it must be in the set.
func (o op) addsToSet(err error) bool {
	switch o.verb {
	case addServerToSet, addServer, setServer:
		return err == nil
	case delServer: // it still exists
		return err != nil && !errors.Is(err, errMissing)
	}
	return false
}

// markNotInSet adds err to the failures of those ops whose virtual server must be in the
// set.
func markNotInSet(ops []op, failed map[int]error, err error) {
	for i := range ops {
		if ops[i].addsToSet(failed[i]) {
			failed[i] = errors.Join(failed[i], fmt.Errorf("%w: %w", errNotInSet, err))
		}
	}
}

// removesFromSet reports whether o removes a virtual server from the set. Commit does
// that before it deletes the server.
func (o op) removesFromSet() bool { return o.verb == delServerFromSet || o.verb == delServer }

// text describes o in one line.
func (o op) text() string {
	switch o.verb {
	case addDevice:
		return "+ interface " + Device
	case addSets:
		return "+ ipsets of virtual servers and of the node's addresses"
	case addServerToSet:
		return fmt.Sprintf("+ %s in the ipset of virtual servers", o.key)
	case delServerFromSet:
		return fmt.Sprintf("- %s in the ipset of virtual servers", o.key)
	case addAddrToSet:
		return fmt.Sprintf("+ %s in the ipset of the node's addresses", o.route.addr)
	case delAddrFromSet:
		return fmt.Sprintf("- %s in the ipset of the node's addresses", o.route.addr)
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
		return fmt.Sprintf("~ destination %s of %s drains, for %s at most", o.dest.addr, o.key, DrainTimeout)
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

// driftText describes the foreign change that makes o necessary.
func driftText(o op) string {
	text := o.text()
	switch o.verb {
	case addDevice, addSets, addServerToSet, addAddrToSet, addServer, addDest, addRoute:
		return "missing: " + strings.TrimPrefix(text, "+ ")
	case delServerFromSet, delAddrFromSet, delServer, delDest, delRoute:
		return "foreign: " + strings.TrimPrefix(text, "- ")
	}
	return "altered: " + strings.TrimPrefix(text, "~ ")
}
