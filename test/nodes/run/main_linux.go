// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"kubeproxy/test/nodes"
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
	flags.BoolVar(&p.chart.SocketAcceleration, "socket-acceleration", false, "sockets get endpoints when they connect")
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
