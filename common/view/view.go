// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

// Package view is a page for browsers that shows what a proxy does: its Services, each with its
// endpoints and traffic, and the way of a connection. The page reads what the metrics server
// answers, and gets nothing from elsewhere.
package view

import (
	"embed"
	"net/http"

	"kubeproxy/common/health"
	"kubeproxy/common/statusview"
)

// Path is where the page is, and its parts below it.
const Path = "/view/"

//go:embed page.html page.css page.js
var files embed.FS

// policy lets the page run and read only what this server has. Nobody else may frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Handler serves the page and, as overview, what overview returns.
func Handler(overview func() *statusview.Overview) http.Handler {
	mux := http.NewServeMux()
	for path, file := range map[string]string{"{$}": "page.html", "page.css": "page.css", "page.js": "page.js"} {
		mux.HandleFunc("GET "+Path+path, func(w http.ResponseWriter, q *http.Request) {
			for name, value := range map[string]string{
				"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-cache",
			} {
				w.Header().Set(name, value)
			}
			http.ServeFileFS(w, q, files, file)
		})
	}
	mux.HandleFunc("GET "+Path+"overview", func(w http.ResponseWriter, _ *http.Request) { health.ReplyJSON(w, http.StatusOK, overview()) })
	return mux
}
