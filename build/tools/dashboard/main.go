// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
)

func main() {
	data := flag.String("data", "", "what the panels show, a `file` of test/monitoring")
	out := flag.String("out", "", "the `file` of the picture")
	flag.Parse()
	if err := run(*data, *out); err != nil {
		fmt.Fprintln(os.Stderr, "dashboard:", err)
		os.Exit(1)
	}
}

func run(data, out string) error {
	text, err := os.ReadFile(data)
	if err != nil {
		return err
	}
	var panels []panel
	if err := json.Unmarshal(text, &panels); err != nil {
		return fmt.Errorf("%s: %w", data, err)
	}
	text, err = picture(panels)
	if err != nil {
		return err
	}
	return os.WriteFile(out, text, 0o644)
}
