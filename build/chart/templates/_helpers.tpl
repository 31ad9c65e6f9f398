{{/* The image of the pods on Linux. */}}
{{- define "kubeproxy.linuxImage" -}}
{{ .Values.image.repository }}{{ if eq .Values.image.variant "iptables" }}-iptables{{ end }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The image of the pods on Windows. */}}
{{- define "kubeproxy.windowsImage" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The address in the text of a kubeconfig. */}}
{{- define "kubeproxy.serverOf" -}}
{{- range (. | fromYaml).clusters }}{{ .cluster.server }}{{ break }}{{ end }}
{{- end }}

{{/*
The address of the API server: the value, what kubeadm's kube-proxy has, what joining
nodes are told, or what the last installation had. Only Helm can ask for these: a pod
mounts no ConfigMap of another namespace, and to ask the API server takes its address.
*/}}
{{- define "kubeproxy.apiServer" -}}
{{- $found := .Values.apiServer }}
{{- range list (list "kube-system" "kube-proxy" "kubeconfig.conf") (list "kube-public" "cluster-info" "kubeconfig") (list $.Release.Namespace "kubeproxy" "kubeconfig.conf") }}
{{- if not $found }}
{{- $found = include "kubeproxy.serverOf" (dig "data" (index . 2) "" (lookup "v1" "ConfigMap" (index . 0) (index . 1))) }}
{{- end }}
{{- end }}
{{- $found }}
{{- end }}

{{/* Refuses values that are right one by one and wrong together. */}}
{{- define "kubeproxy.check" -}}
{{- if not (or .Values.linux.enabled .Values.windows.enabled) }}
{{- fail "linux.enabled, windows.enabled: both are false, so nothing would be installed" }}
{{- end }}
{{- if and .Values.linux.enabled (eq .Values.image.variant "plain") (not (has .Values.linux.mode (list "nftables"))) }}
{{- fail (printf "image.variant: plain lacks the commands that linux.mode %q needs; want image.variant=iptables, or linux.mode=nftables" .Values.linux.mode) }}
{{- end }}
{{- if and .Values.monitoring.podMonitor.enabled (not (include "kubeproxy.metricsPort" .)) }}
{{- fail (printf "metrics.bindAddress: no Prometheus reaches %s, which monitoring.podMonitor.enabled wants; set 0.0.0.0:10249 or [::]:10249" .Values.metrics.bindAddress) }}
{{- end }}
{{- end }}

{{/* The port of the metrics, if others than the node reach it. */}}
{{- define "kubeproxy.metricsPort" -}}
{{- if not (or (hasPrefix "127." .Values.metrics.bindAddress) (hasPrefix "[::1]" .Values.metrics.bindAddress)) -}}
- {name: metrics, containerPort: {{ regexFind "[0-9]+$" .Values.metrics.bindAddress }}}
{{- end }}
{{- end }}

{{/* How kubelet asks for health. It takes any certificate. */}}
{{- define "kubeproxy.scheme" -}}
{{- if .Values.tls.secretName }}, scheme: HTTPS{{ end }}
{{- end }}
