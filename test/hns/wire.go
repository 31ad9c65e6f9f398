// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// maxFrame bounds a frame in bytes. A list of 100,000 identities has 4 MB.
const maxFrame = 64 << 20

// A frame is a length of four bytes, little-endian, and fields that each end with a zero
// byte. A request has the function, a GUID, a handle in decimal and three strings, of
// which the last ones may be left out. A reply has the code in hexadecimal, a handle, and
// two documents.

func readFrame(r io.Reader) ([]string, error) {
	var length uint32
	if err := binary.Read(r, binary.LittleEndian, &length); err != nil {
		return nil, err
	}
	if length > maxFrame {
		return nil, fmt.Errorf("frame of %d bytes: at most %d", length, maxFrame)
	}
	frame := make([]byte, length)
	if _, err := io.ReadFull(r, frame); err != nil {
		return nil, err
	}
	return strings.Split(string(frame), "\x00"), nil
}

func writeFrame(w *bufio.Writer, fields ...string) error {
	frame := strings.Join(fields, "\x00") + "\x00"
	length := binary.LittleEndian.AppendUint32(nil, uint32(len(frame)))
	_, err := w.Write(append(length, frame...))
	return errors.Join(err, w.Flush())
}

func requestOf(fields []string) Request {
	fields = append(fields, make([]string, 6)...)
	handle, _ := strconv.ParseUint(fields[2], 10, 64) // 0 is never open
	return Request{Function: fields[0], ID: fields[1], Handle: handle, Args: [3]string(fields[3:6])}
}

// Serve serves calls of the program under test until the listener is closed, which closes
// all connections.
func (s *Simulator) Serve(l net.Listener) error {
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			s.DropConnections()
			return nil
		}
		if err != nil {
			return fmt.Errorf("accept a caller: %w", err)
		}
		s.addPeer(c)
		go func() {
			defer s.removePeer(c)
			s.serveConn(c)
		}()
	}
}

func (s *Simulator) serveConn(c net.Conn) {
	r, w := bufio.NewReader(c), bufio.NewWriter(c)
	for {
		fields, err := readFrame(r)
		if err != nil {
			return // the caller has gone, or uses another protocol
		}
		reply := s.CallAs(Caller, requestOf(fields))
		code := fmt.Sprintf("%08x", uint32(reply.Code))
		if writeFrame(w, code, strconv.FormatUint(reply.Handle, 10), reply.Output, reply.Error) != nil {
			return
		}
	}
}

type closer interface{ Close() error }

// peers are the connections.
type peers struct {
	open   map[closer]bool
	served int // and those that were dropped in the middle of a call
}

func (p peers) drop() {
	for c := range p.open {
		_ = c.Close() // the peer will notice
		delete(p.open, c)
	}
}

func (s *Simulator) addPeer(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers.open[c] = true
	s.peers.served++
}

// Connections returns how many connections there are. A dropped one counts until its
// current call is over.
func (s *Simulator) Connections() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.peers.served
}

func (s *Simulator) removePeer(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.peers.open, c)
	s.peers.served--
	_ = c.Close()
}

// Code is an HRESULT.
type Code uint32

// The codes that HNS returns, as far as this package knows. See hcn/hcnerrors.go of
// microsoft/hcsshim.
const (
	OK                Code = 0
	NotImplemented    Code = 0x80004001
	InvalidParameter  Code = 0x80070057
	InvalidHandle     Code = 0x80070006
	GeneralFailure    Code = 0x8007001f
	NotFound          Code = 0x80070490 // also of load balancers
	AlreadyExists     Code = 0x800700b7
	ObjectExists      Code = 0x80071392
	ServerUnavailable Code = 0x800706ba // HNS does not run
	UnknownInterface  Code = 0x800706b5 // HNS starts or stops
	NetworkNotFound   Code = 0x803b0001
	EndpointNotFound  Code = 0x803b0002
	PortNotFound      Code = 0x803b0007 // of the virtual switch
	InvalidPolicy     Code = 0x803b000d
	InvalidPolicyType Code = 0x803b000e
	PortExists        Code = 0x803b0013
	InvalidJSON       Code = 0x803b001b
	InvalidIP         Code = 0x803b001e
	AddressReserved   Code = 0x803b002f
)

// texts are the messages of Windows for codes. Programs should not parse them.
var texts = map[Code]string{
	NotImplemented:    "Not implemented",
	InvalidParameter:  "The parameter is incorrect.",
	InvalidHandle:     "The handle is invalid.",
	GeneralFailure:    "A device attached to the system is not functioning.",
	NotFound:          "Element not found.",
	AlreadyExists:     "Cannot create a file when that file already exists.",
	ObjectExists:      "The object already exists.",
	ServerUnavailable: "The RPC server is unavailable.",
	UnknownInterface:  "The interface is unknown.",
	NetworkNotFound:   "The network was not found.",
	EndpointNotFound:  "The endpoint was not found.",
	PortNotFound:      "The specified port was not found.",
	InvalidPolicy:     "The provided policy configuration is invalid or missing parameters.",
	InvalidPolicyType: "The provided policy type is invalid.",
	PortExists:        "The specified port already exists.",
	InvalidJSON:       "JSON document is invalid.",
	InvalidIP:         "IP address is either invalid or not part of any configured subnet(s).",
	AddressReserved:   "An address provided is invalid or reserved.",
}

// String is the code in hexadecimal.
func (c Code) String() string { return fmt.Sprintf("%#08x", uint32(c)) }

// Error implements error.
func (c Code) Error() string {
	if text, ok := texts[c]; ok {
		return text + " (" + c.String() + ")"
	}
	return "HRESULT " + c.String()
}

// err is c as an error, nil for OK.
func (c Code) err() error {
	if c == OK {
		return nil
	}
	return c
}

// missing is the code for an object that does not exist.
func missing(kind Kind) Code {
	switch kind {
	case Network:
		return NetworkNotFound
	case Endpoint:
		return EndpointNotFound
	}
	return NotFound
}

// Version is the version of HNS, not that of Windows.
type Version struct{ Major, Minor int }

// Versions returns the versions in the field: Windows Server 2019, 2022 and 2025. Of 2025
// there are two, the first of which accepts changes of a load balancer and ignores them.
func Versions() []Version { return []Version{{9, 5}, {13, 3}, {15, 4}, {15, 5}} }

// ParseVersion parses the format of String: "13.3".
func ParseVersion(text string) (Version, error) {
	major, minor, ok := strings.Cut(text, ".")
	a, errA := strconv.Atoi(major)
	b, errB := strconv.Atoi(minor)
	if !ok || errA != nil || errB != nil {
		return Version{}, fmt.Errorf("HNS version %q: want two numbers, such as 13.3", text)
	}
	return Version{a, b}, nil
}

// String is two numbers: "13.3".
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Major, v.Minor) }

func (v Version) atLeast(major, minor int) bool {
	return v.Major > major || v.Major == major && v.Minor >= minor
}

// The features of each version. hcsshim reads the version and concludes the same, see
// hcn/hcnglobals.go of microsoft/hcsshim. Remote subnets came with 9.2, before every
// version that is simulated.

func (v Version) dsr() bool       { return v.Major == 9 && v.Minor >= 3 || v.atLeast(10, 2) }
func (v Version) dualStack() bool { return v.atLeast(11, 10) }
func (v Version) affinity() bool  { return v.atLeast(12, 0) }

// modify is whether a change of a load balancer is accepted, and works whether it has any
// effect.
func (v Version) modify() bool { return v.atLeast(15, 4) }
func (v Version) works() bool  { return v.atLeast(15, 5) }

// server2019 is whether the version has the quirks that were not observed in later ones.
func (v Version) server2019() bool { return v.Major < 10 }

// Kind is a kind of object, as it is spelt in the names of functions.
type Kind string

// The kinds of objects.
const (
	Network      Kind = "Network"
	Endpoint     Kind = "Endpoint"
	LoadBalancer Kind = "LoadBalancer"
	Namespace    Kind = "Namespace"
	SdnRoute     Kind = "SdnRoute"
)

// Kinds returns all kinds.
func Kinds() []Kind { return []Kind{Network, Endpoint, LoadBalancer, Namespace, SdnRoute} }

// Document is an HNS object as it is transmitted: JSON of schema 2. Numbers are float64.
// A missing field reads as the zero value.
type Document map[string]any

// ID returns the object's identity in lower case.
func (d Document) ID() string { return strings.ToLower(d.text("ID")) }

// Name returns the object's name; load balancers have none.
func (d Document) Name() string { return d.text("Name") }

// Type returns a network's type.
func (d Document) Type() string { return d.text("Type") }

// Flags returns the object's flags.
func (d Document) Flags() int { return d.number("Flags") }

// Remote returns whether an endpoint is on another host.
func (d Document) Remote() bool { return d.Flags()&1 != 0 }

// NetworkID returns an endpoint's network in lower case.
func (d Document) NetworkID() string { return strings.ToLower(d.text("HostComputeNetwork")) }

// MAC returns an endpoint's hardware address.
func (d Document) MAC() string { return d.text("MacAddress") }

// Endpoints returns the endpoints of a load balancer, identities in lower case.
func (d Document) Endpoints() []string {
	ids := d.texts("HostComputeEndpoints")
	for i, id := range ids {
		ids[i] = strings.ToLower(id)
	}
	return ids
}

// VIPs returns a load balancer's addresses; none means those of the node.
func (d Document) VIPs() []string { return d.texts("FrontendVIPs") }

// SourceVIP returns the address a load balancer masquerades with.
func (d Document) SourceVIP() string { return d.text("SourceVIP") }

// Ports returns a load balancer's port mappings.
func (d Document) Ports() []Document { return d.list("PortMappings") }

// IPs returns an endpoint's addresses. Invalid ones are left out.
func (d Document) IPs() []netip.Addr {
	var ips []netip.Addr
	for _, c := range d.list("IpConfigurations") {
		if a, err := netip.ParseAddr(c.text("IpAddress")); err == nil {
			ips = append(ips, a)
		}
	}
	return ips
}

// Subnets returns a network's subnets, each with its gateway, which may be the zero Addr.
func (d Document) Subnets() []Subnet {
	var subnets []Subnet
	for _, ipam := range d.list("Ipams") {
		for _, s := range ipam.list("Subnets") {
			if sub, ok := subnet(s); ok {
				subnets = append(subnets, sub)
			}
		}
	}
	return subnets
}

// Subnet is a subnet of a network.
type Subnet struct {
	Prefix  netip.Prefix
	Gateway netip.Addr
	vsid    bool
}

func subnet(d Document) (Subnet, bool) {
	prefix, err := netip.ParsePrefix(d.text("IpAddressPrefix"))
	if err != nil {
		return Subnet{}, false
	}
	s := Subnet{Prefix: prefix.Masked(), vsid: len(d.policies("VSID")) > 0}
	for _, r := range d.list("Routes") {
		if a, err := netip.ParseAddr(r.text("NextHop")); err == nil {
			s.Gateway = a
		}
	}
	return s, true
}

// policies returns the settings of the policies of one type.
func (d Document) policies(typ string) []Document {
	var found []Document
	for _, p := range d.list("Policies") {
		if p.text("Type") == typ {
			found = append(found, p.object("Settings"))
		}
	}
	return found
}

func (d Document) text(key string) string { s, _ := d[key].(string); return s }
func (d Document) number(key string) int  { f, _ := d[key].(float64); return int(f) }

func (d Document) object(key string) Document {
	m, _ := d[key].(map[string]any)
	return m
}

func (d Document) list(key string) []Document {
	values, _ := d[key].([]any)
	list := make([]Document, 0, len(values))
	for _, v := range values {
		m, _ := v.(map[string]any)
		list = append(list, m)
	}
	return list
}

func (d Document) texts(key string) []string {
	values, _ := d[key].([]any)
	list := make([]string, 0, len(values))
	for _, v := range values {
		s, _ := v.(string)
		list = append(list, s)
	}
	return list
}

// parse parses a document. Its values have the types that encoding/json produces,
// whatever the text is.
func parse(text string) (Document, bool) {
	var d Document
	if err := json.Unmarshal([]byte(text), &d); err != nil || d == nil {
		return nil, false
	}
	return d, true
}

// clone copies d deeply, so that it may leave the Simulator.
func (d Document) clone() Document {
	copied, _ := copyOf(map[string]any(d)).(map[string]any)
	return copied
}

func copyOf(v any) any {
	switch v := v.(type) {
	case map[string]any:
		m := maps.Clone(v)
		for k := range m {
			m[k] = copyOf(m[k])
		}
		return m
	case []any:
		l := slices.Clone(v)
		for i := range l {
			l[i] = copyOf(l[i])
		}
		return l
	}
	return v
}
