{{/*
Refuses values that have the right form, which is for the schema, and cannot be used.
*/}}
{{- define "kubeproxy.check" -}}
{{- if not (or .Values.linux.enabled .Values.windows.enabled) }}
{{- fail "linux.enabled, windows.enabled: both are false, so nothing would be installed" }}
{{- end }}
{{- if and .Release.IsUpgrade (not (include "kubeproxy.installs" .)) }}
{{- fail "cleanup: its pods come in place of the proxy, which an upgrade would remove; want helm template, see docs/install.md" }}
{{- end }}
{{- if and .Values.linux.enabled (eq .Values.image.variant "plain") (not (has .Values.linux.mode (list "nftables"))) }}
{{- fail (printf "image.variant: plain lacks the commands that linux.mode %q needs; want image.variant=iptables, or linux.mode=nftables" (.Values.linux.mode | default "")) }}
{{- end }}
{{- if and .Values.apiServer .Values.kubeconfig.configMapName }}
{{- fail "kubeconfig.configMapName: its kubeconfig has the address of the API server, and apiServer is set, too; leave one out" }}
{{- end }}
{{- include "kubeproxy.checkServer" (.Values.apiServer | default "") }}
{{- include "kubeproxy.checkRanges" (list "clusterCIDR" (.Values.clusterCIDR | default "")) }}
{{- include "kubeproxy.checkAddress" (list "metrics.bindAddress" .Values.metrics.bindAddress) }}
{{- range .Values.extraArgs }}
{{- if and (hasPrefix "--service-proxy-name=" .) (or $.Values.windows.enabled (not (has $.Values.linux.mode (list "" "nftables")))) }}
{{- fail (printf "extraArgs: %s works in mode nftables alone; want linux.mode=nftables, and windows.enabled=false" .) }}
{{- end }}
{{- end }}
{{- $own := list "app.kubernetes.io/name" "app.kubernetes.io/component" "app.kubernetes.io/instance" }}
{{- if .Values.kubeProxyNames }}{{ $own = append $own "k8s-app" }}{{ end }}
{{- range $key := $own }}
{{- if hasKey ($.Values.podLabels | default dict) $key }}
{{- fail (printf "podLabels: %s is the chart's, as selectors find the pods by it; leave it out" $key) }}
{{- end }}
{{- end }}
{{- range $key := concat $own (list "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart") }}
{{- if hasKey ($.Values.commonLabels | default dict) $key }}
{{- fail (printf "commonLabels: %s is the chart's; leave it out" $key) }}
{{- end }}
{{- end }}
{{- if not (or .Values.serviceAccount.create .Values.serviceAccount.name) }}
{{- fail "serviceAccount.name: serviceAccount.create is false, so the pods have no account; want the name of one" }}
{{- end }}
{{- if and (ne .Values.updateStrategy.type "RollingUpdate") .Values.updateStrategy.rollingUpdate }}
{{- fail (printf "updateStrategy.rollingUpdate: it is not for type %s; leave it out" .Values.updateStrategy.type) }}
{{- end }}
{{- if and .Values.monitoring.podMonitor.enabled .Values.monitoring.serviceMonitor.enabled }}
{{- fail "monitoring.serviceMonitor.enabled: monitoring.podMonitor.enabled is true, too, so each node would be read twice; want one of them" }}
{{- end }}
{{- range $os := list "linux" "windows" }}
{{- $part := index $.Values $os }}
{{- if $part.enabled }}{{ include "kubeproxy.checkSystem" (list $.Values $part $os) }}{{ end }}
{{- end }}
{{- end }}

{{/* Checks the part of the values for a system. */}}
{{- define "kubeproxy.checkSystem" -}}
{{- $values := index . 0 }}{{ $part := index . 1 }}{{ $os := index . 2 }}
{{- if hasKey ($part.nodeSelector | default dict) "kubernetes.io/os" }}
{{- fail (printf "%s.nodeSelector: kubernetes.io/os is %s in any case; leave it out" $os $os) }}
{{- end }}
{{- if and (eq $os "windows") (hasKey ($part.nodeSelector | default dict) "kubernetes.io/arch") }}
{{- fail "windows.nodeSelector: kubernetes.io/arch is amd64 in any case; leave it out" }}
{{- end }}
{{- include "kubeproxy.checkRanges" (list (printf "%s.config.clusterCIDR" $os) ($part.config.clusterCIDR | default "")) }}
{{- include "kubeproxy.checkFields" (list (include "kubeproxy.config" $part | fromYaml) $os) }}
{{- $mode := ternary $values.linux.mode "kernelspace" (eq $os "linux") }}
{{- if and $part.config.mode (ne $part.config.mode $mode) }}
{{- fail (printf "%s.config.mode: %s is not the mode of the chart, %q; leave it out%s" $os $part.config.mode ($mode | default "") (ternary ", or set linux.mode, too" "" (eq $os "linux"))) }}
{{- end }}
{{- $health := include "kubeproxy.health" (list $values $part) }}
{{- $metrics := include "kubeproxy.metrics" (list $values $part) }}
{{- include "kubeproxy.checkAddress" (list (printf "%s.config.healthzBindAddress" $os) $health) }}
{{- include "kubeproxy.checkAddress" (list (printf "%s.config.metricsBindAddress" $os) $metrics) }}
{{- if include "kubeproxy.isLoopback" $health }}
{{- fail (printf "%s.config.healthzBindAddress: the kubelet does not reach %s, as it asks at the address of the node; want one like [::]:10256" $os $health) }}
{{- end }}
{{- if eq (include "kubeproxy.port" $health) (include "kubeproxy.port" $metrics) }}
{{- fail (printf "metrics.bindAddress: the port of %s is that of health on %s, %s; want another one, such as 10249" $metrics $os $health) }}
{{- end }}
{{- range $kind := list "podMonitor" "serviceMonitor" }}
{{- if and (index $values.monitoring $kind).enabled (include "kubeproxy.isLoopback" $metrics) }}
{{- fail (printf "metrics.bindAddress: no Prometheus reaches %s, which monitoring.%s.enabled wants; set 0.0.0.0:10249 or [::]:10249" $metrics $kind) }}
{{- end }}
{{- end }}
{{- $volumes := dict }}
{{- range $part.extraVolumes }}{{ $_ := set $volumes .name true }}{{ end }}
{{- range $part.extraVolumeMounts }}
{{- if not (hasKey $volumes .name) }}
{{- fail (printf "%s.extraVolumeMounts: there is no volume %s in %s.extraVolumes" $os .name $os) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Checks fields of a KubeProxyConfiguration whose numbers the schema does not look at. */}}
{{- define "kubeproxy.checkFields" -}}
{{- $config := index . 0 }}{{ $os := index . 1 }}
{{- include "kubeproxy.checkIP" (list (printf "%s.config.bindAddress" $os) ($config.bindAddress | default "")) }}
{{- include "kubeproxy.checkIP" (list (printf "%s.config.winkernel.sourceVip" $os) (dig "winkernel" "sourceVip" "" $config)) }}
{{- include "kubeproxy.checkPortRange" (list (printf "%s.config.portRange" $os) ($config.portRange | default "")) }}
{{- range $config.nodePortAddresses }}
{{- if contains "/" . }}{{ include "kubeproxy.checkRange" (list (printf "%s.config.nodePortAddresses" $os) .) }}{{ end }}
{{- end }}
{{- range dig "ipvs" "excludeCIDRs" list $config }}
{{- include "kubeproxy.checkRange" (list (printf "%s.config.ipvs.excludeCIDRs" $os) .) }}
{{- end }}
{{- if eq $os "linux" }}
{{- range $mode, $field := dict "BridgeInterface" "bridgeInterface" "InterfaceNamePrefix" "interfaceNamePrefix" }}
{{- if and (eq $mode ($config.detectLocalMode | default "")) (not (dig "detectLocal" $field "" $config)) }}
{{- fail (printf "linux.config.detectLocalMode: %s needs linux.config.detectLocal.%s" $mode $field) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "kubeproxy.checkServer" -}}
{{- $host := regexReplaceAll "^https?://(\\[[^]]*\\]|[^:/]*).*$" . "${1}" }}
{{- $port := regexReplaceAll "^https?://(\\[[^]]*\\]|[^:/]*)(:([^/]*))?(/.*)?$" . "${3}" }}
{{- $name := regexMatch "^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\\.?$" $host }}
{{- $digits := regexMatch "^[0-9.]+$" $host }}
{{- $is4 := eq "4" (include "kubeproxy.family" $host) }}
{{- $is6 := and (hasPrefix "[" $host) (eq "6" (include "kubeproxy.family" (trimAll "[]" $host))) }}
{{- if and . (or (hasSuffix ":" .) (not (or $is4 $is6 (and $name (not $digits)))) (and (ne $port "") (not (include "kubeproxy.isPort" $port)))) }}
{{- fail (printf "apiServer: %q is no address of a server; want one like https://192.0.2.1:6443" .) }}
{{- end }}
{{- end }}

{{- define "kubeproxy.checkRanges" -}}
{{- $field := index . 0 }}{{ $text := index . 1 }}{{ $seen := "" }}
{{- if $text }}
{{- range splitList "," $text }}
{{- include "kubeproxy.checkRange" (list $field .) }}
{{- $family := include "kubeproxy.family" (splitList "/" (trim .) | first) }}
{{- if eq $seen $family }}
{{- fail (printf "%s: %q has two ranges of IPv%s; want one, or one of each family" $field $text $family) }}
{{- end }}
{{- $seen = $family }}
{{- end }}
{{- end }}
{{- end }}

{{- define "kubeproxy.checkRange" -}}
{{- $field := index . 0 }}{{ $text := index . 1 }}
{{- $parts := splitList "/" (trim $text) }}
{{- $family := include "kubeproxy.family" (first $parts) }}
{{- $bits := last $parts }}
{{- if not (and (eq 2 (len $parts)) $family (regexMatch "^(0|[1-9][0-9]{0,2})$" $bits) (le (atoi $bits) (ternary 32 128 (eq $family "4")))) }}
{{- fail (printf "%s: %q is no range of addresses; want one like 10.244.0.0/16 or fd00:10:244::/56" $field $text) }}
{{- end }}
{{- end }}

{{/* Checks an address without a port, which may have a zone. */}}
{{- define "kubeproxy.checkIP" -}}
{{- $field := index . 0 }}{{ $text := index . 1 }}
{{- if and $text (not (include "kubeproxy.family" (regexReplaceAll "%.+$" $text ""))) }}
{{- fail (printf "%s: %q is no IP address; want one like 192.0.2.10 or 2001:db8::10" $field $text) }}
{{- end }}
{{- end }}

{{/* Checks first-last, first+count, or one port. */}}
{{- define "kubeproxy.checkPortRange" -}}
{{- $field := index . 0 }}{{ $text := index . 1 }}
{{- $numbers := regexFindAll "[0-9]+" $text -1 }}
{{- $first := first $numbers | default "0" | int }}{{ $last := last $numbers | default "0" | int }}
{{- if contains "+" $text }}{{ $last = add $first $last | int }}{{ end }}
{{- if or (gt $first $last) (gt $last 65535) }}
{{- fail (printf "%s: %q is no range of ports; want one like 30000-32767 or 30000+2767" $field $text) }}
{{- end }}
{{- end }}

{{- define "kubeproxy.checkAddress" -}}
{{- $field := index . 0 }}{{ $text := index . 1 }}
{{- $host := regexReplaceAll ":[0-9]*$" $text "" }}
{{- $is4 := eq "4" (include "kubeproxy.family" $host) }}
{{- $is6 := and (regexMatch "^\\[.*\\]$" $host) (eq "6" (include "kubeproxy.family" (trimAll "[]" $host))) }}
{{- if not (and (or $is4 $is6) (include "kubeproxy.isPort" (include "kubeproxy.port" $text))) }}
{{- fail (printf "%s: %q is no IP address with a port; want one like 127.0.0.1:10249 or [::]:10249" $field $text) }}
{{- end }}
{{- end }}
