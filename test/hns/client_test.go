// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"kubeproxy/test/kit"
)

// client makes calls as the DLL does.
type client struct {
	t    *testing.T
	conn net.Conn
}

func dial(t *testing.T, s *Server) *client {
	t.Helper()
	conn, err := net.Dial("tcp", s.Addr)
	kit.Need(t, err == nil, "dial: %v", err)
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
	kit.Need(c.t, ok, "%s: the connection broke", function)
	return reply
}

func (c *client) must(function, id string, handle uint64, args ...string) Reply {
	c.t.Helper()
	reply := c.call(function, id, handle, args...)
	kit.Need(c.t, reply.Code == OK, "%s: %v %s", function, reply.Code, reply.Error)
	return reply
}

// read opens, queries and closes an object.
func (c *client) read(kind Kind, id string) Document {
	c.t.Helper()
	h := c.must("HcnOpen"+string(kind), id, 0).Handle
	d, ok := parse(c.must("HcnQuery"+string(kind)+"Properties", "", h, "{}").Output)
	kit.Need(c.t, ok, "query of %s %s: no document", kind, id)
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
		kit.Need(t, err == nil, "add: %v", err)
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

func TestFrames(t *testing.T) {
	s := Start(t, Options{Version: Version{15, 5}})
	c := dial(t, s)

	// These are the bytes that the DLL writes.
	body := "HNSCall\x00\x000\x00GET\x00/globals/version\x00\x00"
	frame := append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
	_, err := c.conn.Write(frame)
	kit.Must(t, err)
	want := "00000000\x000\x00" + `{"Success":true,"Output":{"Major":15,"Minor":5}}` + "\x00\x00"
	got := make([]byte, 4+len(want))
	_, err = io.ReadFull(c.conn, got)
	kit.Must(t, err)
	if n := binary.LittleEndian.Uint32(got); int(n) != len(want) || string(got[4:]) != want {
		t.Errorf("reply of %d bytes %q, want %q", n, got[4:], want)
	}

	// Several calls in one go, and in pieces.
	r, w := io.Pipe()
	go func() {
		out := bufio.NewWriterSize(w, 16)
		for range 3 {
			_ = writeFrame(out, "HcnEnumerateNetworks", "", "0", "{}")
		}
		w.Close()
	}()
	_, err = io.Copy(c.conn, r)
	kit.Must(t, err)
	for range 3 {
		fields, err := readFrame(c.conn)
		kit.Need(t, err == nil && slices.Equal(fields, []string{"00000000", "0", "[]", "", ""}), "reply %q, %v", fields, err)
	}
}

func TestUnusableFrames(t *testing.T) {
	s := Start(t, Options{})
	for name, bytes := range map[string]string{
		"huge":           "\xff\xff\xff\xff",
		"cut off":        "\x08\x00\x00\x00abc",
		"empty":          "\x00\x00\x00\x00",
		"no such thing":  "\x03\x00\x00\x00abc",
		"handle of text": "\x0b\x00\x00\x00HcnOpen\x00\x00x",
	} {
		c := dial(t, s)
		_, err := c.conn.Write([]byte(bytes))
		kit.Check(t, err == nil, "%s: %v", name, err)
		c.conn.Close()
	}
	got := dial(t, s).call("HcnMakeCoffee", "", 0)
	kit.Check(t, got.Code == NotImplemented, "unknown function: %v, want %v", got.Code, NotImplemented)
}

func TestErrorDocument(t *testing.T) {
	c := dial(t, Start(t, Options{}))
	got := c.call("HcnOpenNetwork", "5f0b1190-63be-4e0c-b974-bd0f55675a42", 0)
	kit.Check(t, got.Code == NetworkNotFound && strings.Contains(got.Error, `"ErrorCode":2151350273`),
		"open what is not there: %v %s", got.Code, got.Error)
	if got := c.call("HcnCreateNetwork", "", 0, "{"); got.Code != InvalidJSON {
		t.Errorf("half a document: %v", got.Code)
	}
}

func TestHandles(t *testing.T) {
	w := newFixture(t, Options{})
	h := w.must("HcnOpenEndpoint", w.pod, 0).Handle
	got := w.call("HcnQueryNetworkProperties", "", h, "{}")
	kit.Check(t, got.Code == InvalidHandle, "query of a network with an endpoint's handle: %v", got.Code)
	kit.Must(t, w.Delete(Endpoint, w.pod))
	if got := w.call("HcnQueryEndpointProperties", "", h, "{}"); got.Code != EndpointNotFound {
		t.Errorf("query of what was deleted: %v", got.Code)
	}
	n := w.Handles()
	kit.Check(t, n == 1, "%d handles open, want 1", n)
	w.must("HcnCloseEndpoint", "", h)
	if n := w.Handles(); n != 0 {
		t.Errorf("%d handles open, want none", n)
	}
}

func TestFilters(t *testing.T) {
	w := newFixture(t, Options{})
	for filter, want := range map[string]string{
		`{"Name":"vxlan0"}`:                               w.network,
		`{"Name":"VXLAN0"}`:                               "",
		`{"ID":"` + strings.ToUpper(w.network) + `"}`:     w.network,
		`{"ID":"` + w.network + `","Name":"other"}`:       "",
		`{"ID":"5f0b1190-63be-4e0c-b974-bd0f55675a42"}`:   "",
		`{"Type":"overlay","ID":"` + w.network + `"}`:     w.network,
		`{"VirtualNetwork":"` + w.network + `","ID":"x"}`: "",
	} {
		got := w.must("HcnEnumerateNetworks", "", 0, text(Document{"Filter": filter})).Output
		wantText := "[]"
		if want != "" {
			wantText = `["` + strings.ToUpper(want) + `"]`
		}
		kit.Check(t, got == wantText, "filter %s: %s, want %s", filter, got, wantText)
	}
	got := w.must("HcnEnumerateEndpoints", "", 0, text(Document{"Filter": `{"VirtualNetwork":"` + w.network + `"}`})).Output
	kit.Equal(t, got, `["`+strings.ToUpper(w.pod)+`"]`, "endpoints of a network")
}

func TestCase(t *testing.T) {
	for spelling, want := range map[Case][2]bool{ // whether upper case is used: in the object, in references
		MixedCase: {false, true}, LowerCase: {false, false}, UpperCase: {true, true},
	} {
		t.Run(string(spelling), func(t *testing.T) {
			w := newFixture(t, Options{Case: spelling})
			lb, code := w.create(LoadBalancer, "", balancer(w.pod))
			kit.Need(t, code == OK, "%v", code)
			d := w.read(LoadBalancer, strings.ToUpper(lb))
			ref := d.texts("HostComputeEndpoints")[0]
			network := w.read(Endpoint, w.pod).text("HostComputeNetwork")
			isUpper := func(s string) bool { return s == strings.ToUpper(s) }
			if got := [2]bool{isUpper(d.text("ID")), isUpper(ref)}; got != want || isUpper(network) != want[1] {
				t.Errorf("object %s, references %s and %s", d.text("ID"), ref, network)
			}
		})
	}
}

func listener(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kit.Must(t, err)
	return l
}

// ask sends a request to the Admin handler and returns the response.
func ask(t *testing.T, url, request, body string) (string, int) {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
	kit.Must(t, err)
	resp, err := http.DefaultClient.Do(r)
	kit.Must(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	kit.Must(t, err)
	return strings.TrimSpace(string(text)), resp.StatusCode
}

func TestAdmin(t *testing.T) {
	s := Start(t, Options{})
	web := httptest.NewServer(s.Admin())
	defer web.Close()
	post := func(path, body string) string {
		t.Helper()
		text, status := ask(t, web.URL, "POST "+path, body)
		kit.Need(t, status == http.StatusOK, "%s: %d %s", path, status, text)
		return strings.Trim(text, `"`)
	}
	post("/network", `{"Name":"vxlan0","Type":"Overlay","Subnets":["10.244.3.0/24"],
		"Routes":[{"Prefix":"10.244.7.0/24","Provider":"192.0.2.7","MAC":"00-15-5D-00-00-07"}]}`)
	pod := post("/pod?network=vxlan0&name=web&ip=10.244.3.5", "")
	lb := post("/balancer", text(balancer(pod)))
	post("/detach?endpoint="+pod, "")
	post("/hold?protocol=6&port=10256", "")
	post("/delay?function=*&each=1ms", "")
	post("/ports?count=16384", "")
	post("/fault", `{"Function":"HcnEnumerate*","Code":2147944122,"Count":1}`)

	c := dial(t, s)
	kit.Equal(t, c.call("HcnEnumerateNetworks", "", 0).Code, ServerUnavailable, "the fault")
	got := post("/call", `{"Function":"HcnEnumerateLoadBalancers"}`)
	kit.Check(t, strings.Contains(got, strings.ToUpper(lb)), "list through HTTP: %s", got)
	post("/restart?keep=pods", "")
	var state State
	body, _ := ask(t, web.URL, "GET /state", "")
	kit.Must(t, json.Unmarshal([]byte(body), &state))
	kit.Check(t, len(state.Objects[Endpoint]) == 1 && len(state.Objects[LoadBalancer]) == 0 && state.Calls["HcnEnumerateNetworks"] == 1 && state.Version == "13.3",
		"state %s", body)
	post("/delete?kind=Endpoint&id="+pod, "")
	journal, _ := ask(t, web.URL, "GET /journal", "")
	kit.Check(t, strings.Count(journal, `"By"`) == 4, "journal %s, want four entries", journal)
	post("/reset", "")
	n := len(s.Objects(Network))
	kit.Check(t, n == 0, "%d networks after the reset", n)
}

func TestAdminRefuses(t *testing.T) {
	web := httptest.NewServer(New(Options{}).Admin())
	defer web.Close()
	for request, want := range map[string]string{
		"POST /pod?network=x&ip=sesame":                   "sesame",
		"POST /pod?network=x":                             "network was not found",
		"POST /fault":                                     "body of /fault",
		"POST /delay?each=soon":                           "20ms",
		"POST /hold?port=80":                              "protocol=6",
		"POST /ports?count=all":                           "16384",
		"POST /restart?keep=half":                         "pods, nothing",
		"POST /delete?kind=Network&id=1":                  "network was not found",
		"POST /call":                                      "body of /call",
		"POST /network":                                   "body of /network",
		"POST /balancer":                                  "body of /balancer",
		"POST /attach?endpoint=1":                         "endpoint was not found",
		"POST /hold?protocol=6&port=99999999999999999999": "out of range",
	} {
		text, status := ask(t, web.URL, request, "")
		kit.Check(t, status == http.StatusBadRequest && strings.Contains(text, want), "%s: %d %q, want %q", request, status, text, want)
	}
}
