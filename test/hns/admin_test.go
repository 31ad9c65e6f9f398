// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func listener(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// ask sends a request to the Admin handler and returns the response.
func ask(t *testing.T, url, request, body string) (string, int) {
	t.Helper()
	method, path, _ := strings.Cut(request, " ")
	r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text)), resp.StatusCode
}

func TestAdmin(t *testing.T) {
	s := Start(t, Options{})
	web := httptest.NewServer(s.Admin())
	defer web.Close()
	post := func(path, body string) string {
		t.Helper()
		text, status := ask(t, web.URL, "POST "+path, body)
		if status != http.StatusOK {
			t.Fatalf("%s: %d %s", path, status, text)
		}
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
	if got := c.call("HcnEnumerateNetworks", "", 0).Code; got != ServerUnavailable {
		t.Errorf("the fault: %v", got)
	}
	if got := post("/call", `{"Function":"HcnEnumerateLoadBalancers"}`); !strings.Contains(got, strings.ToUpper(lb)) {
		t.Errorf("list through HTTP: %s", got)
	}
	post("/restart?keep=pods", "")
	var state State
	body, _ := ask(t, web.URL, "GET /state", "")
	if err := json.Unmarshal([]byte(body), &state); err != nil {
		t.Fatal(err)
	}
	if len(state.Objects[Endpoint]) != 1 || len(state.Objects[LoadBalancer]) != 0 || state.Calls["HcnEnumerateNetworks"] != 1 || state.Version != "13.3" {
		t.Errorf("state %s", body)
	}
	post("/delete?kind=Endpoint&id="+pod, "")
	if journal, _ := ask(t, web.URL, "GET /journal", ""); strings.Count(journal, `"By"`) != 4 {
		t.Errorf("journal %s, want four entries", journal)
	}
	post("/reset", "")
	if n := len(s.Objects(Network)); n != 0 {
		t.Errorf("%d networks after the reset", n)
	}
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
		if text, status := ask(t, web.URL, request, ""); status != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: %d %q, want %q", request, status, text, want)
		}
	}
}
