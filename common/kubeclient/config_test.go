// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeclient

import (
	"strings"
	"testing"
)

// TestMaster checks that --master is validated with a kubeconfig and without, and that
// the error names the flag, not the field that it replaces.
func TestMaster(t *testing.T) {
	for master, good := range map[string]bool{
		"192.0.2.1:6443": true, "https://192.0.2.1:6443": true, "http://localhost:8080": true, "https://[2001:db8::1]": true, "api.example": true,
		":::bad": false, "ftp://192.0.2.1": false, "http://192.0.2.1:port": false, "192.0.2.1:66666": false, "https://": false, "https://:6443": false,
	} {
		_, err := (&Options{Master: master}).Config()
		switch {
		case good && err != nil:
			t.Errorf("--master %s: %v", master, err)
		case !good && (err == nil || !strings.Contains(err.Error(), "--master: ") || !strings.Contains(err.Error(), "want one like https://")):
			t.Errorf("--master %s: %v, want an error that names the flag and the form", master, err)
		}
	}
}
