# Copyright The kubeproxy Authors.
# SPDX-License-Identifier: Apache-2.0

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := all
# Steps follow each other with make -j, too: images are made of binaries, and setup installs
# what others run. Each step keeps all processors busy by itself.
.NOTPARALLEL:

# The systems that every change must build for.
PLATFORMS := linux/amd64 linux/arm64 windows/amd64 windows/arm64
FOLDERS   := build cmd common config platform test
VERSION   := $(or $(shell git describe --tags --always --dirty 2>/dev/null),dev)
REVISION  := $(shell git rev-parse HEAD 2>/dev/null)
DATE      := $(shell git log -1 --format=%cI 2>/dev/null)

# The packages whose tests start a real API server.
E2E := ./test/apisource ./test/cluster ./test/incluster ./test/monitoring ./test/outage

# The packages whose tests run Windows programs under Wine.
WINE := ./test/windows ./test/wine/... ./test/winparity ./test/hns/... ./test/winservice

# The packages that make test leaves out: those that need an API server, Wine or a virtual
# machine, and the benchmarks. The slowest is the first, so that nothing waits for it in the end.
SLOW := $(WINE) $(E2E) ./test/bench ./test/page ./test/vm/...

# The packages that make test runs. Those of test/hns need no Wine but are a part of it.
QUICK = $(filter-out $(shell go list $(filter-out ./test/hns/...,$(SLOW))),$(shell go list ./...))

# The packages that run once more with the race detector: those in which, or in whose tests, more
# than one goroutine may run. The tests in folder test start the proxy as a program, which has none,
# with few exceptions.
SEVERAL := \bgo (func|[a-zA-Z_.]+)\(|\.Go\(|errgroup|synctest|httptest|Parallel\(|Gather
RACED = $(shell grep -rlE --include='*.go' '$(SEVERAL)' cmd common config platform test/apisource test/hns | xargs -n1 dirname | sort -u | sed 's|^|./|')

# Of the others, those with random tests, which run in full without it.
DRAWN = $(filter-out $(RACED),$(shell grep -rl --include='*_test.go' 'rapid\.Check' cmd common config platform | xargs -n1 dirname | sort -u | sed 's|^|./|'))

# Tests for make check only: the long ones on real packets, and those that need a compiler
# of programs for the kernel.
LONG := ExplainManyRules|Killed|KilledWhileClientsConnect|KilledWhileManifestsChange|MountedVolume|ObjectIsCompiled|Probe|Rollout|ScriptAgainstRules|StalledLogDoesNotBlock|StartsWithLittleMemory|StatusOfBlockedTraffic|SwitchUnderLoad|Troubles|UDPEndsThoughKilled|Unrest|UserspaceBoundSwitch|UserspaceSwitch|IPTablesLockIsKept|IPTablesTroubles|UserspaceTroubles|IPTablesRebalance|UserspaceRebalance|SilentEndpointsOfTenants|SilentDatagrams|StickyClients|AcceleratedSecondDraw

# Tests that the race detector leaves out: long ones in which one goroutine does everything.
# They run without it, in full, in these packages.
LONE := LogsShare|Personalities|RulesSuites|Size|Suites|SuitesDuringListings|SuitesInPieces|TraceFindsTampering|CountsAtScale|Floods|BypassDecidesAsRouteDoes|PersonalitiesConverge
LONE_IN := ./cmd/kube-proxy/internal/collect ./common/source ./platform/linux/iptables ./platform/linux/ipvs/... ./platform/linux/nftables ./platform/linux/socketlb ./platform/linux/userspace ./platform/windows/hns

# Tests of the same sort that draw nothing: make test has run them in full.
ONCE := Dump|FloodsMemory|Forged

# What make test leaves to make rest. Random tests draw a fifth of their cases in it, and tests in
# modes iptables and userspace have one of the two variants of iptables; make rest has the other, and
# make nightly all. Most tests on real packets wait for silence, so six run at a time, and two
# packages beside them.
LATER := $(LONG)|CountsAtScale|Floods
BRIEF := -short -parallel=6 -p=3

# Live tests that make check runs once more, with socket acceleration; make nightly runs all.
ACCELERATED := EveryCell|Restart|IPTablesRestart|Hairpin|RefusedAtOnce|ChangesUnderLoad

# The kernel of the virtual machine.
KERNEL ?= 6.1

# What a skipped test does to make test: show or fail.
SKIPS ?= show

# How many failed tests may run a second time.
AGAIN ?= 3

report      := go run ./build/testreport -skips=$(SKIPS) -allow=build/skips.txt -again=$(AGAIN) -- -vet=off
go_build    := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X main.version=$(VERSION),$(REVISION),$(DATE)'
staticcheck := build/.cache/staticcheck
vm          := build/.cache/vm
nodes       := build/.cache/nodes

# $(call on_each,PLATFORMS,COMMAND) runs COMMAND for each platform and times it.
define on_each
for p in $(1); do \
	start=$$SECONDS; \
	GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0 $(2); \
	printf '   %-14s %4ds\n' $$p $$((SECONDS - start)); \
done
endef

# The tests that run in a virtual machine, by the marks of their reasons in build/skips.txt.
MARKS := vm: vm2: vmlong:

# Runs these tests. With vm2: the machine has two processors. Where VM_FLAGS has -short, random
# tests draw a fifth of their cases.
define in_vm
release=$$($(vm) -kernel $(KERNEL) -fetch); \
if [[ -z $$release && $(SKIPS) == show ]]; then exit 0; fi; \
for mark in $(MARKS); do \
	cpus=1; if [[ $$mark == vm2: ]]; then cpus=2; fi; \
	echo "== virtual machine with kernel $$release, processors: $$cpus"; \
	go run ./build/testreport -skips=$(SKIPS) -again=$(AGAIN) -owed=build/skips.txt -mark=$$mark -- \
		-vet=off -count=1 $(VM_FLAGS) -p $$((3 - cpus)) -timeout 90m -exec "$(CURDIR)/$(vm) -kernel $(KERNEL) -cpus $$cpus -proxy -controlplane"; \
done
endef

# Tests the module that lays out images and releases.
define in_release
echo "== images and release"; \
cd build/release && go vet ./... && go test -vet=off -count=1 ./...
endef

# Variables, as make -n would run a line that names MAKE.
static = $(MAKE) --no-print-directory vet lint

# Runs a few of Kubernetes' own tests in a cluster, if all that this takes is built.
define in_cluster
CGO_ENABLED=0 go build -o $(nodes) ./test/nodes/run && obstacle=$$($(nodes) obstacle) && \
if [[ -z $$obstacle ]]; then $(MAKE) --no-print-directory ready-cluster; \
else echo "== cluster: NOT TESTED: $$obstacle; make test-cluster builds what it needs and tests more"; fi
endef

##@ Use

.PHONY: build
build: bin/kube-proxy bin/kube-proxy.exe ## build bin/kube-proxy for Linux and bin/kube-proxy.exe for Windows

.PHONY: bin/kube-proxy
bin/kube-proxy:
	@echo "== build $@ (the first time takes a minute)"
	@GOOS=linux $(go_build) -o $@ ./cmd/kube-proxy

.PHONY: bin/kube-proxy.exe
bin/kube-proxy.exe:
	@echo "== build $@ (the first time takes a minute)"
	@GOOS=windows GOARCH=amd64 $(go_build) -o $@ ./cmd/kube-proxy

# The systems that images and releases are for, and their binaries.
SYSTEMS  := linux-amd64 linux-arm64 windows-amd64
binaries := build/.cache/binaries
man      := build/.cache/man
# The plugin of kubectl, for the systems that people sit at.
PLUGINS  := linux-amd64 linux-arm64 darwin-amd64 darwin-arm64 windows-amd64
plugins  := build/.cache/plugins
images   := dist

# The name of the images, with a registry if they are for one.
IMAGE ?= localhost/kubeproxy

# The key of minisign that signs a release, none by default. MINISIGN_PASSWORD has its password.
KEY ?=

# The address at which the source is public, for the labels of the images and the chart.
SOURCE ?=

lay_out = cd build/release && go run . $(1) -binaries '$(CURDIR)/$(binaries)' -man '$(CURDIR)/$(man)' -plugins '$(CURDIR)/$(plugins)' -out '$(CURDIR)/$(images)' -systems '$(SYSTEMS)' -name '$(IMAGE)' \
	-version '$(VERSION)' -revision '$(REVISION)' -created '$(DATE)' -source '$(SOURCE)'

.PHONY: binaries
binaries:
	@for s in $(SYSTEMS); do \
		echo "== build for $$s"; \
		goos=$${s%-*}; GOOS=$$goos GOARCH=$${s#*-} $(go_build) -o $(binaries)/$$s/kube-proxy$$([[ $$goos != windows ]] || echo .exe) ./cmd/kube-proxy; \
	done

.PHONY: plugins
plugins: ## build the plugin of kubectl for each system in build/.cache/plugins
	@rm -rf $(plugins)
	@for s in $(PLUGINS); do \
		goos=$${s%-*}; GOOS=$$goos GOARCH=$${s#*-} $(go_build) -o $(plugins)/$$s$$([[ $$goos != windows ]] || echo .exe) ./cmd/kubectl-svcproxy; \
	done
	@echo "== kubectl-svcproxy in $(plugins)"

.PHONY: image
image: binaries pack ## build the images as archives in dist, and the chart for them; no daemon, no registry; IMAGE=HOST/NAME sets their name
	@$(call lay_out,chart)

.PHONY: pack
pack:
	@echo "== images $(VERSION)"
	@$(call lay_out,image)

.PHONY: push
push: binaries ## push the images, with what they are made of, and the chart to the registry of IMAGE=HOST/TEAM/kubeproxy, as docker and helm are logged in; prints digests
	@$(call lay_out,push)

.PHONY: man
man: ## write the man pages to build/.cache/man
	@rm -rf $(man)
	@SOURCE_DATE_EPOCH=$(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null),0) \
		go test ./cmd/kube-proxy -count=1 -ldflags '-X kubeproxy/cmd/kube-proxy.version=$(VERSION)' -run '^TestManPages$$' -man '$(CURDIR)/$(man)' >/dev/null
	@echo "== man pages in $(man)"

.PHONY: release
release: binaries plugins man ## lay out in dist what is released: images, binaries and kubectl plugins of every system, what they are made of, chart, manifests, origin, checksums; KEY=FILE signs it
	@rm -rf dist
	@echo "== release $(VERSION)"
	@$(call lay_out,release) -key '$(and $(KEY),$(abspath $(KEY)))'

.PHONY: manifests
manifests: ## rewrite build/deploy and the README of the chart from the chart
	@cd build/release && rm -rf ../deploy && go run . manifests -out ../deploy

.PHONY: pins
pins: ## take the newest packages of Debian into build/release/debian/packages.txt
	@cd build/release && go run . pins -out debian

# The mode of the proxy in a cluster.
MODE ?= nftables

# Any text turns a layer on in a cluster, for all Services.
ACCELERATION ?=
DIRECT ?=

# What connects the pods of a cluster, and a port of loopback for the API server. Without, these
# are routes, and its address.
NETWORK ?=
API_PORT ?=

# The name of a cluster, for more than one at a time.
CLUSTER ?=

# The parts of a cluster from this tree: the image with the commands of iptables, and the chart.
ours = -chart build/chart -image $(images)/kubeproxy-iptables-$(VERSION).oci.tar -repository '$(IMAGE)' -tag '$(VERSION)' -mode $(MODE) -cluster '$(CLUSTER)' -network '$(NETWORK)' -api-port '$(API_PORT)' $(if $(ACCELERATION),-with 'socket acceleration')$(if $(DIRECT),-with 'direct return')

# For mode ipvs, a cluster may have to be in a virtual machine: where this kernel has no
# IPVS, and where KERNEL is given.
in_machine = $(if $(filter-out file,$(origin KERNEL)),-kernel $(KERNEL))
setup_machine = $(if $(in_machine)$(filter ipvs,$(MODE)),build/setup.sh machine)

# A cluster needs an image for this machine alone.
cluster conformance changes test-cluster test-pages ready-cluster: SYSTEMS := linux-$(shell go env GOARCH)
cluster conformance changes test-cluster test-pages ready-cluster: images := build/.cache/images

.PHONY: cluster
cluster: root $(nodes) image ## a cluster of three real nodes with this proxy, its chart and a demo application; MODE=iptables for another mode, ACCELERATION=1 for socket acceleration, DIRECT=1 for direct return, NETWORK=flannel or kube-router for these between the pods, API_PORT=7445 for the API server there on loopback, as Talos has it
	@echo "== cluster: the first time, Kubernetes and containerd are built from source, which takes long"
	@$(nodes) up $(ours)

.PHONY: cluster-down
cluster-down: root $(nodes) ## remove the cluster, and all that belongs to it
	@$(nodes) down -cluster '$(CLUSTER)'

.PHONY: conformance
conformance: root $(nodes) image ## Kubernetes' own sig-network tests in a cluster, with kube-proxy and with this proxy in MODE; rewrites docs/conformance.md; SPECS=short takes 10 minutes, network (all of them) 40, and there are zones, serial and few; PROXY=ours leaves out kube-proxy; where this kernel has no IPVS, MODE=ipvs runs in a virtual machine, SPECS=few in a quarter of an hour for each proxy; ACCELERATION and DIRECT as above; PART=1/3 takes a third of the specs, and all thirds count as one run
	@$(setup_machine)
	@$(nodes) conformance $(ours) $(in_machine) $(if $(SPECS),-only $(SPECS)) $(if $(PART),-part $(PART)) $(if $(PROXY),-proxy $(PROXY))

# The version that upgrades begin with: the release before, or fifty commits ago.
EARLIER ?= $(or $(shell git describe --tags --abbrev=0 HEAD~ 2>/dev/null),$(shell git rev-parse --short=8 HEAD~50 2>/dev/null))
earlier := build/.cache/earlier

.PHONY: changes
changes: root earlier $(nodes) image ## install, upgrade, roll, drain, reboot, go back, with connections counted; rewrites docs/conformance.md; half an hour
	@rm -rf $(earlier) && mkdir -p $(earlier) && git archive $(EARLIER) | tar -x -C $(earlier)
	@$(MAKE) --no-print-directory -C $(earlier) binaries VERSION=$(EARLIER) SYSTEMS=$(SYSTEMS)
	@$(MAKE) --no-print-directory pack VERSION=$(EARLIER) SYSTEMS=$(SYSTEMS) images=$(images) binaries=$(earlier)/$(binaries)
	@$(setup_machine)
	@$(nodes) changes $(ours) $(in_machine) -earlier-chart $(earlier)/build/chart -earlier-tag $(EARLIER) \
		-earlier-image $(images)/kubeproxy-iptables-$(EARLIER).oci.tar $(if $(ONLY),-only $(ONLY))

.PHONY: $(nodes)
$(nodes):
	@build/setup.sh cluster
	@CGO_ENABLED=0 go build -o $@ ./test/nodes/run

.PHONY: demo
demo: bin/kube-proxy ## show the proxy on real connections, in network namespaces of its own
	@CGO_ENABLED=0 go run ./test/demo -proxy bin/kube-proxy

##@ Check

.PHONY: all
all: fmt ## format, vet for this machine, and make test: what make alone does
	@echo "== vet"
	@go vet ./...
	@$(MAKE) --no-print-directory test

.PHONY: test
test: ## what to run after a change: units, scenarios, simulated systems, real packets in modes nftables, iptables and userspace
	@build/setup.sh packets
	@echo "== make test: units, scenarios, simulated systems, and, for root, real packets in network namespaces;"
	@echo "   6 minutes on two cores, more the first time; make check runs the rest, and the long ones of these"
	@$(report) $(BRIEF) -timeout 20m -skip '^Test($(LATER))$$' kubeproxy/test/live $(filter-out kubeproxy/test/live,$(QUICK))

.PHONY: check
check: test rest ## everything that runs for a commit

.PHONY: rest
rest: VM_FLAGS := -short
rest: MARKS := vm: vm2:
rest: setup formatted controlplane prefix machine ## what make check runs after make test: the race detector, all systems, API server, Wine, virtual machine
	@race=-race; failed=0; \
	if ! command -v "$${CC:-gcc}" >/dev/null; then race=; echo "no C compiler: testing without the race detector"; fi; \
	set -m; ( $(in_vm) ) >$(vm).log 2>&1 & machine=$$!; set +m; \
	trap 'kill -- -$$machine 2>/dev/null || true' EXIT; \
	$(static); \
	echo "== tests $$race, then the long ones; an hour on two cores; beside them, a virtual machine, whose output comes after"; \
	$(report) $$race -timeout 30m -skip '^Test($(LONE)|$(ONCE))$$' $(RACED) || failed=1; \
	echo "== $$SECONDS s: long tests of one goroutine"; \
	$(report) -timeout 30m -run '^Test($(LONE))$$' $(LONE_IN) || failed=1; \
	$(report) $(DRAWN) || failed=1; \
	echo "== $$SECONDS s: API server, Wine, and the long tests on real packets"; \
	KUBEPROXY_SOAK=30s $(report) -timeout 30m $(filter-out $(RACED),$(SLOW)) || failed=1; \
	$(report) -parallel=4 -timeout 30m -run '^Test($(LONG))$$' ./test/live || failed=1; \
	echo "== $$SECONDS s: live tests with the other variant of iptables"; \
	KUBEPROXY_VARIANTS=other $(report) -short -parallel=4 -timeout 30m -skip '^Test($(LATER))$$' -run '^Test(IPTables|Userspace)' ./test/live || failed=1; \
	echo "== $$SECONDS s: live tests with socket acceleration"; \
	KUBEPROXY_SOCKET_ACCELERATION=1 $(report) -parallel=4 -run '^Test($(ACCELERATED))$$' ./test/live || failed=1; \
	( $(in_release) ) || failed=1; \
	( $(in_cluster) ) || failed=1; \
	echo "== $$SECONDS s: virtual machine"; \
	tail --pid=$$machine -n +1 -f $(vm).log; \
	wait $$machine || failed=1; \
	exit $$failed

.PHONY: nightly
nightly: setup controlplane prefix machine ## the long forms of all tests: campaigns of an attacker, floods, kills, soaks, fuzzing for FUZZTIME each; hours
	@echo "== nightly"
	@KUBEPROXY_NIGHTLY=1 KUBEPROXY_SOAK=30m $(report) \
		-count=1 -timeout 6h ./...
	@echo "== live tests with socket acceleration"
	@KUBEPROXY_SOCKET_ACCELERATION=1 $(report) -count=1 -timeout 2h ./test/live
	@$(MAKE) --no-print-directory test-cluster
	@$(MAKE) --no-print-directory test-pages
	@$(MAKE) --no-print-directory cross
	@$(in_vm)
	@echo "== fuzz"
	@build/fuzz.sh $(FUZZTIME)

.PHONY: e2e
e2e: controlplane ## the tests against a real API server alone; builds it the first time, in five to ten minutes
	@echo "== end to end"
	@$(report) -count=1 $(E2E)

.PHONY: test-release
test-release: ## the tests of what is released alone: images built twice and unpacked, the chart and its values
	@$(in_release)

.PHONY: test-cluster
test-cluster: root $(nodes) image ## a cluster of real nodes: a few minutes of Kubernetes' own tests, and install, roll and way back under load
	@$(setup_machine)
	@echo "== cluster"
	@$(nodes) conformance $(ours) -proxy ours -only short -json ''
	@$(nodes) changes $(ours) -only install,roll,back -json ''

.PHONY: test-pages
test-pages: root $(nodes) image ## docs/install.md typed from top to bottom in a cluster of real nodes, and the EKS part of docs/distributions.md with objects as EKS has them
	@echo "== pages in a cluster"
	@$(nodes) pages $(ours) -chart "$$(ls -t $(images)/kubeproxy-*.tgz | head -1)" -program $(binaries)/linux-$(shell go env GOARCH)/kube-proxy

.PHONY: check-cluster
check-cluster: ## 15 of Kubernetes' own tests in a cluster of real nodes, if its programs are built already; make test-cluster builds them
	@$(in_cluster)

.PHONY: wine
wine: setup prefix controlplane ## the tests that run Windows programs alone, under Wine
	@echo "== wine"
	@$(report) -count=1 $(WINE)

.PHONY: vm
vm: setup controlplane machine ## the tests that want another kernel alone, in a virtual machine; KERNEL=5.10 takes another one
	@$(in_vm)

.PHONY: test-kernels
test-kernels: setup machine ## the live tests on each kernel from 5.10 to the newest; rewrites docs/kernels.md; more than an hour
	@go run ./test/vm/kernels -runner $(vm) $(if $(SUITES),-suites $(SUITES)) $(if $(KERNELS),-kernels $(KERNELS))

# No file is for one processor alone (go test ./build). make test-release builds the program for
# arm64, and make nightly all else.
.PHONY: vet
vet: ## go vet for Linux and Windows
	@echo "== vet"
	@$(call on_each,$(filter %/amd64,$(PLATFORMS)),go vet ./...)

# staticcheck keeps results by the path of the tree, so each clone has the same one: a fresh one
# takes seconds, not minutes.
.PHONY: lint
lint: ## staticcheck for Linux and Windows at once: what only one of them uses is used
	@echo "== staticcheck Linux and Windows"
	@go build -modfile=build/tools/go.mod -o $(staticcheck) honnef.co/go/tools/cmd/staticcheck
	@start=$$SECONDS; \
	tree=$${XDG_CACHE_HOME:-$$HOME/.cache}/kubeproxy/tree; mkdir -p "$${tree%/*}"; \
	exec 9>"$$tree.lock"; flock 9; ln -sfn '$(CURDIR)' "$$tree"; cd -L "$$tree"; \
	for p in $(filter %/amd64,$(PLATFORMS)); do \
		echo "$${p/\//_}: GOOS=$${p%/*} GOARCH=$${p#*/} CGO_ENABLED=0"; \
	done | $(staticcheck) -matrix ./...; \
	printf '   %-14s %4ds\n' all $$((SECONDS - start))

.PHONY: cross
cross: ## compile program and tests for every system
	@echo "== compile, tests included"
	@$(call on_each,$(PLATFORMS),go test -c -o /dev/null ./...)

.PHONY: bench
bench: ## measure, and rewrite docs/benchmarks.md; PART=served does so with one part of it
	@CGO_ENABLED=0 go run ./test/bench -o docs/benchmarks.md $(if $(PART),-only $(PART))

.PHONY: bench-vm
bench-vm: ## measure mode ipvs in a virtual machine, and rewrite its part of docs/benchmarks.md; KERNEL=5.10 takes another one
	@CGO_ENABLED=0 go run ./test/bench -o docs/benchmarks.md -only ipvs -kernel $(KERNEL)

.PHONY: dashboard
dashboard: controlplane ## draw docs/dashboard.png: what the dashboard of the chart shows of nodes with faults
	@mkdir -p build/.cache
	@echo "== two minutes with a real Prometheus"
	@go test ./test/monitoring -count=1 -run '^TestAlerts$$' -data '$(CURDIR)/build/.cache/dashboard.json'
	@cd build/tools/dashboard && go run . -data '$(CURDIR)/build/.cache/dashboard.json' -out '$(CURDIR)/docs/dashboard.png'

.PHONY: pictures
pictures: ## draw docs/view-*.png: the page of a proxy in a browser
	@build/setup.sh packets page
	@go test ./test/page -count=1 -pictures '$(CURDIR)/docs'

##@ Change

.PHONY: fmt
fmt: ## format every Go file
	@gofmt -w $(wildcard $(FOLDERS))

.PHONY: bpf
bpf: ## compile the programs of socket acceleration for the kernel
	@build/setup.sh bpf
	@for o in socketlb watch; do platform/linux/socketlb/bpf/compile.sh platform/linux/socketlb/bpf/$$o.o || exit; done

.PHONY: deps
deps: ## rewrite build/deps-*.txt, the lists of linked packages
	@go test ./build -run TestLinkedPackages -update >/dev/null
	@wc -l build/deps-*.txt | sed '$$d'

.PHONY: update
update: ## rewrite the goldens of every test that has some
	@go test $$(grep -rl --include='*_test.go' 'flag\.Bool("update"' $(wildcard $(FOLDERS)) | xargs -n1 dirname | sort -u | sed 's|^|./|') -update

.PHONY: clean
clean: ## remove what make built
	@rm -rf bin dist build/.cache

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^##@ /{printf "\n%s\n", substr($$0, 5)} /^[a-z0-9-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Steps of other targets, not meant to be called directly.
.PHONY: root earlier setup formatted controlplane prefix machine ready-cluster
# Before anything that takes long.
root:
	@if ((EUID)); then echo "a cluster needs root, for network namespaces and for containers"; exit 1; fi
earlier:
	@if [[ -z '$(EARLIER)' ]]; then echo "no earlier version is known: git has no tag, and no commit 50 before this one; EARLIER=COMMIT names one"; exit 1; fi
# Its cluster may be beside the one of make cluster.
ready-cluster: CLUSTER := check
ready-cluster: $(nodes) image
	@$(setup_machine)
	@echo "== cluster: 15 of Kubernetes' own tests"
	@$(nodes) conformance $(ours) -proxy ours -only check -json ''
setup:
	@build/setup.sh
controlplane:
	@go run ./test/controlplane >/dev/null
prefix:
	@go run ./test/wine/prepare
machine:
	@go build -o $(vm) ./test/vm/run
	@$(vm) -kernel $(KERNEL) -fetch >/dev/null
formatted:
	@bad=$$(gofmt -l $(wildcard $(FOLDERS))); \
	if [[ -n $$bad ]]; then printf 'not formatted, run make fmt:\n%s\n' "$$bad"; exit 1; fi
