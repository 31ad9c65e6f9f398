{{/*
The name of the objects, and of the label by which selectors find the pods. A second
release, for labelled Services, has objects of its own beside those of the first.
*/}}
{{- define "kubeproxy.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end }}
{{- end }}

{{/* The labels of the pods for a system. */}}
{{- define "kubeproxy.podLabels" -}}
{{- $root := index . 0 }}
{{- merge (dict "app.kubernetes.io/name" (include "kubeproxy.name" $root) "app.kubernetes.io/component" (index . 1)) ($root.Values.podLabels | default dict) | toYaml }}
{{- end }}

{{/* The image of the pods on Linux. */}}
{{- define "kubeproxy.linuxImage" -}}
{{ .Values.image.repository }}{{ if eq .Values.image.variant "iptables" }}-iptables{{ end }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* The image of the pods on Windows. */}}
{{- define "kubeproxy.windowsImage" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ with .Values.image.windowsDigest }}@{{ . }}{{ end }}
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
{{- range list (list "kube-system" "kube-proxy" "kubeconfig.conf") (list "kube-public" "cluster-info" "kubeconfig") (list $.Release.Namespace (include "kubeproxy.name" $) "kubeconfig.conf") }}
{{- if not $found }}
{{- $found = include "kubeproxy.serverOf" (dig "data" (index . 2) "" (lookup "v1" "ConfigMap" (index . 0) (index . 1))) }}
{{- end }}
{{- end }}
{{- $found }}
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
{{- with (index . 0).Values.image.pullSecrets }}
imagePullSecrets:
{{- range . }}
- name: {{ . }}
{{- end }}
{{- end }}
{{- end }}

{{/* A proxy for labelled Services has rules of its own. */}}
{{- define "kubeproxy.cleanupArgs" -}}
{{- $args := list "--cleanup" }}
{{- range .Values.extraArgs }}{{ if hasPrefix "--service-proxy-name=" . }}{{ $args = append $args . }}{{ end }}{{ end }}
{{- toJson $args }}
{{- end }}
