// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"
	"testing"

	"kubeproxy/common/explain"
)

func explainCall(t *testing.T, args ...string) outcome {
	t.Helper()
	return call(t, "", append([]string{"explain", "--manifests", "../../docs/examples/shop", "--hostname-override", "node-a", "--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48"}, args...)...)
}

func TestExplainPrints(t *testing.T) {
	got := explainCall(t, "10.244.1.7", "svc/shop/web:http")
	if got.Code != 0 || got.Err != "" || !strings.Contains(got.Out, "Forwarded to one of 3 endpoints") || !strings.Contains(got.Out, "10.244.2.11:8080") {
		t.Errorf("code %d, stderr %q, stdout:\n%s", got.Code, got.Err, got.Out)
	}
}

func TestExplainJSON(t *testing.T) {
	got := explainCall(t, "node", "10.96.0.10:80", "-o", "json")
	var x explain.Explanation
	if err := json.Unmarshal([]byte(got.Out), &x); err != nil {
		t.Fatalf("%v in:\n%s", err, got.Out)
	}
	if x.Action != "forward" || x.Service != "shop/web" || x.Frontend != "ClusterIP" || len(x.Endpoints) != 3 || x.Endpoints[0].Client != "masqueraded" {
		t.Errorf("answer %+v", x)
	}
}

func TestExplainMistakes(t *testing.T) {
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"10.244.1.7"}, "wants SOURCE and DESTINATION, not 1"},
		{[]string{"10.244.1.7", "svc/shop/wbe"}, "did you mean svc/shop/web?"},
		{[]string{"10.244.1.7", "svc/shop/web:https"}, "http (80/tcp)"},
		{[]string{"somewhere", "10.96.0.10:80"}, "want an address, pod/NAMESPACE/NAME, node or outside"},
		{[]string{"10.244.1.7", "10.96.0.10:80", "-o", "yaml"}, "want text or json"},
		{[]string{"10.244.1.7", "10.96.0.10:80", "--outptu", "json"}, "did you mean --output?"},
	} {
		got := explainCall(t, tc.args...)
		if got.Code != exitUnknown || got.Out != "" || !strings.Contains(got.Err, tc.want) {
			t.Errorf("%q: code %d, want %d; stdout %q; stderr %q, want %q", tc.args, got.Code, exitUnknown, got.Out, got.Err, tc.want)
		}
	}
	if got := call(t, "", "explain", "10.244.1.7", "10.96.0.10:80", "--server", "127.0.0.1:1"); got.Code != exitUnknown || !strings.Contains(got.Err, "nobody answers at 127.0.0.1:1") {
		t.Errorf("without a proxy: code %d, stderr %q", got.Code, got.Err)
	}
}
