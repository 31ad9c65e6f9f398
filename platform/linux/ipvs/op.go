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
	addDevice        verb = iota
	addSets               // beside.VirtualServerSet and beside.NodeIPSet
	addServerToSet        // put it into the former
	delServerFromSet      // take it out
	addAddrToSet          // put an address of the node into the latter
	delAddrFromSet        // take it out
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

// errServerNotCreated is why a destination is not made: its virtual server was to be made,
// and was not. There may be one of somebody else.
var errServerNotCreated = errors.New("its virtual server was not made")

// errNotInSet is why a virtual server is not reached, though it is there.
var errNotInSet = errors.New("it cannot be put into the ipset of virtual servers")

// applyInOrder does ops by do, each for itself but for destinations of virtual
// servers that could not be made, and returns what went wrong by index.
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

// addsToSet reports that there is a virtual server once o was tried, err being what came
// of it, and that it belongs into the set of them.
func (o op) addsToSet(err error) bool {
	switch o.verb {
	case addServerToSet, addServer, setServer:
		return err == nil
	case delServer: // it is still there
		return err != nil && !errors.Is(err, errMissing)
	}
	return false
}

// markNotInSet notes in failed that those of ops failed that open virtual servers.
func markNotInSet(ops []op, failed map[int]error, err error) {
	for i := range ops {
		if ops[i].addsToSet(failed[i]) {
			failed[i] = errors.Join(failed[i], fmt.Errorf("%w: %w", errNotInSet, err))
		}
	}
}

// removesFromSet reports that there is none, which is not in the set any more before.
func (o op) removesFromSet() bool { return o.verb == delServerFromSet || o.verb == delServer }

// text is one line for people.
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

// driftText says what must have happened for o to be needed.
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
