// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"bufio"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
)

// client makes calls as the DLL does.
type client struct {
	t    *testing.T
	conn net.Conn
}

func dial(t *testing.T, s *Server) *client {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{t, conn}
}

// try makes a call. ok is false if the connection broke.
func (c *client) try(function, id string, handle uint64, args ...string) (Reply, bool) {
	fields := append([]string{function, id, strconv.FormatUint(handle, 10)}, args...)
	if writeFrame(bufio.NewWriter(c.conn), fields...) != nil {
		return Reply{}, false
	}
	fields, err := readFrame(c.conn)
	if err != nil || len(fields) != 5 {
		return Reply{}, false
	}
	code, err := strconv.ParseUint(fields[0], 16, 32)
	if err != nil {
		c.t.Fatalf("code %q: %v", fields[0], err)
	}
	got, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		c.t.Fatalf("handle %q: %v", fields[1], err)
	}
	return Reply{Code(code), got, fields[2], fields[3]}, true
}

func (c *client) call(function, id string, handle uint64, args ...string) Reply {
	c.t.Helper()
	reply, ok := c.try(function, id, handle, args...)
	if !ok {
		c.t.Fatalf("%s: the connection broke", function)
	}
	return reply
}

func (c *client) must(function, id string, handle uint64, args ...string) Reply {
	c.t.Helper()
	reply := c.call(function, id, handle, args...)
	if reply.Code != OK {
		c.t.Fatalf("%s: %v %s", function, reply.Code, reply.Error)
	}
	return reply
}

// read opens, queries and closes an object.
func (c *client) read(kind Kind, id string) Document {
	c.t.Helper()
	h := c.must("HcnOpen"+string(kind), id, 0).Handle
	d, ok := parse(c.must("HcnQuery"+string(kind)+"Properties", "", h, "{}").Output)
	if !ok {
		c.t.Fatalf("query of %s %s: no document", kind, id)
	}
	c.must("HcnClose"+string(kind), "", h)
	return d
}

// create returns the identity of the new object, or the code of the error.
func (c *client) create(kind Kind, network string, d Document) (string, Code) {
	c.t.Helper()
	var parent uint64
	if network != "" {
		parent = c.must("HcnOpenNetwork", network, 0).Handle
		defer func() { c.must("HcnCloseNetwork", "", parent) }()
	}
	reply := c.call("HcnCreate"+string(kind), "", parent, text(d))
	if reply.Code != OK {
		return "", reply.Code
	}
	d, _ = parse(c.must("HcnQuery"+string(kind)+"Properties", "", reply.Handle, "{}").Output)
	c.must("HcnClose"+string(kind), "", reply.Handle)
	return d.ID(), OK
}

// fixture is a host with an overlay network, a pod and a caller.
type fixture struct {
	*Server
	*client
	network, pod string
}

func newFixture(t *testing.T, o Options) *fixture {
	t.Helper()
	w := &fixture{Server: Start(t, o)}
	w.client = dial(t, w.Server)
	w.network = added(t)(w.AddNetwork(NetworkConfig{
		Name: "vxlan0", Type: "Overlay", Subnets: []netip.Prefix{netip.MustParsePrefix("10.244.3.0/24")},
		Routes: []Route{{netip.MustParsePrefix("10.244.7.0/24"), netip.MustParseAddr("192.0.2.7"), "00-15-5D-00-00-07"}},
	}))
	w.pod = added(t)(w.AddPod("vxlan0", "pod", netip.MustParseAddr("10.244.3.5")))
	return w
}

func added(t *testing.T) func(string, error) string {
	return func(id string, err error) string {
		t.Helper()
		if err != nil {
			t.Fatalf("add: %v", err)
		}
		return id
	}
}

// remote is the document of a remote endpoint.
func remote(ip string) Document {
	return Document{
		"Flags": 1, "MacAddress": "02-11-0a-f4-07-0b", "IpConfigurations": []any{map[string]any{"IpAddress": ip}},
		"Policies": []any{map[string]any{"Type": "ProviderAddress", "Settings": map[string]any{"ProviderAddress": "192.0.2.7"}}},
	}
}

func local(ip string) Document {
	return Document{"IpConfigurations": []any{map[string]any{"IpAddress": ip}}}
}

// balancer is the document of a load balancer with frontend 10.96.0.10:80/TCP.
func balancer(endpoints ...string) Document {
	ids := []any{}
	for _, e := range endpoints {
		ids = append(ids, e)
	}
	return Document{
		"HostComputeEndpoints": ids, "FrontendVIPs": []any{"10.96.0.10"},
		"PortMappings": []any{map[string]any{"Protocol": 6, "InternalPort": 8080, "ExternalPort": 80}},
	}
}

// with returns d with one field replaced, or removed for nil. A path leads into the first
// element of lists.
func with(d Document, path string, value any) Document {
	d, _ = parse(text(d))
	inner := map[string]any(d)
	keys := strings.Split(path, ".")
	for _, k := range keys[:len(keys)-1] {
		if list, ok := inner[k].([]any); ok {
			inner = list[0].(map[string]any)
		} else {
			inner = inner[k].(map[string]any)
		}
	}
	inner[keys[len(keys)-1]] = value
	return d
}
