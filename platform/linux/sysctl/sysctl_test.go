// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// kernelDefaults are the initial values on a node with little memory.
var kernelDefaults = map[string]string{
	conntrackMax.file:      "65536",
	conntrackHashsize.file: "16384",
	conntrackCount.file:    "17",
	tcpEstablished.file:    "432000",
	tcpCloseWait.file:      "60",
	tcpBeLiberal.file:      "0",
	udp.file:               "30",
	udpStream.file:         "120",
	forwardIPv4.file:       "1",
	forwardIPv6.file:       "0",
	oomScore.file:          "0",
}

// tree returns a directory with the files of kernelDefaults, changed by edit. An empty
// value removes a file.
func tree(t *testing.T, edit map[string]string) Dir {
	t.Helper()
	d := Dir(t.TempDir())
	for name, value := range kernelDefaults {
		if v, ok := edit[name]; ok {
			value = v
		}
		if value == "" {
			continue
		}
		kit.Must(t, os.MkdirAll(filepath.Dir(d.path(name)), 0o755))
		kit.Must(t, os.WriteFile(d.path(name), []byte(value+"\n"), 0o644))
	}
	return d
}

// changes returns the files that differ from kernelDefaults.
func changes(t *testing.T, d Dir) map[string]string {
	t.Helper()
	changed := map[string]string{}
	for name, value := range kernelDefaults {
		b, err := d.ReadFile(name)
		kit.Need(t, err == nil || errors.Is(err, fs.ErrNotExist), "%v", err)
		if have := strings.TrimSpace(string(b)); have != value {
			changed[name] = have
		}
	}
	return changed
}

// readOnly is a Dir as an unprivileged container sees it.
type readOnly struct{ Dir }

func (r readOnly) WriteFile(name string, _ []byte) error {
	return &fs.PathError{Op: "open", Path: "/" + name, Err: fs.ErrPermission}
}

func sentences(outcomes []Outcome) []string {
	var all []string
	for _, o := range outcomes {
		all = append(all, o.String())
	}
	return all
}

// documentedDefaults are the documented defaults on a node with two CPUs.
var documentedDefaults = Settings{MaxPerCore: 32768, CPUs: 2, Min: 131072, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour}

type applyTest struct {
	settings  Settings
	edit      map[string]string
	want      map[string]string // files that differ from kernelDefaults afterwards
	sentences []string
}

func (test applyTest) run(t *testing.T) {
	d := tree(t, test.edit)
	kit.Same(t, "Apply (-want +got)", test.sentences, sentences(Apply(d, test.settings)))
	kit.Same(t, "files (-want +got)", test.want, changes(t, d))
}

func TestApply(t *testing.T) {
	tests := map[string]applyTest{
		"nothing asked for": {want: map[string]string{}},
		"defaults": {
			settings: documentedDefaults,
			want: map[string]string{conntrackMax.file: "131072", conntrackHashsize.file: "32768",
				tcpEstablished.file: "86400", tcpCloseWait.file: "3600"},
			sentences: []string{
				"net.netfilter.nf_conntrack_max set to 131072, was 65536",
				"nf_conntrack hashsize set to 32768, was 16384",
				"net.netfilter.nf_conntrack_tcp_timeout_established set to 86400, was 432000",
				"net.netfilter.nf_conntrack_tcp_timeout_close_wait set to 3600, was 60",
			},
		},
		"the rest": {
			settings: Settings{TCPBeLiberal: true, UDP: 40 * time.Second, UDPStream: 90500 * time.Millisecond},
			want:     map[string]string{tcpBeLiberal.file: "1", udp.file: "40", udpStream.file: "91"},
			sentences: []string{
				"net.netfilter.nf_conntrack_udp_timeout set to 40, was 30",
				"net.netfilter.nf_conntrack_udp_timeout_stream set to 91, was 120",
				"net.netfilter.nf_conntrack_tcp_be_liberal set to 1, was 0",
			},
		},
		"not a number": {
			settings:  Settings{UDP: time.Second},
			edit:      map[string]string{udp.file: "many"},
			want:      map[string]string{udp.file: "1"},
			sentences: []string{"net.netfilter.nf_conntrack_udp_timeout set to 1, was many"},
		},
	}
	for name, test := range tests {
		t.Run(name, test.run)
	}
}

func TestApplyKeepsSufficientValues(t *testing.T) {
	tests := map[string]applyTest{
		"large enough already": {
			settings: Settings{MaxPerCore: 1000, CPUs: 4},
			edit:     map[string]string{conntrackMax.file: "4000"},
			want:     map[string]string{conntrackMax.file: "4000"},
			sentences: []string{
				"net.netfilter.nf_conntrack_max is 4000 already",
				"nf_conntrack hashsize stays 16384, which is enough for the wanted 1000",
			},
		},
		"table large enough, too few buckets": {
			settings: Settings{MaxPerCore: 30001, CPUs: 1},
			edit:     map[string]string{conntrackHashsize.file: "64"},
			want:     map[string]string{conntrackHashsize.file: "7501"},
			sentences: []string{
				"net.netfilter.nf_conntrack_max stays 65536, which is enough for the wanted 30001",
				"nf_conntrack hashsize set to 7501, was 64",
			},
		},
	}
	for name, test := range tests {
		t.Run(name, test.run)
	}
}

func TestEntries(t *testing.T) {
	tests := map[string]struct {
		settings Settings
		want     int64
	}{
		"unset":                  {Settings{}, 0},
		"min without per core":   {Settings{Min: 1000, CPUs: 8}, 0},
		"few CPUs":               {Settings{MaxPerCore: 32768, CPUs: 2, Min: 131072}, 131072},
		"many CPUs":              {Settings{MaxPerCore: 32768, CPUs: 16, Min: 131072}, 524288},
		"very many CPUs":         {Settings{MaxPerCore: 32768, CPUs: 128, Min: 131072}, 1048576},
		"min above the limit":    {Settings{MaxPerCore: 32768, CPUs: 128, Min: 2000000}, 2000000},
		"more than 32 bits hold": {Settings{MaxPerCore: 1<<31 - 1, CPUs: 1024}, 1048576},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) { kit.Equal(t, test.settings.entries(), test.want, "entries") })
	}
}

// A value that cannot be written is reported by name, whatever the others are. For a
// sufficient value no write is attempted.
func TestApplyReadOnly(t *testing.T) {
	d := tree(t, map[string]string{tcpCloseWait.file: "3600"})
	got := Apply(readOnly{d}, documentedDefaults)
	want := []string{
		"net.netfilter.nf_conntrack_max stays 65536, wanted 131072: open /proc/sys/net/netfilter/nf_conntrack_max: permission denied",
		"net.netfilter.nf_conntrack_tcp_timeout_established stays 432000, wanted 86400: open /proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established: permission denied",
		"net.netfilter.nf_conntrack_tcp_timeout_close_wait is 3600 already",
	}
	kit.Same(t, "Apply (-want +got)", want, sentences(got))
	kit.Check(t, got[0].Action == Failed && errors.Is(got[0].Err, fs.ErrPermission) && got[2].Action == Unchanged && got[2].Err == nil, "Apply = %+v", got)
	kit.Same(t, "files (-want +got)", map[string]string{tcpCloseWait.file: "3600"}, changes(t, d))
}

// unreadable is a Dir that can only be written.
type unreadable struct{ Dir }

func (unreadable) ReadFile(string) ([]byte, error) { return nil, fs.ErrPermission }

// A value that cannot be read may already be sufficient, so it is not written.
func TestApplyUnreadable(t *testing.T) {
	d := tree(t, nil)
	want := []string{"net.netfilter.nf_conntrack_max should be 131072 and is unknown: permission denied"}
	got := Apply(unreadable{d}, Settings{MaxPerCore: 1, CPUs: 1, Min: 131072})
	kit.Same(t, "Apply (-want +got)", want, sentences(got))
	kit.Same(t, "files (-want +got)", map[string]string{}, changes(t, d))
}

func TestApplyTwice(t *testing.T) {
	d := tree(t, nil)
	Apply(d, documentedDefaults)
	for _, o := range Apply(d, documentedDefaults) {
		kit.Check(t, o.Action == Unchanged, "second time: %s", o)
	}
}

// Connection tracking may not be loaded yet. Neither a missing file nor a directory in
// its place becomes a file.
func TestApplyMakesNoFiles(t *testing.T) {
	d := tree(t, map[string]string{conntrackMax.file: "", udp.file: "", udpStream.file: ""})
	kit.Must(t, os.Mkdir(d.path(udp.file), 0o755))
	got := Apply(d, Settings{MaxPerCore: 1, CPUs: 1, UDP: time.Minute, UDPStream: time.Minute})
	for i, start := range []string{
		"net.netfilter.nf_conntrack_max should be 1 and is unknown: open ",
		"net.netfilter.nf_conntrack_udp_timeout should be 60 and is unknown: ",
		"net.netfilter.nf_conntrack_udp_timeout_stream should be 60 and is unknown: open ",
	} {
		o := got[i]
		kit.Check(t, o.Action == Failed && strings.HasPrefix(o.String(), start), "%s: action %d, want %s...: action %d", o, o.Action, start, Failed)
	}
	for _, name := range []string{conntrackMax.file, udpStream.file} {
		err := d.WriteFile(name, []byte("1"))
		kit.Check(t, errors.Is(err, fs.ErrNotExist), "WriteFile = %v, want %v", err, fs.ErrNotExist)
	}
}

func TestForwarding(t *testing.T) {
	d := tree(t, nil)
	want := []string{"net.ipv4.ip_forward is 1 already", "net.ipv6.conf.all.forwarding is 0 and should be 1"}
	got := Forwarding(d, service.Families[:]...)
	kit.Same(t, "Forwarding (-want +got)", want, sentences(got))
	if got[1].Action != Mismatch || len(changes(t, d)) != 0 {
		t.Errorf("Forwarding = %+v and changed %v, want %d and nothing", got[1], changes(t, d), Mismatch)
	}
	for single, text := range map[string]string{"0": "", "1": ": only packets that come in by lo are forwarded"} { // every node has lo
		d := tree(t, map[string]string{forwardIPv4.file: "0"})
		kit.Must(t, os.MkdirAll(d.path("proc/sys/net/ipv4/conf/lo"), 0o755))
		kit.WriteFile(t, d.path("proc/sys/net/ipv4/conf/lo/forwarding"), single)
		o := Forwarding(d, service.IPv4)[0]
		if want := "net.ipv4.ip_forward is 0 and should be 1" + text; o.String() != want || o.Stops() != (text == "") {
			t.Errorf("%q stops all: %t, want %q", o, o.Stops(), want)
		}
	}
}

func TestConnections(t *testing.T) {
	d := tree(t, map[string]string{conntrackCount.file: "17", conntrackMax.file: "262144"})
	now, most, err := Connections(d)
	kit.Check(t, now == 17 && most == 262144 && err == nil, "Connections = %d, %d, %v, want 17, 262144", now, most, err)
	for name, files := range map[string]map[string]string{
		"not tracked": {conntrackCount.file: "", conntrackMax.file: "262144"},
		"no number":   {conntrackCount.file: "many", conntrackMax.file: "262144"},
	} {
		_, _, err := Connections(tree(t, files))
		kit.Check(t, err != nil, "%s: no error", name)
	}
}

func TestHasConntrack(t *testing.T) {
	const kernel = "sys/kernel/uevent_seqnum"
	tests := map[string]struct {
		edit map[string]string
		want bool
	}{
		"tracks":                  {map[string]string{kernel: "1"}, true},
		"hidden from a container": {map[string]string{kernel: "1", conntrackCount.file: ""}, true},
		"tracks none":             {map[string]string{kernel: "1", conntrackCount.file: "", conntrackHashsize.file: ""}, false},
		"no sysfs":                {map[string]string{conntrackCount.file: "", conntrackHashsize.file: ""}, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			d := tree(t, test.edit)
			if v := test.edit[kernel]; v != "" {
				kit.Must(t, os.MkdirAll(filepath.Dir(d.path(kernel)), 0o755))
				kit.Must(t, os.WriteFile(d.path(kernel), []byte(v), 0o644))
			}
			kit.Equal(t, HasConntrack(d), test.want, "HasConntrack")
		})
	}
}

func TestOOMScore(t *testing.T) {
	for name, test := range map[string]struct {
		files Files
		want  string
	}{
		"written":     {tree(t, nil), "oom_score_adj set to -999, was 0"},
		"already":     {tree(t, map[string]string{oomScore.file: "-999"}), "oom_score_adj is -999 already"},
		"not raised":  {tree(t, map[string]string{oomScore.file: "-1000"}), "oom_score_adj stays -1000, which is enough for the wanted -999"},
		"kubelet's":   {readOnly{tree(t, map[string]string{oomScore.file: "-997"})}, "oom_score_adj stays -997, which is enough for the wanted -999"},
		"Burstable":   {readOnly{tree(t, map[string]string{oomScore.file: "-996"})}, "oom_score_adj stays -996, wanted -999: open /proc/self/oom_score_adj: permission denied"},
		"not allowed": {readOnly{tree(t, nil)}, "oom_score_adj stays 0, wanted -999: open /proc/self/oom_score_adj: permission denied"},
	} {
		t.Run(name, func(t *testing.T) { kit.Equal(t, OOMScore(test.files, -999).String(), test.want, "OOMScore") })
	}
}
