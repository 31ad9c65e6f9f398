// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sysctl sets kernel parameters for a node that forwards many connections.
// Settings and the kernel's files go in, one Outcome per parameter comes out. A
// sufficient value stays. A parameter that cannot be set is reported, and does not stop
// the proxy. Each backend sets the parameters that its own rules need.
package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"kubeproxy/common/service"
)

// Settings are the operator's settings. A zero field leaves its parameter unchanged.
type Settings struct {
	// MaxPerCore is the number of connections to track for each of the CPUs, at most
	// 1,048,576 in total. If it is zero, the table size stays unchanged, whatever Min is.
	MaxPerCore, CPUs int
	// Min is the least number of connections to track, whatever the limit of MaxPerCore.
	Min int
	// TCPEstablished and TCPCloseWait are idle timeouts, rounded up to seconds, as all here.
	TCPEstablished, TCPCloseWait time.Duration
	// TCPBeLiberal makes packets outside of the TCP window valid.
	TCPBeLiberal bool
	// UDP is the timeout of a flow without replies, UDPStream of one with.
	UDP, UDPStream time.Duration
}

// maxEntries limits MaxPerCore with many CPUs: 2^20 entries take about 300 MB.
const maxEntries = 1 << 20

// entriesPerBucket is the number of entries per bucket of a full table.
const entriesPerBucket = 4

// entries returns the required table size, 0 to leave it unchanged.
func (s Settings) entries() int64 {
	if s.MaxPerCore <= 0 {
		return 0
	}
	scaled := min(int64(s.MaxPerCore)*int64(s.CPUs), maxEntries)
	return max(scaled, int64(s.Min))
}

// Apply sets the parameters that s sets, and returns an Outcome for each, in a fixed order. They
// exist once the first rule that needs it has loaded connection tracking.
func Apply(files Files, s Settings) []Outcome {
	var all []Outcome
	if n := s.entries(); n > 0 {
		size := ensure(files, conntrackMax, requirement{n, atLeast})
		all = append(all, size)
		if size.Action != Failed { // more buckets would be wasted otherwise
			all = append(all, ensure(files, conntrackHashsize, requirement{(n + entriesPerBucket - 1) / entriesPerBucket, atLeast}))
		}
	}
	for _, t := range []struct {
		parameter
		wanted time.Duration
	}{
		{tcpEstablished, s.TCPEstablished},
		{tcpCloseWait, s.TCPCloseWait},
		{udp, s.UDP},
		{udpStream, s.UDPStream},
	} {
		if t.wanted > 0 {
			all = append(all, ensure(files, t.parameter, requirement{seconds(t.wanted), exactly}))
		}
	}
	if s.TCPBeLiberal {
		all = append(all, ensure(files, tcpBeLiberal, requirement{1, exactly}))
	}
	return all
}

func seconds(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }

// nodeCritical is the score that kubelet gives to the containers of pods of the priority
// class system-node-critical, see guaranteedOOMScoreAdj in
// https://github.com/kubernetes/kubernetes/blob/v1.37.2/pkg/kubelet/qos/policy.go
const nodeCritical = -997

// OOMScore sets how likely the kernel ends this process when memory runs out, from -1000
// (never) to 1000 (first), see proc_pid_oom_score_adj(5). A lower score, which protects
// more, stays. Where this process has no right to lower it, that of kubelet is enough.
func OOMScore(files Files, adjustment int) Outcome {
	o := ensure(files, oomScore, requirement{int64(adjustment), atMost})
	if o.Action == Failed && (requirement{nodeCritical, atMost}).satisfiedBy(o.Have) {
		o.Action, o.Err = Unchanged, nil
	}
	return o
}

// Forwarding checks, for each family, the parameter without which the kernel forwards nothing. It
// changes nothing: the node's network setup decides.
func Forwarding(files Files, families ...service.Family) []Outcome {
	var all []Outcome
	for _, f := range families {
		p := forwardIPv4
		if f == service.IPv6 {
			p = forwardIPv6
		}
		o := check(files, p, requirement{1, atLeast})
		if f == service.IPv4 && o.Action == Mismatch && o.Err == nil {
			o.Forwarding = forwardingInterfaces(files)
		}
		all = append(all, o)
	}
	return all
}

// forwardingInterfaces lists the interfaces from which the kernel forwards though it does not
// by default. Only IPv4 has that (kernel: include/linux/inetdevice.h, IN_DEV_FORWARD;
// net/ipv6/ip6_output.c, ip6_forward).
func forwardingInterfaces(files Files) []string {
	var names []string
	all, _ := net.Interfaces() // none if they cannot be listed
	for _, x := range all {
		n, err := number(files, parameter{file: "proc/sys/net/ipv4/conf/" + x.Name + "/forwarding"})
		if err == nil && n != 0 {
			names = append(names, x.Name)
		}
	}
	return names
}

// IsForwarding returns the family of a parameter's name, if Forwarding looks at it.
func IsForwarding(name string) (f service.Family, is bool) {
	switch name {
	case forwardIPv4.name:
		return service.IPv4, true
	case forwardIPv6.name:
		return service.IPv6, true
	}
	return 0, false
}

// Connections returns the number of tracked connections and their maximum.
func Connections(files Files) (now, most int64, err error) {
	if now, err = number(files, conntrackCount); err != nil {
		return 0, 0, err
	}
	most, err = number(files, conntrackMax)
	return now, most, err
}

// TCPBeLiberal reports whether packets outside of the TCP window, but resets, are valid.
func TCPBeLiberal(files Files) bool {
	n, err := number(files, tcpBeLiberal)
	return err == nil && n != 0
}

// TCPTimeout returns the seconds of a TCP state, as "close_wait", 0 if not known.
func TCPTimeout(files Files, state string) uint32 {
	n, err := number(files, parameter{file: "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_" + state})
	if err != nil {
		return 0
	}
	return uint32(n)
}

// HasConntrack reports whether the kernel tracks connections, which a missing file alone denies.
func HasConntrack(files Files) bool {
	for _, p := range []parameter{conntrackHashsize, conntrackCount} {
		if _, err := files.ReadFile(p.file); !errors.Is(err, fs.ErrNotExist) {
			return true
		}
	}
	_, err := files.ReadFile("sys/kernel/uevent_seqnum")
	return err != nil
}

func number(files Files, p parameter) (int64, error) {
	b, err := files.ReadFile(p.file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// parameter is a kernel parameter and its file.
type parameter struct{ name, file string }

// Parameters as in sysctl(8): https://docs.kernel.org/networking/nf_conntrack-sysctl.html.
var (
	conntrackMax      = parameter{"net.netfilter.nf_conntrack_max", "proc/sys/net/netfilter/nf_conntrack_max"}
	conntrackCount    = parameter{"net.netfilter.nf_conntrack_count", "proc/sys/net/netfilter/nf_conntrack_count"}
	conntrackHashsize = parameter{"nf_conntrack hashsize", "sys/module/nf_conntrack/parameters/hashsize"}
	tcpEstablished    = parameter{"net.netfilter.nf_conntrack_tcp_timeout_established", "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_established"}
	tcpCloseWait      = parameter{"net.netfilter.nf_conntrack_tcp_timeout_close_wait", "proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close_wait"}
	tcpBeLiberal      = parameter{"net.netfilter.nf_conntrack_tcp_be_liberal", "proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal"}
	udp               = parameter{"net.netfilter.nf_conntrack_udp_timeout", "proc/sys/net/netfilter/nf_conntrack_udp_timeout"}
	udpStream         = parameter{"net.netfilter.nf_conntrack_udp_timeout_stream", "proc/sys/net/netfilter/nf_conntrack_udp_timeout_stream"}
	forwardIPv4       = parameter{"net.ipv4.ip_forward", "proc/sys/net/ipv4/ip_forward"}
	forwardIPv6       = parameter{"net.ipv6.conf.all.forwarding", "proc/sys/net/ipv6/conf/all/forwarding"}
	oomScore          = parameter{"oom_score_adj", "proc/self/oom_score_adj"}
)

// requirement is a value, and whether higher or lower values satisfy it too.
type requirement struct {
	value int64
	match match
}

type match int

const (
	exactly match = iota
	atLeast
	atMost
)

func (r requirement) satisfiedBy(have string) bool {
	n, err := strconv.ParseInt(have, 10, 64)
	return err == nil && (n == r.value || r.match == atLeast && n > r.value || r.match == atMost && n < r.value)
}

func (r requirement) String() string { return strconv.FormatInt(r.value, 10) }

// WithConntrackHint names the reason of a failed probe if that is the lack of connection
// tracking. Without that the kernel lacks each module that depends on it.
func WithConntrackHint(files Files, err error) error {
	if err == nil || HasConntrack(files) {
		return err
	}
	return Missing(fmt.Errorf("the kernel has no connection tracking (module nf_conntrack): %w", err), "nf_conntrack")
}

// MissingError means that the kernel lacks what modules usually provide.
type MissingError struct {
	error   // names them
	Modules []string
}

// Unwrap returns the error without the list.
func (e *MissingError) Unwrap() error { return e.error }

// Missing returns err with the modules that it names.
func Missing(err error, modules ...string) error { return &MissingError{err, modules} }

// Files is the kernel's files, by names such as "proc/sys/net/ipv4/ip_forward".
type Files interface {
	ReadFile(name string) ([]byte, error)
	// WriteFile replaces the content of an existing file. It creates none.
	WriteFile(name string, data []byte) error
	// Writable reports whether WriteFile may write the file. It changes nothing.
	Writable(name string) bool
}

// ErrFixed is why a parameter cannot be changed by any process of this network namespace,
// whatever its rights are. Connection tracking has such parameters, see
// https://git.kernel.org/linus/671c54ea8c7f and nf_conntrack_set_hashsize.
var ErrFixed = errors.New("only the first network namespace of the machine can change it")

// Dir implements Files with a root directory.
type Dir string

// ReadFile implements Files.
func (d Dir) ReadFile(name string) ([]byte, error) { return os.ReadFile(d.path(name)) }

// WriteFile implements Files. The error is an ErrFixed if that is the reason.
func (d Dir) WriteFile(name string, data []byte) error {
	f, err := os.OpenFile(d.path(name), os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrPermission) && d.fixed(name) {
		return fmt.Errorf("%w: %w", ErrFixed, err)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if errors.Is(err, errors.ErrUnsupported) {
		err = fmt.Errorf("%w: %w", ErrFixed, err)
	}
	return errors.Join(err, f.Close())
}

// fixed reports whether the file is writable for nobody. Below /proc/sys its mode binds root, too:
// sysctl_perm in fs/proc/proc_sysctl.c.
func (d Dir) fixed(name string) bool {
	stat, err := os.Stat(d.path(name))
	return err == nil && stat.Mode().Perm()&0o222 == 0
}

// Writable implements Files.
func (d Dir) Writable(name string) bool {
	f, err := os.OpenFile(d.path(name), os.O_WRONLY, 0)
	if err != nil {
		return false
	}
	return f.Close() == nil
}

func (d Dir) path(name string) string { return filepath.Join(string(d), filepath.FromSlash(name)) }

// Action is what happened to a parameter.
type Action int

// The actions.
const (
	Unchanged Action = iota // it already has the wanted value, or a better one
	Written                 // it now has the wanted value
	Failed                  // it does not have the wanted value, see Err
	Mismatch                // it does not have the wanted value, and this proxy does not set it
)

// Outcome is the result for one parameter.
type Outcome struct {
	Name       string
	Want, Have string // Have is the previous value, empty if it could not be read
	Action     Action
	Err        error // of a Failed one, or of a Mismatch that cannot be read
	// Writable is whether this process may write one that is Written or Unchanged.
	Writable bool
	// Forwarding are the interfaces that forward though a Mismatch of Forwarding says no.
	Forwarding []string
}

// Stops reports that, as Forwarding sees it, nothing is forwarded at all.
func (o *Outcome) Stops() bool { return o.Action == Mismatch && o.Err == nil && len(o.Forwarding) == 0 }

// String returns one sentence, without a full stop.
func (o Outcome) String() string {
	switch {
	case o.Action == Written:
		return fmt.Sprintf("%s set to %s, was %s", o.Name, o.Want, o.Have)
	case o.Action == Unchanged && o.Have == o.Want:
		return fmt.Sprintf("%s is %s already", o.Name, o.Have)
	case o.Action == Unchanged:
		return fmt.Sprintf("%s stays %s, which is enough for the wanted %s", o.Name, o.Have, o.Want)
	case o.Have == "":
		return fmt.Sprintf("%s should be %s and is unknown: %v", o.Name, o.Want, o.Err)
	case len(o.Forwarding) > 0:
		return fmt.Sprintf("%s is %s and should be %s: only packets that come in by %s are forwarded", o.Name, o.Have, o.Want, strings.Join(o.Forwarding, ", "))
	case o.Action == Mismatch:
		return fmt.Sprintf("%s is %s and should be %s", o.Name, o.Have, o.Want)
	}
	return fmt.Sprintf("%s stays %s, wanted %s: %v", o.Name, o.Have, o.Want, o.Err)
}

// check compares the parameter with w and changes nothing.
func check(files Files, p parameter, w requirement) Outcome {
	o := Outcome{Name: p.name, Want: w.String(), Action: Mismatch}
	b, err := files.ReadFile(p.file)
	o.Have, o.Err = strings.TrimSpace(string(b)), err
	if err == nil && w.satisfiedBy(o.Have) {
		o.Action = Unchanged
	}
	return o
}

// ensure writes the value of w unless the parameter satisfies w.
func ensure(files Files, p parameter, w requirement) Outcome {
	o := check(files, p, w)
	if o.Action == Unchanged {
		o.Writable = files.Writable(p.file)
		return o
	}
	if o.Err == nil {
		o.Err = files.WriteFile(p.file, []byte(o.Want))
	}
	o.Action, o.Writable = Written, true
	if o.Err != nil {
		o.Action, o.Writable = Failed, false
	}
	return o
}
