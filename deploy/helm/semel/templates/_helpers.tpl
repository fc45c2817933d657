{{- define "semel.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name }}{{ end }}
{{- end }}

{{- define "semel.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* What never changes: (dict "root" $ "component" "broker-1"). */}}
{{- define "semel.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "semel.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The DNS name behind a pod's: (dict "root" $ "service" NAME). */}}
{{- define "semel.domain" -}}
{{ .service }}.{{ .root.Release.Namespace }}.svc.{{ .root.Values.clusterDomain }}
{{- end }}

{{/* HOST:PORT of all controllers, with commas between. */}}
{{- define "semel.controllers" -}}
{{- $service := printf "%s-controller" (include "semel.name" .) -}}
{{- $domain := include "semel.domain" (dict "root" . "service" $service) -}}
{{- range $n := untilStep 1 (int (add1 .Values.controllers.replicas)) 1 }}{{ if gt $n 1 }},{{ end }}{{ $service }}-{{ $n }}.{{ $domain }}:7070{{ end }}
{{- end }}

{{/* Number of the first node of a group. */}}
{{- define "semel.firstNode" -}}
{{ .firstNode | default (add1 (mul 10 (sub .id 1))) }}
{{- end }}

{{- define "semel.check" -}}
{{- if and (not .Values.tls.secretPrefix) (not .Values.insecure) }}{{ fail "without TLS everybody who reaches a node can read and delete everything: set tls.secretPrefix, or insecure=true for a trusted network" }}{{ end }}
{{- if and .Values.tls.secretPrefix .Values.insecure }}{{ fail "insecure and tls.secretPrefix contradict each other" }}{{ end }}
{{- if and .Values.tls.authorization (not .Values.tls.secretPrefix) }}{{ fail "tls.authorization needs tls.secretPrefix: callers are known by their certificates" }}{{ end }}
{{- if and .Values.tls.loginPort (not .Values.tls.secretPrefix) }}{{ fail "tls.loginPort needs tls.secretPrefix" }}{{ end }}
{{- $nodes := dict }}
{{- range .Values.groups }}
{{- if lt (int .replicas) (int .founders) }}{{ fail (printf "group %v: replicas is the number of members now, and at least founders" .id) }}{{ end }}
{{- if and $.Values.tls.secretPrefix (not $.Values.tls.operatorSecret) (gt (int .replicas) (int .founders)) }}{{ fail (printf "group %v is to grow: set tls.operatorSecret" .id) }}{{ end }}
{{- $first := int (include "semel.firstNode" .) }}
{{- range $node := untilStep $first (int (add $first .replicas)) 1 }}
{{- if hasKey $nodes (toString $node) }}{{ fail (printf "two broker groups have a node %d: set firstNode" $node) }}{{ end }}
{{- $_ := set $nodes (toString $node) true }}
{{- end }}
{{- end }}
{{- end }}

{{- define "semel.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "semel.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* (dict "root" $ "component" "broker-1"). */}}
{{- define "semel.scheduling" -}}
affinity:
  podAntiAffinity:
  {{- if eq .root.Values.antiAffinity "required" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: {{ .root.Values.topologyKey }}
        labelSelector:
          matchLabels: {{- include "semel.selector" . | nindent 12 }}
  {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: {{ .root.Values.topologyKey }}
          labelSelector:
            matchLabels: {{- include "semel.selector" . | nindent 14 }}
  {{- end }}
{{- with .root.Values.topologySpreadConstraints }}
topologySpreadConstraints:
  {{- range . }}
  - {{- toYaml . | nindent 4 }}
    labelSelector:
      matchLabels: {{- include "semel.selector" $ | nindent 8 }}
  {{- end }}
{{- end }}
{{- include "semel.placement" .root }}
{{- end }}

{{- define "semel.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Probes of a node. The metrics port answers them in plaintext, also with TLS. */}}
{{- define "semel.probes" -}}
startupProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 5
  failureThreshold: 120
livenessProbe:
  httpGet: {path: /livez, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: metrics}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{/* How the console finds and meets the cluster: flags of every command. */}}
{{- define "semel.clientFlags" -}}
--bootstrap={{ include "semel.controllers" . }}{{ if .Values.tls.operatorSecret }} --client-config=/etc/semel/operator/client.toml{{ end }}
{{- end }}
