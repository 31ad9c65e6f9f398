// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/moby/ipvs"
	"github.com/sirupsen/logrus"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"kubeproxy/common/service"
	"kubeproxy/common/takeover"
	"kubeproxy/platform/linux/ipset"
	"kubeproxy/platform/linux/iptables"
	kernelnetlink "kubeproxy/platform/linux/netlink"
	"kubeproxy/platform/linux/sysctl"
)

// New returns the Backend for one family in the network namespace of the calling thread.
// It changes nothing yet. The error describes what the kernel lacks.
func New(f service.Family, o Options) (*Backend, error) {
	k := &kernel{family: f, options: o}
	if err := k.open(); err != nil {
		return nil, fmt.Errorf("IPVS for %s: %w", f, err)
	}
	rules, err := openRules(f, o)
	if err != nil {
		return nil, fmt.Errorf("the rules of mode ipvs: %w", err)
	}
	rules.SetResync(o.SyncPeriod)
	return &Backend{family: f, options: o, driver: k, rules: rules, now: time.Now}, nil
}

// openRules returns the rules of one family in the network namespace of the calling thread.
// It changes nothing yet. The error describes what the node lacks.
func openRules(f service.Family, o Options) (*rules, error) {
	chains, err := iptables.New(f, o.chains(f))
	if err != nil {
		return nil, err
	}
	sets, err := ipset.Open()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open a socket for ipsets: %w", err), chains.Close())
	}
	b := newRules(f, chains, sets, time.Now)
	if b.otherVariant, err = otherVariantLeftovers(f); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

// otherVariantLeftovers are those in the variant of iptables that the node does not use.
func otherVariantLeftovers(f service.Family) (takeover.Leftovers, error) {
	used, err := iptables.NodeVariant(f)
	if err != nil {
		return nil, err
	}
	other := iptables.Legacy
	if used == iptables.Legacy {
		other = iptables.NFT
	}
	return iptables.Leftovers{Variant: other, Family: f, Role: Options{}.chains(f).Role}, nil
}

// kernel is the Driver of the real kernel.
type kernel struct {
	family  service.Family
	options Options
	links   links // safe for concurrent use
	// refused are the settings that could not be set. They are not tried again.
	refused map[string]bool

	// mu guards the following fields: concurrent requests on one handle of the library hang.
	mu       sync.Mutex
	moby     clientCloser
	reloaded bool          // the module was reloaded, see callClient
	sets     *ipset.Kernel // nil until first used
	requests *requester    // nil if the kernel has no IPVS, only routes and sets
	device   netlink.Link  // valid during one Commit
}

func (k *kernel) open() error {
	id, err := ensureLoaded()
	if err != nil {
		return err
	}
	if k.requests, err = openRequester(k.family, id); err != nil {
		return fmt.Errorf("open a socket for IPVS: %w", err)
	}
	if k.moby, err = openMobyClient(k.family); err != nil {
		return fmt.Errorf("open a socket to ask for IPVS: %w", err)
	}
	return k.openLinks()
}

func (k *kernel) openLinks() (err error) {
	if k.links.Handle, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return fmt.Errorf("open a socket for routes: %w", err)
	}
	return nil
}

func (k *kernel) close() {
	if k.requests != nil {
		k.requests.socket.Close()
		k.moby.Close()
	}
	k.links.Close()
	if k.sets != nil {
		_ = k.sets.Close()
	}
}

func (k *kernel) Commit(_ context.Context, ops []op) map[int]error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.device = nil // the interface may have been replaced
	closed := k.removeFromSet(ops)
	failed := applyInOrder(ops, func(o *op) error {
		if o.removesFromSet() && closed != nil {
			return closed
		}
		if err := k.do(o); err != nil {
			return driverError(err)
		}
		return nil
	})
	if err := k.addToSet(ops, failed); err != nil {
		markNotInSet(ops, failed, err)
	}
	return failed
}

// driverError maps error numbers to the errors of Driver.
func driverError(err error) error {
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: %w", errExists, err)
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Errorf("%w: %w", errMissing, err)
	}
	return err
}

func (k *kernel) do(o *op) error {
	switch o.verb {
	case addDevice:
		return k.addDevice()
	case addRoute, delRoute:
		return k.applyRoute(o)
	case delAddr:
		return k.deleteAddr(o.route.addr)
	case addSets, addAddrToSet, delAddrFromSet:
		return k.applySetOp(o)
	case addServerToSet, delServerFromSet: // done for all ops at once
		return nil
	case addServer, setServer:
		if err := loadScheduler(o.server.scheduler); err != nil {
			return fmt.Errorf("scheduler %s: %w", o.server.scheduler, err)
		}
	}
	err := k.requests.do(o)
	switch { // the kernel returns the same number for both
	case errors.Is(err, unix.ENOENT) && (o.verb == addServer || o.verb == setServer):
		return fmt.Errorf("%w: the kernel has no scheduler %s", err, o.server.scheduler)
	case errors.Is(err, unix.ENOENT) && o.verb == delDest:
		return fmt.Errorf("%w: %w", errMissing, err)
	}
	return err
}

func (k *kernel) Read(context.Context) (*state, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s := &state{}
	var err error
	if s.device, s.routes, err = k.readRoutes(); err != nil {
		return nil, fmt.Errorf("list routes of %s: %w", Device, err)
	}
	if s.servers, err = k.readServers(); err != nil {
		return nil, fmt.Errorf("list virtual servers: %w", err)
	}
	if err := k.readSets(s); err != nil {
		return nil, fmt.Errorf("list ipsets: %w", err)
	}
	if k.requests != nil {
		s.oneTimeCost, k.requests.lookupTime = k.requests.lookupTime, 0
	}
	var u *upstreamState // not needed while all servers are ours
	for at, l := range s.servers {
		if l.owned() {
			continue
		}
		if u == nil {
			if u, err = k.readUpstream(); err != nil {
				return nil, fmt.Errorf("find kube-proxy's virtual servers: %w", err)
			}
		}
		l.upstream = u.owns(at)
	}
	return s, nil
}

// readServers lists servers with flags, which only netlink has, then all destinations at once.
func (k *kernel) readServers() (map[service.Address]*observedServer, error) {
	if k.requests == nil {
		return nil, nil
	}
	servers, err := callClient(k, client.listServers)
	if err != nil {
		return nil, err
	}
	if len(servers) == 0 {
		return servers, nil
	}
	if err := readDests(servers); err != nil {
		return nil, err
	}
	for at, s := range servers {
		if !s.destsKnown {
			if s.dests, err = k.listDests(at); err != nil {
				return nil, err
			}
		}
	}
	return servers, nil
}

func (k *kernel) Server(_ context.Context, at service.Address) (*observedServer, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	s, err := k.getServer(at)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	dests, err := k.listDests(at)
	return &observedServer{server: s, dests: dests, destsKnown: true}, err
}

func (k *kernel) Dests(_ context.Context, at service.Address) ([]dest, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.listDests(at)
}

func (k *kernel) getServer(at service.Address) (server, error) {
	return callClient(k, func(a client) (server, error) { return a.getServer(at) })
}

func (k *kernel) listDests(at service.Address) ([]dest, error) {
	return callClient(k, func(a client) ([]dest, error) { return a.listDests(at) })
}

func (k *kernel) NodeAddrs(context.Context) ([]netip.Addr, error) {
	list, err := k.links.AddrList(nil, int(af(k.family)))
	if err != nil {
		return nil, err
	}
	device := -1
	if l, err := k.links.LinkByName(Device); err == nil {
		device = l.Attrs().Index
	}
	var addrs []netip.Addr
	for _, x := range list {
		a, ok := netip.AddrFromSlice(x.IP)
		if a = a.Unmap(); !ok || x.LinkIndex == device || a.IsLoopback() || a.IsLinkLocalUnicast() || isTentative(x) {
			continue
		}
		addrs = append(addrs, a)
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	usual := k.defaultSource()
	if i := slices.Index(addrs, usual); i > 0 {
		addrs = slices.Insert(slices.Delete(addrs, i, i+1), 0, usual)
	}
	return addrs, nil
}

// defaultRouteTargets are addresses for benchmarks (RFC 2544, RFC 5180): default routes lead there.
var defaultRouteTargets = [...]string{"198.18.0.1", "2001:2::1"}

// defaultSource returns the source address of the default route, an invalid one without.
func (k *kernel) defaultSource() netip.Addr {
	routes, err := k.links.RouteGet(net.ParseIP(defaultRouteTargets[k.family]))
	if err != nil || len(routes) == 0 {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(routes[0].Src)
	return a.Unmap()
}

// isTentative reports whether duplicate address detection (https://www.rfc-editor.org/rfc/rfc4862,
// section 5.4) goes on or has failed, so that the kernel does not use x as source. A notification
// tells of its end.
func isTentative(x netlink.Addr) bool {
	return x.Flags&unix.IFA_F_TENTATIVE != 0 && x.Flags&unix.IFA_F_OPTIMISTIC == 0
}

// client sends queries to IPVS.
type client interface {
	// listServers returns the family's virtual servers, without destinations.
	listServers() (map[service.Address]*observedServer, error)
	// getServer returns a virtual server without destinations, or the error unix.ESRCH.
	getServer(at service.Address) (server, error)
	listDests(at service.Address) ([]dest, error)
	getTimeouts() (timeouts, error)
	// setTimeouts sets the timeouts that are not zero.
	setTimeouts(t timeouts) error
}

// timeouts are the connection timeouts of IPVS.
type timeouts struct{ tcp, tcpFin, udp time.Duration }

// clientCloser is a client that holds a socket.
type clientCloser interface {
	client
	Close()
}

// mobyClient is the client that uses moby/ipvs.
type mobyClient struct {
	*ipvs.Handle
	family service.Family
}

func openMobyClient(f service.Family) (*mobyClient, error) {
	// The library logs what the returned errors already contain.
	logrus.SetOutput(io.Discard)
	h, err := ipvs.New("")
	return &mobyClient{h, f}, err
}

// callClient queries through the library, and by the requester once the module was reloaded.
func callClient[T any](k *kernel, of func(client) (T, error)) (T, error) {
	if !k.reloaded {
		answer, err := of(k.moby)
		if !errors.Is(err, unix.ENOENT) {
			return answer, err
		}
		k.reloaded = true
	}
	return of(k.requests)
}

func (m *mobyClient) listServers() (map[service.Address]*observedServer, error) {
	all, err := m.GetServices()
	if err != nil {
		return nil, err
	}
	servers := make(map[service.Address]*observedServer, len(all))
	for _, s := range all {
		a, ok := m.addr(s.Address)
		if s.AddressFamily != af(m.family) || s.FWMark != 0 || !ok {
			continue
		}
		servers[addressAt(a, s.Port, service.Protocol(s.Protocol))] = &observedServer{server: server{s.SchedName, s.Flags, s.Timeout}}
	}
	return servers, nil
}

func (m *mobyClient) getServer(at service.Address) (server, error) {
	s, err := m.GetService(m.service(at))
	if err != nil {
		return server{}, err
	}
	return server{s.SchedName, s.Flags, s.Timeout}, nil
}

func (m *mobyClient) listDests(at service.Address) ([]dest, error) {
	list, err := m.GetDestinations(m.service(at))
	if err != nil {
		return nil, err
	}
	var dests []dest
	for _, x := range list {
		if a, ok := m.addr(x.Address); ok {
			conns, how := uint32(x.ActiveConnections+x.InactiveConnections), x.ConnectionFlags&ipvs.ConnectionFlagFwdMask
			dests = append(dests, dest{netip.AddrPortFrom(a, x.Port), uint16(x.Weight), conns, how != ipvs.ConnectionFlagMasq})
		}
	}
	slices.SortFunc(dests, func(a, b dest) int { return a.addr.Compare(b.addr) })
	return dests, nil
}

func (m *mobyClient) getTimeouts() (timeouts, error) {
	c, err := m.GetConfig()
	if err != nil {
		return timeouts{}, err
	}
	return timeouts{c.TimeoutTCP, c.TimeoutTCPFin, c.TimeoutUDP}, nil
}

func (m *mobyClient) setTimeouts(t timeouts) error {
	return m.SetConfig(&ipvs.Config{TimeoutTCP: t.tcp, TimeoutTCPFin: t.tcpFin, TimeoutUDP: t.udp})
}

func (m *mobyClient) service(at service.Address) *ipvs.Service {
	return &ipvs.Service{
		Address: net.IP(at.Addr.AsSlice()), Protocol: uint16(at.Protocol), Port: at.Port,
		AddressFamily: af(m.family), Netmask: netmask(m.family),
	}
}

func (m *mobyClient) addr(ip net.IP) (netip.Addr, bool) {
	a, ok := netip.AddrFromSlice(ip)
	if m.family == service.IPv4 {
		a = a.Unmap()
	}
	return a, ok
}

// Probe checks, in the network namespace of the calling thread, whether the kernel can
// do what Backend needs for f. It tries sets and rules in a network namespace of its own; if
// it cannot create one, it checks only the command iptables. For a moment it makes a virtual server that no packet
// reaches, and an interface. The error is one sentence that describes what is missing.
func Probe(f service.Family, o Options) error {
	if err := iptables.ProbeWith(f, o.chains(f), func() error { return probeSets(f) }); err != nil {
		return fmt.Errorf("the rules of mode ipvs: %w", err)
	}
	k := &kernel{family: f, options: o}
	if err := k.open(); err != nil {
		return fmt.Errorf("IPVS for %s: %w", f, err)
	}
	defer k.close()
	if err := k.probeScheduler(o.scheduler()); err != nil {
		return fmt.Errorf("IPVS for %s: %w", f, err)
	}
	if err := k.probeDevice(); err != nil {
		return fmt.Errorf("IPVS for %s: %w", f, err)
	}
	return nil
}

// probeSets creates all sets in the network namespace of the calling thread.
func probeSets(f service.Family) error {
	k, err := ipset.Open()
	if err != nil {
		return fmt.Errorf("open a socket for ipsets: %w", err)
	}
	defer k.Close()
	for _, name := range allNames() {
		s := setOf(f, name)
		if err := k.Create(s); err != nil {
			err = fmt.Errorf("there are no ipsets of type %s (kernel modules ip_set and %s): %w", s.Type, module(s.Type), err)
			return sysctl.Missing(err, "ip_set", module(s.Type))
		}
	}
	return nil
}

func module(t ipset.Type) string {
	return "ip_set_" + strings.NewReplacer(":", "_", ",", "").Replace(string(t))
}

// probeDevice makes an interface like ours and removes it, unless ours exists.
func (k *kernel) probeDevice() error {
	if _, err := k.links.LinkByName(Device); err == nil {
		return nil
	}
	a := netlink.NewLinkAttrs()
	a.Name = probeDeviceName
	l := &netlink.Dummy{LinkAttrs: a}
	if err := k.links.LinkAdd(l); err != nil && !errors.Is(err, unix.EEXIST) { // left by a process that was killed
		return fmt.Errorf("make a dummy interface: %w", dummyError(err))
	}
	return k.links.LinkDel(l)
}

const probeDeviceName = "kube-ipvs-trial"

// dummyError describes what is missing if the kernel makes no dummy interface.
func dummyError(err error) error {
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: the right CAP_NET_ADMIN is needed", err)
	}
	return sysctl.Missing(fmt.Errorf("%w: a kernel with dummy interfaces is needed (module dummy)", err), "dummy")
}

// genlFamilyID returns the number of IPVS in generic netlink.
func genlFamilyID() (id uint16, err error) {
	s, err := kernelnetlink.Dial(unix.NETLINK_GENERIC, kernelnetlink.Options{Timeout: receiveTimeout})
	if err != nil {
		return 0, err
	}
	defer s.Close()
	var request kernelnetlink.Encoder
	request.GenericMessage(unix.GENL_ID_CTRL, 0, unix.CTRL_CMD_GETFAMILY)
	request.Text(unix.CTRL_ATTR_FAMILY_NAME, "IPVS")
	request.EndMessage()
	err = s.Query(context.Background(), request.Buf, func(m kernelnetlink.Message) error {
		id = kernelnetlink.Native16(kernelnetlink.Attribute(m.Generic(), unix.CTRL_ATTR_FAMILY_ID))
		return nil
	})
	return id, err
}

// ensureLoaded loads IPVS if necessary, and returns its family ID.
func ensureLoaded() (uint16, error) {
	id, err := genlFamilyID()
	if errors.Is(err, unix.ENOENT) {
		// With the right capability, the kernel loads it on request. Some kernels need the command.
		_ = exec.Command("modprobe", "ip_vs").Run()
		id, err = genlFamilyID()
	}
	switch {
	case errors.Is(err, unix.ENOENT):
		return 0, sysctl.Missing(errors.New("the kernel has no IPVS (module ip_vs): it is not loaded, and cannot be"), "ip_vs")
	case err != nil:
		return 0, fmt.Errorf("ask the kernel for IPVS: %w", err)
	}
	return id, nil
}

// Installed reports whether the kernel has IPVS, loading it if necessary.
func Installed() bool {
	_, err := ensureLoaded()
	return err == nil
}

// setting is a sysctl (docs.kernel.org/networking/ipvs-sysctl.html).
type setting struct {
	file, value string
	// needed describes what fails otherwise. It is empty if the setting is optional.
	needed string
}

// settings lists the settings that virtual servers need.
func (o Options) settings(of settingsScope) []setting {
	all := []setting{
		{"net/ipv4/vs/conntrack", "1", "nothing can be masqueraded"},
		// Clients of a removed endpoint move to another one.
		{"net/ipv4/vs/expire_nodest_conn", "1", ""},
		{"net/ipv4/vs/expire_quiescent_template", "1", ""},
	}
	if o.StrictARP && of == scopeStartup {
		all = append(all, setting{"net/ipv4/conf/all/arp_ignore", "1", ""}, setting{"net/ipv4/conf/all/arp_announce", "2", ""})
	}
	return all
}

func (k *kernel) MissingSettings(_ context.Context, of settingsScope) ([]string, error) {
	var missing []string
	for _, s := range k.options.settings(of) {
		if have, err := s.current(); (err != nil || have != s.value) && !k.refused[s.file] {
			missing = append(missing, s.name()+" = "+s.value)
		}
	}
	if !k.options.hasTimeouts() {
		return missing, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	c, err := callClient(k, client.getTimeouts)
	if err != nil {
		return nil, err
	}
	for _, t := range []struct {
		name       string
		want, have time.Duration
	}{
		{"TCP", k.options.TCP, c.tcp}, {"TCP after FIN", k.options.TCPFin, c.tcpFin}, {"UDP", k.options.UDP, c.udp},
	} {
		if t.want > 0 && ceilSeconds(t.want) != t.have {
			missing = append(missing, fmt.Sprintf("timeout of %s = %s", t.name, t.want))
		}
	}
	return missing, nil
}

// hasTimeouts reports whether o has timeouts to set.
func (o Options) hasTimeouts() bool { return o.TCP > 0 || o.TCPFin > 0 || o.UDP > 0 }

func (k *kernel) ApplySettings(ctx context.Context, of settingsScope) error {
	log := klog.FromContext(ctx)
	for _, s := range k.options.settings(of) {
		if k.refused[s.file] {
			continue
		}
		err := s.set(log)
		switch {
		case err != nil && s.needed != "":
			return fmt.Errorf("%w: without it %s", err, s.needed)
		case err != nil:
			log.Info("Warning: a system setting that IPVS should have cannot be made", "setting", s.file, "want", s.value, "err", err.Error())
			if k.refused == nil {
				k.refused = map[string]bool{}
			}
			k.refused[s.file] = true
		}
	}
	o := k.options
	if !o.hasTimeouts() {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	_, err := callClient(k, func(a client) (struct{}, error) {
		return struct{}{}, a.setTimeouts(timeouts{ceilSeconds(o.TCP), ceilSeconds(o.TCPFin), ceilSeconds(o.UDP)})
	})
	if err != nil {
		return fmt.Errorf("set the timeouts of IPVS: %w", err)
	}
	return nil
}

// Prepare makes the settings that virtual servers need. In a container that is not
// privileged they cannot be made, because /proc/sys is read-only there. They exist once the
// module is loaded, and belong to the network namespace.
func Prepare(ctx context.Context, o Options) error {
	if _, err := ensureLoaded(); err != nil {
		return err
	}
	log := klog.FromContext(ctx)
	var errs []error
	for _, s := range o.settings(scopeStartup) {
		if err := s.set(log); err != nil {
			errs = append(errs, fmt.Errorf("prepare the node for IPVS: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Pending lists what Prepare would change, one a line. It changes nothing and loads no module.
func Pending(o Options) ([]string, error) {
	var lines []string
	for _, s := range o.settings(scopeStartup) {
		have, err := s.current()
		switch {
		case errors.Is(err, fs.ErrNotExist):
			have = "absent until module ip_vs is loaded"
		case err != nil:
			return nil, fmt.Errorf("read the settings of IPVS: %w", err)
		case have == s.value:
			continue
		}
		lines = append(lines, fmt.Sprintf("~ %s: %s -> %s", s.name(), have, s.value))
	}
	return lines, nil
}

// ceilSeconds rounds d up to seconds, the unit of the kernel.
func ceilSeconds(d time.Duration) time.Duration { return (d + time.Second - 1).Truncate(time.Second) }

func (s setting) path() string { return "/proc/sys/" + s.file }
func (s setting) name() string { return strings.ReplaceAll(s.file, "/", ".") }

func (s setting) current() (string, error) {
	text, err := os.ReadFile(s.path())
	return strings.TrimSpace(string(text)), err
}

// set writes the value if the present one differs.
func (s setting) set(log klog.Logger) error {
	have, err := s.current()
	if err != nil || have == s.value {
		return err
	}
	if err := os.WriteFile(s.path(), []byte(s.value+"\n"), 0o644); err != nil {
		return err
	}
	log.Info("System setting made for IPVS", "setting", s.file, "was", have, "now", s.value)
	return nil
}
