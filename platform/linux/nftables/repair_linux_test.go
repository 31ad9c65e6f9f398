// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/common/reconcile"
	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink"
	"kubeproxy/test/kit"
)

func planOrError(t *testing.T, b *Backend, want *service.Snapshot) reconcile.Plan {
	t.Helper()
	p, err := b.Plan(context.Background(), want)
	if err != nil {
		t.Errorf("Plan: %v", err)
		return &plan{backend: b}
	}
	return p
}

// Changes by another process are reported and repaired, and then no longer found.
func TestDrift(t *testing.T) {
	const first = `services: 10.96.0.0 . tcp . 80 comment "shop/web-000" : goto cluster-2`
	for name, tt := range map[string]struct {
		script string
		want   []string
	}{
		"nothing of ours":  {"add table ip other", nil},
		"an element goes":  {"delete element ip kube-services services { 10.96.0.0 . tcp . 80 }", []string{"missing: " + first}},
		"a shared element": {"delete element ip kube-services cluster-ips { 10.96.0.0 }", []string{"missing: cluster-ips: 10.96.0.0"}},
		"an element comes": {"add element ip kube-services cluster-ips { 10.9.9.9 }", []string{"foreign: cluster-ips: 10.9.9.9"}},
		"an element leads elsewhere": {
			"delete element ip kube-services services { 10.96.0.0 . tcp . 80 }\n" +
				"add element ip kube-services services { 10.96.0.0 . tcp . 80 : drop }",
			[]string{"foreign: services: 10.96.0.0 . tcp . 80 : drop", "missing: " + first},
		},
		"an endpoint is replaced": {
			"delete element ip kube-services endpoints { 10.96.0.0 . tcp . 80 . 1 }\n" +
				"add element ip kube-services endpoints { 10.96.0.0 . tcp . 80 . 1 : 10.9.9.9 . 1 }",
			[]string{
				"foreign: endpoints: 10.96.0.0 . tcp . 80 . 1 : 10.9.9.9 . 1",
				"missing: endpoints: 10.96.0.0 . tcp . 80 . 1 : 10.244.1.2 . 8080",
			},
		},
		"a rule comes":       {"add rule ip kube-services refuse drop", []string{"foreign: rules of chain refuse", "missing: rules of chain refuse (2)"}},
		"a rule goes before": {"insert rule ip kube-services prerouting accept", []string{"foreign: rules of chain prerouting", "missing: rules of chain prerouting (1)"}},
		"a chain is flushed": {"flush chain ip kube-services pick-2", []string{"foreign: rules of chain pick-2", "missing: rules of chain pick-2 (1)"}},
		"a chain and a set come": {
			"add chain ip kube-services x\nadd set ip kube-services y { type ipv4_addr; }",
			[]string{"foreign: set y", "foreign: rules of chain x", "foreign: chain x"},
		},
	} {
		t.Run(name, func(t *testing.T) { inNamespace(t, func() { checkDrift(t, tt.script, tt.want) }) })
	}
}

// checkDrift changes a table with nft and script. The next plan must report and repair
// that.
func checkDrift(t *testing.T, script string, names []string) {
	t.Helper()
	b := newKernel(t, service.IPv4)
	defer b.driver.(*kernel).close()
	want := simple(2)
	drift := planOrError(t, b, want).Outcome().Drift
	kit.Check(t, drift == nil, "drift in a first round:\n%s", strings.Join(drift, "\n"))
	apply(t, b, want)
	runNft(t, script, "-f", "-")
	if names != nil {
		wantChangesPlanned(t, want)
	}
	p := planOrError(t, b, want)
	kit.Same(t, "drift (-want +got)", names, p.Outcome().Drift)
	err := p.Apply(context.Background()).Err
	kit.Check(t, err == nil, "Apply: %v", err)
	wantConverged(t, b, want)
}

// wantChangesPlanned checks that a new process finds something to do.
func wantChangesPlanned(t *testing.T, want *service.Snapshot) {
	t.Helper()
	b := newKernel(t, service.IPv4)
	defer b.driver.(*kernel).close()
	kit.Check(t, !planOrError(t, b, want).Empty(), "a new backend finds nothing to do")
}

// wantConverged checks that neither b nor a backend that reads everything finds something
// to do.
func wantConverged(t *testing.T, b *Backend, want *service.Snapshot) {
	t.Helper()
	fresh := newKernel(t, b.family)
	defer fresh.driver.(*kernel).close()
	for who, b := range map[string]*Backend{"the same": b, "a new": fresh} {
		if p := planOrError(t, b, want); !p.Empty() || len(p.Outcome().Drift) > 0 {
			t.Errorf("%s backend finds %v:\n%s", who, p.Outcome().Drift, p.Changes())
		}
	}
}

// A flushed ruleset is restored and reported in a bounded number of lines.
func TestDriftOfEverything(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		want := simple(100)
		apply(t, b, want)
		runNft(t, "", "flush", "ruleset")
		p := planOrError(t, b, want)
		drift := p.Outcome().Drift
		kit.Check(t, len(drift) == reconcile.MaxDrift+1 && drift[0] == "missing: table kube-services" && strings.HasPrefix(drift[reconcile.MaxDrift], "and "),
			"drift:\n%s", strings.Join(drift, "\n"))
		err := p.Apply(context.Background()).Err
		kit.Check(t, err == nil, "Apply: %v", err)
		wantConverged(t, b, want)
	})
}

// A plan that is not applied repairs nothing, so the next one does.
func TestDriftOutlivesAPlan(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		want := simple(2)
		apply(t, b, want)
		runNft(t, "", "flush", "chain", "ip", TableName, dispatchChain)
		planOrError(t, b, want)
		apply(t, b, want)
		wantConverged(t, b, want)
	})
}

// affinityClients adds clients to the map of a port number, as rules would. It returns
// the addresses in it afterwards.
func affinityClients(t *testing.T, f service.Family, port int, add string) []string {
	t.Helper()
	p := sticky(f).Port(f, service.PortName{Namespace: "shop", Name: "cart", Protocol: service.TCP})
	name := clientSet(p, service.PolicyCluster, uint16(port)).name
	if add != "" {
		runNft(t, "", "add", "element", netlink.FamilyName(f), TableName, name, "{ "+add+" }")
	}
	var clients []string
	listing := runNft(t, "", "list", "map", netlink.FamilyName(f), TableName, name)
	for _, word := range strings.Fields(listing) {
		if a, err := parseAddr(word); err == nil {
			clients = append(clients, a)
		}
	}
	return clients
}

// parseAddr returns the word of a listing if it is an address.
func parseAddr(word string) (string, error) {
	word = strings.Trim(word, ",{}")
	if strings.Count(word, ".") != 3 && strings.Count(word, ":") < 2 {
		return "", fmt.Errorf("%q is no address", word)
	}
	return word, nil
}

// Clients of a removed endpoint are deleted, all others are kept.
func TestPruneClients(t *testing.T) {
	for _, f := range service.Families {
		for name, restart := range map[string]bool{"at once": false, "after a restart": true} {
			t.Run(f.String()+" "+name, func(t *testing.T) { inNamespace(t, func() { checkPrune(t, f, restart) }) })
		}
	}
}

func checkPrune(t *testing.T, f service.Family, restart bool) {
	b := newKernel(t, f)
	apply(t, b, sticky(f, 2, 3, 4))
	even := []string{"192.0.2.1 : 10.244.1.2, 192.0.2.2 : 10.244.1.4, 192.0.2.3 : 10.244.1.2", "2001:db8::1 : fd00:10:244:1::2, 2001:db8::2 : fd00:10:244:1::4, 2001:db8::3 : fd00:10:244:1::2"}[f]
	odd := []string{"192.0.2.4 : 10.244.1.3", "2001:db8::4 : fd00:10:244:1::3"}[f]
	n := len(affinityClients(t, f, 8080, even)) + len(affinityClients(t, f, 8081, odd))
	kit.Check(t, n == 8, "%d addresses of clients and endpoints were added, want 8", n)
	if restart {
		b.driver.(*kernel).close()
		b = newKernel(t, f)
	}
	defer b.driver.(*kernel).close()
	after := sticky(f, 3, 4)
	apply(t, b, after)
	want := [][]string{
		{"192.0.2.2", "10.244.1.4", "192.0.2.4", "10.244.1.3"},
		{"2001:db8::2", "fd00:10:244:1::4", "2001:db8::4", "fd00:10:244:1::3"},
	}[f]
	kit.Same(t, "remembered (-want +got)", want, append(affinityClients(t, f, 8080, ""), affinityClients(t, f, 8081, "")...))
	wantConverged(t, b, after)
}

// Drift of flags and policies is reported and repaired too.
func TestDriftOfFlags(t *testing.T) {
	for name, tt := range map[string]struct {
		script string
		want   []string
	}{
		"the table sleeps": {"add table ip kube-services { flags dormant; }", []string{"foreign: flag dormant of table kube-services"}},
		"a policy drops":   {"add chain ip kube-services output { policy drop; }", []string{"foreign: policy drop of chain output"}},
		"a chain has another hook and priority": {
			"delete chain ip kube-services input\n" +
				"add chain ip kube-services input { type nat hook input priority 55; policy accept; }",
			[]string{"altered: hook of chain input"},
		},
		"a chain has another type": {
			"delete chain ip kube-services output\n" +
				"add chain ip kube-services output { type filter hook output priority -100; policy accept; }",
			[]string{"altered: hook of chain output"},
		},
	} {
		t.Run(name, func(t *testing.T) { inNamespace(t, func() { checkDrift(t, tt.script, tt.want) }) })
	}
}

// Changes to sets that only newer kernels support are repaired as well. On an older
// kernel the script changes nothing.
func TestDriftOfSets(t *testing.T) {
	for name, tt := range map[string]struct{ script, shows, want string }{
		"a set catches all":       {"add element ip kube-services cluster-ips { * }", "*", "foreign: cluster-ips: *"},
		"a map catches all":       {"add element ip kube-services services { * : drop }", "* : drop", "foreign: services: * : drop"},
		"an interval catches all": {"add element ip kube-services sources { * }", "*", "foreign: sources: *"},
		"a set is full":           {"add set ip kube-services cluster-ips { type ipv4_addr; size 1; }", "size 1\n", "altered: set cluster-ips"},
	} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func() {
				b := newKernel(t, service.IPv4)
				defer b.driver.(*kernel).close()
				want := simple(2)
				apply(t, b, want)
				if out, err := exec.Command("nft", tt.script).CombinedOutput(); err != nil {
					t.Logf("an old kernel: %v, %s", err, out)
				}
				var drift []string
				if strings.Contains(runNft(t, "", "list", "table", "ip", TableName), tt.shows) {
					drift = []string{tt.want}
					wantChangesPlanned(t, want)
				}
				p := planOrError(t, b, want)
				kit.Same(t, "drift (-want +got)", drift, p.Outcome().Drift)
				err := p.Apply(context.Background()).Err
				kit.Check(t, err == nil, "Apply: %v", err)
				wantConverged(t, b, want)
			})
		})
	}
}

// A table with the flag owner of another process is an error that explains it. It is
// created again after that process ended.
func TestReservedTable(t *testing.T) {
	inNamespace(t, func() {
		other, err := dial()
		kit.Must(t, err)
		e := newEncoder(service.IPv4)
		e.NetfilterMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
		e.EndMessage()
		e.NetfilterMessage(netlink.NFTType(unix.NFT_MSG_NEWTABLE), unix.NLM_F_CREATE|unix.NLM_F_ACK, e.nf, 0)
		e.Text(unix.NFTA_TABLE_NAME, TableName)
		e.Uint32(unix.NFTA_TABLE_FLAGS, netlink.TableOwned)
		e.EndMessage()
		e.NetfilterMessage(unix.NFNL_MSG_BATCH_END, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
		e.EndMessage()
		if err := other.Transact(e.Buf); err != nil {
			t.Logf("an old kernel: %v", err)
			other.Close()
			return
		}
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		want := simple(2)
		if _, err := b.Plan(context.Background(), want); err == nil || !strings.Contains(err.Error(), "has reserved it") {
			t.Errorf("Plan = %v, want an error that says whose the table is", err)
		}
		other.Close()
		apply(t, b, want)
		wantConverged(t, b, want)
	})
}

// foreignChanges are changes by nft. touches states whether they concern the IPv4 table
// of simple(2).
var foreignChanges = map[string]struct {
	script  string
	touches bool
}{
	"an element goes":                  {"delete element ip kube-services services { 10.96.0.1 . tcp . 80 }", true},
	"an element comes":                 {"add element ip kube-services cluster-ips { 10.9.9.9 }", true},
	"a rule comes":                     {"add rule ip kube-services refuse drop", true},
	"a chain is flushed":               {"flush chain ip kube-services dispatch", true},
	"a chain comes":                    {"add chain ip kube-services x", true},
	"a set comes":                      {"add set ip kube-services x { type ipv4_addr; }", true},
	"the table is flushed":             {"flush table ip kube-services", true},
	"the table goes":                   {"delete table ip kube-services", true},
	"everything goes":                  {"flush ruleset", true},
	"ours among others":                {"add table ip a\nadd chain ip kube-services x\nadd table ip b", true},
	"another table":                    {"add table ip other\nadd chain ip other x\nadd rule ip other x drop", false},
	"a table whose name begins so":     {"add table ip kube-services-2\nadd chain ip kube-services-2 x", false},
	"the table of the other family":    {"add table ip6 kube-services\nadd chain ip6 kube-services x", false},
	"a table of that name for bridges": {"add table bridge kube-services", false},
}

func TestTouched(t *testing.T) {
	for name, tt := range foreignChanges {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func() {
				b := newKernel(t, service.IPv4)
				defer b.driver.(*kernel).close()
				apply(t, b, simple(2))
				apply(t, b, simple(3)) // our own changes
				kit.Check(t, !wasTouched(t, b), "touched by ourselves")
				runNft(t, tt.script, "-f", "-")
				kit.Equal(t, wasTouched(t, b), tt.touches, "touched")
				apply(t, b, simple(3))
				kit.Check(t, !wasTouched(t, b), "still touched after the repair")
			})
		})
	}
}

func wasTouched(t *testing.T, b *Backend) bool {
	t.Helper()
	touched, err := b.driver.Touched(context.Background())
	kit.Check(t, err == nil, "Touched: %v", err)
	return touched
}

// whileWatching runs body while b watches. calls has room for all calls.
func whileWatching(t *testing.T, b *Backend, body func(calls <-chan struct{})) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	calls, done := make(chan struct{}, 100), make(chan error, 1)
	go func() { done <- b.Watch(ctx, func() { calls <- struct{}{} }) }()
	body(calls)
	cancel()
	select {
	case err := <-done:
		kit.Check(t, err == nil, "Watch = %v, want nil", err)
	case <-time.After(time.Minute):
		t.Error("Watch goes on after its context ended")
	}
}

func wantCall(t *testing.T, calls <-chan struct{}, when string) {
	t.Helper()
	select {
	case <-calls:
	case <-time.After(time.Minute):
		t.Errorf("%s: not reported", when)
	}
}

// Watch reports each change that a sync then repairs, and also the next one, whatever we
// changed in between.
func TestWatch(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		apply(t, b, simple(2))
		whileWatching(t, b, func(calls <-chan struct{}) {
			for _, when := range []string{"a first change", "a second one", "a third one"} {
				runNft(t, "", "add", "rule", "ip", TableName, refuseChain, "drop")
				wantCall(t, calls, when)
				apply(t, b, simple(2))
			}
		})
	})
}

// Watch reports neither changes of other tables nor our own.
func TestWatchIsQuiet(t *testing.T) {
	inNamespace(t, func() {
		b := newKernel(t, service.IPv4)
		defer b.driver.(*kernel).close()
		whileWatching(t, b, func(calls <-chan struct{}) {
			for n := range 5 {
				apply(t, b, simple(n))
				runNft(t, "", "add", "table", "ip", "other")
				runNft(t, "", "delete", "table", "ip", "other")
			}
			wasTouched(t, b) // reads all notifications
			kit.Check(t, len(calls) == 0, "reported %d times", len(calls))
		})
	})
}

// A change whose notification arrives during our commit is reported too, because that
// sync has already read the table. So is a change from before the watch began.
func TestWatchReportsChangesSeenDuringCommit(t *testing.T) {
	for name, late := range map[string]bool{"watched": false, "watched later": true} {
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func() {
				b := newKernel(t, service.IPv4)
				defer b.driver.(*kernel).close()
				apply(t, b, simple(2))
				if !late {
					whileWatching(t, b, func(calls <-chan struct{}) {
						changeBetweenPlanAndApply(t, b)
						wantCall(t, calls, "a change within a round")
					})
					return
				}
				changeBetweenPlanAndApply(t, b)
				whileWatching(t, b, func(calls <-chan struct{}) { wantCall(t, calls, "a change from before") })
			})
		})
	}
}

// changeBetweenPlanAndApply runs a sync in which another process changes the table
// between Plan and Apply.
func changeBetweenPlanAndApply(t *testing.T, b *Backend) {
	t.Helper()
	p, err := b.Plan(context.Background(), simple(3))
	if err != nil {
		t.Errorf("Plan: %v", err)
		return
	}
	runNft(t, "", "add", "chain", "ip", TableName, "x")
	err = p.Apply(context.Background()).Err
	kit.Check(t, err == nil, "Apply: %v", err)
}

// TestLeftoverTables finds and deletes one table, and leaves tables with similar names.
func TestLeftoverTables(t *testing.T) {
	inNamespace(t, func() {
		const others = "table ip kube-proxy-2 {\n}\ntable inet kube-proxy {\n}\n"
		runNft(t, others+"table ip kube-proxy {\n\tchain a {\n\t}\n}\ntable ip6 kube-proxy {\n}\n", "-f", "-")
		for _, f := range service.Families {
			for _, name := range []string{UpstreamTable, TableName} {
				r := Leftovers{f, name}
				if name == TableName {
					apply(t, newKernel(t, f), simple(0))
				}
				wantFound(t, r, "the table")
				remove(t, r)
				remove(t, r)
				wantFound(t, r, "")
			}
		}
		kit.Equal(t, strings.ReplaceAll(runNft(t, "", "list", "ruleset"), "\n\n", "\n"), others, "what is left")
	})
}

// TestLeftoverTablesWhileOthersWrite searches a table while another process keeps
// changing its own.
func TestLeftoverTablesWhileOthersWrite(t *testing.T) {
	inNamespace(t, func() {
		r := Leftovers{service.IPv4, TableName}
		apply(t, newKernel(t, r.Family), simple(0))
		end := churnTable(t, Leftovers{service.IPv6, "others"})
		defer end()
		for range 2000 {
			if wantFound(t, r, "the table"); t.Failed() {
				return
			}
		}
		for range 20 {
			apply(t, newKernel(t, r.Family), simple(0))
			remove(t, r)
			wantFound(t, r, "")
		}
	})
}

// churnTable creates and deletes a table until the returned function is called.
func churnTable(t *testing.T, r Leftovers) (end func()) {
	t.Helper()
	s, err := dial()
	kit.Must(t, err)
	e := newEncoder(r.Family)
	e.name = r.Table
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		defer s.Close()
		for {
			for _, verb := range []verb{addTable, delTable} {
				if err := transact(s, e, []op{{verb: verb}}); err != nil {
					t.Errorf("somebody else's table: %v", err)
					return
				}
			}
			select {
			case <-stop:
				return
			case <-time.After(200 * time.Microsecond):
			}
		}
	}()
	return func() {
		close(stop)
		<-ended
	}
}

func wantFound(t *testing.T, r Leftovers, want string) {
	t.Helper()
	got, err := r.Find(t.Context())
	kit.Check(t, got == want && err == nil, "%s: Find = %q, %v; want %q", r, got, err, want)
}

func remove(t *testing.T, r Leftovers) {
	t.Helper()
	err := r.Remove(t.Context())
	kit.Check(t, err == nil, "%s: Remove: %v", r, err)
}
