// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command testreport runs go test and shortens its result: a line for each package, the
// output of failed tests, every skipped test with its reason, the slowest tests, and the
// totals. A skipped test may count as a failure. A few failed tests may run a second
// time; the report then names those that pass. Its arguments go to go test, which decides
// everything else about the tests to run.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

func main() {
	passed, err := run(os.Args[1:], os.Stdout, os.Stderr)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testreport:", err)
	}
	if err != nil || !passed {
		os.Exit(1)
	}
}

// settings are the arguments that are not for go test.
type settings struct {
	skips       string
	allow, owed string
	mark        string
	slowest     int
	again       int
	args        []string // for go test
}

func parse(args []string, problems io.Writer) (settings, error) {
	var s settings
	flags := flag.NewFlagSet("testreport", flag.ContinueOnError)
	flags.SetOutput(problems)
	flags.StringVar(&s.skips, "skips", "show", "what a skipped test does: show or fail")
	flags.StringVar(&s.allow, "allow", "", "file of tests that may be skipped, each with a reason")
	flags.StringVar(&s.owed, "owed", "", "file like that of -allow: run the tests whose reason begins with -mark, and want each to pass")
	flags.StringVar(&s.mark, "mark", vmMark, "how the reasons begin of the tests that -owed runs")
	flags.IntVar(&s.slowest, "slowest", 8, "how many slow tests to list at most")
	flags.IntVar(&s.again, "again", 0, "run failed tests a second time, package by package, if there are at most so many")
	if err := flags.Parse(args); err != nil {
		return s, err
	}
	if s.skips != "show" && s.skips != "fail" {
		return s, fmt.Errorf("-skips %q: want show or fail", s.skips)
	}
	s.args = flags.Args()
	return s, nil
}

// run returns whether the tests that args name passed.
func run(args []string, out, problems io.Writer) (bool, error) {
	s, err := parse(args, problems)
	if err != nil {
		return false, err
	}
	allowed, err := readAllowed(s.allow)
	if err != nil {
		return false, err
	}
	debts, err := readAllowed(s.owed)
	if err != nil {
		return false, err
	}
	goTest := s.args
	owed := debts.requiredElsewhere(s.mark)
	if len(owed) > 0 {
		goTest = slices.Concat(s.args, selection(owed))
	} else if s.owed != "" {
		return true, nil // nothing to do
	}

	r := newReport(out, allowed)
	failed, err := r.test(goTest, problems)
	if failed && err == nil {
		failed, err = r.again(s, problems)
	}
	r.summary(s.slowest)
	unpaid := r.notPassed(owed)
	for _, t := range unpaid {
		fmt.Fprintf(out, "did not pass, though it is skipped elsewhere because it runs here: %s\n", t)
	}
	passed := !failed && r.failed == 0 && len(unpaid) == 0 && (s.skips == "show" || len(r.unlisted()) == 0)
	return passed, errors.Join(err, r.empty())
}

// test runs go test with args and reads its output. It returns whether go test failed,
// which the report explains.
func (r *report) test(args []string, problems io.Writer) (failed bool, err error) {
	test := exec.Command("go", append([]string{"test", "-json"}, args...)...)
	test.Stderr = problems
	events, err := test.StdoutPipe()
	if err != nil {
		return true, fmt.Errorf("open a pipe for go test: %w", err)
	}
	if err := test.Start(); err != nil {
		return true, fmt.Errorf("run go test: %w", err)
	}
	readErr := r.read(events)
	runErr := test.Wait()
	if exit := new(exec.ExitError); errors.As(runErr, &exit) {
		return true, readErr
	}
	return runErr != nil, errors.Join(readErr, runErr)
}

// A run of some thousand tests on a busy machine sometimes has one that fails for lack of
// processor time. Such a test runs a second time, when little else runs. If it then
// passes, the report names it, so that it can be repaired.

// again runs the failed tests a second time, and returns whether any of them, or anything
// else, failed for good.
func (r *report) again(s settings, problems io.Writer) (failed bool, err error) {
	n := 0
	for _, tests := range r.broken {
		n += len(tests)
	}
	if n == 0 || n > s.again || r.hopeless {
		return true, nil
	}
	for _, pkg := range slices.Sorted(maps.Keys(r.broken)) {
		tests := slices.Sorted(maps.Keys(r.broken[pkg]))
		fmt.Fprintf(r.out, "\nagain: %s %s\n", pkg, strings.Join(tests, " "))
		second := newReport(r.out, r.allowed)
		bad, err := second.test(slices.Concat([]string{"-count=1"}, flagsOf(s.args), only(tests), []string{pkg}), problems)
		if err != nil {
			return true, err
		}
		if bad || second.failed > 0 {
			failed = true
			continue
		}
		r.acceptRerun(pkg, second)
	}
	return failed, nil
}

// acceptRerun records that everything that failed in pkg passed the second time.
func (r *report) acceptRerun(pkg string, second *report) {
	for _, results := range r.broken[pkg] {
		r.failed -= results
	}
	r.passed += second.passed
	maps.Copy(r.names, second.names)
	for test := range r.broken[pkg] {
		r.unsteady = append(r.unsteady, pkg+" "+test)
	}
	slices.Sort(r.unsteady)
}

// flagsOf returns args without the packages.
func flagsOf(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args), func(s string) bool {
		return strings.HasPrefix(s, "./") || strings.HasPrefix(s, "kubeproxy/")
	})
}

// only selects top-level tests.
func only(tests []string) []string {
	names := make([]string, len(tests))
	for i, t := range tests {
		names[i] = regexp.QuoteMeta(t)
	}
	return []string{"-run", "^(" + strings.Join(names, "|") + ")$"}
}

// listUnsteady names the tests that passed the second time only.
func (r *report) listUnsteady() {
	if len(r.unsteady) == 0 {
		return
	}
	fmt.Fprintln(r.out, "\npassed only the second time, and needs a fix:")
	for _, t := range r.unsteady {
		fmt.Fprintln(r.out, "  "+t)
	}
}

// pathWidth aligns the package lines, which are printed one by one.
const pathWidth = 38

func (r *report) packageLine(verdict string, own *result, remark string) {
	fmt.Fprintf(r.out, "%-5s %-*s %8s  %s\n", verdict, pathWidth, own.pkg, seconds(own.took), remark)
}

// progressEvery is the longest time without output.
const progressEvery = 30 * time.Second

// progress prints what is running, unless a package has ended since its last call.
func (r *report) progress() {
	if r.packages != r.progressAt {
		r.progressAt = r.packages
		return
	}
	under := slices.Sorted(maps.Keys(r.running))
	text := "compiling"
	if len(under) > 0 {
		text = "running " + strings.Join(under, ", ")
	}
	fmt.Fprintf(r.out, "      %5s  %d packages done, %s\n", time.Since(r.start).Round(time.Second), r.packages, text)
}

func (p *packageRun) counted() string {
	text := fmt.Sprintf("%d tests", p.count)
	if p.count == 1 {
		text = "1 test"
	}
	if p.cached {
		text += ", cached"
	}
	return text
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2fs", d.Seconds()) }

// summary prints the skipped tests, the slowest ones and the totals.
func (r *report) summary(slowest int) {
	r.listSkipped()
	r.listSlow(slowest)
	r.listUnsteady()
	fmt.Fprintf(r.out, "\n%d packages in %s\n", r.packages, seconds(time.Since(r.start)))
	fmt.Fprintf(r.out, "%d passed, %d failed, %d skipped\n", r.passed, r.failed, len(r.skipped))
}

func (r *report) listSkipped() {
	if len(r.skipped) == 0 {
		return
	}
	fmt.Fprintln(r.out, "\nskipped:")
	table := tabwriter.NewWriter(r.out, 0, 0, 2, ' ', 0)
	for _, t := range r.skipped {
		reason, ok := r.allowed.reason(t)
		if !ok {
			reason = "NOT ALLOWED: " + skipMessage(t)
		}
		fmt.Fprintf(table, "  %s\t%s\t%s\n", t.pkg, t.test, reason)
	}
	table.Flush()
}

// skipMessage returns the output of a skipped test on one line.
func skipMessage(t result) string {
	var words []string
	for _, line := range t.output {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--- SKIP") {
			words = append(words, line)
		}
	}
	if len(words) == 0 {
		return "no reason given"
	}
	return strings.Join(words, " ")
}

// worthListing keeps quick tests out of the list of slow ones.
const worthListing = 500 * time.Millisecond

func (r *report) listSlow(most int) {
	slow := slices.DeleteFunc(slices.Clone(r.slow), func(t result) bool { return t.took < worthListing })
	slices.SortStableFunc(slow, func(a, b result) int { return cmp.Compare(b.took, a.took) })
	slow = slow[:min(most, len(slow))]
	if len(slow) == 0 {
		return
	}
	fmt.Fprintln(r.out, "\nslowest:")
	for _, t := range slow {
		fmt.Fprintf(r.out, "%9s  %-*s  %s\n", seconds(t.took), pathWidth, t.pkg, t.test)
	}
}

// unlisted returns the skipped tests that the allow file does not name.
func (r *report) unlisted() []result {
	return slices.DeleteFunc(slices.Clone(r.skipped), func(t result) bool {
		_, ok := r.allowed.reason(t)
		return ok
	})
}

// empty returns an error if no test ran: such a run proves nothing.
func (r *report) empty() error {
	if r.passed+r.failed == 0 {
		return errors.New("no test ran")
	}
	return nil
}

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

// allowed maps "package test" to the reason why that test may be skipped. An entry covers
// the subtests of its test.
type allowed map[string]string

func (a allowed) reason(t result) (string, bool) {
	for name := t.test; ; {
		if reason, ok := a[t.pkg+" "+name]; ok {
			return reason, true
		}
		i := strings.LastIndex(name, "/")
		if i < 0 {
			return "", false
		}
		name = name[:i]
	}
}

// readAllowed reads a file of lines "package test reason". An empty path allows nothing;
// empty lines and lines that start with # are ignored.
func readAllowed(path string) (allowed, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the tests that may be skipped: %w", err)
	}
	a := allowed{}
	for i, line := range strings.Split(string(text), "\n") {
		words := strings.Fields(line)
		switch {
		case len(words) == 0 || strings.HasPrefix(words[0], "#"):
		case len(words) < 3:
			return nil, fmt.Errorf("%s:%d: want a package, a test and a reason", path, i+1)
		default:
			a[words[0]+" "+words[1]] = strings.Join(words[2:], " ")
		}
	}
	return a, nil
}

// vmMark begins the reason of a test that is skipped because it runs in a virtual
// machine.
const vmMark = "vm:"

// requiredElsewhere returns the tests of a, "package test" each, whose reason begins with
// mark: they must run somewhere else.
func (a allowed) requiredElsewhere(mark string) []string {
	var tests []string
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if strings.HasPrefix(a[name], mark) {
			tests = append(tests, name)
		}
	}
	return tests
}

// selection returns the arguments of go test that run tests, and hardly any other. The package
// with most of them comes first, as it ends last.
func selection(tests []string) []string {
	var names []string
	packages := map[string]int{}
	for _, t := range tests {
		pkg, name, _ := strings.Cut(t, " ")
		names = append(names, regexp.QuoteMeta(name))
		packages[pkg]++
	}
	slices.Sort(names)
	pattern := "^(" + strings.Join(slices.Compact(names), "|") + ")$"
	return append([]string{"-run", pattern}, slices.SortedFunc(maps.Keys(packages), func(a, b string) int {
		return cmp.Or(packages[b]-packages[a], strings.Compare(a, b))
	})...)
}

// notPassed returns the tests that did not pass.
func (r *report) notPassed(tests []string) []string {
	return slices.DeleteFunc(slices.Clone(tests), func(t string) bool { return r.names[t] })
}
