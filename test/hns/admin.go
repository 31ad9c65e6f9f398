// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package hns

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"time"
)

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
