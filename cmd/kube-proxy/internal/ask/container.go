// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"bytes"
	"io/fs"
	"os"
	"path"

	"github.com/spf13/pflag"

	"kubeproxy/cmd/kube-proxy/internal/host"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// containerProxy returns the arguments of the proxy in whose container this process runs, as
// kubectl exec starts it: the proxy is process 1 there. It returns nil elsewhere: which of the
// proxies of a host is meant is not to be guessed.
func containerProxy(proc fs.FS, self int) []string {
	line, err := fs.ReadFile(proc, "1/cmdline") // see proc_pid_cmdline(5)
	if err != nil || self == 1 {
		return nil
	}
	var args []string
	for arg := range bytes.SplitSeq(bytes.TrimSuffix(line, []byte{0}), []byte{0}) {
		args = append(args, string(arg))
	}
	if path.Base(args[0]) != "kube-proxy" {
		return nil
	}
	return args[1:]
}

// configOf returns the configuration of a proxy with these arguments, nil if it cannot be
// read, or if they are those of another command.
func configOf(args []string, modes mode.Table) *config.Config {
	flags := config.Flags{Modes: modes.Config()}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	fs.ParseErrorsAllowlist.UnknownFlags = true
	flags.Register(fs)
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 {
		return nil
	}
	c, err := config.Load(&flags, host.OS)
	if err != nil { // the file may have got worse since the start
		return nil
	}
	return c
}

// proxyHere returns the configuration of the proxy in whose container this process runs, nil
// if there is none.
func proxyHere(modes mode.Table) *config.Config {
	args := containerProxy(os.DirFS("/proc"), os.Getpid())
	if args == nil {
		return nil
	}
	return configOf(args, modes)
}
