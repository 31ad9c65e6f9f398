{{/*
The name of the objects, and of the label by which selectors find the pods. A second
release, for labelled Services, has objects of its own beside those of the first.
*/}}
{{- define "kubeproxy.name" -}}
{{- $chart := .Values.nameOverride | default .Chart.Name }}
{{- $name := ternary .Release.Name (printf "%s-%s" .Release.Name $chart) (contains $chart .Release.Name) }}
{{- .Values.fullnameOverride | default $name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* The name of what has the name of kube-proxy if kubeProxyNames says so, such as the DaemonSet, which names the pods. */}}
{{- define "kubeproxy.shownName" -}}
{{- $name := include "kubeproxy.name" . }}
{{- if and .Values.kubeProxyNames (not (contains "kube-proxy" $name)) }}kube-proxy-{{ end }}{{ $name }}
{{- end }}

{{/* The name of the objects without a namespace. Releases of one name in two namespaces do not share them. */}}
{{- define "kubeproxy.clusterName" -}}
{{- if ne .Release.Namespace "kube-system" }}{{ .Release.Namespace }}:{{ end }}{{ include "kubeproxy.name" . }}
{{- end }}

{{/* The labels of the objects. */}}
{{- define "kubeproxy.labels" -}}
{{- $labels := dict "app.kubernetes.io/name" (include "kubeproxy.name" .) "app.kubernetes.io/instance" .Release.Name }}
{{- $_ := set $labels "app.kubernetes.io/version" (.Chart.AppVersion | replace "+" "_" | trunc 63 | trimAll "-_.") }}
{{- $_ := set $labels "app.kubernetes.io/managed-by" .Release.Service }}
{{- $_ := set $labels "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimAll "-_.") }}
{{- merge $labels (.Values.commonLabels | default dict) (dict "app.kubernetes.io/part-of" .Chart.Name) | toYaml }}
{{- end }}

{{/* The labels of the pods for a system. One that changes with the version would replace pods whose image stays. */}}
{{- define "kubeproxy.podLabels" -}}
{{- $root := index . 0 }}
{{- $labels := dict "app.kubernetes.io/name" (include "kubeproxy.name" $root) "app.kubernetes.io/component" (index . 1) "app.kubernetes.io/instance" $root.Release.Name }}
{{- if $root.Values.kubeProxyNames }}{{ $_ := set $labels "k8s-app" "kube-proxy" }}{{ end }}
{{- merge $labels ($root.Values.podLabels | default dict) ($root.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{/*
The annotations of the pods for a system: those of the values, and with kubeProxyNames what the agent of
Datadog reads in place of the name of the image. An agent that is not in the network of the node does not reach loopback.
*/}}
{{- define "kubeproxy.podAnnotations" -}}
{{- $root := index . 0 }}
{{- $notes := deepCopy ($root.Values.podAnnotations | default dict) }}
{{- if $root.Values.kubeProxyNames }}
{{- $at := include "kubeproxy.metrics" (list $root.Values (index $root.Values (index . 1))) }}
{{- $url := printf "%s://%s:%s/metrics" (ternary "https" "http" (ne $root.Values.tls.secretName "")) (ternary "localhost" "%%host%%" (eq (include "kubeproxy.isLoopback" $at) "yes")) (include "kubeproxy.port" $at) }}
{{- $instance := dict "prometheus_url" $url }}
{{- if $root.Values.tls.secretName }}{{ $_ := set $instance "tls_verify" false }}{{ end }}
{{- $checks := dict "kube_proxy" (dict "init_config" dict "instances" (list $instance)) | toJson }}
{{- $notes = merge $notes (dict "ad.datadoghq.com/kube-proxy.checks" $checks) }}
{{- end }}
{{- with $notes }}{{ toYaml . }}{{ end }}
{{- end }}

{{/* The account of the pods. */}}
{{- define "kubeproxy.account" -}}
{{- .Values.serviceAccount.name | default (include "kubeproxy.name" .) }}
{{- end }}

{{/* What the pods for a system have of the values, in the form of a pod. */}}
{{- define "kubeproxy.pod" -}}
{{- $root := index . 0 }}{{ $part := index . 1 -}}
serviceAccountName: {{ include "kubeproxy.account" $root }}
hostNetwork: true
priorityClassName: {{ $root.Values.priorityClassName }}
{{- range $field := list "dnsPolicy" "hostAliases" }}
{{- with get $part $field }}
{{ $field }}: {{ toJson . }}
{{- end }}
{{- end }}
{{- with include "kubeproxy.pullSecrets" $root }}
{{ . }}
{{- end }}
{{- end }}

{{/* The Secrets for the registry, in the form of a pod. */}}
{{- define "kubeproxy.pullSecrets" -}}
{{- $secrets := list }}
{{- range concat (.Values.image.pullSecrets | default list) (dig "imagePullSecrets" list (.Values.global | default dict)) }}
{{- if kindIs "string" . }}{{ $secrets = append $secrets (dict "name" .) }}{{ else }}{{ $secrets = append $secrets . }}{{ end }}
{{- end }}
{{- with uniq $secrets }}{{ dict "imagePullSecrets" . | toYaml }}{{ end }}
{{- end }}

{{/* A part of a pod as the chart has it, in YAML, with what the values have for it instead. */}}
{{- define "kubeproxy.changed" -}}
{{- if index . 1 }}{{ mergeOverwrite (index . 0 | fromYaml) (index . 1) | toYaml }}{{ else }}{{ index . 0 }}{{ end }}
{{- end }}

{{- define "kubeproxy.updateStrategy" -}}
type: {{ .Values.updateStrategy.type }}
{{- if eq .Values.updateStrategy.type "RollingUpdate" }}
rollingUpdate: {maxUnavailable: {{ dig "rollingUpdate" "maxUnavailable" .Values.maxUnavailable .Values.updateStrategy }}}
{{- end }}
{{- end }}

{{/* The securityContext of the pod on Linux. */}}
{{- define "kubeproxy.podRights" -}}
# Kubernetes gives capabilities to root only. The image has another user.
runAsUser: 0
runAsGroup: 0
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* The securityContext of its container. */}}
{{- define "kubeproxy.rights" -}}
readOnlyRootFilesystem: true
allowPrivilegeEscalation: false
{{- with include "kubeproxy.confinement" . | trim }}
{{ . }}
{{- end }}
capabilities:
  drop: [ALL]
  # NET_ADMIN: to change rules and connection tracking of the node's network.
  {{- if eq .Values.image.variant "iptables" }}
  # NET_RAW: the commands of iptables-legacy and mode ipvs ask the kernel
  # through a raw socket.
  {{- end }}
  {{- if .Values.linux.socketAcceleration }}
  # BPF: programs that give sockets their endpoint. PERFMON: without it, Linux 6.18
  # refuses some of them with the words "verifier bug".
  {{- end }}
  add: [NET_ADMIN{{ if eq .Values.image.variant "iptables" }}, NET_RAW{{ end }}{{ if .Values.linux.socketAcceleration }}, BPF, PERFMON{{ end }}]
{{- end }}

{{/* The repository of the images, in the registry that a chart around this one gives for all of its images. */}}
{{- define "kubeproxy.repository" -}}
{{- $path := .Values.image.repository }}
{{- with dig "imageRegistry" "" (.Values.global | default dict) }}
{{- $path = printf "%s/%s" . (regexReplaceAll "^(localhost|[^/]*[.:][^/]*)/" $path "") }}
{{- end }}
{{- $path }}
{{- end }}

{{/* The image of the pods on Linux. */}}
{{- define "kubeproxy.linuxImage" -}}
{{ include "kubeproxy.repository" . }}{{ if eq .Values.image.variant "iptables" }}-iptables{{ end }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The image of the pods on Windows. */}}
{{- define "kubeproxy.windowsImage" -}}
{{ include "kubeproxy.repository" . }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.windowsDigest }}@{{ . }}{{ end }}
{{- end }}

{{/* The address in the text of a kubeconfig. */}}
{{- define "kubeproxy.serverOf" -}}
{{- range (. | fromYaml).clusters }}{{ .cluster.server }}{{ break }}{{ end }}
{{- end }}

{{/*
The address of the API server: the value, what the cluster's kube-proxy has, what joining
nodes are told, or what the last installation had. Only Helm can ask for these: a pod
mounts no ConfigMap of another namespace, and to ask the API server takes its address.
The second key of kube-proxy is that of EKS.
*/}}
{{- define "kubeproxy.apiServer" -}}
{{- $found := .Values.apiServer }}
{{- range list (list "kube-system" "kube-proxy" "kubeconfig.conf") (list "kube-system" "kube-proxy" "kubeconfig") (list "kube-public" "cluster-info" "kubeconfig") (list $.Release.Namespace (include "kubeproxy.name" $) "kubeconfig.conf") }}
{{- if not $found }}
{{- $found = include "kubeproxy.serverOf" (include "kubeproxy.lookup" .) }}
{{- end }}
{{- end }}
{{- $found }}
{{- end }}

{{/*
What a ConfigMap of the cluster has for a key: namespace, name, key. A template cannot handle an error of lookup, such as
a missing right, and Helm prints one with the names of all templates on the way. If a name has the two words that fail
puts around its text, Helm prints what is between them alone.
*/}}
{{- define "kubeproxy.lookup" -}}
{{- template "HELM_ERR_STARTapiServer: it is not set, and the ConfigMaps of the cluster that may have it cannot be read; want an address that every node reaches before the proxy runs, like https://192.0.2.1:6443HELM_ERR_END" . }}
{{- end }}
{{- define "HELM_ERR_STARTapiServer: it is not set, and the ConfigMaps of the cluster that may have it cannot be read; want an address that every node reaches before the proxy runs, like https://192.0.2.1:6443HELM_ERR_END" -}}
{{- dig "data" (index . 2) "" (lookup "v1" "ConfigMap" (index . 0) (index . 1)) }}
{{- end }}

{{/*
The volume with the configuration and the kubeconfig. Where the chart does not write the kubeconfig, pods
wait until its ConfigMap is there.
*/}}
{{- define "kubeproxy.configVolume" -}}
- name: config
{{- with .Values.kubeconfig.configMapName }}
  projected:
    sources:
    - configMap: {name: {{ include "kubeproxy.name" $ }}}
    - configMap: {name: {{ . }}, items: [{key: kubeconfig.conf, path: kubeconfig.conf}]}
{{- else }}
  configMap: {name: {{ include "kubeproxy.name" . }}}
{{- end }}
{{- end }}

{{/* The family of an IP address, 4 or 6, or nothing. */}}
{{- define "kubeproxy.family" -}}
{{- $octet := "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])" }}
{{- if regexMatch (printf "^(%s\\.){3}%s$" $octet $octet) . }}4
{{- else if and (regexMatch "^([0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}$" .) (not (regexMatch "^:[^:]|[^:]:$|:::|::.*::" .)) (or (contains "::" .) (eq 8 (len (splitList ":" .)))) }}6
{{- end }}
{{- end }}

{{/* Something if a text is the number of a port, else nothing. */}}
{{- define "kubeproxy.isPort" -}}
{{- if and (regexMatch "^[1-9][0-9]{0,4}$" .) (le (atoi .) 65535) }}yes{{ end }}
{{- end }}

{{/* The port at the end of an address. */}}
{{- define "kubeproxy.port" -}}
{{- regexFind "[0-9]+$" . }}
{{- end }}

{{/* Where health and metrics are served, for the values and the part for a system. */}}
{{- define "kubeproxy.health" -}}
{{- (index . 1).config.healthzBindAddress | default "[::]:10256" }}
{{- end }}
{{- define "kubeproxy.metrics" -}}
{{- (index . 1).config.metricsBindAddress | default (index . 0).metrics.bindAddress }}
{{- end }}

{{/* Something if only the node itself reaches an address with a port. */}}
{{- define "kubeproxy.isLoopback" -}}
{{- if regexMatch "^(127\\.|\\[[0:]*:0*1\\])" . }}yes{{ end }}
{{- end }}

{{/* Something if metrics are served to others than the node, on either system. */}}
{{- define "kubeproxy.isScraped" -}}
{{- range list .Values.linux .Values.windows }}
{{- if and .enabled (not (include "kubeproxy.isLoopback" (include "kubeproxy.metrics" (list $.Values .)))) }}yes{{ end }}
{{- end }}
{{- end }}

{{/* The port of the metrics at an address, if others than the node reach it. */}}
{{- define "kubeproxy.metricsPort" -}}
{{- if not (include "kubeproxy.isLoopback" .) -}}
- {name: metrics, containerPort: {{ include "kubeproxy.port" . }}}
{{- end }}
{{- end }}

{{/* How kubelet asks for health. It takes any certificate. */}}
{{- define "kubeproxy.scheme" -}}
{{- if .Values.tls.secretName }}, scheme: HTTPS{{ end }}
{{- end }}

{{/* The configuration file for a system: what the chart says, and over it what the values say. */}}
{{- define "kubeproxy.file" -}}
{{- $values := (index . 0).Values }}{{ $part := index $values (index . 1) }}
{{- $file := dict "apiVersion" "kubeproxy.config.k8s.io/v1alpha1" "kind" "KubeProxyConfiguration" "metricsBindAddress" $values.metrics.bindAddress }}
{{- /* The kubelet asks at the first address of the node, which may be of either family. */}}
{{- $_ := set $file "healthzBindAddress" "[::]:10256" }}
{{- with $values.clusterCIDR }}
{{- $_ := set $file "clusterCIDR" . }}
{{- /* The family that comes first in the cluster is the first one here, too. */}}
{{- if contains ":" (splitList "," . | first) }}{{ $_ := set $file "bindAddress" "::" }}{{ end }}
{{- end }}
{{- if eq (index . 1) "linux" }}
{{- if $part.mode }}{{ $_ := set $file "mode" $part.mode }}{{ end }}
{{- if $part.socketAcceleration }}{{ $_ := set $file "socketAcceleration" $part.socketAcceleration }}{{ end }}
{{- /* Rules for loopback addresses need a setting that pods cannot make. Who asks for these addresses gets listeners. */}}
{{- $asked := regexMatch "(^| )(localhost|127\\.[0-9./]+)( |$)" (join " " ($part.config.nodePortAddresses | default list)) }}
{{- if and (has $part.mode (list "iptables" "userspace")) (not $asked) }}{{ $_ := set $file "iptables" (dict "localhostNodePorts" false) }}{{ end }}
{{- end }}
{{- mergeOverwrite $file (include "kubeproxy.config" $part | fromYaml) | toYaml }}
{{- end }}

{{/*
The configuration for a system, without what is null or empty, which stands for the default, and without what the
chart says by itself. So kubeadm's config.conf can be given as it is.
*/}}
{{- define "kubeproxy.config" -}}
{{- $config := deepCopy .config }}
{{- include "kubeproxy.prune" $config }}
{{- with $config.clientConnection }}{{ $_ := unset . "kubeconfig" }}{{ end }}
{{- omit $config "apiVersion" "kind" "mode" | toYaml }}
{{- end }}

{{- define "kubeproxy.prune" -}}
{{- range $key, $value := . }}
{{- if kindIs "map" $value }}{{ include "kubeproxy.prune" $value }}{{ end }}
{{- if or (kindIs "invalid" $value) (eq (toString $value) "") }}{{ $_ := unset $ $key }}{{ end }}
{{- end }}
{{- end }}

{{/*
Fields of a container's securityContext that let it through AppArmor and SELinux. What runtimes give to containers
without them refuses socket acceleration: AppArmor to write below /sys/fs/bpf, SELinux the use of BPF.
*/}}
{{- define "kubeproxy.confinement" -}}
{{- $sockets := .Values.linux.socketAcceleration }}
{{- $profile := include "kubeproxy.appArmorProfile" . | fromYaml }}
{{- if and $profile (semverCompare ">=1.30.0-0" .Capabilities.KubeVersion.Version) }}
appArmorProfile: {{ toJson $profile }}
{{- end }}
{{- with .Values.linux.seLinuxOptions | default (ternary (dict "type" "spc_t" "level" "s0") dict (not (not $sockets))) }}
seLinuxOptions: {{ toJson . }}
{{- end }}
{{- end }}

{{- define "kubeproxy.appArmorProfile" -}}
{{- .Values.linux.appArmorProfile | default (ternary (dict "type" "Unconfined") dict (not (not .Values.linux.socketAcceleration))) | toYaml }}
{{- end }}

{{/* The same for Kubernetes before 1.30, as an annotation of the pod for a container. */}}
{{- define "kubeproxy.appArmorAnnotation" -}}
{{- $profile := include "kubeproxy.appArmorProfile" (index . 0) | fromYaml }}
{{- $names := dict "Unconfined" "unconfined" "RuntimeDefault" "runtime/default" "Localhost" (printf "localhost/%s" ($profile.localhostProfile | default "")) }}
{{- if and $profile (semverCompare "<1.30.0-0" (index . 0).Capabilities.KubeVersion.Version) }}
{{- dict (printf "container.apparmor.security.beta.kubernetes.io/%s" (index . 1)) (get $names $profile.type) | toYaml }}
{{- end }}
{{- end }}

{{/*
The affinity of the pods on Linux: that of the values, on nodes for which there is an image. Terms are alternatives,
so each one gets the condition.
*/}}
{{- define "kubeproxy.linuxAffinity" -}}
{{- $affinity := deepCopy (.Values.linux.affinity | default dict) }}
{{- $image := dict "key" "kubernetes.io/arch" "operator" "In" "values" (list "amd64" "arm64") }}
{{- $terms := list }}
{{- range dig "nodeAffinity" "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" list $affinity | default (list dict) }}
{{- $terms = append $terms (merge (dict "matchExpressions" (append (.matchExpressions | default list) $image)) .) }}
{{- end }}
{{- mergeOverwrite $affinity (dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms))) | toYaml }}
{{- end }}

{{/* Something unless the chart gives the pods that clean up nodes, and then nothing else. */}}
{{- define "kubeproxy.installs" -}}
{{- if not (or .Values.cleanup.linux .Values.cleanup.windows) }}yes{{ end }}
{{- end }}

{{/* What the pod that cleans up a node has on both systems. It must run there, however full the node is. */}}
{{- define "kubeproxy.cleanupPod" -}}
nodeName: {{ index . 1 }}
hostNetwork: true
restartPolicy: Never
automountServiceAccountToken: false
priorityClassName: system-node-critical
tolerations:
- operator: Exists
{{- with include "kubeproxy.pullSecrets" (index . 0) }}
{{ . }}
{{- end }}
{{- end }}

{{/* A proxy for labelled Services has rules of its own. */}}
{{- define "kubeproxy.cleanupArgs" -}}
{{- $args := list "--cleanup" }}
{{- range .Values.extraArgs }}{{ if hasPrefix "--service-proxy-name=" . }}{{ $args = append $args . }}{{ end }}{{ end }}
{{- toJson $args }}
{{- end }}

{{/*
What a configuration sets and another one does not, a line for each field: the path of what is given, both of them.
What a kube-proxy does by default is not among it.
*/}}
{{- define "kubeproxy.missing" -}}
{{- $path := index . 0 }}{{ $here := index . 2 }}
{{- $default := list "0" "0s" "0.0.0.0" "0.0.0.0:10256" "127.0.0.1:10249" }}
{{- range $key, $value := omit (index . 1) "apiVersion" "kind" "clientConnection" "hostnameOverride" }}
{{- $own := get $here $key }}
{{- if kindIs "map" $value }}
{{- include "kubeproxy.missing" (list (printf "%s%s." $path $key) $value ($own | default dict)) }}
{{- else if and $value (not (has (toString $value) $default)) (ne (toJson $value) (toJson $own)) }}
    {{ $path }}{{ $key }}: {{ toJson $value }}, {{ if $own }}here {{ toJson $own }}{{ else }}not set here{{ end }}
{{- end }}
{{- end }}
{{- end }}
