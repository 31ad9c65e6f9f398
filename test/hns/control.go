// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Fault makes calls of the program under test fail. A call fails with the first fault
// that matches it.
type Fault struct {
	// Function is a pattern: "HcnCreateEndpoint", "HcnCreate*", "*".
	Function string
	Code     Code
	When     When
	// Count is how many calls fail, 0 for no end.
	Count int
	// Share is the share of calls that fail, from 0 to 1 and chosen at random, 0 for all.
	Share float64
}

// When is the moment at which a call fails.
type When string

// The moments of a failure. With Afterwards the call has its full effect, and only its
// answer is lost: the caller does not know the new object.
const (
	Instead    When = ""
	Afterwards When = "afterwards"
)

// Check returns what is wrong with a fault.
func (f Fault) Check() error {
	if _, err := path.Match(f.Function, ""); err != nil || f.Function == "" {
		return fmt.Errorf("fault in function %q: want a pattern such as HcnCreate*", f.Function)
	}
	if f.Code == OK || f.Count < 0 || f.Share < 0 || f.Share > 1 || f.When != Instead && f.When != Afterwards {
		return fmt.Errorf("fault in function %s: want a code, a count from 0 and a share from 0 to 1, instead or afterwards", f.Function)
	}
	return nil
}

// Inject makes calls fail from now on.
func (s *Simulator) Inject(faults ...Fault) error {
	for _, f := range faults {
		if err := f.Check(); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range faults {
		s.faults = append(s.faults, &f)
	}
	return nil
}

// ClearFaults removes all faults and delays.
func (s *Simulator) ClearFaults() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.delays = nil, nil
}

// fault returns the codes with which a call must fail: before it has an effect, and
// after.
func (s *Simulator) fault(function string) (before, after Code) {
	for _, f := range s.faults {
		if !fits(f.Function, function) || f.Count < 0 || f.Share > 0 && s.random.Float64() >= f.Share {
			continue
		}
		if f.Count > 0 {
			f.Count = cmp.Or(f.Count-1, -1)
		}
		if f.When == Afterwards {
			return OK, f.Code
		}
		return f.Code, OK
	}
	return OK, OK
}

func fits(pattern, function string) bool {
	ok, err := path.Match(pattern, function)
	return err == nil && ok
}

type delay struct {
	function string
	time     time.Duration
}

// Delay delays each call of the program under test that matches a pattern. The last
// matching delay applies.
func (s *Simulator) Delay(function string, each time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delays = append(s.delays, delay{function, each})
}

func (s *Simulator) delay(function string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	var each time.Duration
	if fits("HcnDelete*", function) {
		each = s.options.Personality.SlowDeletes
	}
	for _, d := range s.delays {
		if fits(d.function, function) {
			each = d.time
		}
	}
	return each
}

// Survivors are the objects that survive an interruption of HNS.
type Survivors string

// HNS keeps its objects in a file, so that usually all survive with the same identities.
// After a worse failure, CNI creates networks and pods again, and the rest is gone.
const (
	Everything Survivors = ""
	Pods       Survivors = "pods" // networks and endpoints that are not remote
	Nothing    Survivors = "nothing"
)

// Stop stops HNS: connections break, and each call fails with answer until Start. The
// usual answers are ServerUnavailable and UnknownInterface.
func (s *Simulator) Stop(answer Code) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = answer
	s.peers.drop()
}

// Start starts HNS again, without its former handles.
func (s *Simulator) Start(keep Survivors) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = OK
	s.handles, s.lastStaleHandle = map[uint64]handle{}, s.opened
	for _, kind := range Kinds() {
		for _, o := range s.store[kind].all() {
			o.restored = true
			local := kind == Network || kind == Endpoint && !o.doc.Remote()
			if keep == Nothing || keep == Pods && !local {
				s.drop(kind, o)
			} else if kind == LoadBalancer && s.options.Personality.RenewsIDs {
				s.drop(kind, o)
				o.doc["ID"] = guid()
				s.put(kind, o)
			}
		}
	}
}

// Restart is Stop and Start.
func (s *Simulator) Restart(keep Survivors) {
	s.Stop(UnknownInterface)
	s.Start(keep)
}

// DropConnections breaks all connections: calls that wait for an answer fail, whether
// they were carried out or not.
func (s *Simulator) DropConnections() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.peers.drop()
}

// State is the whole state of a Simulator.
type State struct {
	Version  string
	Objects  map[Kind][]Document
	Calls    Calls
	Handles  int
	Warnings []string
}

// State returns a copy.
func (s *Simulator) State() State {
	state := State{
		Version: s.options.Version.String(), Objects: map[Kind][]Document{},
		Calls: s.Calls(), Handles: s.Handles(), Warnings: s.Warnings(),
	}
	for _, kind := range Kinds() {
		state.Objects[kind] = s.Objects(kind)
	}
	return state
}

// Admin returns the Simulator's methods as an HTTP handler, for people and for tests in
// other languages. README.md lists its paths.
func (s *Simulator) Admin() http.Handler {
	mux := http.NewServeMux()
	for path, do := range map[string]func(arguments) (any, error){
		"GET /state":     func(arguments) (any, error) { return s.State(), nil },
		"GET /journal":   func(arguments) (any, error) { return s.Journal(), nil },
		"GET /loose":     func(arguments) (any, error) { return s.DanglingReferences(), nil },
		"POST /reset":    func(arguments) (any, error) { s.Reset(); return done, nil },
		"POST /drop":     func(arguments) (any, error) { s.DropConnections(); return done, nil },
		"POST /heal":     func(arguments) (any, error) { s.ClearFaults(); return done, nil },
		"POST /stop":     func(arguments) (any, error) { s.Stop(ServerUnavailable); return done, nil },
		"POST /start":    func(a arguments) (any, error) { return done, s.startWith(a.get("keep"), s.Start) },
		"POST /restart":  func(a arguments) (any, error) { return done, s.startWith(a.get("keep"), s.Restart) },
		"POST /delete":   func(a arguments) (any, error) { return done, s.Delete(Kind(a.get("kind")), a.get("id")) },
		"POST /detach":   func(a arguments) (any, error) { return done, s.Detach(a.get("endpoint")) },
		"POST /attach":   func(a arguments) (any, error) { return done, s.Attach(a.get("endpoint")) },
		"POST /hold":     func(a arguments) (any, error) { return done, a.port(s.Hold) },
		"POST /release":  func(a arguments) (any, error) { return done, a.port(s.Release) },
		"POST /ports":    func(a arguments) (any, error) { return done, a.count(s.LimitPorts) },
		"POST /delay":    s.postDelay,
		"POST /fault":    s.postFault,
		"POST /network":  s.postNetwork,
		"POST /pod":      s.postPod,
		"POST /call":     s.postCall,
		"POST /balancer": s.postLoadBalancer,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) { answer(w, r, do) })
	}
	return mux
}

const done = "done"

// maxBody bounds a request in bytes.
const maxBody = 16 << 20

func answer(w http.ResponseWriter, r *http.Request, do func(arguments) (any, error)) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err == nil {
		var value any
		if value, err = do(arguments{r, body}); err == nil {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(value) // or the client has gone
			return
		}
	}
	http.Error(w, err.Error(), http.StatusBadRequest)
}

// arguments are those of a request: short ones in the URL, documents in the body.
type arguments struct {
	request *http.Request
	body    []byte
}

func (a arguments) get(key string) string { return a.request.URL.Query().Get(key) }

func (a arguments) decode(into any) error {
	if err := json.Unmarshal(a.body, into); err != nil {
		return fmt.Errorf("body of %s: %w", a.request.URL.Path, err)
	}
	return nil
}

func (a arguments) port(do func(protocol, port int)) error {
	protocol, errA := strconv.Atoi(a.get("protocol"))
	port, errB := strconv.Atoi(a.get("port"))
	if err := errors.Join(errA, errB); err != nil {
		return fmt.Errorf("want protocol=6&port=80: %w", err)
	}
	do(protocol, port)
	return nil
}

func (a arguments) count(do func(int)) error {
	n, err := strconv.Atoi(a.get("count"))
	if err != nil || n < 0 {
		return fmt.Errorf("count=%q: want a number such as 16384, 0 for any number", a.get("count"))
	}
	do(n)
	return nil
}

func (s *Simulator) startWith(keep string, start func(Survivors)) error {
	switch k := Survivors(keep); k {
	case Everything, Pods, Nothing:
		start(k)
		return nil
	}
	return fmt.Errorf("keep=%q: want pods, nothing, or leave it out for everything", keep)
}

func (s *Simulator) postDelay(a arguments) (any, error) {
	each, err := time.ParseDuration(a.get("each"))
	if err != nil {
		return nil, fmt.Errorf("want function=*&each=20ms: %w", err)
	}
	s.Delay(a.get("function"), each)
	return done, nil
}

func (s *Simulator) postFault(a arguments) (any, error) {
	var f Fault
	if err := a.decode(&f); err != nil {
		return nil, err
	}
	return done, s.Inject(f)
}

func (s *Simulator) postNetwork(a arguments) (any, error) {
	var n NetworkConfig
	if err := a.decode(&n); err != nil {
		return nil, err
	}
	return s.AddNetwork(n)
}

func (s *Simulator) postPod(a arguments) (any, error) {
	var ips []netip.Addr
	for _, text := range a.request.URL.Query()["ip"] {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return nil, err
		}
		ips = append(ips, ip)
	}
	return s.AddPod(a.get("network"), a.get("name"), ips...)
}

func (s *Simulator) postLoadBalancer(a arguments) (any, error) {
	var d Document
	if err := a.decode(&d); err != nil {
		return nil, err
	}
	return s.AddLoadBalancer(d)
}

func (s *Simulator) postCall(a arguments) (any, error) {
	var r Request
	if err := a.decode(&r); err != nil {
		return nil, err
	}
	return s.Call(r), nil
}

// Actor is the origin of a call.
type Actor string

// The origins of calls: the program under test, or any other program on the host.
const (
	Caller   Actor = "caller"
	External Actor = "external"
)

// Entry is a call that changes something, or tried to.
type Entry struct {
	By       Actor
	Function string
	Kind     Kind
	ID       string // of the object
	Code     Code
	// Document is the request, nil if there was none.
	Document Document `json:",omitempty"`
}

// String is one line, without the document.
func (e Entry) String() string {
	line := fmt.Sprintf("%s %s", e.Function, e.ID)
	if e.By == External {
		line += " by another program"
	}
	if e.Code != OK {
		line += ": " + e.Code.Error()
	}
	return line
}

// Calls counts calls of the program under test by function, failed ones too.
type Calls map[string]int

// Writes returns how many calls of one kind changed something; "" stands for all kinds.
func (c Calls) Writes(kind Kind) int { return c.count(kind, "Create", "Modify", "Delete") }

// Lists returns how many times a kind was listed; "" stands for all kinds.
func (c Calls) Lists(kind Kind) int { return c.count(kind, "Enumerate") }

// Reads returns how many single objects were read.
func (c Calls) Reads(kind Kind) int { return c.count(kind, "Query") }

func (c Calls) count(kind Kind, verbs ...string) int {
	n := 0
	for function, times := range c {
		verb, of := split(function)
		if slices.Contains(verbs, verb) && (kind == "" || kind == of) {
			n += times
		}
	}
	return n
}

// Sub returns how many calls there were since an earlier count.
func (c Calls) Sub(earlier Calls) Calls {
	diff := Calls{}
	for function, times := range c {
		if n := times - earlier[function]; n != 0 {
			diff[function] = n
		}
	}
	return diff
}

// String is one line, in alphabetical order.
func (c Calls) String() string {
	var words []string
	for _, function := range slices.Sorted(maps.Keys(c)) {
		words = append(words, fmt.Sprintf("%s %d", strings.TrimPrefix(function, "Hcn"), c[function]))
	}
	return strings.Join(words, ", ")
}

// record adds a call that changes something to the journal.
func (c *call) record(code Code) {
	if !slices.Contains([]string{"Create", "Modify", "Delete"}, c.verb) {
		return
	}
	e := Entry{By: c.by, Function: c.request.Function, Kind: c.kind, ID: c.subject, Code: code}
	if c.verb != "Delete" {
		e.Document, _ = parse(c.request.Args[0])
	}
	c.journal = append(c.journal, e)
}

// Journal returns the calls that change something, oldest first.
func (s *Simulator) Journal() []Entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.journal)
}

// Calls returns the calls of the program under test, counted by function.
func (s *Simulator) Calls() Calls {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

// Warnings are actions of the program under test that HNS accepts although they break
// something. A test with a warning fails.
func (s *Simulator) Warnings() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.warnings)
}

func (c *call) warn(format string, args ...any) {
	c.warnings = append(c.warnings, fmt.Sprintf(format, args...))
}

// Handles returns how many handles are open.
func (s *Simulator) Handles() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.handles)
}

// DanglingReferences lists references of load balancers to endpoints that are gone. No
// program under test may leave them behind.
func (s *Simulator) DanglingReferences() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var loose []string
	for _, lb := range s.store[LoadBalancer].all() {
		for _, id := range lb.doc.Endpoints() {
			if s.store[Endpoint].objects[id] == nil {
				loose = append(loose, fmt.Sprintf("load balancer %s leads to endpoint %s, which is gone", lb.doc.ID(), id))
			}
		}
	}
	return loose
}

// Unused lists remote endpoints of the program under test that no load balancer uses:
// leaks, unless it keeps them for another reason.
func (s *Simulator) Unused() []Document {
	s.mu.Lock()
	defer s.mu.Unlock()
	var unused []Document
	for _, e := range s.store[Endpoint].all() {
		if e.by == Caller && e.doc.Remote() && len(s.index.users[e.doc.ID()]) == 0 {
			unused = append(unused, e.doc.clone())
		}
	}
	return unused
}

// Personality is how HNS might behave where no public source says how it does. In the zero
// Personality, every answer is as the object was asked for, and every call works at once. A
// program must work with all of them; README.md lists what they assume.
type Personality struct {
	Name    string
	Version Version
	Case    Case

	// The form in which objects are given back that the program under test made. Later is
	// whether it shows in listings alone, and not in the answer to the call that makes the object.
	Later     bool
	PortFlags int      // of load balancers that HNS knows, the others are dropped; 0 for all
	LeftOut   []string // fields
	SourceVIP string   // of all load balancers
	OwnMACs   bool     // of remote endpoints
	FilledIn  bool     // fields have their defaults, and there are more of them
	Respelt   bool     // another order, and other notations of addresses

	// Endpoints.
	LastAddress    bool // HNS chooses the last one that is free, not the first
	OneAddress     bool // for a local or a remote endpoint, not for both
	StrictPolicies bool // no provider address outside of overlays
	PlainNames     bool // names have no colons
	PlugsAfter     int  // calls after which a new local endpoint is on the switch

	// Load balancers.
	Cascade   Cascade
	RenewsIDs bool // when HNS starts again

	// Calls.
	FailEvery, FailInRow int           // of so many calls that write so many fail, one after the other
	GoesAfter            int           // calls during which a deleted load balancer is there still
	SlowDeletes          time.Duration // takes each
	MeddlesEvery         int           // so many calls, another program changes endpoints
}

// Cascade is what becomes of load balancers whose endpoint is deleted, alone or with its network.
type Cascade string

// What becomes of them.
const (
	Dangle Cascade = ""     // they keep the reference
	Lose   Cascade = "lose" // they lose it, and go without one
	Go     Cascade = "go"   // they are deleted
)

// Personalities returns all personalities. Versions are those of Windows Server, and the ones
// that hcsshim names for others: https://github.com/microsoft/hcsshim/blob/main/hcn/hcnglobals.go
func Personalities() []Personality {
	const before2022 = 1 | 2 | 4 | 8 // without VipExternalIP
	return []Personality{
		{Name: "as asked for"},
		{Name: "9.5", Version: Version{9, 5}},
		{Name: "10.5", Version: Version{10, 5}},
		{Name: "11.11", Version: Version{11, 11}},
		{Name: "14.0", Version: Version{14, 0}},
		{Name: "15.4", Version: Version{15, 4}},
		{Name: "15.5", Version: Version{15, 5}},
		{Name: "16.0", Version: Version{16, 0}},
		{Name: "drops flags", Version: Version{9, 5}, PortFlags: before2022},
		{Name: "drops flags later", Version: Version{15, 5}, PortFlags: before2022, Later: true},
		{Name: "leaves out source VIPs", LeftOut: []string{"SourceVIP"}},
		{Name: "leaves out source VIPs later", Version: Version{16, 0}, LeftOut: []string{"SourceVIP"}, Later: true},
		{Name: "leaves out names and policies", LeftOut: []string{"Name", "Policies"}},
		{Name: "fills in source VIPs", Version: Version{15, 5}, SourceVIP: "10.244.1.77"},
		{Name: "fills in source VIPs later", SourceVIP: "10.244.1.77", Later: true},
		{Name: "fills in defaults", FilledIn: true},
		{Name: "other order and notation", Version: Version{14, 0}, Case: UpperCase, Respelt: true},
		{Name: "MACs of its own", OwnMACs: true},
		{Name: "MACs of its own later", Version: Version{15, 5}, OwnMACs: true, Later: true},
		{Name: "plain names", PlainNames: true},
		{Name: "strict", Case: LowerCase, StrictPolicies: true, OneAddress: true, LastAddress: true},
		{Name: "starts pods slowly", PlugsAfter: 40},
		{Name: "load balancers lose endpoints", Version: Version{15, 5}, Cascade: Lose},
		{Name: "load balancers go with endpoints", Cascade: Go},
		{Name: "new identities", RenewsIDs: true},
		{Name: "fails twice in a row", Version: Version{9, 5}, FailEvery: 7, FailInRow: 2},
		{Name: "fails twice in a row, 15.5", Version: Version{15, 5}, FailEvery: 5, FailInRow: 2},
		{Name: "deletes late", GoesAfter: 6},
		{Name: "deletes slowly", Version: Version{10, 5}, SlowDeletes: 12 * time.Second},
		{Name: "concurrent changes", MeddlesEvery: 50, LastAddress: true},
	}
}

// FindPersonality returns the personality of a name.
func FindPersonality(name string) (Personality, error) {
	var names []string
	for _, p := range Personalities() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Personality{}, fmt.Errorf("%q: want one of %q", name, names)
}

// reform gives the document of an answer the form of p.
func (p Personality) reform(kind Kind, d Document) {
	ports, _ := d["PortMappings"].([]any)
	for _, field := range p.LeftOut {
		if _, has := d[field]; has && kind != Network {
			delete(d, field)
		}
	}
	if kind == LoadBalancer {
		for _, x := range ports {
			if port, ok := x.(map[string]any); ok && p.PortFlags != 0 {
				port["Flags"] = float64(Document(port).number("Flags") & p.PortFlags)
			}
		}
		if p.SourceVIP != "" && !d.v6() {
			d["SourceVIP"] = p.SourceVIP
		}
	}
	if p.OwnMACs && kind == Endpoint && d.Remote() {
		d["MacAddress"] = "00-15-5D-99-00-01"
	}
	if p.FilledIn {
		fillIn(kind, d, ports)
	}
	if p.Respelt {
		respell(d)
	}
}

// fillIn adds fields with their defaults, and one of the future.
func fillIn(kind Kind, d Document, ports []any) {
	defaults := map[Kind]Document{
		Endpoint: {"Policies": []any{}, "Flags": 0, "Dns": map[string]any{}, "Routes": []any{}, "HostComputeNamespace": "00000000-0000-0000-0000-000000000000"},
		LoadBalancer: {
			"FrontendVIPs": []any{}, "SourceVIP": "", "Flags": 0, "Policies": nil, "HostComputeNetwork": "00000000-0000-0000-0000-000000000000",
		},
	}[kind]
	full := maps.Clone(defaults)
	maps.Copy(full, d)
	maps.Copy(d, full)
	d["Later"] = map[string]any{"State": 1}
	for _, x := range ports {
		port, _ := x.(map[string]any)
		full := map[string]any{"DistributionType": 0, "Flags": 0, "Local": false}
		maps.Copy(full, port)
		maps.Copy(port, full)
	}
}

// respell reverses lists, and writes addresses in other notations.
func respell(d Document) {
	if ids, ok := d["HostComputeEndpoints"].([]any); ok {
		slices.Reverse(ids)
	}
	if mac, ok := d["MacAddress"].(string); ok {
		d["MacAddress"] = strings.ToUpper(strings.ReplaceAll(mac, "-", ":"))
	}
	if vip, ok := d["SourceVIP"].(string); ok {
		d["SourceVIP"] = strings.ToUpper(vip)
	}
	if vips, ok := d["FrontendVIPs"].([]any); ok {
		for i, vip := range vips {
			vips[i] = strings.ToUpper(vip.(string))
		}
	}
}

// pass does what happens beside a call of the program under test. The Simulator is locked.
func (s *Simulator) pass() {
	s.total++
	for _, o := range s.store[LoadBalancer].all() {
		if o.gone > 0 && o.gone <= s.total {
			s.drop(LoadBalancer, o)
		}
	}
	if every := s.options.Personality.MeddlesEvery; every > 0 && s.total%every == 0 {
		s.meddle()
	}
}

// meddlerID is the endpoint that another program makes and deletes.
const meddlerID = "0dd00000-0000-4000-8000-000000000001"

func (s *Simulator) meddle() {
	if o := s.store[Endpoint].objects[meddlerID]; o != nil {
		s.drop(Endpoint, o)
		return
	}
	networks, c, doc := s.store[Network].all(), &call{Simulator: s}, Document{"ID": meddlerID, "Name": "meddler"}
	if len(networks) > 0 && c.checkEndpoint(networks[0].doc, doc) == OK {
		s.put(Endpoint, &object{doc: doc, by: External})
	}
}

// failsInRow returns whether the call is one of those that fail.
func (c *call) failsInRow() bool {
	p := c.options.Personality
	if p.FailEvery == 0 || c.by != Caller || !slices.Contains([]string{"Create", "Modify", "Delete"}, c.verb) {
		return false
	}
	c.writes++
	return c.writes%p.FailEvery < p.FailInRow && c.writes >= p.FailEvery
}

// cascade changes the load balancers of an endpoint that is gone.
func (s *Simulator) cascade(endpoint string) {
	how := s.options.Personality.Cascade
	if how == Dangle {
		return
	}
	for id := range maps.Clone(s.index.users[endpoint]) {
		o := s.store[LoadBalancer].objects[id]
		left := slices.DeleteFunc(o.doc.Endpoints(), func(e string) bool { return e == endpoint })
		s.drop(LoadBalancer, o)
		if how == Lose && len(left) > 0 {
			o.doc["HostComputeEndpoints"] = anyOf(left)
			s.put(LoadBalancer, o)
		}
	}
}

func anyOf(texts []string) []any {
	var all []any
	for _, t := range texts {
		all = append(all, t)
	}
	return all
}
