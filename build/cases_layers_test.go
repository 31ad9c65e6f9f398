// Copyright The kubeproxy Authors.
// SPDX-License-Identifier: Apache-2.0

package build

var nameSamples = map[string]sample{
	"plain":          {text: "package p\n\nfunc Port() {}\n\nfunc Getter() {}\n\ntype Implement int\n"},
	"get":            {text: "package p\n\nfunc GetPort() {}\n", want: []string{"GetPort: drop"}},
	"get, a method":  {text: "package p\n\nfunc (t t) Get() {}\n", want: []string{"Get: drop"}},
	"impl":           {text: "package p\n\ntype proxyImpl struct{}\n", want: []string{"proxyImpl: drop"}},
	"constant":       {text: "package p\n\nconst sizeUtil = 1\n", want: []string{"sizeUtil: drop"}},
	"file":           {path: "common/thing/string_utils.go", text: "package p\n", want: []string{`"utils" says nothing`}},
	"folder":         {path: "common/helpers/a.go", text: "package p\n", want: []string{`"helpers" says nothing`}},
	"package clause": {text: "package util\n", want: []string{`"util" says nothing`}},
}

var docSamples = map[string]sample{
	"function":         {text: "package p\n\nfunc F() {}\n", want: []string{"F has no doc comment"}},
	"documented":       {text: "package p\n\n// F does.\nfunc F() {}\n"},
	"unexported":       {text: "package p\n\nfunc f() {}\n"},
	"method":           {text: "package p\n\nfunc (t *T) M() {}\n", want: []string{"M has no doc comment"}},
	"generic method":   {text: "package p\n\nfunc (t *T[K]) M() {}\n", want: []string{"M has no"}},
	"generic, hidden":  {text: "package p\n\nfunc (t *t[K]) M() {}\n"},
	"of an unexported": {text: "package p\n\nfunc (t *t) M() {}\n"},
	"error method":     {text: "package p\n\nfunc (e *E) Error() string { return \"\" }\n"},
	"type":             {text: "package p\n\ntype T int\n", want: []string{"T has no"}},
	"group comment":    {text: "package p\n\n// All.\nconst (\n\tA = iota\n\tB\n)\n"},
	"line comment":     {text: "package p\n\nconst (\n\tA = 1 // one\n\tB = 2\n)\n", want: []string{"B has no"}},
	"test file":        {path: "p/p_test.go", text: "package p\n\nfunc TestF() {}\n"},
}

func importing(name string) string { return "package p\n\nimport \"" + name + "\"\n" }

var importSamples = map[string]sample{
	"standard library":      {path: "common/service/a.go", text: importing("net/netip")},
	"service, other module": {path: "common/service/a.go", text: importing("github.com/google/go-cmp/cmp"), want: []string{"common/service may not import"}},
	"service, our own":      {path: "common/service/a.go", text: importing("kubeproxy/common/track"), want: []string{"may not import kubeproxy/common/track"}},
	"service, its tests":    {path: "common/service/a_test.go", text: importing("github.com/google/go-cmp/cmp")},
	"reconcile, API":        {path: "common/reconcile/a.go", text: importing("k8s.io/api/core/v1"), want: []string{"k8s.io/api"}},
	"route, logger":         {path: "common/route/a.go", text: importing("k8s.io/klog/v2"), want: []string{"k8s.io/klog"}},
	"track, API":            {path: "common/track/a.go", text: importing("k8s.io/api/core/v1")},
	"track, clients":        {path: "common/track/a.go", text: importing("k8s.io/client-go/rest"), want: []string{"client-go"}},
	"common, platform":      {path: "common/track/a.go", text: importing("kubeproxy/platform/linux/nftables"), want: []string{"may not import kubeproxy/platform"}},
	"common, config":        {path: "common/track/a.go", text: importing("kubeproxy/config"), want: []string{"kubeproxy/config"}},
	"config, platform":      {path: "config/a.go", text: importing("kubeproxy/platform/windows/hns"), want: []string{"kubeproxy/platform"}},
	"linux, windows":        {path: "platform/linux/ipvs/a_linux.go", text: importing("kubeproxy/platform/windows/hns"), want: []string{"windows/hns"}},
	"windows, linux":        {path: "platform/windows/hns/a.go", text: importing("kubeproxy/platform/linux/ipvs"), want: []string{"linux/ipvs"}},
	"linux, logger":         {path: "platform/linux/ipvs/a.go", text: importing("k8s.io/klog/v2")},
	"linux, API":            {path: "platform/linux/ipvs/a.go", text: importing("k8s.io/api/core/v1"), want: []string{"k8s.io/api"}},
	"windows, API":          {path: "platform/windows/hns/a.go", text: importing("k8s.io/utils/ptr"), want: []string{"k8s.io/utils"}},
	"platform, config":      {path: "platform/windows/hns/a.go", text: importing("kubeproxy/config"), want: []string{"kubeproxy/config"}},
	"a mode, config":        {path: "platform/windows/hns/mode_windows.go", text: importing("kubeproxy/config")},
	"a mode, command":       {path: "platform/windows/hns/mode.go", text: importing("kubeproxy/cmd/kube-proxy"), want: []string{"kubeproxy/cmd"}},
	"a mode, linux":         {path: "platform/windows/hns/mode.go", text: importing("kubeproxy/platform/linux/ipvs"), want: []string{"linux/ipvs"}},
	"mode, config":          {path: "platform/mode/a.go", text: importing("kubeproxy/config")},
	"mode, backend":         {path: "platform/mode/a.go", text: importing("kubeproxy/platform/linux/ipvs"), want: []string{"linux/ipvs"}},
	"modes, both systems":   {path: "platform/modes/a.go", text: importing("kubeproxy/platform/windows/hns")},
	"common, mode":          {path: "common/track/a.go", text: importing("kubeproxy/platform/mode"), want: []string{"kubeproxy/platform"}},
	"whole elements":        {path: "common/reconcile/a.go", text: importing("k8s.io.example/api")},
	"kubernetes":            {path: "cmd/kube-proxy/a.go", text: importing("k8s.io/kubernetes/pkg/proxy"), want: []string{"k8s.io/kubernetes"}},
	"kubernetes in a test":  {path: "test/x/a_test.go", text: importing("k8s.io/kubernetes/pkg/proxy"), want: []string{"k8s.io/kubernetes"}},
	"controller-runtime":    {path: "cmd/kube-proxy/a.go", text: importing("sigs.k8s.io/controller-runtime"), want: []string{"controller-runtime"}},
	"cmd, everything":       {path: "cmd/kube-proxy/a.go", text: importing("kubeproxy/platform/linux/nftables")},
}

var systemSamples = map[string]sample{
	"build line":           {text: "//go:build linux\n\npackage p\n", want: []string{"build line"}},
	"in _linux.go":         {path: "p/a_linux.go", text: "//go:build linux && cgo\n\npackage p\n", want: []string{"build line"}},
	"in _other.go":         {path: "p/a_other.go", text: "//go:build !linux && !windows\n\npackage p\n"},
	"in _other_test.go":    {path: "p/a_other_test.go", text: "//go:build !linux\n\npackage p\n"},
	"runtime.GOOS":         {text: body("if runtime.GOOS == \"linux\" {\n\tf()\n}"), want: []string{"runtime.GOOS"}},
	"runtime.GOOS in cmd":  {path: "cmd/kube-proxy/a.go", text: body("_ = runtime.GOOS")},
	"runtime.GOOS in test": {path: "p/a_test.go", text: body("_ = runtime.GOOS"), want: []string{"runtime.GOOS"}},
	"another GOOS":         {text: body("_ = build.GOOS")},
}
