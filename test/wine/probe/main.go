// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Command probe is a Windows program for the tests of package wine. As its arguments
// request, it exits with a code, prints a variable, dials an address or waits for an
// interrupt.
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "probe: want exit CODE, env NAME, dial ADDRESS or wait")
		os.Exit(2)
	}
	switch os.Args[1] {
	case "exit":
		code, err := strconv.Atoi(os.Args[2])
		if err != nil {
			panic(err)
		}
		fmt.Println("said before the end")
		os.Exit(code)
	case "env":
		fmt.Println(os.Getenv(os.Args[2]))
	case "dial":
		c, err := net.Dial("tcp", os.Args[2])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("from", c.LocalAddr())
	case "wait":
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, os.Interrupt)
		fmt.Println("waiting")
		<-stop
		fmt.Println("interrupted")
		os.Exit(3)
	}
}
