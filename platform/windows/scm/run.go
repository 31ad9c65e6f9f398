// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package scm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"

	"kubeproxy/common/document"
	"kubeproxy/common/logging"
)

// IsRelative returns whether path depends on the folder in which a program runs. A path
// that begins with a slash does not on Linux; on Windows it refers to the system's drive.
func IsRelative(path string) bool {
	return path != "" && !filepath.IsAbs(path) && !strings.HasPrefix(path, "/") && !strings.HasPrefix(path, `\`)
}

// isPath returns whether the values of a flag are paths.
func isPath(flag string) bool {
	return slices.Contains([]string{"config", "kubeconfig", "log-file", "manifests", "tls-cert-file", "tls-private-key-file"}, flag)
}

// Arguments returns arguments with the flags of this command line that mark a service.
func Arguments(flags *pflag.FlagSet, abs func(string) (string, error)) ([]string, error) {
	args := []string{"--windows-service"}
	var errs []error
	flags.Visit(func(f *pflag.Flag) {
		if f.Name == "name" || f.Name == "windows-service" {
			return
		}
		values := []string{f.Value.String()}
		if list, ok := f.Value.(pflag.SliceValue); ok {
			values = list.GetSlice()
		}
		for _, v := range values {
			if isPath(f.Name) && v != "" {
				absolute, err := abs(v)
				errs = append(errs, err)
				v = absolute
			}
			args = append(args, "--"+f.Name+"="+v)
		}
	})
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("make paths absolute: %w", err)
	}
	return args, nil
}

// PrintStatus prints the state of a service, as "text" or "json".
func PrintStatus(w io.Writer, format string, s Status) error {
	if format == "json" {
		return document.WriteReadable(w, s)
	}
	state := string(s.State)
	switch {
	case s.PID != 0:
		state = fmt.Sprintf("%s, process %d", state, s.PID)
	case s.ExitCode != 0:
		state = fmt.Sprintf("%s, with exit code %d", state, s.ExitCode)
	}
	t := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	for _, row := range [][2]string{
		{"service", s.Name}, {"state", state}, {"start", s.StartType}, {"account", s.Account},
		{"needs", strings.Join(s.DependsOn, ", ")}, {"command", s.Command},
	} {
		if row[1] != "" {
			fmt.Fprintf(t, "%s\t%s\n", row[0], row[1])
		}
	}
	return t.Flush()
}

// RunsProxy returns whether a command line is of this program under any name, or kube-proxy.
func RunsProxy(command string) bool {
	command = strings.ToLower(command)
	path, _, _ := strings.Cut(command, ".exe")
	name := path[strings.LastIndexAny(path, `/\"`)+1:]
	return name == ServiceName || strings.Contains(command, " --windows-service")
}

// ServiceName is the default name of the service.
const ServiceName = "kube-proxy"

// ErrNotWindows is the error on other systems.
var ErrNotWindows = errors.New("service is for Windows: there it installs the proxy as a Windows service; here the DaemonSet of build/deploy/linux or a unit of systemd runs it")

// LogFile is the default log file of a service, in the folder of its data.
func LogFile(folder, name string) string { return filepath.Join(folder, name+".log") }

// Runner runs the proxy as a service, with a file as its log: nobody reads standard error.
type Runner struct {
	LogFile string
	MaxSize int // of LogFile, see logging.OpenFile
	// Restart is the error with which work asks for a new process.
	Restart error
}

// Run runs work as the service. work calls started when the proxy runs.
func (r Runner) Run(ctx context.Context, work func(ctx context.Context, log io.Writer, started func()) error) error {
	return runService(ctx, ServiceName, func(ctx context.Context, started func()) error {
		file := logging.OpenFile(r.LogFile, r.MaxSize)
		defer file.Close()
		log := logging.NewWriter(file)
		if crash := logging.CaptureCrash(r.LogFile); crash != nil {
			defer crash.Close()
		}
		err := work(ctx, log, started)
		if errors.Is(err, r.Restart) {
			err = fmt.Errorf("%w, since %w", ErrRestart, err)
		}
		if err != nil {
			fmt.Fprintf(log, "%s kube-proxy: %v\n", time.Now().UTC().Format(time.RFC3339), err)
		}
		return err
	})
}
