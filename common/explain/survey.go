// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package explain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"kubeproxy/common/health"
	"kubeproxy/common/reconcile"
	"kubeproxy/common/route"
	"kubeproxy/common/service"
	"kubeproxy/common/track"
)

// Survey is what happens to the first packets to all Services on one node, and what their
// objects have that keeps them from working. New versions may add fields.
type Survey struct {
	Services int `json:"services"`
	// Followed counts the Services of which every port was followed in time, Connections
	// the connections that were.
	Followed    int `json:"followed"`
	Connections int `json:"connections"`
	// Doubtful counts the Services whose packets pass something that cannot be told.
	Doubtful int `json:"doubtful"`
	// Clients are those that were followed. Lacking says which were not, and why.
	Clients []string `json:"clients"`
	Lacking []string `json:"lacking,omitempty"`
	Causes  []Cause  `json:"causes,omitempty"`
	// Problems are those of objects. Empty and Remote count Services without a ready
	// endpoint, and those with policy Local and no ready endpoint on this node.
	Problems []ObjectProblem `json:"problems,omitempty"`
	Empty    int             `json:"empty"`
	Remote   int             `json:"remote"`
	// Unanswered are Services to which connections wait for a first answer, most first.
	Unanswered []Unanswered `json:"unanswered,omitempty"`
}

// Unanswered counts the connections to a Service that wait for a first answer for a second or more.
type Unanswered struct {
	Service     string `json:"service"`
	Connections int    `json:"connections"`
	// Command explains one of them.
	Command string `json:"command"`
}

// Wait is a connection whose client waits for a first answer.
type Wait struct{ Client, To netip.AddrPort }

// ObjectProblem is a track.Problem of a Service.
type ObjectProblem struct {
	Service string     `json:"service"`
	Code    track.Code `json:"code,omitempty"`
	Field   string     `json:"field"`
	Message string     `json:"message"`
}

// Cause is one reason why packets to Services do not get there.
type Cause struct {
	// What is a clause with one %s, which stands for the Services.
	What string `json:"what"`
	// Fix and Look are as in Obstacle.
	Fix  string `json:"fix,omitempty"`
	Look string `json:"look,omitempty"`
	// Affected counts the Services, of which Services has the first.
	Affected int      `json:"affected"`
	Services []string `json:"services"`
	Clients  []string `json:"clients"`
	// Command explains one of the connections.
	Command string `json:"command"`
}

// mostNamed is how many Services a Cause names.
const mostNamed = 3

// Follower follows connections. It reads the node once.
type Follower interface {
	// Trace and Local are as in Server.
	Trace(ctx context.Context, want *service.Snapshot, c route.Conn) (*Walk, error)
	Local(netip.Addr) bool
	Close() error
}

// Of a node with more ports than SampledFrom, only so many endpoints of each are followed beyond
// the rules of the mode.
const SampledFrom, SampledEndpoints = 500, 3

// surveyTime bounds how long connections are followed.
const surveyTime = 8 * time.Second

// mostFollowers bounds how many processors follow those of a large node.
const mostFollowers = 2

// SurveyHandler serves GET /survey: a Survey.
func (s *Server) SurveyHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		x, err := s.Survey(q.Context())
		if err != nil {
			health.ReplyJSON(w, http.StatusServiceUnavailable, Refusal{Error: err.Error()})
			return
		}
		health.ReplyJSON(w, http.StatusOK, x)
	})
}

// Survey follows the first packets to all Services, for a bounded time.
func (s *Server) Survey(ctx context.Context) (*Survey, error) {
	s.surveying.Lock()
	defer s.surveying.Unlock()
	want := s.Tracker.Latest()
	if want == nil {
		return nil, errNotRead
	}
	v := &surveyor{Server: s, want: want, causes: map[string]*cause{}, unsure: map[string]bool{}, out: &Survey{Clients: []string{}}}
	v.objects()
	v.clients()
	waiting, began := v.waiting(ctx), time.Now()
	if s.Follower == nil {
		v.out.Lacking = append(v.out.Lacking, "this mode cannot say what is installed for one connection")
		return v.out, nil
	}
	if err := v.follow(ctx); err != nil {
		return v.out, err
	}
	if err := v.confirm(ctx); err != nil {
		return v.out, err
	}
	v.unanswered(ctx, waiting, time.Until(began.Add(patience)))
	return v.out, nil
}

// patience is how long a connection waits that counts as unanswered: longer than any way takes, and
// at most until the client repeats its first packet once.
const patience = 1100 * time.Millisecond

func (v *surveyor) waiting(ctx context.Context) map[Wait]string {
	if v.Waiting == nil {
		return nil
	}
	all, err := v.Waiting(ctx, v.want)
	if err != nil {
		v.out.Lacking = append(v.out.Lacking, "which connections wait for an answer is not known: "+err.Error())
	}
	return all
}

// unanswered counts those of before that still wait after a pause.
func (v *surveyor) unanswered(ctx context.Context, before map[Wait]string, pause time.Duration) {
	if len(before) == 0 || !reconcile.Pause(ctx, pause) {
		return
	}
	of := map[string]*Unanswered{}
	for w, name := range v.waiting(ctx) {
		if before[w] != name {
			continue
		}
		if of[name] == nil {
			of[name] = &Unanswered{Service: name, Command: fmt.Sprintf("kube-proxy explain %s %s --probe", w.Client.Addr(), w.To)}
		}
		of[name].Connections++
	}
	for _, u := range of {
		v.out.Unanswered = append(v.out.Unanswered, *u)
	}
	slices.SortFunc(v.out.Unanswered, func(a, b Unanswered) int {
		return cmp.Or(cmp.Compare(b.Connections, a.Connections), strings.Compare(a.Service, b.Service))
	})
}

// surveyor makes a Survey.
type surveyor struct {
	*Server
	want   *service.Snapshot
	out    *Survey
	from   []surveyClient
	mu     sync.Mutex // guards what is below, and counts in out
	causes map[string]*cause
	unsure map[string]bool // Services whose packets pass something that cannot be told
}

// surveyClient is a sort of client.
type surveyClient struct {
	name   string
	source string        // as explain takes it
	addr   [2]netip.Addr // by family
	iface  string
	option string // of explain
	kinds  []service.Kind
}

// cause is a Cause with all Services.
type cause struct {
	Cause
	services map[string]bool
	first    attempt
}

// attempt is a connection of a Survey.
type attempt struct {
	from *surveyClient
	port *service.Port
	conn route.Conn
}

func nameOf(p *service.Port) string { return p.Name.Namespace + "/" + p.Name.Name }

// objects copies what objects have.
func (v *surveyor) objects() {
	for _, p := range v.Tracker.Analysis() {
		if p.Kind == track.OfService {
			v.out.Problems = append(v.out.Problems, ObjectProblem{p.Service.String(), p.Code, p.Field, p.Message})
		}
	}
	all, empty, remote := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, f := range service.Families {
		for p := range v.want.Ports(f) {
			name := nameOf(p)
			all[name] = true
			local := slices.ContainsFunc(p.Frontends, func(x service.Frontend) bool { return p.Policy(x.Kind) == service.PolicyLocal })
			switch {
			case !p.HasEndpoints():
				empty[name] = true
			case local && len(p.Local) == 0:
				remote[name] = true
			}
		}
	}
	v.out.Services, v.out.Empty, v.out.Remote = len(all), len(empty), len(remote)
}

// clients chooses the clients: a pod of this node that is an endpoint, the node, and a client
// outside if the node has a route to it.
func (v *surveyor) clients() {
	lack := func(format string, args ...any) { v.out.Lacking = append(v.out.Lacking, fmt.Sprintf(format, args...)) }
	pod := v.pod()
	if pod.addr == [2]netip.Addr{} {
		lack("no pod of this node is an endpoint, so none is taken for a client")
	} else {
		v.from = append(v.from, pod)
	}
	out := surveyClient{
		name: "outside", source: outside, iface: anyInterface,
		kinds: []service.Kind{service.LoadBalancerIP, service.ExternalIP, service.NodePort},
	}
	for _, f := range service.Families {
		if v.Reaches == nil || v.Reaches(outsideAddrs[f]) {
			out.addr[f] = outsideAddrs[f]
		}
	}
	if out.addr == [2]netip.Addr{} {
		lack("the node has no route to %s, so no client outside is taken", outsideAddrs[service.IPv4])
	} else {
		v.from = append(v.from, out)
	}
	node := surveyClient{name: "the node", source: "node", addr: byFamily(v.want.Node.Addrs), kinds: []service.Kind{service.ClusterIP}}
	if node.addr == [2]netip.Addr{} {
		lack("no address of the node is known, so it is not taken for a client")
	} else {
		v.from = append(v.from, node)
	}
	for _, c := range v.from {
		v.out.Clients = append(v.out.Clients, c.name)
	}
}

// pod returns a pod of this node by one of its addresses in each family.
func (v *surveyor) pod() surveyClient {
	pods := v.want.Node.Pods
	c := surveyClient{name: "a pod", iface: "pod", kinds: []service.Kind{service.ClusterIP}}
	if pods.Interface != "" || pods.InterfacePrefix != "" {
		c.iface = cmp.Or(pods.Interface, pods.InterfacePrefix+"0")
		c.option = " --interface " + c.iface
	}
	for _, f := range service.Families {
		for p := range v.want.Ports(f) {
			here := func(e service.Endpoint) bool { return e.Local && !v.Local(e.Addr.Addr()) }
			if i := slices.IndexFunc(p.Cluster, here); i >= 0 && !c.addr[f].IsValid() {
				c.addr[f] = p.Cluster[i].Addr.Addr()
			}
		}
	}
	return c
}

// strides is how many Services lie between two that follow each other, so that those that are
// followed in time are a sample of all.
const strides = 16

// follow follows the connections to all ports.
func (v *surveyor) follow(ctx context.Context) error {
	ports, followers := v.ports(), 1
	if len(ports) > SampledFrom {
		v.out.Lacking = append(v.out.Lacking, fmt.Sprintf("to %d endpoints of each at most", SampledEndpoints))
		followers = min(mostFollowers, runtime.GOMAXPROCS(0))
	}
	queue := make(chan *service.Port, len(ports))
	for _, p := range ports {
		queue <- p
	}
	close(queue)
	ctx, stop := context.WithTimeout(ctx, surveyTime)
	defer stop()
	errs := make([]error, followers)
	var all sync.WaitGroup
	for i := range errs {
		all.Go(func() {
			if errs[i] = v.followEach(ctx, queue); errs[i] != nil {
				stop()
			}
		})
	}
	all.Wait()
	late := map[string]bool{}
	for p := range queue {
		late[nameOf(p)] = true
	}
	v.out.Followed, v.out.Doubtful = v.out.Services-len(late), len(v.unsure)
	return errors.Join(errs...)
}

// followEach follows the connections to ports of the queue, until it is empty or ctx ends.
func (v *surveyor) followEach(ctx context.Context, queue <-chan *service.Port) error {
	f := v.Follower()
	defer f.Close()
	for ctx.Err() == nil {
		p, more := <-queue
		if !more {
			break
		}
		for _, a := range v.attempts(p, f) {
			x, err := v.attempt(context.WithoutCancel(ctx), f, v.want, a)
			if err != nil {
				return err
			}
			v.record(x, a)
		}
	}
	return nil
}

// ports returns the ports in the order in which they are followed.
func (v *surveyor) ports() []*service.Port {
	var all, spread []*service.Port
	for _, f := range service.Families {
		for p := range v.want.Ports(f) {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *service.Port) int {
		return cmp.Or(strings.Compare(nameOf(a), nameOf(b)), strings.Compare(a.Name.Port, b.Name.Port))
	})
	for i := range strides {
		for k := i; k < len(all); k += strides {
			spread = append(spread, all[k])
		}
	}
	return spread
}

// attempts returns the connections to p: of each client to the first address of each kind that
// such clients dial.
func (v *surveyor) attempts(p *service.Port, f Follower) []attempt {
	var all []attempt
	for i := range v.from {
		c := &v.from[i]
		own := func(e service.Endpoint) bool { return e.Addr.Addr() == c.addr[p.Family] }
		if !c.addr[p.Family].IsValid() || c.source == "" && slices.ContainsFunc(p.Cluster, own) {
			continue
		}
		for _, kind := range c.kinds {
			if to, has := v.dialled(p, kind); has {
				all = append(all, attempt{c, p, route.Conn{
					Protocol: p.Name.Protocol, From: c.addr[p.Family], To: to, Interface: c.iface, ToNode: kind == service.NodePort || f.Local(to.Addr()),
				}})
			}
		}
	}
	return all
}

// dialled returns the first address of a kind.
func (v *surveyor) dialled(p *service.Port, kind service.Kind) (netip.AddrPort, bool) {
	i := slices.IndexFunc(p.Frontends, func(f service.Frontend) bool { return f.Kind == kind })
	if i < 0 {
		return netip.AddrPort{}, false
	}
	addr := p.Frontends[i].Addr
	if kind == service.NodePort {
		if addr = byFamily(v.want.Node.Addrs)[p.Family]; !addr.IsValid() || !v.want.Node.AnswersNodePorts(addr) {
			return netip.AddrPort{}, false
		}
	}
	return netip.AddrPortFrom(addr, p.Frontends[i].Port), true
}

// attempt follows a connection. It returns nil where that is impossible.
func (v *surveyor) attempt(ctx context.Context, f Follower, want *service.Snapshot, a attempt) (*Explanation, error) {
	// One port decides as all do: addresses that others have are not among its frontends.
	d := route.Decide(service.New(want.Generation, want.Node, []*service.Port{a.port}), a.conn)
	x := &Explanation{Source: a.conn.From.String(), Action: d.Action.String(), Verdict: Unknown}
	for _, e := range d.Endpoints {
		client := clientKept
		if v.Relays || d.Masquerades(e) {
			client = clientMasqueraded
		}
		x.Endpoints = append(x.Endpoints, Endpoint{Listed: track.Listed{Address: e.Addr.String(), Local: e.Local}, Chosen: d.Action == route.Forward, Client: client})
	}
	walk, err := f.Trace(ctx, want, a.conn)
	if err != nil || walk == nil {
		return nil, err
	}
	x.Compare(walk.Path())
	return x, nil
}

// record counts a connection, and adds what keeps it from getting there to the causes.
func (v *surveyor) record(x *Explanation, a attempt) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.out.Connections++
	if x != nil && x.Verdict == Agree && len(x.Installed.doubtful()) > 0 {
		v.unsure[nameOf(a.port)] = true
	}
	for key, c := range causesOf(x) {
		known := v.causes[key]
		if known == nil {
			known = &cause{Cause: c, services: map[string]bool{}, first: a}
			known.Command = a.command()
			v.causes[key] = known
		}
		known.services[nameOf(a.port)] = true
		if !slices.Contains(known.Clients, a.from.name) {
			known.Clients = append(known.Clients, a.from.name)
		}
	}
}

// command returns the one that explains a connection.
func (a *attempt) command() string {
	to := a.conn.To.String()
	if a.conn.Protocol != service.TCP {
		to += "/" + a.conn.Protocol.String()
	}
	return "kube-proxy explain " + cmp.Or(a.from.source, a.conn.From.String()) + " " + to + a.from.option
}

// causesOf returns what keeps a connection from getting there, by what is the same for other
// connections. What follows from rules of others is left out beside them.
func causesOf(x *Explanation) map[string]Cause {
	if x == nil || x.Verdict != Differ {
		return nil
	}
	all := map[string]Cause{}
	for i := range x.Installed.Others {
		if o := &x.Installed.Others[i]; o.breaks(x.Action) {
			all[o.Hook+"|"+o.Table+"|"+o.Chain+"|"+o.Rule] = Cause{What: escaped(o.Rule) + " " + verbs[o.Does], Look: o.Look}
		}
	}
	for _, o := range x.Installed.Obstacles {
		all[cmp.Or(o.Fix, general(o.What))] = Cause{What: escaped(o.What) + ": %s", Fix: o.Fix, Look: o.Look}
	}
	if len(all) > 0 || len(x.Differences) == 0 {
		return all
	}
	return map[string]Cause{general(x.Differences[0]): {What: escaped(x.Differences[0]) + ": %s"}}
}

func escaped(text string) string { return strings.ReplaceAll(text, "%", "%%") }

// general returns text without words that have numbers or the name of an object, so that it is
// the same for other Services.
func general(text string) string {
	words := strings.Fields(text)
	for i, w := range words {
		if strings.ContainsAny(w, "0123456789/") {
			words[i] = "#"
		}
	}
	return strings.Join(slices.Compact(words), " ")
}

// confirm follows one connection of each cause again, with what is wanted and installed now, and
// keeps the causes that are still there: the proxy may have been at work.
func (v *surveyor) confirm(ctx context.Context) error {
	if len(v.causes) == 0 {
		return nil
	}
	f := v.Follower()
	defer f.Close()
	want := v.Tracker.Latest()
	for key, c := range v.causes {
		a := c.first
		if a.port = want.Port(a.port.Family, a.port.Name); a.port == nil {
			continue
		}
		x, err := v.attempt(ctx, f, want, a)
		if err != nil {
			return err
		}
		if _, still := causesOf(x)[key]; still {
			v.out.Causes = append(v.out.Causes, c.summed())
		}
	}
	slices.SortFunc(v.out.Causes, func(a, b Cause) int {
		return cmp.Or(cmp.Compare(b.Affected, a.Affected), strings.Compare(a.What, b.What))
	})
	return nil
}

func (c *cause) summed() Cause {
	out := c.Cause
	out.Affected = len(c.services)
	for name := range c.services {
		out.Services = append(out.Services, name)
	}
	slices.Sort(out.Services)
	slices.Sort(out.Clients)
	out.Services = out.Services[:min(mostNamed, len(out.Services))]
	return out
}
