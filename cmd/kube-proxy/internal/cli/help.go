// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli has what the commands share: help, arguments, completion, terminals, the build.
package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/common/document"
	"kubeproxy/common/health/servicestate"
	"kubeproxy/common/printable"
	"kubeproxy/common/statusview"
	"kubeproxy/common/suggest"
	"kubeproxy/config"
	"kubeproxy/platform/mode"
)

// HelpWidth is the longest line of a help text.
const HelpWidth = 110

// SettingAnnotation marks a flag that every command takes that reads what a node must
// forward. The help of kube-proxy itself lists these flags, with what they mean.
const SettingAnnotation = "setting"

// PrintHelp prints cmd's description, commands and flags, those under each heading of the
// configuration in a list of their own. cobra's one list has lines of up to 414 letters.
func PrintHelp(cmd *cobra.Command) error {
	w := &bytes.Buffer{}
	help(w, cmd)
	_, err := cmd.OutOrStdout().Write(w.Bytes())
	return err
}

func help(w io.Writer, cmd *cobra.Command) {
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s\n", cmp.Or(cmd.Long, cmd.Short), cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(w, "\nExamples:\n%s\n", cmd.Example)
	}
	if cmd.HasAvailableSubCommands() {
		fmt.Fprintf(w, "\nCommands:\n")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() || c.Name() == "help" {
				fmt.Fprintf(w, "  %-*s %s\n", c.NamePadding(), c.Name(), c.Short)
			}
		}
	}
	if cmd.HasParent() {
		printOwn(w, cmd)
		return
	}
	groups := map[string]*pflag.FlagSet{}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		name := "General"
		if g := f.Annotations[config.GroupAnnotation]; len(g) > 0 {
			name = g[0]
		}
		if groups[name] == nil {
			groups[name] = pflag.NewFlagSet(name, pflag.ContinueOnError)
		}
		groups[name].AddFlag(f)
	})
	for _, name := range config.Groups {
		if groups[name] != nil {
			fmt.Fprintf(w, "\n%s:\n%s", name, groups[name].FlagUsagesWrapped(HelpWidth))
		}
	}
}

// printOwn prints a command's flags without the hundred settings of the proxy.
func printOwn(w io.Writer, cmd *cobra.Command) {
	own, settings := pflag.NewFlagSet("", pflag.ContinueOnError), false
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Annotations[SettingAnnotation] != nil {
			settings = true
			return
		}
		own.AddFlag(f)
	})
	if own.HasAvailableFlags() {
		fmt.Fprintf(w, "\nFlags:\n%s", own.FlagUsagesWrapped(HelpWidth))
	}
	if settings {
		fmt.Fprintf(w, "\nThe other settings of the proxy are flags here, too: kube-proxy --help lists them.\n")
	}
}

// NoArgs accepts flags only. Its error names the command that was meant, or all.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	names := commandNames(cmd)
	near := suggest.Closest(args[0], names)
	switch {
	case near != "":
		return fmt.Errorf("unknown command %.80q; did you mean %q?", args[0], near)
	case cmd.HasParent() && len(names) > 0:
		return fmt.Errorf("unknown command %.80q: %s wants %s", args[0], Path(cmd), alternatives(names))
	}
	return fmt.Errorf("unexpected argument %.80q: want flags only; %s --help lists them%s", args[0], cmd.CommandPath(), SwitchHint(args[0]))
}

// CheckCommand refuses args that begin with a word that is no command, whatever follows.
func CheckCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") || strings.HasPrefix(args[0], "__") {
		return nil
	}
	if cmd, _, err := root.Find(args[:1]); err == nil && cmd != root {
		return nil
	}
	return NoArgs(root, args[:1])
}

// SwitchHint says how a switch takes its value, if word is one.
func SwitchHint(word string) string {
	if word != "true" && word != "false" {
		return ""
	}
	return "; a switch takes its value after =, as in --NAME=" + word
}

// OneArg accepts one argument. Its error uses the name in the command's usage.
func OneArg(cmd *cobra.Command, args []string) error {
	if len(args) == 1 {
		return nil
	}
	_, rest, _ := strings.Cut(cmd.Use, " ")
	name, _, _ := strings.Cut(rest, " ")
	return fmt.Errorf("%s wants one %s, not %d: %s", Path(cmd), name, len(args), cmd.UseLine())
}

// RequireCommand is the action of a command that only groups others.
func RequireCommand(cmd *cobra.Command, _ []string) error {
	return fmt.Errorf("%s wants a command: %s", Path(cmd), alternatives(commandNames(cmd)))
}

// commandNames lists the commands of cmd that help shows.
func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// Path names cmd in an error, which begins with the name of the program.
func Path(cmd *cobra.Command) string {
	return strings.TrimPrefix(cmd.CommandPath(), cmd.Root().Name()+" ")
}

// alternatives formats names as "a, b or c".
func alternatives(names []string) string {
	last := len(names) - 1
	if last < 1 {
		return strings.Join(names, "")
	}
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// CheckGenerated makes the commands that cobra adds handle mistakes like the others.
func CheckGenerated(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		switch cmd.Name() {
		case "completion":
			cmd.Args, cmd.RunE = NoArgs, RequireCommand
			for _, shell := range cmd.Commands() {
				shell.Args = NoArgs
			}
		case "help":
			cmd.Args = knownTopic
		}
	}
}

// knownTopic checks the topic of help.
func knownTopic(cmd *cobra.Command, args []string) error {
	about, rest, err := cmd.Root().Find(args)
	if err != nil || len(rest) == 0 {
		return err
	}
	return NoArgs(about, rest)
}

// FlagError puts an error of pflag into a line with flag, value and accepted values.
func FlagError(cmd *cobra.Command, err error) error {
	if errors.Is(err, pflag.ErrHelp) {
		return err
	}
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		return unknownFlag(cmd, unknown)
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		name, usage := pflag.UnquoteUsage(missing.GetFlag())
		return fmt.Errorf("--%s wants a value, %s: %s", missing.GetFlag().Name, name, usage)
	}
	if invalid, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		if invalid.GetFlag().Value.Type() == "gates" { // the cause names the gate
			return fmt.Errorf("--%s: %w", invalid.GetFlag().Name, invalid.Unwrap())
		}
		return fmt.Errorf("--%s: %q is %s", invalid.GetFlag().Name, invalid.GetValue(), invalidValueText(invalid))
	}
	return errors.New(printable.Text(err.Error()))
}

func unknownFlag(cmd *cobra.Command, e *pflag.NotExistError) error {
	name := printable.Text(e.GetSpecifiedName())
	if letters := printable.Text(e.GetSpecifiedShortnames()); letters != "" {
		// -name is a common slip for --name.
		if cmd.Flags().Lookup(letters) != nil {
			return fmt.Errorf("unknown flag -%s; did you mean --%s?", letters, letters)
		}
		return fmt.Errorf("unknown flag -%s; %s --help lists all", letters, cmd.CommandPath())
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := suggest.Closest(name, names); near != "" {
		return fmt.Errorf("unknown flag --%s; did you mean --%s?", name, near)
	}
	return fmt.Errorf("unknown flag --%s; %s --help lists all", name, cmd.CommandPath())
}

// Timeout registers a flag for how long something may take.
func Timeout(fs *pflag.FlagSet, to *time.Duration, value time.Duration, usage string) {
	*to = value
	fs.Var((*timeLimit)(to), "timeout", usage)
}

// timeLimit is a flag for a duration above 0. It implements pflag.Value.
type timeLimit time.Duration

var errNoTime = errors.New("want a time above 0, such as 30s or 1h30m")

func (t *timeLimit) Set(text string) error {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return errNoTime
	}
	*t = timeLimit(d)
	return nil
}

func (t *timeLimit) String() string { return time.Duration(*t).String() }
func (*timeLimit) Type() string     { return "time" }

// ServiceForms describes how commands take a Service.
const ServiceForms = `A Service is
web, shop/web, svc/web or svc/shop/web, for one port with :http, :80 or :53/udp. A
name without namespace selects the Services of that name in the namespace of -n,
else in every namespace.`

// DataText describes the formats for programs.
const DataText = `With -o json or -o yaml all is printed, also what is new in later versions, and
jsonpath=TEMPLATE selects parts as kubectl does. An error is printed on standard
output, too, as an object with ok, error and exitCode, unless something else was.`

// WantsDocument reports whether a command line asks for one object that a program reads. It
// does so also where the command line is wrong otherwise.
func WantsDocument(args []string) bool {
	for i, arg := range args {
		if arg == "-o" || arg == "--output" {
			arg += "=" + strings.Join(args[i+1:min(i+2, len(args))], "")
		}
		for _, prefix := range []string{"--output=", "-o=", "-o"} {
			if format := strings.TrimPrefix(arg, prefix); format != arg && (format == "json" || format == "yaml") {
				return true
			}
		}
	}
	return false
}

// Document is what a command prints for a program: its answer, or its error.
type Document struct {
	io.Writer
	begun bool
}

// Write implements io.Writer.
func (d *Document) Write(b []byte) (int, error) {
	d.begun = d.begun || len(b) > 0
	return d.Writer.Write(b)
}

// Fail writes an error with its exit code, unless there is an answer. JSON is YAML, too.
func (d *Document) Fail(err error, code int) {
	if text := err.Error(); !d.begun && text != "" {
		_ = document.WriteReadable(d, struct {
			OK       bool   `json:"ok"` // always false
			Error    string `json:"error"`
			ExitCode int    `json:"exitCode"`
		}{false, text, code}) // standard error has it, too
	}
}

// invalidValueText describes why a flag's value is invalid and which values it accepts.
func invalidValueText(e *pflag.InvalidValueError) string {
	switch e.GetFlag().Value.Type() {
	case "bool":
		return "neither true nor false"
	case "int32", "Level":
		return "no number it accepts: want a whole number that fits into 32 bits"
	case "float32":
		return "no number"
	case "duration":
		return "no duration: want one such as 30s or 1h30m"
	}
	return "not accepted: " + printable.Text(strings.ReplaceAll(e.Unwrap().Error(), "\n", " "))
}

// completedValues are the values of flags that shells complete, by the path of the command
// and the flag. The path "" is for every command that has the flag.
var completedValues = map[string]map[string][]string{
	"": {
		"detect-local-mode": {string(config.ClusterCIDR), string(config.NodeCIDR), string(config.BridgeInterface), string(config.InterfaceNamePrefix)},
		"logging-format":    {"text", "json"},
		"os":                {string(config.Linux), string(config.Windows)},
	},
	"diff":           {"output": {"plan", "diff", "json", "yaml"}},
	"doctor":         {"output": {"text", "json", "yaml"}},
	"explain":        {"output": {"text", "json", "yaml"}},
	"render":         {"output": {string(document.Text), string(document.JSON)}},
	"service status": {"output": {"text", "json"}},
	"status":         {"output": {"table", "wide", "name", "json", "yaml"}, "sort": {"name", "state", "endpoints", "since"}, "wait": {"ok", "programmed", "answers"}},
	"top":            {"output": {"table", "json", "yaml"}, "sort": {"rate", "connections", "bytes", "name"}},
}

// RegisterCompletion makes shells complete the values of flags and arguments of cmd and its
// commands. Paths are completed by the shell itself. version is that of this program.
func RegisterCompletion(cmd *cobra.Command, table mode.Table, version string) {
	values := map[string][]string{"proxy-mode": table.Names()}
	_, path, _ := strings.Cut(cmd.CommandPath(), " ")
	for _, p := range []string{"", path} {
		for flag, list := range completedValues[p] {
			values[flag] = list
		}
	}
	for flag, list := range values {
		if cmd.Flags().Lookup(flag) != nil {
			_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)) // the flag is there
		}
	}
	switch path {
	case "status", "top":
		cmd.ValidArgsFunction = func(c *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return services(c, "", version), cobra.ShellCompDirectiveNoFileComp
		}
	case "explain":
		cmd.ValidArgsFunction = func(c *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return []string{"node", "outside"}, cobra.ShellCompDirectiveNoFileComp
			case 1:
				return destinations(c, begun, version), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
	for _, c := range cmd.Commands() {
		RegisterCompletion(c, table, version)
	}
}

// askTime bounds how long a shell waits for names. It is short, because the user waits.
const askTime = time.Second

// services returns the names of the Services of the running proxy after prefix.
func services(cmd *cobra.Command, prefix, version string) []string {
	var names []string
	for _, s := range ask(cmd, version) {
		names = append(names, prefix+s.Namespace+"/"+s.Name)
	}
	return names
}

// destinations returns Services, or the ports of the one whose name is complete.
func destinations(cmd *cobra.Command, begun, version string) []string {
	name, _, complete := strings.Cut(begun, ":")
	if !complete {
		return services(cmd, "svc/", version)
	}
	var names []string
	for _, s := range ask(cmd, version) {
		for _, p := range s.Ports {
			one := name + ":" + p.Port
			if p.Protocol != "TCP" {
				one += "/" + strings.ToLower(p.Protocol)
			}
			if "svc/"+s.Namespace+"/"+s.Name == name && p.Port != "" && !slices.Contains(names, one) {
				names = append(names, one)
			}
		}
	}
	return names
}

// ask returns the Services of the running proxy, none if it cannot be asked.
func ask(cmd *cobra.Command, version string) []servicestate.Service {
	server, err := statusview.DialAddress(cmd.Flags().Lookup("server").Value.String())
	if server == "" || err != nil {
		server = statusview.DefaultServer
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTime)
	defer cancel()
	answer, err := (&statusview.Query{Server: server, Version: version}).Ask(ctx)
	if err != nil {
		return nil
	}
	return answer.Services
}
