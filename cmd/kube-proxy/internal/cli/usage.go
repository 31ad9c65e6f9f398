// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/common/printable"
	"kubeproxy/common/suggest"
)

// NoArgs accepts flags only. Its error names the command that was meant, or those there
// are.
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

// SwitchHint says how a switch takes its value, if word is one.
func SwitchHint(word string) string {
	if word != "true" && word != "false" {
		return ""
	}
	return "; a switch takes its value after =, as in --NAME=" + word
}

// OneArg accepts exactly one argument. Its error uses the name in the usage of the
// command.
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

// FlagError converts an error of pflag into one line with the flag, its value and the
// values that it accepts.
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
