// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winparity

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"kubeproxy/test/hns"
	"kubeproxy/test/kit"
)

// reasons are those of requests that differ from kube-proxy's, by kind of object and field, each with its public
// source.
var reasons = map[[2]string]string{
	{"endpoint", "Name"}:   named,
	{"source VIP", "Name"}: named,
	{"load balancer", "SourceVIP"}: "[kube-proxy][sources] says that it is to be the node's address, " +
		"and leaves that to `--source-vip`; without one, some builds answer from [the load balancer's][hairpin]",
}

const named = "ours are known by their names, as those of [CNI plugins][names] are"

// reasonFor returns the reason of a difference, empty if none is known.
func reasonFor(key [2]string) string {
	kind, _, _ := strings.Cut(key[0], ", ")
	return reasons[[2]string{kind, key[1]}]
}

// fieldValues are the values that requests of both programs have in a field, by network.
type fieldValues map[string]map[string]bool

// requestTable has the fields of requests, by object and field: those of kube-proxy, and ours. A row differs if a
// request does.
type requestTable struct {
	rows map[[2]string]*[2]fieldValues
	diff map[[2]string]string
}

// add notes the requests of both programs for what both hold.
func (x *requestTable) add(network string, known, ours map[string]request, both map[string]bool) {
	for name, a := range known {
		if b, has := ours[name]; has {
			both[name] = true
			x.compare(network, name, a, b)
		}
	}
}

// lacking names what one program holds and the other does not. An endpoint that both have had may stay longer with one of
// them, as deletions are tried again later.
func lacking(holds, other map[string]request, both map[string]bool) []string {
	var all []string
	for name := range holds {
		if _, has := other[name]; !has && !(both[name] && strings.HasPrefix(name, "endpoint ")) {
			all = append(all, name)
		}
	}
	return all
}

func (x *requestTable) compare(network, name string, a, b request) {
	fields := maps.Clone(a.fields)
	maps.Copy(fields, b.fields)
	for f := range fields {
		key := [2]string{a.object, f}
		if x.rows[key] == nil {
			x.rows[key] = &[2]fieldValues{{}, {}}
		}
		for i, value := range []string{cmp.Or(a.fields[f], "-"), cmp.Or(b.fields[f], "-")} {
			of := x.rows[key][i]
			if of[network] == nil {
				of[network] = map[string]bool{}
			}
			of[network][value] = true
		}
		if a.fields[f] != b.fields[f] {
			x.diff[key] = fmt.Sprintf("%s, %s: kube-proxy %q, ours %q", network, name, a.fields[f], b.fields[f])
		}
	}
}

// text is one cell: a value, or several of which each network has its own. on is the number of networks with the object.
func (v fieldValues) text(on int) string {
	by := map[string][]string{}
	for _, network := range slices.Sorted(maps.Keys(v)) {
		values := strings.Join(slices.Sorted(maps.Keys(v[network])), " or ")
		by[values] = append(by[values], network)
	}
	if len(by) == 1 && len(v) == on {
		return slices.Collect(maps.Keys(by))[0]
	}
	var parts []string
	for _, values := range slices.Sorted(maps.Keys(by)) {
		parts = append(parts, strings.Join(by[values], ", ")+": "+values)
	}
	return strings.Join(parts, "; ")
}

// markdown is the table, as platform/windows/hns/README.md has it: the fields that differ. Objects that agree in one
// share a row.
func (x *requestTable) markdown() string {
	objects, kinds := map[[4]string][]string{}, map[string]map[string]bool{} // those of each row, and of each kind
	networks := map[string]fieldValues{}                                     // of each object
	for key, row := range x.rows {
		if networks[key[0]] == nil {
			networks[key[0]] = fieldValues{}
		}
		maps.Copy(networks[key[0]], row[0])
	}
	for key, row := range x.rows {
		kind, _, _ := strings.Cut(key[0], ", ")
		if kinds[kind] == nil {
			kinds[kind] = map[string]bool{}
		}
		kinds[kind][key[0]] = true
		if x.diff[key] == "" {
			continue
		}
		cells := [4]string{kind, key[1], row[0].text(len(networks[key[0]])) + " | " + row[1].text(len(networks[key[0]])), reasonFor(key)}
		objects[cells] = append(objects[cells], strings.TrimPrefix(strings.TrimPrefix(key[0], kind), ", "))
	}
	var rows [][]string
	for cells, of := range objects {
		slices.Sort(of)
		name := "every " + cells[0]
		switch {
		case of[0] == "":
			name = cells[0]
		case len(of) < len(kinds[cells[0]]):
			name = cells[0] + ": " + strings.Join(of, "; ")
		}
		known, ours, _ := strings.Cut(cells[2], " | ")
		rows = append(rows, []string{name, cells[1], known, ours, cells[3]})
	}
	slices.SortFunc(rows, slices.Compare)
	text := "| object | field | kube-proxy | ours | why |\n|---|---|---|---|---|\n"
	for _, row := range rows {
		text += "| " + strings.Join(row, " | ") + " |\n"
	}
	return text
}

// request is what a program asked HNS for.
type request struct {
	object string // what it is
	fields map[string]string
}

// requests returns the last request for each object that the program made and that HNS holds, by address.
func (s *side) requests(d *parity) map[string]request {
	ips, held := map[string]string{}, map[string]hns.Kind{}
	for _, kind := range []hns.Kind{hns.Endpoint, hns.LoadBalancer} {
		for _, o := range s.hns.Objects(kind) {
			held[o.ID()] = kind
			if kind == hns.Endpoint && len(o.IPs()) > 0 {
				ips[o.ID()] = o.IPs()[0].String()
			}
		}
	}
	all := map[string]request{}
	for _, e := range s.hns.Journal() {
		if e.By != hns.Caller || e.Code != hns.OK || e.Document == nil || held[e.ID] != e.Kind {
			continue
		}
		if e.Kind == hns.Endpoint {
			all["endpoint "+ips[e.ID]] = request{endpointClass(d, e.Document), s.fields(d, e.Document, ips[e.ID])}
			continue
		}
		for _, f := range frontends(e.Document) {
			doc := maps.Clone(e.Document)
			var leads []string
			for _, id := range e.Document.Endpoints() {
				leads = append(leads, cmp.Or(ips[id], "gone"))
			}
			slices.Sort(leads)
			doc["HostComputeEndpoints"] = leads
			if !strings.HasPrefix(f, markerVIP) {
				all["load balancer "+f] = request{balancerClass(d, f), s.fields(d, doc, "")}
			}
		}
	}
	return all
}

func endpointClass(d *parity, e hns.Document) string {
	if !e.Remote() {
		return "source VIP"
	}
	ip := e.IPs()[0]
	switch {
	case strings.HasPrefix(ip.String(), "10.96."): // also of default/kubernetes
		return "endpoint, ClusterIP"
	case ip == d.lab.Other.IPv4:
		return "endpoint, another node"
	case ip == d.lab.Node.IPv4:
		return "endpoint, this node"
	case strings.HasPrefix(ip.String(), "10.244."):
		return "endpoint, pod elsewhere"
	}
	return "endpoint, outside"
}

// balancerClass names what a load balancer is for.
func balancerClass(d *parity, frontend string) string {
	_, at, _ := strings.Cut(frontend, " ")
	host, port, _ := strings.Cut(at, ":")
	for _, a := range d.now {
		kind := ""
		for _, p := range a.spec.Ports {
			switch {
			case host == "node" && port == fmt.Sprint(p.NodePort):
				kind = "NodePort"
			case port != fmt.Sprint(p.Port):
			case host == a.clusterIP:
				return "load balancer, ClusterIP"
			case host == a.ingress:
				kind = "load-balancer IP"
			case slices.Contains(a.spec.ExternalIPs, host):
				kind = "external IP"
			}
		}
		if kind == "" && host == a.ingress && host != "" {
			kind = "health check"
		}
		if kind == "" {
			continue
		}
		if a.spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			kind += ", Local"
		}
		if a.annotations != nil {
			kind += ", preserve-destination"
		}
		return "load balancer, " + kind
	}
	return "load balancer, unknown"
}

// fields are the fields of a request. What each side or object has its own is named.
func (s *side) fields(d *parity, doc hns.Document, ip string) map[string]string {
	names := strings.NewReplacer(
		`"10.244.1.2"`, "the source VIP",
		`"`+d.lab.Node.IPv4.String()+`"`, "the node's", `"`+d.lab.Other.IPv4.String()+`"`, "the other node's",
		`"`+cmp.Or(ip, "none")+`"`, "its address", `"kube-proxy-remote-`+ip+`"`, "kube-proxy-remote- and its address",
	)
	all := map[string]string{}
	var add func(prefix string, doc map[string]any)
	add = func(prefix string, doc map[string]any) {
		for k, v := range doc {
			list, _ := v.([]any)
			inner, _ := v.(map[string]any)
			if len(list) == 1 {
				inner, _ = list[0].(map[string]any)
			}
			text, _ := json.Marshal(v)
			switch {
			case inner != nil && k != "Policies":
				add(prefix+k+".", inner)
			case k == "HostComputeNetwork":
				all[prefix+k] = "its network"
			case k == "FrontendVIPs" && len(list) > 0:
				all[prefix+k] = "the address"
			case k == "ExternalPort", k == "InternalPort", k == "Protocol":
				all[prefix+k] = "the Service's"
			case k == "HostComputeEndpoints":
				all[prefix+k] = "its endpoints"
			case k == "MacAddress" && strings.Contains(string(text), macOf(ip)):
				all[prefix+k] = "02-11 and its address"
			case k == "MacAddress" && s.hasMAC(strings.Trim(string(text), `"`)):
				all[prefix+k] = "the host's"
			default:
				all[prefix+k] = "`" + names.Replace(string(text)) + "`"
			}
		}
	}
	add("", doc)
	for k, v := range all {
		if text := strings.Trim(v, "`"); !strings.ContainsAny(text, `"{[`) && !strings.ContainsAny(text, "0123456789") {
			all[k] = text
		}
	}
	return all
}

// hasMAC returns whether an interface of the host has the hardware address.
func (s *side) hasMAC(mac string) bool {
	return strings.Contains(s.macs, strings.ToLower(strings.ReplaceAll(mac, "-", ":")))
}

// macOf is the MAC of a remote endpoint, in both programs.
func macOf(ip string) string {
	a, err := netip.ParseAddr(ip)
	if err != nil || !a.Is4() {
		return "none"
	}
	b := a.As4()
	return fmt.Sprintf("02-11-%02x-%02x-%02x-%02x", b[0], b[1], b[2], b[3])
}

// kept is a Service with the annotation preserve-destination.
func kept() app {
	a := web()
	a.name, a.clusterIP, a.ingress = "kept", "10.96.5.7", "203.0.113.7"
	a.annotations = map[string]string{"preserve-destination": "true"}
	a = a.withSpec(func(s *corev1.ServiceSpec) { s.ExternalIPs, s.Ports[0].NodePort = nil, 30082 })
	return a
}

// situations is a life in which each kind of request is made.
func (d *parity) situations() []step {
	const local, remote = "10.244.1.11", "10.244.2.11"
	root := func(t *testing.T, s *side) {
		t.Helper()
		addPod(local, "10.244.1.12")(t, s)
		_, err := s.hns.AddPod("net0", "cbr0", netip.MustParseAddr("10.244.1.250"))
		kit.Must(t, err)
		s.start(t)
	}
	return []step{
		{name: "start", do: root, next: set(web().on(local, "10.244.1.12", remote))},
		{name: "session affinity", next: spec(func(s *corev1.ServiceSpec) {
			s.SessionAffinity = corev1.ServiceAffinityClientIP
		})},
		{name: "external policy Local", next: spec(external(corev1.ServiceExternalTrafficPolicyLocal))},
		{name: "preserve-destination", next: set(kept().on(local, remote))},
		{name: "preserve-destination without a pod here", next: pods("kept", remote)},
		{name: "preserve-destination with one again", next: pods("kept", "10.244.1.12", remote)},
		{name: "a pod on the network of another node", next: set(api().on(d.lab.Other.IPv4.String(), remote))},
		{name: "a pod on the network of this node", next: pods("api", d.lab.Node.IPv4.String()+"/h", remote)},
		{name: "an endpoint outside of the cluster", next: pods("api", remote, "198.51.100.77/o")},
	}
}

// TestRequests compares what both programs ask HNS for, field by field, with the table in the README of the backend.
func TestRequests(t *testing.T) {
	table := &requestTable{map[[2]string]*[2]fieldValues{}, map[[2]string]string{}}
	for _, network := range []string{"L2Bridge", "L2Tunnel", "Overlay"} {
		t.Run(network, func(t *testing.T) {
			d := newParity(t, setting{hns.Version{Major: 13, Minor: 3}, network},
				"--forward-healthcheck-vip=true", "--root-hnsendpoint-name=cbr0")
			both := map[string]bool{}
			for _, s := range d.situations() {
				d.run(t, []step{s})
				var known, ours map[string]request
				kit.Until(t, "both programs hold the same", func() bool { // kube-proxy makes many objects again
					known, ours = d.upstream.requests(d), d.ours.requests(d)
					return len(lacking(known, ours, both))+len(lacking(ours, known, both)) == 0
				})
				table.add(network, known, ours, both)
			}
			d.end(t)
		})
	}
	for key, text := range table.diff {
		if reasonFor(key) == "" {
			t.Errorf("%s, %s: no reason is known: %s", key[0], key[1], text)
		}
	}
	readme := kit.ReadFile(t, "../../platform/windows/hns/README.md")
	_, section, _ := strings.Cut(string(readme), "\n## Requests beside those of kube-proxy\n")
	_, has, _ := strings.Cut(section, "\n\n| ")
	has, _, _ = strings.Cut(has, "\n\n")
	if diff := gocmp.Diff(table.markdown(), "| "+has+"\n"); diff != "" {
		t.Errorf("the table in the README of the backend (-want +got):\n%s\nwant all of\n%s", diff, table.markdown())
	}
}
