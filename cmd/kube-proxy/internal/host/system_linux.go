// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"kubeproxy/common/condition"
	"kubeproxy/common/explain"
	"kubeproxy/common/health"
	"kubeproxy/common/lease"
	"kubeproxy/common/printable"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
	"kubeproxy/config"
	"kubeproxy/platform/linux/conntrack"
	"kubeproxy/platform/linux/packet"
	"kubeproxy/platform/linux/proc"
	"kubeproxy/platform/linux/sysctl"
)

// OS is the system of this program.
const OS = config.Linux

// Privileges is the advice to a user who lacks the privileges for a cleanup.
const Privileges = "run this as root, or with the rights CAP_NET_ADMIN, CAP_NET_RAW and CAP_DAC_READ_SEARCH"

// LeaseTransport returns the transport by which service proxies of a node find each
// other, and the identity of this one. Proxies of other Services have another name.
func LeaseTransport(proxyName string) (lease.Transport, lease.Identity) {
	return proc.LeaseSocket(proxyName), proc.Self()
}

// Processes names the processes that look like service proxies of this node.
func Processes() string {
	return printable.Join(proc.ByName(os.DirFS("/proc"), "kube-proxy"), ", ")
}

// FilesLimit returns how many files this process may open, if known (RLIMIT_NOFILE).
func FilesLimit() (uint64, bool) {
	var limit unix.Rlimit
	err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit)
	return limit.Cur, err == nil
}

// sockets returns the socket tables of this thread's network namespace, see proc(5).
func sockets() fs.FS { return os.DirFS("/proc/thread-self/net") }

// hiddenInterval is the pause between two checks of WatchHiddenListeners.
const hiddenInterval = time.Minute

// WatchHiddenListeners checks, until ctx ends, for listeners of programs that NodePorts hide: the
// program listens, but its clients reach a Service, and nothing tells.
func WatchHiddenListeners(ctx context.Context, t *track.Tracker, to *health.Monitor) {
	log := klog.FromContext(ctx)
	latest := ""
	for {
		found, err := proc.Listeners(sockets())
		text := hiddenListeners(t.Latest(), found)
		if err != nil {
			text = ""
			log.V(2).Info("Programs that listen are not known", "err", err)
		}
		count, _, _ := strings.Cut(text, ", the first")
		to.SetDetailedCondition(condition.NodePorts, count, text)
		if text != "" && text != latest {
			log.Info("Warning: a NodePort hides a program of this node", "what", text)
		}
		latest = text
		if !reconcile.Pause(ctx, hiddenInterval) {
			return
		}
	}
}

// hiddenListeners names the listeners that NodePorts of s hide, empty for none.
func hiddenListeners(s *service.Snapshot, found []proc.Listener) string {
	all := proc.HiddenBy(s, found)
	if len(all) == 0 {
		return ""
	}
	first := all[0]
	return fmt.Sprintf("%d NodePorts are ports that programs of this node listen on, the first of them: %s/%s hides a program that listens on %s/%s",
		len(all), first.Port.Name.Namespace, first.Port.Name.Name, first.Listener.Addr, first.Listener.Protocol)
}

// Flows returns tracked connections of c's client to its destination, for the snapshot want.
func Flows(ctx context.Context, want *service.Snapshot, c route.Conn) ([]explain.Flow, error) {
	entries, err := conntrack.Entries(ctx, conntrack.Netlink{}, want, conntrack.Client{Protocol: c.Protocol, From: c.From, To: c.To})
	stale := map[netip.AddrPort]int{}
	for i := range entries {
		if entries[i].Stale {
			stale[entries[i].ReplySrc]++
		}
	}
	unanswered := unansweredTimeout(c.Protocol)
	var all []explain.Flow
	for i := range entries {
		e := &entries[i]
		f := explain.Flow{Client: e.Src, Target: e.ReplySrc, Answered: e.Answered, Ended: e.Ended(), HalfOpen: e.Opening(), Stale: e.Stale}
		f.Fresh = !e.Answered && !f.Ended && unanswered-int64(e.Expires) <= freshSeconds
		if e.Stale {
			f.Remedy = remedy(c, e, stale[e.ReplySrc])
		}
		all = append(all, f)
	}
	return all, err
}

// Waiting returns the TCP connections to Services of want whose clients sent a first packet a moment
// ago and wait for the answer, with the Services. It returns 10,000 at most.
func Waiting(ctx context.Context, want *service.Snapshot) (map[explain.Wait]string, error) {
	const momentSeconds, most = 15, 10000
	services := map[service.Address]string{}
	for _, f := range service.Families {
		for p := range want.Ports(f) {
			for _, x := range p.Frontends {
				services[p.Address(x)] = p.Name.Namespace + "/" + p.Name.Name
			}
		}
	}
	unanswered, all := unansweredTimeout(service.TCP), map[explain.Wait]string{}
	err := conntrack.Netlink{}.Dump(ctx, conntrack.Filter{AllFamilies: true, OneWay: true}, func(x conntrack.Flow) {
		to := service.AddressOf(x.Protocol, x.Dst)
		name := cmp.Or(services[to], services[to.OnNode()])
		lately := unanswered-int64(x.Expires) <= momentSeconds
		if name != "" && x.Protocol == service.TCP && x.Opening() && x.Dst != x.ReplySrc && lately && len(all) < most {
			all[explain.Wait{Client: x.Src, To: x.Dst}] = name
		}
	})
	return all, err
}

// freshSeconds is how long ago the latest packet of a fresh connection is at most.
const freshSeconds = 60

// unansweredTimeout returns after how many seconds the kernel forgets a connection that got no
// answer, 0 if that is unknown. See the settings in nf_conntrack-sysctl.rst of the kernel.
func unansweredTimeout(p service.Protocol) int64 {
	name := map[service.Protocol]string{service.TCP: "tcp_timeout_syn_sent", service.UDP: "udp_timeout", service.SCTP: "sctp_timeout_cookie_wait"}[p]
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n
}

// remedy is the command that deletes the stale entry e, or all of count that lead to the same
// target. It spares connections of TCP that got an answer, which go on where they are.
func remedy(c route.Conn, e *conntrack.Entry, count int) string {
	to := fmt.Sprintf("-d %s --dport %d", c.To.Addr(), c.To.Port())
	switch {
	case count == 1 || c.Protocol == service.SCTP:
		return fmt.Sprintf("conntrack -D -p %s -s %s --sport %d %s", c.Protocol, e.Src.Addr(), e.Src.Port(), to)
	case c.Protocol == service.TCP:
		to += " --state SYN_SENT"
	}
	return fmt.Sprintf("conntrack -D -p %s -s %s %s -r %s --reply-port-src %d", c.Protocol, c.From, to, e.ReplySrc.Addr(), e.ReplySrc.Port())
}

// routeTypes are the types of routes that lead nowhere, see ip-route(8).
var routeTypes = map[int]string{unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable", unix.RTN_PROHIBIT: "prohibited"}

// refusedRoutes are the errors that stand for a type of route, over IPv4, see ip-route(8).
var refusedRoutes = map[unix.Errno]int{unix.EINVAL: unix.RTN_BLACKHOLE, unix.EHOSTUNREACH: unix.RTN_UNREACHABLE, unix.EACCES: unix.RTN_PROHIBIT}

// Route asks for the way of the node's packets to an address, with the kernel's error for none.
func Route(to netip.Addr) error {
	all, err := netlink.RouteGet(to.AsSlice())
	for errno, t := range refusedRoutes {
		if errors.Is(err, errno) {
			return errors.New(routeTypes[t])
		}
	}
	if err != nil {
		return err
	}
	if len(all) == 0 {
		return errors.New("the kernel names none")
	}
	if text, leadsNowhere := routeTypes[all[0].Type]; leadsNowhere {
		return errors.New(text)
	}
	return nil
}

// Forwards reports whether the node forwards a family by now, before conditions do.
func Forwards(f service.Family) bool {
	return !slices.ContainsFunc(sysctl.Forwarding(sysctl.Host(), f), func(o sysctl.Outcome) bool {
		return o.Action == sysctl.Failed || o.Action == sysctl.Mismatch
	})
}

// Others are the rules of others on the node, read when first asked for.
type Others struct {
	Most int // of the targets of a connection are followed, 0 for many
	node *packet.System
	read map[string]*othersTables // by the family and the tables that are left out
}

// othersTables are the rules of others for one family.
type othersTables struct {
	kernel *packet.Kernel
	legacy []*packet.Legacy
}

// Close closes o.
func (o *Others) Close() {
	for _, t := range o.read {
		t.kernel.Close()
	}
	if o.node != nil {
		o.node.Close()
	}
}

// tables returns the rules of others, without those of tables that w followed.
func (o *Others) tables(ctx context.Context, w *explain.Walk, family service.Family) (*othersTables, error) {
	key := family.String() + strings.Join(w.Followed, "|")
	if t := o.read[key]; t != nil {
		return t, nil
	}
	kernel, err := packet.Open(ctx, family, w.Followed)
	if err != nil {
		return nil, err
	}
	t := &othersTables{kernel: kernel}
	if !slices.Contains(w.Followed, explain.LegacyTables) {
		if t.legacy, err = packet.LegacyTables(ctx, family); err != nil {
			kernel.Close()
			return nil, err
		}
	}
	if o.read == nil {
		o.read = map[string]*othersTables{}
	}
	o.read[key] = t
	return t, nil
}

// Add follows c through the rules of others, and adds to w, what the mode does, what they do. local
// reports whether an address belongs to the node, marks are the mode's bits of the mark.
func (o *Others) Add(ctx context.Context, w *explain.Walk, c route.Conn, local func(netip.Addr) bool, marks uint32) error {
	parts := w.Parts
	if len(parts) == 0 {
		parts = []explain.Part{{Conn: c, Targets: w.Targets}}
	}
	var errs []error
	for _, p := range parts {
		errs = append(errs, o.add(ctx, w, p, local, marks))
	}
	return errors.Join(errs...)
}

func (o *Others) add(ctx context.Context, w *explain.Walk, c explain.Part, local func(netip.Addr) bool, marks uint32) error {
	t, err := o.tables(ctx, w, service.FamilyOf(c.To.Addr()))
	if err != nil {
		return err
	}
	if o.node == nil {
		o.node = &packet.System{IsLocal: local}
	}
	f := &packet.Connection{Conn: c.Conn, Action: w.Action, Targets: o.sample(c.Targets), Via: w.Via, Served: w.Served, Marks: marks, Mark: c.Mark, Here: w.Here}
	if c.Interface != "" {
		f.In = o.node.Entry(c.Interface, c.From)
	}
	all, err := packet.Follow(t.kernel, t.legacy, o.node, f)
	for i := range all {
		if !slices.ContainsFunc(w.Others, func(x explain.Other) bool { return reflect.DeepEqual(x, all[i]) }) {
			w.Others = append(w.Others, all[i])
		}
	}
	w.Obstacles, w.Doubts = append(w.Obstacles, f.Way.Obstacles...), append(w.Doubts, f.Way.Doubts...)
	w.AddRoutes(f.Way.Routes, f.Way.Replies)
	if note := f.Note(); note != "" && len(all) > 0 {
		w.Notes = append(w.Notes, note)
	}
	return err
}

// sample returns targets from the beginning to the end of all.
func (o *Others) sample(all map[netip.AddrPort]bool) map[netip.AddrPort]bool {
	if o.Most == 0 || len(all) <= o.Most {
		return all
	}
	some := map[netip.AddrPort]bool{}
	list := slices.SortedFunc(maps.Keys(all), netip.AddrPort.Compare)
	for i := range o.Most {
		to := list[i*(len(list)-1)/max(1, o.Most-1)]
		some[to] = all[to]
	}
	return some
}

// listeningSockets lists the sockets that programs of the node listen on.
func listeningSockets() ([]track.Socket, error) {
	found, err := proc.Listeners(sockets())
	if err != nil {
		return nil, err
	}
	all := make([]track.Socket, len(found))
	for i, l := range found {
		all[i] = track.Socket{Protocol: l.Protocol, Addr: l.Addr}
	}
	return all, nil
}

// PortHolder names the process that listens on the TCP port at, empty if that is unknown.
func PortHolder(at netip.AddrPort) string {
	found, err := proc.Listeners(sockets())
	if err != nil {
		return ""
	}
	for _, l := range found {
		if l.Protocol != service.TCP || !l.ConflictsWith(at) {
			continue
		}
		if p, known := proc.BySocketInode(os.DirFS("/proc"), l.Inode); known {
			return p.String()
		}
	}
	return ""
}
