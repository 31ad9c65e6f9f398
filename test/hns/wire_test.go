// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"bufio"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"testing"
)

func TestFrames(t *testing.T) {
	s := Start(t, Options{Version: Version{15, 5}})
	c := dial(t, s)

	// These are the bytes that the DLL writes.
	body := "HNSCall\x00\x000\x00GET\x00/globals/version\x00\x00"
	frame := append(binary.LittleEndian.AppendUint32(nil, uint32(len(body))), body...)
	if _, err := c.conn.Write(frame); err != nil {
		t.Fatal(err)
	}
	want := "00000000\x000\x00" + `{"Success":true,"Output":{"Major":15,"Minor":5}}` + "\x00\x00"
	got := make([]byte, 4+len(want))
	if _, err := io.ReadFull(c.conn, got); err != nil {
		t.Fatal(err)
	}
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
	if _, err := io.Copy(c.conn, r); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if fields, err := readFrame(c.conn); err != nil || !slices.Equal(fields, []string{"00000000", "0", "[]", "", ""}) {
			t.Fatalf("reply %q, %v", fields, err)
		}
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
		if _, err := c.conn.Write([]byte(bytes)); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.conn.Close()
	}
	if got := dial(t, s).call("HcnMakeCoffee", "", 0); got.Code != NotImplemented {
		t.Errorf("unknown function: %v, want %v", got.Code, NotImplemented)
	}
}

func TestErrorDocument(t *testing.T) {
	c := dial(t, Start(t, Options{}))
	got := c.call("HcnOpenNetwork", "5f0b1190-63be-4e0c-b974-bd0f55675a42", 0)
	if got.Code != NetworkNotFound || !strings.Contains(got.Error, `"ErrorCode":2151350273`) {
		t.Errorf("open what is not there: %v %s", got.Code, got.Error)
	}
	if got := c.call("HcnCreateNetwork", "", 0, "{"); got.Code != InvalidJSON {
		t.Errorf("half a document: %v", got.Code)
	}
}

func TestHandles(t *testing.T) {
	w := newFixture(t, Options{})
	h := w.must("HcnOpenEndpoint", w.pod, 0).Handle
	if got := w.call("HcnQueryNetworkProperties", "", h, "{}"); got.Code != InvalidHandle {
		t.Errorf("query of a network with an endpoint's handle: %v", got.Code)
	}
	if err := w.Delete(Endpoint, w.pod); err != nil {
		t.Fatal(err)
	}
	if got := w.call("HcnQueryEndpointProperties", "", h, "{}"); got.Code != EndpointNotFound {
		t.Errorf("query of what was deleted: %v", got.Code)
	}
	if n := w.Handles(); n != 1 {
		t.Errorf("%d handles open, want 1", n)
	}
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
		if got != wantText {
			t.Errorf("filter %s: %s, want %s", filter, got, wantText)
		}
	}
	got := w.must("HcnEnumerateEndpoints", "", 0, text(Document{"Filter": `{"VirtualNetwork":"` + w.network + `"}`})).Output
	if want := `["` + strings.ToUpper(w.pod) + `"]`; got != want {
		t.Errorf("endpoints of a network: %s, want %s", got, want)
	}
}

func TestCase(t *testing.T) {
	for spelling, want := range map[Case][2]bool{ // whether upper case is used: in the object, in references
		MixedCase: {false, true}, LowerCase: {false, false}, UpperCase: {true, true},
	} {
		t.Run(string(spelling), func(t *testing.T) {
			w := newFixture(t, Options{Case: spelling})
			lb, code := w.create(LoadBalancer, "", balancer(w.pod))
			if code != OK {
				t.Fatal(code)
			}
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
