// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"kubeproxy/common/service"
	"kubeproxy/platform/linux/netlink/nft"
)

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
		t.Run(name, func(t *testing.T) {
			inNamespace(t, func() { checkDrift(t, tt.script, tt.want) })
		})
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
				if diff := cmp.Diff(drift, p.Outcome().Drift); diff != "" {
					t.Errorf("drift (-want +got):\n%s", diff)
				}
				if err := p.Apply(context.Background()).Err; err != nil {
					t.Errorf("Apply: %v", err)
				}
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
		if err != nil {
			t.Fatal(err)
		}
		e := newEncoder(service.IPv4)
		e.NetfilterMessage(unix.NFNL_MSG_BATCH_BEGIN, 0, 0, unix.NFNL_SUBSYS_NFTABLES)
		e.EndMessage()
		e.NetfilterMessage(nft.Type(unix.NFT_MSG_NEWTABLE), unix.NLM_F_CREATE|unix.NLM_F_ACK, e.nf, 0)
		e.Text(unix.NFTA_TABLE_NAME, TableName)
		e.Uint32(unix.NFTA_TABLE_FLAGS, nft.TableOwned)
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
