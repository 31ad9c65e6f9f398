// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command hnssim runs a simulated HNS by hand. Programs under Wine find it by the
// variable HNS_SIM_ADDR. test/hns/README.md describes how to control it over HTTP.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/signal"
	"time"

	"kubeproxy/test/hns"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "hnssim:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet("hnssim", flag.ContinueOnError)
	listen := flags.String("listen", "127.0.0.1:7600", "address for programs under Wine, their HNS_SIM_ADDR")
	admin := flags.String("admin", "127.0.0.1:7601", "address for HTTP")
	version := flags.String("version", "", "HNS's version: 9.5, 13.3, 15.4 and 15.5 are in the field; 13.3 if the personality has none")
	personality := flags.String("personality", "as asked for", "what is assumed of HNS, see Personalities in test/hns/control.go")
	spelling := flags.String("case", "", "how identities are spelt: lower, upper, or empty for a mixture")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o := hns.Options{Case: hns.Case(*spelling)}
	var err error
	if *version != "" {
		if o.Version, err = hns.ParseVersion(*version); err != nil {
			return fmt.Errorf("-version: %w", err)
		}
	}
	if o.Personality, err = hns.FindPersonality(*personality); err != nil {
		return fmt.Errorf("-personality: %w", err)
	}
	l, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	s := hns.NewServer(hns.New(o), l)
	web := &http.Server{Addr: *admin, Handler: s.Admin(), ReadHeaderTimeout: time.Minute}
	context.AfterFunc(ctx, func() { _ = web.Close() })
	fmt.Printf("HNS %s: HNS_SIM_ADDR=%s, http://%s/state\n", s.Version(), s.Addr, *admin)
	if err := web.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		return errors.Join(err, s.Close())
	}
	return s.Close()
}
