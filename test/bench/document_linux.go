// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"kubeproxy/test/kit"
)

// document is the file with a section for each part. A run replaces the sections that it
// has measured and keeps the others unchanged.
type document struct {
	path     string
	sections map[string]string // by title
}

const (
	documentHead = "# Benchmarks\n"
	fence        = "```"
)

// openDocument reads the results of earlier runs, and refuses a file of another origin.
func openDocument(path string) (*document, error) {
	d := &document{path: path, sections: map[string]string{}}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return d, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the document: %w", err)
	}
	if len(text) > 0 && !strings.HasPrefix(string(text), documentHead) {
		return nil, fmt.Errorf("document %s: begins with something else than %q, so the bench has not written it", path, strings.TrimSpace(documentHead))
	}
	all := strings.Split(string(text), "\n## ")
	for _, section := range all[1:] {
		title, _, _ := strings.Cut(section, "\n")
		if !slices.ContainsFunc(parts, func(p part) bool { return p.title == title }) {
			return nil, fmt.Errorf("document %s: section %q is of no part that is measured (%s) and would be lost: move it elsewhere", path, title, partNames())
		}
		d.sections[title] = "## " + strings.TrimSpace(section) + "\n"
	}
	return d, nil
}

// put replaces a section and writes the file.
func (d *document) put(s *section) error {
	d.sections[s.title] = s.text()
	return d.write()
}

func (d *document) write() error {
	if err := os.WriteFile(d.path, []byte(d.text()), 0o644); err != nil {
		return fmt.Errorf("write the document: %w", err)
	}
	return nil
}

const documentIntro = documentHead + `
` + "`make bench`" + ` measures and writes this file, and ` + "`make bench PART=served`" + ` one part of it. It prints more rows, without an aim,
while it runs. The bench itself brings the load (an average over a minute) to about 1, an API server or another proxy to
about 2. Above 3 read times as upper bounds; CPU time and ratios bear it.
`

// text is the whole file.
func (d *document) text() string {
	var met, missed int
	var b strings.Builder
	for _, p := range parts {
		text, ok := d.sections[p.title]
		if !ok {
			continue
		}
		m, n := aims(text)
		met, missed = met+m, missed+n
		b.WriteString("\n" + text)
	}
	return fmt.Sprintf("%s\n**%d aims met, %d missed.**\n%s", documentIntro, met, missed, b.String())
}

// aims counts the aims in the tables of a section, of any run.
func aims(text string) (met, missed int) {
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "|") {
			continue
		}
		for cell := range strings.SplitSeq(line, "|") {
			switch cell = strings.TrimSpace(cell); {
			case strings.HasSuffix(cell, ", "+aimMet):
				met++
			case strings.HasSuffix(cell, ", "+aimMissed):
				missed++
			}
		}
	}
	return met, missed
}

// facts describe a machine, as its figures depend on them.
type facts struct {
	date       time.Time
	commit     string
	kernel     string
	cpu        string
	loadBefore load
	loadDuring load // the highest sample
}

// load is the average number of runnable processes in the last minute, as the kernel
// writes it, see proc_loadavg(5).
type load string

func readFacts(ctx context.Context, now time.Time) (facts, error) {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return facts{}, fmt.Errorf("read the kernel's release: %w", err)
	}
	f := facts{date: now, commit: commit(ctx)}
	f.kernel = fmt.Sprintf("Linux %s %s", unix.ByteSliceToString(u.Release[:]), runtime.GOARCH)
	f.cpu = fmt.Sprintf("%d of %s", runtime.NumCPU(), cpuModel())
	f.loadBefore = readLoad()
	f.loadDuring = f.loadBefore
	return f, nil
}

// cpuModel returns the model name of the first processor.
func cpuModel() string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return unknown
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		name, value, ok := strings.Cut(lines.Text(), ":")
		if ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return runtime.GOARCH // some architectures have no model name
}

func readLoad() load {
	text, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return unknown
	}
	first, _, _ := strings.Cut(string(text), " ")
	return load(first)
}

// sampleLoad keeps the highest load seen.
func (f *facts) sampleLoad() {
	now := readLoad()
	most, err := strconv.ParseFloat(string(f.loadDuring), 64)
	if v, bad := strconv.ParseFloat(string(now), 64); err != nil || bad == nil && v > most {
		f.loadDuring = now
	}
}

// commit returns the commit of the measured sources.
func commit(ctx context.Context) string {
	hash, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return unknown // no repository, or no git
	}
	text := strings.TrimSpace(string(hash))
	if exec.CommandContext(ctx, "git", "diff", "--quiet", "HEAD", "--", ":/*.go", ":/go.mod").Run() != nil {
		text += " with changes"
	}
	return text
}

const unknown = "unknown"

// machine returns the facts that are known before the measurement.
func (f *facts) machine() string {
	return fmt.Sprintf(`date    %s
commit  %s
kernel  %s
cpu     %s
`, f.date.UTC().Format("2006-01-02 15:04 MST"), f.commit, f.kernel, f.cpu)
}

// text is the head of a section.
func (f *facts) text() string {
	return fmt.Sprintf("%sload    %s before, at most %s\n", f.machine(), f.loadBefore, f.loadDuring)
}

// part can be measured by itself. It has a section of its own in the document.
type part struct {
	name    string // on the command line
	title   string // of the section
	measure func(*bench, context.Context, *section) error
}

// parts are all of them, in the order of the document.
var parts = []part{
	{"inside", "From objects to the kernel", (*bench).measureInside},
	{"served", "Through the API server", (*bench).measureServed},
	{"iptables", "Mode iptables", (*bench).measureIPTables},
	{"userspace", "Mode userspace", (*bench).measureUserspace},
	{"traffic", "Counting connections", (*bench).measureCounting},
	{"silence", "Endpoints that do not answer", (*bench).measureSilence},
	{"direct", "Direct return", (*bench).measureDirect},
	{"connect", "Socket acceleration", (*bench).measureAcceleration},
	{"ipvs", "Mode ipvs", (*bench).measureVirtualServers},
}

// partNames lists the values of the flag.
func partNames() string {
	var names []string
	for _, p := range parts {
		names = append(names, p.name)
	}
	return strings.Join(names, ", ")
}

// chosen returns the parts to measure: all for no name.
func chosen(name string) ([]part, error) {
	if name == "" {
		return parts, nil
	}
	i := slices.IndexFunc(parts, func(p part) bool { return p.name == name })
	if i < 0 {
		return nil, fmt.Errorf("part %q: want one of %s", name, partNames())
	}
	return parts[i : i+1], nil
}

// section is the result of one run for one part.
type section struct {
	title  string
	facts  facts
	how    string   // how it is measured
	notes  []string // of the run
	tables []table
}

// add adds t and prints it as progress.
func (s *section) add(out io.Writer, t table) {
	s.tables = append(s.tables, t)
	fmt.Fprintf(out, "\n%s\n\n%s", cmp.Or(t.title, s.title), t.text())
}

// note adds a remark on the run, and prints it as progress.
func (s *section) note(out io.Writer, format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
	fmt.Fprintf(out, "\n%s\n", s.notes[len(s.notes)-1])
}

// run measures p.
func (b *bench) run(ctx context.Context, p part) (*section, error) {
	began := time.Now()
	s := &section{title: p.title}
	var err error
	if b.facts, err = readFacts(ctx, began); err != nil {
		return nil, err
	}
	fmt.Fprintf(b.out, "\n%s\n\n%s", p.title, b.facts.machine())
	if b.quick {
		s.note(b.out, "This was a quick run with few samples: its figures mean little.")
	}
	if err := p.measure(b, ctx, s); err != nil {
		return nil, err
	}
	s.facts = b.facts
	met, missed := aims(s.text())
	fmt.Fprintf(b.out, "\n%d aims met, %d missed. Load average (1 min) %s before, at most %s during. Took %.0f s.\n",
		met, missed, s.facts.loadBefore, s.facts.loadDuring, time.Since(began).Seconds())
	return s, nil
}

// text is the section of the document.
func (s *section) text() string {
	var d strings.Builder
	fmt.Fprintf(&d, "## %s\n\n%s\n%s%s\n", s.title, fence, s.facts.text(), fence)
	for _, note := range s.notes {
		fmt.Fprintf(&d, "\n%s\n", note)
	}
	d.WriteString(s.how)
	said := map[string]bool{} // notes, each of which is printed once
	for i := range s.tables {
		t := s.tables[i].short()
		if len(t.rows) == 0 {
			continue
		}
		if t.title != "" {
			d.WriteString("\n### " + t.title + "\n")
		}
		d.WriteString("\n" + t.grid())
		for _, note := range t.notes() {
			if !said[note] {
				fmt.Fprintf(&d, "\n%s\n", note)
			}
			said[note] = true
		}
	}
	d.WriteString(s.missed())
	return d.String()
}

// missed lists the rows whose aims were not reached, by reason.
func (s *section) missed() string {
	var reasons []string
	rows := map[string][]string{}
	for i := range s.tables {
		for _, l := range s.tables[i].lines() {
			why := cmp.Or(l.why, "Why is not known yet.")
			if l.met != aimMissed || slices.Contains(rows[why], l.label) {
				continue
			}
			if rows[why] == nil {
				reasons = append(reasons, why)
			}
			rows[why] = append(rows[why], l.label)
		}
	}
	if len(reasons) == 0 {
		return ""
	}
	var d strings.Builder
	for _, why := range reasons {
		fmt.Fprintf(&d, "- **%s**: %s\n", strings.Join(rows[why], "; "), why)
	}
	return "\n### Missed aims\n\n" + d.String()
}

// table is everything that was measured with one number of Services.
type table struct {
	services int
	by       map[role]*figures
	few      *figures // connections with few Services
	rows     []row
	title    string // "" for that of the section
	base     string // head of the first column, "" for none
	head     string // head of the second column, "" for ours
}

// The results of an aim, as they appear in a table behind the aim.
const (
	aimMet    = "met"
	aimMissed = "missed"
)

func (t *table) add(r role, f *figures) {
	if t.by == nil {
		t.by = map[role]*figures{}
	}
	t.by[r] = f
}

// value returns a metric of one role, NaN if it has none.
func (t *table) value(r role, metric string) float64 {
	f := t.by[r]
	if f == nil {
		return math.NaN()
	}
	v, ok := f.Values[metric]
	if !ok {
		return math.NaN()
	}
	return v
}

// unit formats a metric.
type unit func(float64) string

func inSeconds(v float64) string {
	switch {
	case v < 1e-3:
		return fmt.Sprintf("%.1f µs", v*1e6)
	case v < 1:
		return fmt.Sprintf("%.1f ms", v*1e3)
	}
	return fmt.Sprintf("%.2f s", v)
}

func inMegabytes(v float64) string { return fmt.Sprintf("%.1f MB", v/1e6) }
func inBytes(v float64) string     { return fmt.Sprintf("%.0f B", v) }
func inPercent(v float64) string   { return fmt.Sprintf("%+.1f %%", v*100) }

// row is a line of every table.
type row struct {
	label  string
	metric string
	unit   unit
	// floor is the metric of the floor's column, metric itself if "".
	floor string
	// ratio is the metric of our ratio to the floor. If "", the ratio is computed from
	// both.
	ratio string
	// spread is whether the limits of the ratio, or of the metric if it has none, are shown.
	spread bool
	aim    aim
	// cited is whether the document has the row though it has no aim.
	cited bool
	// why is what limits the figure.
	why string
}

// aim is what a row should reach. The zero aim is none.
type aim struct {
	// most is the limit for a number of Services, 0 for none.
	most func(services int) float64
	// times is the limit as a multiple of the floor, 0 for none; least is a lower limit.
	times, least float64
}

func always(v float64) func(int) float64 { return func(int) float64 { return v } }

// firstCPU grows with the work beyond the size it is set for.
func firstCPU(services int) float64 {
	if services > 10000 {
		return 0
	}
	return 1
}

func oneChange(services int) float64 {
	if services > 10000 {
		return 5e-3
	}
	return 2e-3
}

func (a aim) none() bool { return a.most == nil && a.times == 0 && a.least == 0 }

// overFew compares the costs of a connection with those with few Services, both as
// multiples of a direct one.
const overFew = "connect.overfew"

// line is a row as it is printed.
type line struct {
	label             string
	floor, ours, peer string
	overFloor         string // ours as a multiple of the floor
	spread            string // of it
	peerOver          string // the peer as a multiple of ours
	aim, met          string
	why               string
}

// lines returns the lines of t, without those that have no figure.
func (t *table) lines() []line {
	if ours := t.by[roleOurs]; ours != nil && t.few != nil {
		const last = "connect.last.ratio"
		ours.set(overFew, ours.Values[last]/t.few.Values[last]-1)
	}
	var list []line
	for _, r := range t.rows {
		if l, ok := t.line(r); ok {
			list = append(list, l)
		}
	}
	return list
}

func (t *table) line(r row) (line, bool) {
	ours, peer := t.value(roleOurs, r.metric), t.value(rolePeer, r.metric)
	floor := t.value(roleFloor, r.metric)
	if r.floor != "" {
		floor = t.value(roleOurs, r.floor)
	}
	ratio := ours / floor
	if r.ratio != "" {
		ratio = t.value(roleOurs, r.ratio)
	}
	l := line{
		label: r.label, why: r.why, floor: cell(r.unit, floor), ours: cell(r.unit, ours), peer: cell(r.unit, peer),
		overFloor: cell(times, ratio), peerOver: cell(times, peer/ours),
	}
	if r.spread {
		l.spread = t.spread(r)
	}
	var reached, limit float64
	if r.aim.times > 0 {
		reached, limit = ratio, r.aim.times
		l.aim = fmt.Sprintf("<= %.3gx %s", limit, t.base)
	} else if r.aim.least > 0 {
		reached, limit = -ratio, -r.aim.least
		l.aim = fmt.Sprintf(">= %.3gx %s", r.aim.least, t.base)
	} else if r.aim.most != nil {
		reached, limit = ours, r.aim.most(t.services)
		l.aim = "<= " + strings.TrimPrefix(r.unit(limit), "+")
	}
	switch {
	case limit == 0:
		l.aim = ""
	case reached <= limit:
		l.met = aimMet
	default: // a figure that is missing too
		l.met = aimMissed
	}
	return l, l.floor+l.ours+l.peer != ""
}

// verdict is the aim, and whether it is reached.
func (l *line) verdict() string {
	if l.met == "" {
		return ""
	}
	return l.aim + ", " + l.met
}

// spread returns the limits of a row's ratio, or of its metric.
func (t *table) spread(r row) string {
	u := times
	if r.ratio == "" {
		u = r.unit
	}
	metric := cmp.Or(r.ratio, r.metric)
	low, high := t.value(roleOurs, metric+lowEnd), t.value(roleOurs, metric+highEnd)
	if math.IsNaN(low) {
		return ""
	}
	return u(low) + " to " + u(high)
}

func times(v float64) string {
	if v >= 100 {
		return thousands(int(v)) + "x"
	}
	return fmt.Sprintf("%.2fx", v)
}

func cell(u unit, v float64) string {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return ""
	}
	return u(v)
}

// text returns t as an aligned Markdown table, followed by its notes.
func (t *table) text() string {
	var b strings.Builder
	b.WriteString(t.grid())
	for _, note := range t.notes() {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	return b.String()
}

// grid returns t as an aligned Markdown table.
func (t *table) grid() string {
	head := cmp.Or(t.head, "ours")
	cells := [][]string{{"", t.base, head, head + "/" + firstWord(t.base), "95 %", "aim", "peer", "peer/" + head}}
	spread := false
	for _, l := range t.lines() {
		spread = spread || l.spread != ""
		cells = append(cells, []string{l.label, l.floor, l.ours, l.overFloor, l.spread, l.verdict(), l.peer, l.peerOver})
	}
	for i, c := range cells {
		if t.by[rolePeer] == nil {
			c = slices.Delete(c, 6, 8)
		}
		if !spread {
			c = slices.Delete(c, 4, 5)
		}
		if t.base == "" {
			c = slices.Delete(c, 3, 4)
			c = slices.Delete(c, 1, 2)
		}
		cells[i] = c
	}
	return kit.Numbers(cells)
}

// short is t without what the document leaves out: rows without an aim that nothing cites.
func (t table) short() table {
	t.rows = slices.DeleteFunc(slices.Clone(t.rows), func(r row) bool { return r.aim.none() && !r.cited })
	return t
}

func firstWord(s string) string {
	word, _, _ := strings.Cut(s, " ")
	return word
}

// notes are those of the children, each once.
func (t *table) notes() []string {
	var list []string
	for _, r := range slices.Sorted(maps.Keys(t.by)) {
		for _, note := range t.by[r].Notes {
			if !slices.Contains(list, note) {
				list = append(list, note)
			}
		}
	}
	return list
}

// thousands formats 30000 as 30,000.
func thousands(n int) string {
	s := fmt.Sprint(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// through is a row of connections, whose floor is a direct one.
func through(label, metric string, a aim) row {
	metric = "connect." + metric
	return row{
		label: label, metric: metric, unit: inSeconds, aim: a, floor: "connect.direct", ratio: metric + ".ratio",
		why: "Only the first packet of a connection meets our rules, but all of them meet connection tracking, " +
			"without which no translation works: a direct connection beside the table costs nearly as much.",
	}
}

// What limits figures, as far as profiles show. Of 1,000 Services changed at once, half is
// comparing elements, a third the tracker, a fifth the kernel.
const (
	whyFirst = "Most of it is the kernel's work on new elements, and its messages about them to those who listen."
	whyCross = "The kernel checks again whatever the verdict map leads to."
	whyHeap  = "Netlink buffers of a fixed size weigh on few endpoints; beyond them it is the packed slices, " +
		"the chosen endpoints and the names."
	whyMany = "Most of it is the tracker's choice of endpoints and the planning."
)

var rows = []row{
	{label: "first program, time", metric: "first.wall", unit: inSeconds, aim: aim{times: 3}, why: whyFirst},
	{label: "first program, CPU", metric: "first.cpu", unit: inSeconds, aim: aim{most: firstCPU}, why: whyFirst},
	{label: "one endpoint replaced, p50", metric: "replace.p50", unit: inSeconds, aim: aim{most: oneChange}},
	{label: "one endpoint replaced, p99", metric: "replace.p99", unit: inSeconds},
	{label: "one endpoint added or removed, p50", metric: "scale.p50", unit: inSeconds, aim: aim{most: oneChange}},
	{label: "the same across a power of two, p50", metric: "cross.p50", unit: inSeconds, aim: aim{most: oneChange}, why: whyCross},
	{label: "1,000 Services changed at once", metric: "many", unit: inSeconds, aim: aim{most: always(60e-3)}, why: whyMany},
	{label: "restart on its own table, time", metric: "restart.wall", unit: inSeconds, cited: true},
	{label: "Go heap per endpoint", metric: "heap", unit: inBytes, aim: aim{most: always(150)}, why: whyHeap},
	{label: "peak RSS", metric: "rss", unit: inMegabytes, cited: true},
	{label: "kernel memory", metric: "kernel", unit: inMegabytes},
	through("direct connection beside the table, p50", "beside", aim{}),
	through("connection, first Service, p50", "first", aim{}),
	through("connection, middle Service, p50", "middle", aim{}),
	through("connection, last Service, p50", "last", aim{times: 1.3}),
	{label: "last Service against 10 Services", metric: overFew, unit: inPercent, aim: aim{most: always(0.1)}},
}

const howMeasured = `
Each Service has one TCP port, one ClusterIP and ten ready endpoints on 50 nodes. The tables have the medians of three
turns; the peer has one. Single changes are 2,000, spread over all Services; those across a power of two change rules, too.
A connection sends 64 bytes through three namespaces and waits for their echo; a ratio is the median of 15 rounds.

- **floor** is a bare loop over github.com/google/nftables that writes the same keys and values in transactions of the
  same size. For connections it is a direct one, without connection tracking.
- **ours** begins with the last object in memory and ends with the last commit, without decoding and pauses.
`

const howPeer = `- **peer** is the program that PEER_KUBE_PROXY named. It reads JSON from a small API server. Its pause between rounds is
  1 ms, its peak RSS that of its largest process.
`
