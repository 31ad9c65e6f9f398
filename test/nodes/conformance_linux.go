// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"kubeproxy/test/kit"
	"kubeproxy/test/thirdparty"
)

// Selection is a part of the tests of Kubernetes.
type Selection struct {
	Name, About string
	Focus, Skip string // as ginkgo takes them
	Alone       bool   // one spec at a time, as they change nodes and restart the proxy
	Nodes       int    // if they need more than three
}

// Selections are those that make conformance can run. Tests that are left out need
// something that is missing here: a network policy engine, a cloud, the internet.
var Selections = []Selection{
	{
		Name: "network", About: "what sig-network specs need no cloud, no network policies, no SCTP and no internet, and run beside each other",
		Focus: `\[sig-network\]`, Skip: `\[Disruptive\]|\[Serial\]|` + absent,
	},
	{
		Name: "serial", About: "those of them that want the cluster for themselves",
		Focus: `\[sig-network\].*(\[Disruptive\]|\[Serial\])`, Skip: absent, Alone: true,
	},
	{
		Name: "zones", About: "those of them that want two nodes in each of three zones", Nodes: 2 * zones,
		Focus: `\[sig-network\] Traffic Distribution`, Skip: `\[Disruptive\]|\[Serial\]|` + absent,
	},
	{
		Name: "check", About: "what make check runs of them: each sort of Service once",
		Focus: `\[sig-network\] (Networking Granular Checks: Services should function for (pod-Service: udp|endpoint-Service: http)|` +
			`Services should (serve a basic endpoint|be able to (change the type from NodePort|create a functioning NodePort)|have session affinity work for NodePort|` +
			`preserve source pod IP|allow pods to hairpin|fail health check node port|be rejected when no|implement service.kubernetes.io/headless|serve endpoints on same port and different protocol for)|` +
			`Conntrack should be able to (preserve UDP traffic when (server pod cycles for a NodePort|initial unready)|cleanup conntrack entries when UDP service target port changes for a NodePort))`,
		Skip: `\[Disruptive\]|\[Serial\]|\[Slow\]|` + absent,
	},
	{
		Name: "short", About: "a few minutes of them",
		Focus: `\[sig-network\] (Networking Granular Checks: (Services|Pods) should (function for (pod|endpoint)-Service|update endpoints)|Services should (serve a basic endpoint|be able to (change|create a functioning NodePort)|have session affinity work for NodePort|preserve source pod IP|allow pods to hairpin|fail health check node port|be rejected|implement service.kubernetes.io|serve endpoints on same port|not be able to connect to terminating)|Conntrack)`,
		Skip:  `\[Disruptive\]|\[Serial\]|\[Slow\]|` + absent,
	},
	{
		Name: "few", About: "some of the short ones, for a machine that is emulated",
		Focus: `\[sig-network\] Services should (serve a basic endpoint|be able to create a functioning NodePort|have session affinity work for NodePort|preserve source pod IP|allow pods to hairpin|be rejected when no endpoints)`,
		Skip:  `\[Disruptive\]|\[Serial\]|\[Slow\]|` + absent,
	},
}

// absent is what needs something that the cluster has not, such as a registry: agnhost of these tests has no image to
// serve, and the connection to it comes about.
const absent = `Netpol|NetworkPolicy|IngressClass|Ingress API|\[Feature:(Ingress|LoadBalancer|PerformanceDNS|Networking-|KubeProxyNFAcct)|` +
	`\[sig-network\] DNS |Provider:GCE|SCTPConnectivity|pull an image from a registry`

// Spec is a test that did not simply pass, and why.
type Spec struct{ Name, Message string }

// unfit are specs that a mode cannot pass by its nature.
var unfit = []struct{ mode, part, reason string }{
	{"userspace", "should preserve source pod IP for traffic thru service cluster IP", relayed},
	{"userspace", "should support externalTrafficPolicy=Local for type=NodePort", relayed},
	{"userspace", "should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes", relayed},
	{"userspace", "should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local", answered},
}

const answered = "a pod of another node is no client outside, so the relay answers it; in other modes the endpoint answers past the node that translated"

const relayed = "a relay connects to the pod, which sees the address of the node"

// Unfit returns why a mode cannot pass a spec, and nothing if it can.
func Unfit(mode, spec string) (reason string) {
	for _, u := range unfit {
		if u.mode == mode && strings.Contains(spec, u.part) {
			return u.reason
		}
	}
	return ""
}

// Unexpected returns the specs that failed without a reason in the nature of the mode.
func (r *Run) Unexpected() []Spec {
	var all []Spec
	for _, s := range r.Failed {
		if Unfit(r.Mode, s.Name) == "" {
			all = append(all, s)
		}
	}
	return all
}

// Results are those of a Selection.
type Results struct {
	Passed          int
	Failed, Skipped []Spec
	Took            time.Duration
}

// testPrograms are the tests of Kubernetes and what runs them.
var testPrograms = []string{"e2e.test", "ginkgo"}

// testFolder returns the folder with the tests of Kubernetes.
func (c *Cluster) testFolder(ctx context.Context) (string, error) {
	if c.Tests != "" {
		return c.Tests, nil
	}
	return thirdparty.Kubernetes.Build(ctx, c.out, testPrograms...)
}

// reportFile has what ginkgo reports, in JUnit's format.
const reportFile = "junit.xml"

// command returns the command line that runs the tests of a selection, with more arguments
// for ginkgo. Its files are in a folder.
func (s Selection) command(programs, folder string, ginkgo, tests []string) []string {
	args := append([]string{filepath.Join(programs, "ginkgo"), "--no-color", "--focus=" + s.Focus, "--skip=" + s.Skip,
		"--junit-report=" + reportFile, "--output-dir=" + folder}, ginkgo...)
	return append(append(args, filepath.Join(programs, "e2e.test"), "--"), tests...)
}

// Conformance runs a part of the tests of Kubernetes in the cluster, several at a time,
// and returns their results. Its files are in a new folder.
func (c *Cluster) Conformance(ctx context.Context, s Selection, part Part, procs int, folder string) (Results, error) {
	programs, err := c.testFolder(ctx)
	if err != nil {
		return Results{}, err
	}
	if err := errors.Join(os.RemoveAll(folder), os.MkdirAll(folder, 0o755)); err != nil {
		return Results{}, err
	}
	if s, err = part.narrow(ctx, s, programs, folder); err != nil {
		return Results{}, err
	}
	provider, env := "skeleton", []string{"KUBE_TEST_REPO_LIST=" + c.path("registries.yaml")}
	if s.Alone {
		ctx, end := context.WithCancel(ctx)
		defer end()
		more, err := c.letChange(ctx)
		if err != nil {
			return Results{}, err
		}
		provider, env, procs = "local", append(env, more...), 1 // the skeleton has no nodes to log in to
	}
	args := s.command(programs, folder, []string{fmt.Sprintf("--procs=%d", procs), "--timeout=3h", "--poll-progress-after=0"},
		[]string{"--provider=" + provider, "--kubeconfig=" + c.InsideKubeconfig(), fmt.Sprintf("--num-nodes=%d", c.Nodes), "--system-pods-startup-timeout=2m"})
	cmd, err := c.Machine(control).Command(ctx, append([]string{"nice", "-n", "10"}, args...)...)
	if err != nil {
		return Results{}, err
	}
	log, err := os.Create(filepath.Join(folder, "log"))
	if err != nil {
		return Results{}, err
	}
	defer log.Close()
	registries, err := files.ReadFile("files/registries.yaml")
	if err == nil {
		err = os.WriteFile(c.path("registries.yaml"), registries, 0o644)
	}
	if err != nil {
		return Results{}, err
	}
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdout, cmd.Stderr = log, log
	begin := time.Now()
	c.progress("running the specs of selection %s%s, %d at a time; log: %s", s.Name, part.suffix(), procs, log.Name())
	ended := c.follow(ctx, cmd, log.Name())
	if failed := (*exec.ExitError)(nil); ended != nil && (ctx.Err() != nil || !errors.As(ended, &failed)) {
		return Results{}, ended
	}
	r, err := readReport(filepath.Join(folder, reportFile))
	r.Took = time.Since(begin).Round(time.Second)
	if err == nil && ended != nil && len(r.Failed) == 0 {
		err = fmt.Errorf("the tests ended with %w, and no spec failed; see %s", ended, log.Name())
	}
	return r, err
}

// letChange prepares the cluster for specs that log in to nodes and restart the proxy. They
// find its pods by the label that those of kubeadm have. It returns variables for them.
func (c *Cluster) letChange(ctx context.Context) (env []string, err error) {
	const known = `{"spec": {"template": {"metadata": {"labels": {"k8s-app": "kube-proxy"}}}}}`
	ours, err := c.kubectl(ctx, "", "-n", system, "get", "daemonset", "-l", ofProxy, "-o", "name")
	if err != nil {
		return nil, err
	}
	if ours != "" {
		if _, err := c.kubectl(ctx, "", "-n", system, "patch", strings.TrimSpace(ours), "-p", known); err != nil {
			return nil, err
		}
		if err := c.awaitProxy(ctx, "kubeproxy"); err != nil {
			return nil, err
		}
	}
	return c.allowLogin(ctx)
}

// follow runs ginkgo and says once a minute how far it is. cmd ends with ctx. The error of
// failed specs is an exec.ExitError.
func (c *Cluster) follow(ctx context.Context, cmd *exec.Cmd, log string) error {
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	ticks := time.NewTicker(time.Minute)
	defer ticks.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ticks.C:
			text, err := os.ReadFile(log)
			if err != nil {
				return err
			}
			c.progress("%d specs are done, %d of them failed", bytes.Count(text, []byte("•")), bytes.Count(text, []byte("• [FAILED]")))
		}
	}
}

// report is a part of a report in JUnit's format, as ginkgo writes it.
type report struct {
	Properties []struct {
		Name  string `xml:"name,attr"`
		Value string `xml:"value,attr"`
	} `xml:"testsuite>properties>property"`
	Cases []reportCase `xml:"testsuite>testcase"`
}

type reportCase struct {
	Name    string   `xml:"name,attr"`
	Status  string   `xml:"status,attr"`
	Failure *message `xml:"failure"`
	Error   *message `xml:"error"`
	Skipped *message `xml:"skipped"`
}

// complaint returns why a case failed.
func (c reportCase) complaint() string {
	switch {
	case c.Failure != nil:
		return firstLine(c.Failure.Text)
	case c.Error != nil:
		return firstLine(c.Error.Text)
	}
	return c.Status
}

// incomplete returns an error if something other than specs failed. Then some may not have
// run, and the report says no more of them than of those that were not selected.
func (r report) incomplete() error {
	for _, p := range r.Properties {
		if p.Name == "SpecialSuiteFailureReason" && p.Value != "" { // such as a timeout
			return errors.New(p.Value)
		}
	}
	for _, c := range r.Cases {
		if !strings.HasPrefix(c.Name, specPrefix) && (c.Failure != nil || c.Error != nil) {
			return fmt.Errorf("%s: %s", c.Name, c.complaint())
		}
	}
	return nil
}

type message struct {
	Text string `xml:"message,attr"`
}

// specPrefix is before the names of specs, and not before those of what else runs.
const specPrefix = "[It] "

func openReport(file string) (report, error) {
	var in report
	text, err := os.ReadFile(file)
	if err != nil {
		return in, fmt.Errorf("the tests wrote no report: %w", err)
	}
	if err := xml.Unmarshal(text, &in); err != nil {
		return in, fmt.Errorf("%s: %w", file, err)
	}
	return in, nil
}

func readReport(file string) (Results, error) {
	var r Results
	in, err := openReport(file)
	if err != nil {
		return r, err
	}
	if err := in.incomplete(); err != nil {
		return r, fmt.Errorf("%s: not all specs ran: %w", file, err)
	}
	for _, c := range in.Cases {
		name, spec := strings.CutPrefix(c.Name, specPrefix)
		if !spec {
			continue
		}
		switch {
		case c.Status == "passed":
			r.Passed++
		case c.Skipped != nil:
			if why, ran := strings.CutPrefix(c.Skipped.Text, "skipped - "); ran { // others were not selected
				r.Skipped = append(r.Skipped, Spec{name, firstLine(why)})
			}
		default:
			r.Failed = append(r.Failed, Spec{name, c.complaint()})
		}
	}
	if r.Passed+len(r.Failed)+len(r.Skipped) == 0 {
		return r, fmt.Errorf("%s: no spec ran", file)
	}
	return r, nil
}

func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	return line
}

// Run is what a Selection gave with one proxy in one mode.
type Run struct {
	Proxy, Mode, Selection string
	With                   string `json:",omitempty"` // Chart.With
	Part                   Part   `json:",omitzero"`
	Version                string // of the proxy
	Kubernetes, Kernel     string
	On                     time.Time
	Results
}

// setting is what rows and specs call a mode.
func setting(mode, with string) string {
	if with != "" {
		mode += " with " + with
	}
	return mode
}

func (r Run) setting() string { return setting(r.Mode, r.With) }

// key is what runs have in common of which the last one counts.
func (r Run) key() string { return r.Selection + " " + r.setting() + " " + r.Proxy }

// covers returns whether other is of the same key and in r, as all parts are in all of it.
func (r Run) covers(other Run) bool {
	return r.key() == other.key() && (r.Part == Part{} || r.Part == other.Part)
}

// Change is what became of connections while something was changed.
type Change struct {
	Name, Mode, About string
	With              string `json:",omitempty"` // Chart.With
	Version           string // of this proxy
	Kernel            string
	On                time.Time
	Took              time.Duration
	Flows             []Flow
}

func (c Change) setting() string { return setting(c.Mode, c.With) }

// key is what changes have in common of which the last one counts.
func (c Change) key() string { return c.Name + " " + c.setting() }

// Flow is one of the loads meanwhile.
type Flow struct {
	Name string
	Node string `json:",omitempty"` // of the endpoints, for policy Local
	Counts
	// Unready is how long the API server named no endpoint that the client could go to, and
	// LostUnready how much of what was lost had begun then.
	Unready     time.Duration `json:",omitempty"`
	LostUnready int           `json:",omitempty"`
	// LostInCalm is how much of what was lost had begun when all was over.
	LostInCalm int `json:",omitempty"`
}

// Document is all that is known, and what docs/conformance.md is made of.
type Document struct {
	Runs    []Run
	Changes []Change
}

// Update adds a run or a change to the document in a file, in place of an older one of the
// same sort, and writes it with its page.
func Update(file, page string, run *Run, change *Change) error {
	d, err := ReadDocument(file)
	if err != nil {
		return err
	}
	if run != nil {
		d.addRun(*run)
	}
	if change != nil {
		d.addChange(*change)
	}
	return d.write(file, page)
}

// Merge adds what is newer in the document of another file to that of file.
func Merge(file, page, other string) error {
	d, err := ReadDocument(file)
	if err != nil {
		return err
	}
	more, err := ReadDocument(other)
	if err != nil {
		return err
	}
	for _, run := range more.Runs {
		if !slices.ContainsFunc(d.Runs, func(r Run) bool { return r.covers(run) && !r.On.Before(run.On) }) {
			d.addRun(run)
		}
	}
	for _, change := range more.Changes {
		if !slices.ContainsFunc(d.Changes, func(c Change) bool { return c.key() == change.key() && !c.On.Before(change.On) }) {
			d.addChange(change)
		}
	}
	return d.write(file, page)
}

func (d *Document) addRun(run Run) {
	d.Runs = append(slices.DeleteFunc(d.Runs, run.covers), run)
	if run.Part.Count > 0 {
		d.Runs = addUp(d.Runs, run)
	}
}

func (d *Document) addChange(change Change) {
	d.Changes = append(slices.DeleteFunc(d.Changes, func(c Change) bool { return c.key() == change.key() }), change)
}

func (d *Document) write(file, page string) error {
	d.order()
	text, err := json.MarshalIndent(d, "", "\t")
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(file, append(text, '\n'), 0o644), os.WriteFile(page, []byte(d.Page()), 0o644))
}

// ReadDocument reads the document in a file, which is empty if there is none.
func ReadDocument(file string) (Document, error) {
	var d Document
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &d)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return d, fmt.Errorf("read %s: %w", file, err)
	}
	return d, nil
}

func (d *Document) order() {
	slices.SortFunc(d.Runs, func(a, b Run) int {
		return cmp.Or(strings.Compare(a.key(), b.key()), cmp.Compare(a.Part.Number, b.Part.Number))
	})
	order := Names()
	slices.SortFunc(d.Changes, func(a, b Change) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Name), slices.Index(order, b.Name)), strings.Compare(a.setting(), b.setting()))
	})
}

const pageHead = `# Conformance

In a cluster of three real nodes on one machine. Written by ` + "`make conformance` and `make changes`" + `, nothing by hand;
docs/conformance.json has all figures, with days, kernels and versions. Mode ipvs ran in a virtual machine.

## Kubernetes' own tests

With this proxy, and with the kube-proxy of the same version. A cell has the specs that passed, failed and were skipped.

`

// contenders are the proxies, as a run names them, in the order of the columns.
var contenders = []string{"kubeproxy", "kube-proxy"}

// Page returns the document as Markdown.
func (d *Document) Page() string {
	var out strings.Builder
	out.WriteString(pageHead)
	rows := [][]string{{"specs", "mode", "this proxy", "kube-proxy", "Kubernetes"}}
	var last string
	for _, r := range d.Runs {
		if key := r.Selection + r.Part.suffix() + " " + r.setting(); key != last {
			last = key
			rows = append(rows, []string{r.Selection + r.Part.suffix(), r.setting(), "", "", ""})
		}
		row := rows[len(rows)-1]
		row[2+slices.Index(contenders, r.Proxy)] = fmt.Sprintf("%d, %d, %d", r.Passed, len(r.Failed), len(r.Skipped))
		row[4] = r.Kubernetes
	}
	out.WriteString(kit.Table(rows) + "\nThe specs:\n\n")
	for _, s := range Selections {
		if slices.ContainsFunc(d.Runs, func(r Run) bool { return r.Selection == s.Name }) {
			fmt.Fprintf(&out, "- %s: %s\n", s.Name, s.About)
		}
	}
	d.writeSpecs(&out, "Failed", func(r Run) []Spec { return r.Failed }, func(names []string) string { return "`" + strings.Join(names, "`, `") + "`" })
	d.writeSpecs(&out, "Skipped", func(r Run) []Spec { return r.Skipped }, func(names []string) string { return strconv.Itoa(len(names)) })
	d.writeChanges(&out)
	return out.String()
}

// writeSpecs lists specs by the reason, as text says, with the runs that have them.
func (d *Document) writeSpecs(out *strings.Builder, title string, of func(Run) []Spec, text func(names []string) string) {
	names, in := map[string][]string{}, map[string][]string{}
	var order []string
	for _, r := range d.Runs {
		for _, s := range of(r) {
			why := shorten(s.Message)
			if reason := Unfit(r.Mode, s.Name); reason != "" && r.Proxy == "kubeproxy" {
				why = "by the nature of the mode, " + reason
			}
			if names[why] == nil {
				order = append(order, why)
			}
			names[why], in[why] = also(names[why], brief(s.Name)), also(in[why], r.Proxy+" in mode "+r.setting())
		}
	}
	if len(order) == 0 {
		return
	}
	fmt.Fprintf(out, "\n%s:\n\n", title)
	for _, why := range order {
		who := strings.Join(in[why], ", ")
		if len(in[why]) > 3 {
			who = "most runs"
		}
		fmt.Fprintf(out, "- %s: %s (%s)\n", why, text(names[why]), who)
	}
}

// also adds text to a list that lacks it.
func also(list []string, text string) []string {
	if slices.Contains(list, text) {
		return list
	}
	return append(list, text)
}

var (
	tags      = regexp.MustCompile(` ?\[[^\]]*\]`)
	fractions = regexp.MustCompile(`(\d)\.\d+s`)
)

// brief is the name of a spec without its labels.
func brief(name string) string { return strings.TrimSpace(tags.ReplaceAllString(name, "")) }

// shorten cuts a message that is long, such as one with a whole answer of the API server, and fractions of seconds,
// in which messages differ.
func shorten(text string) string {
	const most = 200
	text = fractions.ReplaceAllString(text, "${1}s")
	if r := []rune(text); len(r) > most {
		return string(r[:most]) + "..."
	}
	return text
}

func (d *Document) writeChanges(out *strings.Builder) {
	if len(d.Changes) == 0 {
		return
	}
	fmt.Fprintf(out, "\n## Changes under load\n\nClients open connections at a steady rate and hold some open, from a pod, from a node and from outside, over TCP and\n"+
		"UDP. One is lost when it is refused, broken or not answered within 3 seconds. A cell has the new connections that were\n"+
		"lost, of all; the requests on held ones that were lost; and within which time. Where virtual servers of mode ipvs have to\n"+
		"go, clients hold a connection for %.0f seconds.\n\n", drainingLife.Seconds())
	rows := [][]string{{"change"}}
	for _, c := range d.Changes {
		rows[0] = also(rows[0], c.setting())
	}
	slices.Sort(rows[0][1:])
	for _, c := range d.Changes {
		if rows[len(rows)-1][0] != c.title() {
			rows = append(rows, make([]string, len(rows[0])))
			rows[len(rows)-1][0] = c.title()
		}
		sum, losers := c.sum()
		cell := fmt.Sprintf("%d/%d; %d", sum.NewLost, sum.New, sum.HeldLost)
		if len(losers) > 0 {
			cell += fmt.Sprintf(" in %s", sum.Last.Sub(sum.FirstLost).Round(100*time.Millisecond))
		}
		rows[len(rows)-1][slices.Index(rows[0], c.setting())] = cell
	}
	out.WriteString(kit.Table(rows) + "\nWhy they were lost:\n\n" + d.losses() + "- over UDP, a client that takes a port again within " +
		"30 seconds is the same flow to the kernel, and goes to the same\n  endpoint, also when that one has just ended\n")
	d.writeLate(out)
}

// losses lists the changes during which connections were lost, by the reason.
func (d *Document) losses() string {
	var order []string
	titles, unready := map[string][]string{}, map[string][]string{}
	for _, c := range d.Changes {
		if _, losers := c.sum(); len(losers) == 0 {
			continue
		}
		why := "no reason is known"
		if t, ok := c.trial(); ok && (t.Tolerated > Nothing || t.External || c.Mode == "userspace") {
			why = t.Note
		}
		order, titles[why] = also(order, why), also(titles[why], c.Name)
		if text := c.unready(); text != "" {
			unready[why] = append(unready[why], text)
		}
	}
	var out strings.Builder
	for _, why := range order {
		out.WriteString("- **" + strings.Join(titles[why], ", ") + "**: " + why)
		if list := unready[why]; list != nil {
			out.WriteString(" (without a ready endpoint: " + strings.Join(list, ", ") + ")")
		}
		out.WriteString("\n")
	}
	return out.String()
}

// trial returns the trial that a change was.
func (c Change) trial() (t Trial, ok bool) {
	for _, s := range Sequences {
		if i := slices.IndexFunc(s.Trials, func(t Trial) bool { return t.Name == c.Name }); i >= 0 {
			return s.Trials[i], true
		}
	}
	return t, false
}

// title is what rows of all modes call a change.
func (c Change) title() string {
	if t, ok := c.trial(); ok {
		return t.Name + ": " + t.About
	}
	return c.About
}

// sum returns what became of all loads, and the names of those that lost something.
func (c *Change) sum() (sum Counts, losers []string) {
	sum.Kinds = map[string]int{}
	for _, f := range c.Flows {
		sum.New += f.New
		sum.Due += f.Due
		sum.NewLost += f.NewLost
		sum.Slow += f.Slow
		sum.Over1s += f.Over1s
		sum.Over3s += f.Over3s
		sum.Hung += f.Hung
		sum.Held += f.Held
		sum.HeldLost += f.HeldLost
		if f.Lost() == 0 {
			continue
		}
		losers = append(losers, f.Name)
		for k, n := range f.Kinds {
			sum.Kinds[k] += n
		}
		if sum.FirstLost.IsZero() || f.FirstLost.Before(sum.FirstLost) {
			sum.FirstLost = f.FirstLost
		}
		if f.Last.After(sum.Last) {
			sum.Last = f.Last
		}
	}
	return sum, losers
}
