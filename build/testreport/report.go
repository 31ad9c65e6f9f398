// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// event is a line of go test -json.
type event struct {
	Action, Package, Test, Output string
	ImportPath                    string // for the output of a failed build
	Elapsed                       float64
	FailedBuild                   string
}

// result is a test that ended.
type result struct {
	pkg, test string
	took      time.Duration
	output    []string // lines, without the runner's own
}

// report collects events and prints each package when it ends.
type report struct {
	out     io.Writer
	allowed allowed

	running map[string]*packageRun

	passed, failed int
	names          map[string]bool // "package test" of what passed
	skipped        []result
	// broken counts failures in each package by top-level test. hopeless is whether
	// something failed that was no test. unsteady are tests that passed the second time.
	broken     map[string]map[string]int
	hopeless   bool
	unsteady   []string
	slow       []result // every top-level test that ended
	packages   int
	progressAt int // packages at the last call of progress
	start      time.Time
}

// packageRun is a package whose tests run.
type packageRun struct {
	order  []*result // in the order of their start; the first is the package itself
	byName map[string]*result
	failed map[string]bool
	count  int
	cached bool // the result is from the cache of the go command
}

func newReport(out io.Writer, a allowed) *report {
	return &report{out: out, allowed: a, running: map[string]*packageRun{}, names: map[string]bool{}, broken: map[string]map[string]int{}, start: time.Now()}
}

// read reads events to their end. It calls progress while there are none for a while.
func (r *report) read(events io.Reader) error {
	lines, ended := make(chan []byte), make(chan error, 1)
	go func() {
		defer close(lines)
		ended <- eachLine(events, func(line []byte) { lines <- line })
	}()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case line, more := <-lines:
			if !more {
				return <-ended
			}
			r.line(line)
		case <-tick.C:
			r.progress()
		}
	}
}

func eachLine(text io.Reader, do func([]byte)) error {
	lines := bufio.NewReader(text)
	for {
		line, err := lines.ReadBytes('\n')
		if len(line) > 0 {
			do(line)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read what go test prints: %w", err)
		}
	}
}

func (r *report) line(line []byte) {
	var e event
	if err := json.Unmarshal(line, &e); err != nil {
		fmt.Fprintf(r.out, "%s", line)
		return
	}
	if e.ImportPath != "" { // output of a build
		fmt.Fprint(r.out, e.Output)
		return
	}
	r.handle(e)
}

func (r *report) handle(e event) {
	p := r.running[e.Package]
	if p == nil {
		p = &packageRun{byName: map[string]*result{}, failed: map[string]bool{}}
		r.running[e.Package] = p
	}
	t := p.result(e)
	switch e.Action {
	case "output":
		if !isRunnerNoise(e.Output) {
			t.output = append(t.output, e.Output)
		}
		// The tests after a panic did not run.
		r.hopeless = r.hopeless || strings.HasPrefix(e.Output, "panic: ") || strings.HasPrefix(e.Output, "fatal error: ")
		p.cached = p.cached || e.Test == "" && strings.HasSuffix(e.Output, "\t(cached)\n")
		return
	case "pass", "fail", "skip":
	default:
		return
	}
	t.took = time.Duration(e.Elapsed * float64(time.Second))
	if e.Test == "" {
		r.finish(p, e)
		return
	}
	r.count(p, t, e.Action)
}

// result returns the test of e, or the package itself if e has none.
func (p *packageRun) result(e event) *result {
	t := p.byName[e.Test]
	if t == nil {
		t = &result{pkg: e.Package, test: e.Test}
		p.byName[e.Test] = t
		p.order = append(p.order, t)
	}
	return t
}

func (r *report) count(p *packageRun, t *result, action string) {
	p.count++
	switch action {
	case "pass":
		r.passed++
		r.names[t.pkg+" "+t.test] = true
	case "fail":
		r.failed++
		p.failed[t.test] = true
		r.broke(t)
	case "skip":
		r.skipped = append(r.skipped, *t)
	}
	if !strings.Contains(t.test, "/") {
		r.slow = append(r.slow, result{pkg: t.pkg, test: t.test, took: t.took})
	}
	if action == "pass" {
		t.output = nil // it is not needed any more
	}
}

// broke records that a test failed.
func (r *report) broke(t *result) {
	top, _, _ := strings.Cut(t.test, "/")
	if r.broken[t.pkg] == nil {
		r.broken[t.pkg] = map[string]int{}
	}
	r.broken[t.pkg][top]++
}

// finish prints a package that ended: the output of its failed tests, then its line.
func (r *report) finish(p *packageRun, e event) {
	delete(r.running, e.Package)
	own := p.byName[""]
	switch {
	case e.Action == "skip" && p.count == 0:
		r.packageLine("?", own, "no test files")
		return
	case e.FailedBuild != "":
		r.failed++
		r.hopeless = true
		r.packageLine("FAIL", own, "build failed")
		return
	case e.Action == "fail":
		if len(p.failed) == 0 {
			r.failed++ // a panic outside of tests, or TestMain failed
			r.hopeless = true
		}
		for _, t := range p.order {
			if t == own || p.failed[t.test] {
				fmt.Fprint(r.out, t.outputWithVerdict())
			}
		}
		r.packageLine("FAIL", own, p.counted())
	default:
		r.packageLine("ok", own, p.counted())
	}
	r.packages++
}

// outputWithVerdict returns the output of t with its verdict first, as a reader looks for
// the name there.
func (t *result) outputWithVerdict() string {
	var verdict, rest strings.Builder
	for _, line := range t.output {
		if strings.HasPrefix(strings.TrimSpace(line), "--- FAIL: ") {
			verdict.WriteString(line)
		} else {
			rest.WriteString(line)
		}
	}
	return verdict.String() + rest.String()
}

// isRunnerNoise returns whether a line is progress of the test runner, or repeats what
// the report contains.
func isRunnerNoise(line string) bool {
	for _, prefix := range []string{"=== ", "ok  \t", "FAIL\t", "?   \t", "PASS\n", "FAIL\n", "exit status "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}
