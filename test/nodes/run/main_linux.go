// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command run starts and ends the cluster of package nodes, and runs what is tried in it:
//
//	run up           a cluster with this proxy and a demo application
//	run down         removes it
//	run enter HOST COMMAND...  a command on n1, n2, n3 or control
//	run conformance  Kubernetes' own tests, with this proxy and with kube-proxy
//	run changes      installs, rolls, drains, reboots and goes back under load
//	run pages        types docs/install.md and the EKS part of docs/distributions.md
//	run page         writes docs/conformance.md again
//	run obstacle     prints why no cluster could start within a minute
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"kubeproxy/platform/linux/ipvs"
	"kubeproxy/test/cache"
	"kubeproxy/test/nodes"
	"kubeproxy/test/vm"
)

func main() {
	if handled, err := nodes.RunCommand(os.Args[1:]); handled {
		exit(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

func run(ctx context.Context, args []string) error {
	commands := map[string]func(context.Context, []string) error{
		"up": up, "down": down, "enter": enter, conformanceCommand: conformance, changesCommand: changes, pagesCommand: pages, "page": page, "obstacle": obstacle,
		nodes.LoadCommand: func(ctx context.Context, _ []string) error { return nodes.RunLoad(ctx) },
	}
	if len(args) == 0 || commands[args[0]] == nil {
		return errors.New("want one of the commands up, down, enter, conformance, changes, pages, page, obstacle")
	}
	if os.Geteuid() != 0 && args[0] != "obstacle" && args[0] != "page" {
		return errors.New("a cluster needs root, for network namespaces and for containers")
	}
	return commands[args[0]](ctx, args[1:])
}

// proxyFlags say which proxy is installed.
type proxyFlags struct {
	cluster string
	chart   nodes.Chart
	image   string
	network string
	port    int // of the API server on the nodes' loopback
}

func (p *proxyFlags) add(flags *flag.FlagSet) {
	clusterFlag(flags, &p.cluster)
	flags.StringVar(&p.chart.Folder, "chart", "build/chart", "folder of the chart")
	flags.StringVar(&p.image, "image", "", "archive of the image, as make image writes it")
	flags.StringVar(&p.chart.Repository, "repository", "localhost/kubeproxy", "name of the image, without -iptables")
	flags.StringVar(&p.chart.Tag, "tag", "", "tag of the image")
	flags.StringVar(&p.chart.Mode, "mode", "nftables", "mode of the proxy")
	flags.Func("with", "a layer above the rules for all Services: "+nodes.Acceleration+" or "+nodes.DirectReturn, func(text string) error {
		if p.chart.With = text; !slices.Contains(nodes.Layers, text) {
			return fmt.Errorf("want one of %q", nodes.Layers)
		}
		return nil
	})
	flags.Func("network", "what connects the pods: "+nodes.Flannel+" or "+nodes.KubeRouter+"; empty takes routes", func(text string) (err error) {
		p.network, err = nodes.ParseNetwork(text)
		return err
	})
	flags.Func("api-port", "`port` of each node's loopback at which kubelet and this proxy find the API server, such as 7445 of Talos; empty takes its address", p.setPort)
}

// setPort has the nodes and the chart use the API server at a port of loopback.
func (p *proxyFlags) setPort(text string) error {
	if text == "" {
		return nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return errors.New("want a port, 1 to 65535")
	}
	p.port, p.chart.Server = int(port), nodes.LocalServer(int(port))
	return nil
}

func clusterFlag(flags *flag.FlagSet, name *string) {
	flags.StringVar(name, "cluster", "", "name of the cluster, if there is to be more than one")
}

// archive returns the path of the archive of the image. Without flags it would be a folder.
func (p *proxyFlags) archive() (string, error) {
	if p.image == "" || p.chart.Tag == "" {
		return "", errors.New("want -image and -tag: an archive that make image has written, and the version in its name")
	}
	image, err := filepath.Abs(p.image)
	if err != nil {
		return "", err
	}
	info, err := os.Stat(image)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no file", image)
	}
	if err != nil {
		return "", fmt.Errorf("-image: %w; make image writes one", err)
	}
	return image, nil
}

// build makes what a cluster consists of, and adds the image.
func (p *proxyFlags) build(ctx context.Context, count int) (*nodes.Cluster, error) {
	image, err := p.archive()
	if err != nil {
		return nil, err
	}
	c, err := nodes.Build(ctx, os.Stdout, count, p.network)
	if err != nil {
		return nil, err
	}
	c.Name, c.LocalPort = p.cluster, p.port
	c.Archives = append(c.Archives, image)
	return c, nil
}

func up(ctx context.Context, args []string) error {
	var p proxyFlags
	flags := flag.NewFlagSet("up", flag.ContinueOnError)
	p.add(flags)
	count := flags.Int("nodes", 3, "how many nodes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	c, err := p.build(ctx, *count)
	if err != nil {
		return err
	}
	if err := nodes.Up(ctx, os.Stdout, c); err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return c.Install(ctx, p.chart) },
		func() error { return c.Demo(ctx) },
	} {
		if err := step(); err != nil {
			return c.Explain(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	enter := self + " enter"
	if c.Name != "" {
		enter += " -cluster " + c.Name
	}
	fmt.Printf(hints, c.Kubeconfig(), c.Programs, enter, c.DownCommand())
	return nil
}

const hints = `
The cluster is ready. In a shell:

  export KUBECONFIG=%[1]s PATH=%[2]s:$PATH
  kubectl get nodes -o wide
  kubectl -n kube-system exec daemonset/kubeproxy -- kube-proxy status
  kubectl -n demo get services,pods -o wide
  kubectl -n demo exec deployment/client -- curl -s http://web/hostname     # again: another pod answers
  %[3]s control curl -s http://172.30.0.12:30080/hostname             # a client outside, by the NodePort of n2
  %[3]s n1 nft list ruleset

%[4]s removes everything.
`

// obstacle prints what keeps a cluster from starting within a minute, and nothing if it
// can.
func obstacle(ctx context.Context, _ []string) error {
	if os.Geteuid() != 0 {
		fmt.Println("a cluster needs root")
		return nil
	}
	missing, err := nodes.Missing(ctx)
	full := nodes.Room(usual)
	switch {
	case err != nil:
	case full != nil:
		fmt.Println(full)
	case len(missing) > 0:
		fmt.Printf("%d programs are not built yet, such as %s\n", len(missing), missing[0])
	}
	return err
}

func down(_ context.Context, args []string) error {
	name, _, err := clusterName("down", args)
	if err != nil {
		return err
	}
	c, err := nodes.Find(os.Stdout, name)
	if errors.Is(err, nodes.ErrNone) {
		fmt.Println("no cluster is there")
		return nil
	}
	if err != nil {
		return err
	}
	return c.Down()
}

// clusterName returns the cluster that the flags name, and what comes after the flags.
func clusterName(command string, args []string) (name string, rest []string, err error) {
	flags := flag.NewFlagSet(command, flag.ContinueOnError)
	clusterFlag(flags, &name)
	err = flags.Parse(args)
	return name, flags.Args(), err
}

func enter(_ context.Context, args []string) error {
	name, args, err := clusterName("enter", args)
	if err != nil {
		return err
	}
	c, err := nodes.Open(os.Stdout, name)
	if err != nil {
		return err
	}
	if len(args) < 2 {
		return errors.New("want a host, such as n1 or control, and a command")
	}
	cmd, err := c.Machine(args[0]).Enter(args[1:]...)
	if err != nil {
		return err
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	if child := (*exec.ExitError)(nil); errors.As(err, &child) && child.Exited() {
		os.Exit(child.ExitCode()) // the command has said why
	}
	return err
}

// The commands for trials.
const (
	conformanceCommand = "conformance"
	changesCommand     = "changes"
	pagesCommand       = "pages"
)

// trial is what conformance and changes have in common: clusters that last as long as the
// command, and the document that gets the results.
type trial struct {
	proxyFlags
	virtual
	json, page string
	only       string
	keep       bool
	more       []string // archives of images
	earlier    string   // folder of an earlier chart
	rate       int      // of new connections, see nodes.Cluster
}

// addDocument adds the flags that say where results go.
func (t *trial) addDocument(flags *flag.FlagSet) {
	flags.StringVar(&t.json, "json", "docs/conformance.json", "file with all results; empty keeps none")
	flags.StringVar(&t.page, "page", "docs/conformance.md", "page that is made of it")
}

func (t *trial) parse(name string, args, known []string, more func(*flag.FlagSet)) error {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	t.proxyFlags.add(flags)
	t.virtual.add(flags)
	t.addDocument(flags)
	flags.StringVar(&t.only, "only", "", "which ones, with commas between them; empty takes all, and of the selections of conformance network")
	flags.BoolVar(&t.keep, "keep", false, "leave the cluster there; another one cannot follow")
	more(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, one := range strings.Split(t.only, ",") {
		if t.only != "" && !slices.Contains(known, one) {
			return fmt.Errorf("-only: there is no %q; want some of %s", one, strings.Join(known, ","))
		}
	}
	return nil
}

func (t *trial) wants(name string) bool {
	return t.only == "" || slices.Contains(strings.Split(t.only, ","), name)
}

func (t *trial) record(run *nodes.Run, change *nodes.Change) error {
	if t.json == "" || t.network != "" || t.port != 0 { // the page does not tell these from others
		return nil
	}
	return nodes.Update(t.json, t.page, run, change)
}

// start is the proxy that a cluster has at first.
type start int

const (
	ours start = iota
	known
	embedded
)

// usual is how many nodes a cluster has.
const usual = 3

// assemble makes what a cluster consists of, or finds it where it was made.
func (t *trial) assemble(ctx context.Context, count int) (*nodes.Cluster, error) {
	if t.parts != "" {
		return nodes.OpenParts(os.Stdout, t.parts, count)
	}
	c, err := t.build(ctx, count)
	if err == nil {
		c.Archives = append(c.Archives, t.more...)
	}
	return c, err
}

// in runs fn in a new cluster of some nodes with a proxy, and removes the cluster.
func (t *trial) in(ctx context.Context, first start, count int, fn func(*nodes.Cluster) error) (err error) {
	c, err := t.assemble(ctx, count)
	if err != nil {
		return err
	}
	c.Rate = t.rate
	if first == embedded {
		c.Embedded = nodes.KnownMode(t.chart.Mode)
	}
	defer func() {
		if !t.keep && !errors.Is(err, nodes.ErrThere) { // that one is not ours
			err = errors.Join(err, c.Down())
		}
	}()
	if err := nodes.Up(ctx, os.Stdout, c); err != nil {
		return err
	}
	if first == ours {
		err = c.Install(ctx, t.chart)
	} else {
		err = c.InstallKnown(ctx, nodes.KnownMode(t.chart.Mode))
	}
	if err != nil {
		return err
	}
	return fn(c)
}

func conformance(ctx context.Context, args []string) error {
	var t trial
	proxy, part, procs := bothProxies, nodes.Part{}, 0
	var all []string
	for _, s := range nodes.Selections {
		all = append(all, s.Name)
	}
	err := t.parse(conformanceCommand, args, all, func(flags *flag.FlagSet) {
		flags.Func("proxy", "ours, known or both: whose results (default both)", func(text string) error {
			proxy = text
			if text != bothProxies && !slices.ContainsFunc(contenders, func(c contender) bool { return c.flag == text }) {
				return errors.New("want ours, known or both")
			}
			return nil
		})
		flags.Func("part", "a part of each selection, such as 2/3; the sum counts when all parts are there", func(text string) (err error) {
			part, err = nodes.ParsePart(text)
			return err
		})
		flags.IntVar(&procs, "procs", 4, "how many specs at a time")
	})
	if err != nil {
		return err
	}
	if t.wanted(t.chart.Mode) {
		return t.inMachine(ctx, conformanceCommand, args)
	}
	var failed error
	for _, x := range contenders {
		if proxy != bothProxies && proxy != x.flag {
			continue
		}
		if x.first == known && nodes.KnownMode(t.chart.Mode) != t.chart.Mode {
			fmt.Printf("%s has no mode %s\n", x.name, t.chart.Mode)
			continue
		}
		for _, s := range nodes.Selections {
			if t.only == "" && s.Name != "network" || !t.wants(s.Name) {
				continue
			}
			run := nodes.Run{Proxy: x.name, Mode: t.chart.Mode, Selection: s.Name, Part: part, On: time.Now().UTC()}
			if x.first == ours {
				run.With = t.chart.With
			}
			err := t.in(ctx, x.first, cmp.Or(s.Nodes, usual), func(c *nodes.Cluster) error { return t.conform(ctx, c, s, procs, &run) })
			if err != nil {
				return errors.Join(failed, err)
			}
			if n := len(run.Unexpected()); n > 0 && x.first == ours {
				failed = errors.Join(failed, fmt.Errorf("mode %s: %d specs of selection %s failed", run.Mode, n, s.Name))
			}
		}
	}
	return failed
}

// contender is a proxy whose results are compared with those of the other one.
type contender struct {
	flag  string // the value of -proxy
	name  string // in the results
	first start
}

var contenders = []contender{{"known", "kube-proxy", known}, {"ours", "kubeproxy", ours}}

// bothProxies is the value of -proxy for all contenders.
const bothProxies = "both"

// logFolder has the logs of the tests of Kubernetes.
const logFolder = "build/.cache/conformance"

// conform runs a selection, prints and records what became of it.
func (t *trial) conform(ctx context.Context, c *nodes.Cluster, s nodes.Selection, procs int, run *nodes.Run) error {
	name := run.Proxy + "-" + run.Mode + "-" + s.Name
	if run.With != "" {
		name += "-" + strings.ReplaceAll(run.With, " ", "-")
	}
	if run.Part.Count > 0 {
		name += fmt.Sprintf("-%d-of-%d", run.Part.Number, run.Part.Count)
	}
	folder, err := filepath.Abs(filepath.Join(filepath.FromSlash(logFolder), name))
	if err != nil {
		return err
	}
	if run.Results, err = c.Conformance(ctx, s, run.Part, procs, folder); err != nil {
		return err
	}
	if run.Kubernetes, err = c.Version(ctx); err != nil {
		return err
	}
	run.Kernel, run.Version = nodes.Kernel(), t.chart.Tag
	if run.Proxy == "kube-proxy" {
		run.Version = run.Kubernetes
	}
	fmt.Printf("%s in mode %s, selection %s: %d passed, %d failed, %d skipped, in %s\n", run.Proxy, run.Mode, s.Name, run.Passed, len(run.Failed), len(run.Skipped), run.Took)
	for _, f := range run.Failed {
		fmt.Printf("  failed: %s: %s\n", f.Name, f.Message)
	}
	return t.record(run, nil)
}

func changes(ctx context.Context, args []string) error {
	var t trial
	var s nodes.Setting
	image := ""
	err := t.parse(changesCommand, args, nodes.Names(), func(flags *flag.FlagSet) {
		flags.StringVar(&s.Earlier.Folder, "earlier-chart", "", "folder of the chart of an earlier version")
		flags.StringVar(&image, "earlier-image", "", "archive of its image")
		flags.StringVar(&s.Earlier.Tag, "earlier-tag", "", "tag of its image")
		flags.IntVar(&t.rate, "rate", 0, "new connections a second of each client; 0 takes 50, and 5 in a virtual machine")
		flags.DurationVar(&s.Silence, "silence", 10*time.Minute, "how long the API server does not answer")
	})
	if err != nil {
		return err
	}
	switch {
	case t.rate < 0:
		return fmt.Errorf("-rate %d: want connections a second, or 0", t.rate)
	case s.Silence <= 0:
		return fmt.Errorf("-silence %s: want a time of more than 0", s.Silence)
	}
	s.Chart, s.Earlier.Repository, s.Earlier.Mode = t.chart, t.chart.Repository, t.chart.Mode
	if image != "" {
		if image, err = filepath.Abs(image); err != nil {
			return err
		}
		t.more = []string{image}
	}
	t.earlier = s.Earlier.Folder
	if t.wanted(t.chart.Mode) {
		return t.inMachine(ctx, changesCommand, args)
	}
	var errs []error
	for _, all := range nodes.Sequences {
		wanted, err := all.Select(t.wants)
		if err != nil {
			return fmt.Errorf("-only: %w", err)
		}
		if len(wanted.Trials) > 0 {
			errs = append(errs, t.changesOf(ctx, wanted, s))
		}
	}
	return errors.Join(errs...)
}

// changesOf makes the changes of a sequence in one cluster.
func (t *trial) changesOf(ctx context.Context, sequence nodes.Sequence, s nodes.Setting) error {
	first := ours
	switch name := sequence.Trials[0].Name; {
	case sequence.Embedded:
		first = embedded
	case slices.ContainsFunc(nodes.Sequences, func(s nodes.Sequence) bool { return s.Trials[0].Name == name }):
		first = known
	}
	return t.in(ctx, first, usual, func(c *nodes.Cluster) error {
		var errs []error
		for _, trial := range sequence.Trials {
			change, err := c.Try(ctx, trial, s)
			if err != nil {
				return errors.Join(append(errs, err)...)
			}
			errs = append(errs, trial.Judge(change), t.record(nil, &change))
		}
		return errors.Join(errs...)
	})
}

// pages types pages in a new cluster.
func pages(ctx context.Context, args []string) error {
	var t trial
	p := nodes.Pages{Docs: "docs", Deploy: "build/deploy"}
	err := t.parse(pagesCommand, args, nodes.PageParts, func(flags *flag.FlagSet) {
		flags.StringVar(&p.Program, "program", "bin/kube-proxy", "kube-proxy on the machine of the user")
	})
	if err == nil {
		p.Image, err = t.archive()
	}
	if err == nil {
		p.Program, err = filepath.Abs(p.Program)
	}
	if err == nil {
		t.chart.Folder, err = filepath.Abs(t.chart.Folder)
	}
	if err != nil {
		return err
	}
	p.Chart = t.chart
	return t.in(ctx, known, usual, func(c *nodes.Cluster) error { return c.TypePages(ctx, p, t.wants) })
}

// page writes the page again, from what is known, and what is newer in more documents.
func page(_ context.Context, args []string) error {
	var t trial
	flags := flag.NewFlagSet("page", flag.ContinueOnError)
	t.addDocument(flags)
	if err := flags.Parse(args); err != nil {
		return err
	}
	for _, file := range flags.Args() {
		if _, err := os.Stat(file); err != nil {
			return err
		}
		if err := nodes.Merge(t.json, t.page, file); err != nil {
			return err
		}
	}
	return t.record(nil, nil)
}

// virtual is a trial in a virtual machine, for a mode that this machine's kernel does not
// have. By its clock it is no slower than a small machine: time passes as instructions are
// executed, so the timeouts of Kubernetes hold there, and only people wait longer.
type virtual struct {
	kernel  string
	timeout time.Duration
	// parts is the folder with the parts of clusters, within the machine.
	parts string
}

func (v *virtual) add(flags *flag.FlagSet) {
	flags.StringVar(&v.kernel, "kernel", "", "run in a virtual machine with this `kernel`: one of "+strings.Join(vm.Kernels, ", ")+"; empty does so for mode ipvs where this kernel has no IPVS")
	flags.DurationVar(&v.timeout, "vm-timeout", 8*time.Hour, "until the virtual machine is given up")
	flags.StringVar(&v.parts, "parts", "", "`folder` with the parts of clusters, in a machine in which nothing can be built")
}

// wanted returns whether a trial of a mode has to run in a virtual machine.
func (v *virtual) wanted(mode string) bool {
	return v.parts == "" && (v.kernel != "" || mode == "ipvs" && !ipvs.Installed())
}

// memory is that of the machine, in MB. Each node has a copy of the images in it.
const memory = 7680

// hostFiles are files of this machine that clusters use. The machine has others already.
var hostFiles = []string{
	"/usr/bin/curl", "/usr/bin/mount", "/usr/bin/nice", "/usr/bin/nsenter", "/usr/bin/socat", "/usr/bin/umount", "/usr/bin/unshare", "/usr/lib/cni", "/usr/sbin/runc",
}

// slowRate is the rate of new connections of each client in the machine. That of others
// would keep its processor busy.
const slowRate = 5

// Where the machine has its disk, and leaves its results.
const (
	diskInside    = "/disk"
	cacheInside   = "/root/.cache"
	resultsInside = "/root/results.json"
	pageInside    = "/root/results.md"
)

// inMachine runs the command in a virtual machine, and records what it found.
func (t *trial) inMachine(ctx context.Context, command string, args []string) (err error) {
	if t.network != "" || t.port != 0 {
		return errors.New("-network and -api-port are not for a virtual machine")
	}
	if _, err := t.archive(); err != nil { // before anything that takes long
		return err
	}
	start := time.Now()
	kernel := t.kernel
	if kernel == "" {
		kernel = vm.DefaultKernel
		fmt.Println("this kernel has no IPVS; going on in a virtual machine, which takes long: a cluster alone is five minutes there")
	}
	m, err := vm.Prepare(ctx, kernel, os.Stdout)
	if err != nil {
		return err
	}
	c, err := t.build(ctx, usual)
	if err != nil {
		return err
	}
	c.Archives = append(c.Archives, t.more...)
	folder, err := makeFolder()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	disk := filepath.Join(folder, "disk")
	if err := makeDisk(ctx, c, filepath.Join(folder, "parts"), disk); err != nil {
		return fmt.Errorf("make the disk of the virtual machine: %w", err)
	}
	fmt.Printf("%6.1fs  starting the virtual machine, with kernel %s; the times that follow are by its clock\n", time.Since(start).Seconds(), m.Release())
	job, err := t.job(command, args, disk)
	if err != nil {
		return err
	}
	results := filepath.Join(folder, "results.json")
	job.Outputs[resultsInside] = results
	code, err := m.Run(ctx, job)
	fmt.Printf("%6.1fs  the virtual machine has ended\n", time.Since(start).Seconds())
	if err := errors.Join(err, t.merge(results)); err != nil { // some files may be there, and others not
		return err
	}
	if code != 0 {
		return fmt.Errorf("in the virtual machine: exit code %d", code)
	}
	return nil
}

// makeFolder makes a folder for a disk, in one file system with the programs. Those that
// killed commands left behind go, once they are old.
func makeFolder() (string, error) {
	all, err := cache.Folder("parts")
	if err == nil {
		err = os.MkdirAll(all, 0o755)
	}
	if err == nil {
		err = cache.Prune(all)
	}
	if err != nil {
		return "", err
	}
	return os.MkdirTemp(all, "")
}

// makeDisk makes a disk with the parts of a cluster. Most of it is empty, and takes no
// room in this machine's file system.
func makeDisk(ctx context.Context, c *nodes.Cluster, parts, disk string) error {
	if err := os.Mkdir(parts, 0o755); err != nil {
		return err
	}
	if err := c.Pack(ctx, parts, diskInside); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "/sbin/mkfs.ext4", "-q", "-O", "^has_journal", "-d", parts, disk, "4G").CombinedOutput()
	if err != nil {
		return fmt.Errorf("mkfs.ext4: %w\n%s", err, out)
	}
	return os.RemoveAll(parts)
}

// job is what runs in the machine: this command with the same arguments, and later ones
// that go before them.
func (t *trial) job(command string, args []string, disk string) (vm.Job, error) {
	self, err := os.Executable()
	if err != nil {
		return vm.Job{}, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return vm.Job{}, err
	}
	j := vm.Job{
		Dir: dir, Disk: disk, Fast: true, Memory: memory, Timeout: t.timeout, Stdout: os.Stdout, Stderr: os.Stderr,
		Env: []string{"XDG_CACHE_HOME=" + cacheInside}, Modules: []string{"overlay"}, Files: map[string]string{}, Outputs: map[string]string{},
	}
	j.Command = append([]string{self, command}, args...)
	if command == changesCommand && t.rate == 0 {
		j.Command = append(j.Command, fmt.Sprintf("-rate=%d", slowRate))
	}
	j.Command = append(j.Command, "-parts="+diskInside, "-json="+resultsInside, "-page="+pageInside)
	logs := filepath.Join(dir, filepath.FromSlash(logFolder))
	j.Outputs[logs] = logs
	charts := []string{t.chart.Folder}
	if t.earlier != "" {
		charts = append(charts, t.earlier)
	}
	for _, chart := range charts {
		at, err := filepath.Abs(chart)
		if err != nil {
			return j, err
		}
		j.Files[at] = at
	}
	for _, file := range hostFiles {
		j.Files[file] = file
	}
	return j, nil
}

// merge records what the machine left, if it left something.
func (t *trial) merge(results string) error {
	found, err := nodes.ReadDocument(results)
	if err != nil {
		return err
	}
	for i := range found.Runs {
		err = errors.Join(err, t.record(&found.Runs[i], nil))
	}
	for i := range found.Changes {
		err = errors.Join(err, t.record(nil, &found.Changes[i]))
	}
	return err
}
