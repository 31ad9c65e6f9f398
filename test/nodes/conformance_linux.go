// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nodes

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

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

const answered = "a pod of another node is no client outside by its address, so policy Local does not concern it; the relay answers it, " +
	"and in other modes the endpoint answers past the node that translated, which the client does not accept"

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
