// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"kubeproxy/common/printable"
	"kubeproxy/common/suggest"
)

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
