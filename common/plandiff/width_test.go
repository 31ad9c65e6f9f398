// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package plandiff

import (
	"bytes"
	"strings"
	"testing"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// TestWidth prints the longest names that Kubernetes allows. A unified diff is not
// wrapped, as patch reads it.
func TestWidth(t *testing.T) {
	name := strings.Repeat("service-", 7) + "is-long"
	d := compared(service.New(1, &service.Node{}, nil), service.New(2, &service.Node{}, []*service.Port{port(name, "2001:db8:1111:2222:3333:4444:5555:7777")}))
	d.From, d.To = strings.Repeat("/a/path", 20), "the API server"
	d.AddPlan(service.IPv4, []reconcile.Change{{Text: "+ service-ips: 10.96.0.1 . tcp . 80 comment \"" + strings.Repeat("n", 63) + "/" + name + ":http\" : goto external-1024"}})
	d.Notes = []string{strings.Repeat("a note ", 30)}
	var out bytes.Buffer
	if err := (View{}).Print(&out, d); err != nil {
		t.Fatal(err)
	}
	kit.CheckWidth(t, out.String(), name, d.From, "goto external-1024")
	t.Logf("\n%s", out.String())
}
