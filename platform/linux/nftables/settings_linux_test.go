// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"kubeproxy/common/service"
	"kubeproxy/test/kit"
)

// TestSettings keeps texts. nft can load its listing of the table again, a table that others altered
// is an error, and one that is missing is not.
func TestSettings(t *testing.T) {
	inNamespace(t, func() {
		place := SettingsPlace(service.IPv4, "mine")
		read := func(want string) {
			t.Helper()
			if got, err := place.Settings(); err != nil || string(got) != want || (got == nil) != (want == "") {
				t.Errorf("%d bytes, %v, want %d", len(got), err, len(want))
			}
		}
		read("")
		long := strings.Builder{}
		for range 10000 {
			fmt.Fprint(&long, rand.Uint64())
		}
		for _, text := range []string{"a \"quoted\" line\n", long.String(), `{"mode": "ipvs"}`} {
			kit.Must(t, place.KeepSettings(context.Background(), []byte(text)))
			read(text)
		}
		table := runNft(t, "", "list", "table", "ip", "kube-settings-mine")
		runNft(t, "delete table ip kube-settings-mine\n"+table, "-f", "-")
		read(`{"mode": "ipvs"}`)
		runNft(t, "delete element ip kube-settings-mine settings { 0 }\nadd element ip kube-settings-mine settings { 0 comment \"H4sI\" }\n", "-f", "-")
		if text, err := place.Settings(); err == nil || !strings.Contains(err.Error(), "altered") {
			t.Errorf("altered: %q, %v", text, err)
		}
		kit.Must(t, place.Remove(context.Background()))
		read("")
	})
}
