// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/common/traffic"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/netlink"
)

// requester makes our own requests to IPVS. The library moby/ipvs makes all others, see
// callClient. Our own are:
//   - Changes. With all of them through the library, a first program took 1.31 times what
//     a bare loop over the library takes; the aim in docs/benchmarks.md is 1.3. The
//     library builds a request of many small objects: in BenchmarkChange, three changes
//     cost 152 allocations and 493 µs through it, and 15 and 298 µs here.
//   - Statistics. The library counts connections and packets in 32 bits, see
//     assembleStats in its netlink_linux.go.
//   - Queries after the module was reloaded. The library looks up the number of IPVS once
//     in a process (setup in its netlink_linux.go) and only logs a failure of that, see
//     moby/ipvs#27. The kernel may give IPVS another number when it loads the module.
type requester struct {
	socket     *netlink.Socket
	message    netlink.Encoder
	familyID   uint16 // number of IPVS in generic netlink, until the module is reloaded
	family     service.Family
	lookupTime time.Duration // time spent on finding IPVS again
}

// receiveTimeout limits the wait for the next part of a list.
const receiveTimeout = 30 * time.Second

// openRequester returns a requester for IPVS, whose number is id.
func openRequester(f service.Family, id uint16) (*requester, error) {
	s, err := netlink.Dial(unix.NETLINK_GENERIC, netlink.Options{Timeout: receiveTimeout})
	return &requester{socket: s, familyID: id, family: f}, err
}

// retryOnReload calls request, and calls it again if IPVS has another number now.
func (r *requester) retryOnReload(request func() error) error {
	err := request()
	if !errors.Is(err, unix.ENOENT) {
		return err
	}
	start := time.Now()
	id, lack := ensureLoaded()
	r.lookupTime += time.Since(start)
	if lack != nil {
		return lack
	}
	if id == r.familyID {
		return err // ENOENT has another cause
	}
	r.familyID = id
	return request()
}

// Commands and attributes of IPVS (kernel: include/uapi/linux/ip_vs.h).
const (
	cmdGetService, cmdGetDest, cmdSetConfig, cmdGetConfig = 4, 8, 12, 13

	attrService = 1
	attrDest    = 2

	serviceFamily, serviceProtocol, serviceAddr, servicePort    = 1, 2, 3, 4
	serviceMark, serviceScheduler, serviceFlags, serviceTimeout = 5, 6, 7, 8
	serviceNetmask                                              = 9

	destAddr, destPort, destForward, destWeight, destUpper, destLower = 1, 2, 3, 4, 5, 6
	destActive, destInactive, destFamily                              = 7, 8, 11

	attrTCP, attrTCPFin, attrUDP = 4, 5, 6

	fwdMethodMask = 7 // IP_VS_CONN_F_FWD_MASK. Method 0 is masquerading
)

var commands = map[verb]uint8{addServer: 1, setServer: 2, delServer: 3, addDest: 5, setDest: 6, delDest: 7}

// change sends a command with what encode appends, and waits for the acknowledgement.
func (r *requester) change(command uint8, encode func()) error {
	return r.retryOnReload(func() error { return r.socket.Transact(r.encode(command, unix.NLM_F_ACK, encode)) })
}

// query sends a command and calls each with the attributes of every reply.
func (r *requester) query(command uint8, flags uint16, encode func(), each func(attrs []byte) error) error {
	return r.retryOnReload(func() error {
		return r.socket.Query(context.Background(), r.encode(command, flags, encode), func(m netlink.Message) error { return each(m.Generic()) })
	})
}

// encode returns a request. It is valid until the next one.
func (r *requester) encode(command uint8, flags uint16, encode func()) []byte {
	r.message.Buf = r.message.Buf[:0]
	r.message.GenericMessage(r.familyID, flags, command)
	encode()
	r.message.EndMessage()
	return r.message.Buf
}

func encodeNothing() {}

// do executes o, which concerns a virtual server or a destination.
func (r *requester) do(o *op) error {
	return r.change(commands[o.verb], func() {
		switch o.verb {
		case addServer, setServer:
			r.encodeServer(o.key, &o.server)
		case delServer:
			r.encodeServer(o.key, nil)
		default:
			r.encodeServer(o.key, nil)
			r.encodeDest(o.dest)
		}
	})
}

// encodeServer appends the key of a virtual server, and what s has unless it is nil.
func (r *requester) encodeServer(at service.Address, s *server) {
	e := &r.message
	begin := e.Nest(attrService)
	e.Native16(serviceFamily, af(r.family))
	e.Native16(serviceProtocol, uint16(at.Protocol))
	e.Bytes(serviceAddr, at.Addr.AsSlice())
	e.Uint16(servicePort, at.Port)
	if s != nil {
		e.Text(serviceScheduler, s.scheduler)
		var flags [8]byte // and the mask of those that count
		binary.NativeEndian.PutUint32(flags[:], s.flags)
		binary.NativeEndian.PutUint32(flags[4:], 0xffffffff)
		e.Bytes(serviceFlags, flags[:])
		e.Native32(serviceTimeout, s.timeout)
		e.Native32(serviceNetmask, netmask(r.family))
	}
	e.EndNest(begin)
}

func (r *requester) encodeDest(d dest) {
	e := &r.message
	begin := e.Nest(attrDest)
	e.Bytes(destAddr, d.addr.Addr().AsSlice())
	e.Uint16(destPort, d.addr.Port())
	e.Native32(destForward, 0) // masquerading
	e.Native32(destWeight, uint32(d.weight))
	e.Native32(destUpper, 0)
	e.Native32(destLower, 0)
	e.Native16(destFamily, af(r.family))
	e.EndNest(begin)
}

func (r *requester) listServers() (map[service.Address]*observedServer, error) {
	servers := map[service.Address]*observedServer{}
	err := r.query(cmdGetService, unix.NLM_F_DUMP, encodeNothing, func(attrs []byte) error {
		x, err := parseServer(attrs)
		if err == nil && x.family == af(r.family) && x.mark == 0 {
			servers[x.key] = &observedServer{server: x.server}
		}
		return err
	})
	return servers, err
}

func (r *requester) getServer(at service.Address) (server, error) {
	var x parsedServer
	err := r.query(cmdGetService, 0, func() { r.encodeServer(at, nil) }, func(attrs []byte) (err error) {
		x, err = parseServer(attrs)
		return err
	})
	return x.server, err
}

func (r *requester) listDests(at service.Address) ([]dest, error) {
	var dests []dest
	err := r.query(cmdGetDest, unix.NLM_F_DUMP, func() { r.encodeServer(at, nil) }, func(attrs []byte) error {
		x, err := parseDestination(attrs, r.family)
		dests = append(dests, x)
		return err
	})
	slices.SortFunc(dests, func(a, b dest) int { return a.addr.Compare(b.addr) })
	return dests, err
}

func (r *requester) getTimeouts() (timeouts, error) {
	var t timeouts
	err := r.query(cmdGetConfig, 0, encodeNothing, func(attrs []byte) error {
		for attr, to := range map[uint16]*time.Duration{attrTCP: &t.tcp, attrTCPFin: &t.tcpFin, attrUDP: &t.udp} {
			*to = time.Duration(netlink.Native32(netlink.Attribute(attrs, attr))) * time.Second
		}
		return nil
	})
	return t, err
}

func (r *requester) setTimeouts(t timeouts) error {
	return r.change(cmdSetConfig, func() {
		r.message.Native32(attrTCP, uint32(t.tcp/time.Second))
		r.message.Native32(attrTCPFin, uint32(t.tcpFin/time.Second))
		r.message.Native32(attrUDP, uint32(t.udp/time.Second))
	})
}

// parsedServer is a virtual server as the kernel returns it.
type parsedServer struct {
	key service.Address
	server
	family uint16
	mark   uint32 // the packet mark that selects its packets, if no address does
}

func parseServer(attrs []byte) (parsedServer, error) {
	var x parsedServer
	var addr []byte
	for kind, v := range netlink.Attributes(netlink.Attribute(attrs, attrService)) {
		switch kind {
		case serviceFamily:
			x.family = netlink.Native16(v)
		case serviceProtocol:
			x.key.Protocol = service.Protocol(netlink.Native16(v))
		case serviceAddr:
			addr = v
		case servicePort:
			x.key.Port = netlink.Uint16(v)
		case serviceMark:
			x.mark = netlink.Native32(v)
		case serviceScheduler:
			x.scheduler = netlink.Text(v)
		case serviceFlags:
			x.flags = netlink.Native32(v)
		case serviceTimeout:
			x.timeout = netlink.Native32(v)
		}
	}
	if x.mark != 0 {
		return x, nil
	}
	a, err := parseAddr(addr, x.family)
	x.key = addressAt(a, x.key.Port, x.key.Protocol)
	return x, err
}

func parseDestination(attrs []byte, f service.Family) (dest, error) {
	var x dest
	var addr []byte
	port, family := uint16(0), af(f)
	for kind, v := range netlink.Attributes(netlink.Attribute(attrs, attrDest)) {
		switch kind {
		case destAddr:
			addr = v
		case destPort:
			port = netlink.Uint16(v)
		case destForward:
			x.wrongMode = netlink.Native32(v)&fwdMethodMask != 0
		case destWeight:
			x.weight = uint16(netlink.Native32(v))
		case destActive, destInactive:
			x.conns += netlink.Native32(v)
		case destFamily:
			family = netlink.Native16(v)
		}
	}
	a, err := parseAddr(addr, family)
	x.addr = netip.AddrPortFrom(a, port)
	return x, err
}

// parseAddr returns the address in an attribute, which always has room for IPv6.
func parseAddr(v []byte, family uint16) (netip.Addr, error) {
	n := 4
	if family == unix.AF_INET6 {
		n = 16
	}
	if len(v) < n {
		return netip.Addr{}, fmt.Errorf("IPVS returned an address of %d bytes, want %d", len(v), n)
	}
	a, _ := netip.AddrFromSlice(v[:n])
	return a, nil
}

func af(f service.Family) uint16 {
	if f == service.IPv6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// netmask makes persistence distinguish all clients.
func netmask(f service.Family) uint32 {
	if f == service.IPv6 {
		return 128
	}
	return 0xffffffff
}

// openSets opens the socket for ipsets on first use.
func (k *kernel) openSets() (err error) {
	if k.sets == nil {
		k.sets, err = ipset.Open()
	}
	return err
}

// removeFromSet removes from the set the virtual servers that ops delete.
func (k *kernel) removeFromSet(ops []op) error {
	var entries []ipset.Entry
	for i := range ops {
		if ops[i].removesFromSet() {
			entries = append(entries, entryOf(ops[i].key))
		}
	}
	return k.deleteEntries(setOf(k.family, virtualServerSet), entries)
}

// addToSet adds to the set the servers that exist after ops, of which some failed.
func (k *kernel) addToSet(ops []op, failed map[int]error) error {
	var members []ipset.Member
	for i := range ops {
		if ops[i].addsToSet(failed[i]) {
			members = append(members, ipset.Member{Entry: entryOf(ops[i].key)})
		}
	}
	if len(members) == 0 {
		return nil
	}
	if err := k.openSets(); err != nil {
		return err
	}
	if err := k.sets.Add(setOf(k.family, virtualServerSet), members); !errors.Is(err, ipset.ErrMissing) {
		return err
	}
	return nil // without the set, no chain refers to it
}

// deleteEntries removes entries from s. It succeeds if the set does not exist.
func (k *kernel) deleteEntries(s ipset.Set, entries []ipset.Entry) error {
	if len(entries) == 0 || !ipset.Present() {
		return nil
	}
	if err := k.openSets(); err != nil {
		return err
	}
	if err := k.sets.Del(s, entries); !errors.Is(err, ipset.ErrMissing) {
		return err
	}
	return nil
}

// applySetOp creates the sets of servers and of node addresses, and changes the latter.
func (k *kernel) applySetOp(o *op) error {
	servers, addrs := setOf(k.family, virtualServerSet), setOf(k.family, nodeIPSet)
	e := ipset.Entry{Addr: o.route.addr}
	if o.verb == delAddrFromSet {
		return k.deleteEntries(addrs, []ipset.Entry{e})
	}
	if err := k.openSets(); err != nil {
		return err
	}
	if o.verb == addSets {
		return errors.Join(k.sets.Create(servers), k.sets.Create(addrs))
	}
	return k.sets.Add(addrs, []ipset.Member{{Entry: e}})
}

// readSets adds the contents of these sets to s.
func (k *kernel) readSets(s *state) error {
	if !ipset.Present() {
		return nil
	}
	if err := k.openSets(); err != nil {
		return err
	}
	servers, err := k.sets.List(setOf(k.family, virtualServerSet))
	addrs, addrsErr := k.sets.List(setOf(k.family, nodeIPSet))
	for _, err := range []error{err, addrsErr} {
		if err != nil && !errors.Is(err, ipset.ErrMissing) {
			return err
		}
	}
	s.hasSets, s.serverSet, s.addrSet = err == nil && addrsErr == nil, map[service.Address]bool{}, map[netip.Addr]bool{}
	heads, err := k.sets.Headers()
	if err != nil {
		return err
	}
	for _, h := range heads { // an altered set is replaced, see ipset.Header
		switch {
		case h.Altered && h.Name == setOf(k.family, virtualServerSet).Name:
			s.hasSets, servers = false, nil
		case h.Altered && h.Name == setOf(k.family, nodeIPSet).Name:
			s.hasSets, addrs = false, nil
		}
	}
	for _, e := range servers {
		s.serverSet[addressAt(e.Addr, e.Port, e.Protocol)] = true
	}
	for _, e := range addrs {
		s.addrSet[e.Addr] = true
	}
	return nil
}

// Counters reads the statistics of our virtual servers. It implements traffic.Reader. The kernel
// keeps them in any case, and adds them up every two seconds, never while
// net.ipv4.vs.run_estimation is 0 (kernel: net/netfilter/ipvs/ip_vs_est.c;
// https://docs.kernel.org/networking/ipvs-sysctl.html).
type Counters struct {
	requests *requester
	// latest are the statistics of the virtual servers and of their destinations. Those
	// of a virtual server without new traffic are still right.
	latest map[service.Address]serverCounts
}

// serverCounts are the statistics of a virtual server and its destinations.
type serverCounts struct {
	all   traffic.Counts
	dests map[netip.AddrPort]traffic.Counts
}

// NewCounters returns the Counters of one family in the calling thread's network namespace.
func NewCounters(f service.Family) (*Counters, error) {
	id, err := ensureLoaded()
	if err != nil {
		return nil, err
	}
	r, err := openRequester(f, id)
	if err != nil {
		return nil, fmt.Errorf("open a socket for the statistics of IPVS: %w", err)
	}
	return &Counters{requests: r}, nil
}

// Kinds implements traffic.Reader.
func (c *Counters) Kinds() traffic.Kinds { return traffic.Kinds{Packets: true, Bytes: true} }

// Read implements traffic.Reader. One request lists all virtual servers. Each one with
// traffic since the last call needs another request.
func (c *Counters) Read(context.Context, *service.Snapshot) ([]traffic.Sample, error) {
	// The replies are valid until the next request, and each may lead to one.
	servers := map[service.Address]traffic.Counts{}
	err := c.requests.query(cmdGetService, unix.NLM_F_DUMP, encodeNothing, func(attrs []byte) error {
		x, err := parseServer(attrs)
		if err == nil && x.family == af(c.requests.family) && x.mark == 0 && x.owned() {
			servers[x.key] = parseCounts(attrs, attrService)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	var samples []traffic.Sample
	now := make(map[service.Address]serverCounts, len(servers))
	for server, all := range servers {
		s := c.latest[server]
		if s.dests == nil || s.all != all {
			if s, err = c.readDests(server, all); err != nil {
				return nil, err
			}
		}
		now[server] = s
		for at, n := range s.dests {
			counter := traffic.Counter{Protocol: server.Protocol, Frontend: netip.AddrPortFrom(server.Addr, server.Port), Endpoint: at}
			samples = append(samples, traffic.Sample{Counter: counter, Counts: n})
		}
	}
	c.latest = now
	return samples, nil
}

// readDests reads the statistics of a server's destinations, none if it was deleted meanwhile.
func (c *Counters) readDests(at service.Address, all traffic.Counts) (serverCounts, error) {
	s := serverCounts{all, map[netip.AddrPort]traffic.Counts{}}
	if all == (traffic.Counts{}) {
		return s, nil
	}
	r := c.requests
	err := r.query(cmdGetDest, unix.NLM_F_DUMP, func() { r.encodeServer(at, nil) }, func(attrs []byte) error {
		d, err := parseDestination(attrs, r.family)
		if err == nil {
			s.dests[d.addr] = parseCounts(attrs, attrDest)
		}
		return err
	})
	if err != nil && !errors.Is(err, unix.ESRCH) {
		return s, fmt.Errorf("list the destinations of %s: %w", nameOf(at), err)
	}
	return s, nil
}

// Attributes with statistics (kernel: include/uapi/linux/ip_vs.h). The ones of virtual
// servers and destinations have the same number.
const (
	attrStats64 = 12

	statsConns, statsInPackets, statsOutPackets, statsInBytes, statsOutBytes = 1, 2, 3, 4, 5
)

// parseCounts returns the statistics inside the attribute of type kind.
func parseCounts(attrs []byte, kind uint16) traffic.Counts {
	var n traffic.Counts
	to := map[uint16]*uint64{
		statsConns: &n.Connections, statsInPackets: &n.PacketsIn, statsOutPackets: &n.PacketsOut, statsInBytes: &n.BytesIn, statsOutBytes: &n.BytesOut,
	}
	for stat, v := range netlink.Attributes(netlink.Attribute(netlink.Attribute(attrs, kind), attrStats64)) {
		if p := to[stat]; p != nil {
			*p = netlink.Native64(v)
		}
	}
	return n
}
