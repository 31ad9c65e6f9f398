// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package winservice

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"
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

// Arguments returns the arguments that give a process the flags of this command line,
// and mark it as a service.
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
