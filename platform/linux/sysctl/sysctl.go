// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sysctl sets the kernel parameters that a node which forwards many
// connections needs, as far as it may: a value that is good enough stays, and
// one that cannot be set is reported and no reason to stop. What a backend
// needs for its own rules is the backend's business.
package sysctl

import (
	"strconv"
	"strings"
	"time"

	"kubeproxy/common/service"
)

// Settings are what an operator may ask for. Zero leaves a parameter alone.
type Settings struct {
	// MaxPerCore is how many connections to track for each of the CPUs, up
	// to 1,048,576 in all. Zero leaves the size of the table alone, whatever
	// Min says.
	MaxPerCore, CPUs int
	// Min is how many connections to track at least. The limit on MaxPerCore
	// does not hold for it.
	Min int
	// TCPEstablished and TCPCloseWait are how long an idle connection in that
	// state is remembered. As all durations here they are rounded up to
	// seconds.
	TCPEstablished, TCPCloseWait time.Duration
	// TCPBeLiberal lets packets outside of the TCP window pass as valid.
	TCPBeLiberal bool
	// UDP is how long a UDP flow is remembered that nobody answered,
	// UDPStream one that goes both ways.
	UDP, UDPStream time.Duration
}

// maxEntries limits what MaxPerCore leads to on nodes with many CPUs: at 2^20
// entries the table alone takes some 300 MB.
const maxEntries = 1 << 20

// entriesPerBucket is how many entries share a bucket of a full table.
const entriesPerBucket = 4

// entries returns how large the table has to be, 0 to leave it alone.
func (s Settings) entries() int64 {
	if s.MaxPerCore <= 0 {
		return 0
	}
	scaled := min(int64(s.MaxPerCore)*int64(s.CPUs), maxEntries)
	return max(scaled, int64(s.Min))
}

// Apply makes the parameters what s asks for and reports on each, in a fixed
// order. There is nothing to report on a parameter that s leaves alone.
//
// They exist once connection tracking is loaded, which the first rule that
// needs it does.
func Apply(files Files, s Settings) []Outcome {
	var all []Outcome
	if n := s.entries(); n > 0 {
		size := ensure(files, conntrackMax, requirement{n, atLeast})
		all = append(all, size)
		if size.Action != Failed { // else more buckets would be wasted
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

// OOMScore makes the kernel spare this process, or not, when memory runs out:
// -1000 is never, 1000 first.
func OOMScore(files Files, adjustment int) Outcome {
	return ensure(files, oomScore, requirement{int64(adjustment), exactly})
}

// Forwarding reports for each family on the parameter without which the
// kernel forwards nothing that comes in for another machine. Whoever sets up
// the node's network decides on it, so it is only looked at.
func Forwarding(files Files, families ...service.Family) []Outcome {
	var all []Outcome
	for _, f := range families {
		p := forwardIPv4
		if f == service.IPv6 {
			p = forwardIPv6
		}
		all = append(all, check(files, p, requirement{1, atLeast}))
	}
	return all
}

// IsForwarding returns the family of the parameter by this name, if it is one that
// Forwarding looks at.
func IsForwarding(name string) (f service.Family, is bool) {
	switch name {
	case forwardIPv4.name:
		return service.IPv4, true
	case forwardIPv6.name:
		return service.IPv6, true
	}
	return 0, false
}

// Connections returns how many connections are tracked and how many may be.
func Connections(files Files) (now, most int64, err error) {
	if now, err = number(files, conntrackCount); err != nil {
		return 0, 0, err
	}
	most, err = number(files, conntrackMax)
	return now, most, err
}

// TCPBeLiberal reports that packets outside of the TCP window pass as valid, whoever
// asked for that.
func TCPBeLiberal(files Files) bool {
	n, err := number(files, tcpBeLiberal)
	return err == nil && n != 0
}

func number(files Files, p parameter) (int64, error) {
	b, err := files.ReadFile(p.file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
}

// parameter is one file.
type parameter struct{ name, file string }

// The parameters, by the names that sysctl(8) and modinfo(8) use.
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

// requirement is a value and which others do as well.
type requirement struct {
	value int64
	match match
}

type match int

const (
	exactly match = iota
	atLeast
)

func (w requirement) satisfiedBy(have string) bool {
	n, err := strconv.ParseInt(have, 10, 64)
	return err == nil && (n == w.value || w.match == atLeast && n > w.value)
}

func (w requirement) String() string { return strconv.FormatInt(w.value, 10) }
