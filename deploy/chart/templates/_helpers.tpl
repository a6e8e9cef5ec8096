{{/* Name of the chart, without the release. */}}
{{- define "llm-slo-prober.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" }}
{{- end }}

{{/* Name of the objects: RELEASE-NAME, or RELEASE alone if it contains NAME. A StatefulSet's pods carry it in a label, with eleven characters more: 63 in all. */}}
{{- define "llm-slo-prober.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else if contains (include "llm-slo-prober.name" .) .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "llm-slo-prober.name" .) | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Name and namespace of an object that may be in another namespace, where a release of this name may be too. Called with (list $ namespace suffix). */}}
{{- define "llm-slo-prober.place" -}}
{{- $root := first . }}
{{- $namespace := index . 1 }}
{{- $name := printf "%s%s" (include "llm-slo-prober.fullname" $root) (last .) }}
{{- if or (not $namespace) (eq $namespace $root.Release.Namespace) }}
name: {{ $name }}
{{- else }}
name: {{ $root.Release.Namespace }}.{{ $name }}
{{- end }}
{{- with $namespace }}
namespace: {{ . | quote }}
{{- end }}
{{- end }}

{{- define "llm-slo-prober.chart" -}}
{{- printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Labels that select the prober's pods; they cannot be changed by an upgrade. */}}
{{- define "llm-slo-prober.selectorLabels" -}}
app.kubernetes.io/name: {{ include "llm-slo-prober.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{/* Labels of an object, with those of its own values. The chart's replace them, and they replace commonLabels. Called with (list $ labels). */}}
{{- define "llm-slo-prober.labelsWith" -}}
{{- $root := first . }}
{{- $own := include "llm-slo-prober.selectorLabels" $root | fromYaml }}
{{- $own = set $own "helm.sh/chart" (include "llm-slo-prober.chart" $root) }}
{{- $own = set $own "app.kubernetes.io/version" $root.Chart.AppVersion }}
{{- $own = set $own "app.kubernetes.io/managed-by" $root.Release.Service }}
{{- toYaml (mergeOverwrite dict (default dict $root.Values.commonLabels) (default dict (last .)) $own) }}
{{- end }}

{{- define "llm-slo-prober.labels" -}}
{{- include "llm-slo-prober.labelsWith" (list . dict) }}
{{- end }}

{{/* Whether config finds targets in the prober's own cluster: empty if not. */}}
{{- define "llm-slo-prober.discovers" -}}
{{- range .Values.config.discovery }}
{{- if kindIs "map" .kubernetes }}
{{- if not .kubernetes.api_server }}true{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "llm-slo-prober.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "llm-slo-prober.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "llm-slo-prober.image" -}}
{{- if not .Values.image.repository }}
{{- fail "image.repository: needed: the image of the prober, with your registry before it; tools/image.sh builds it" }}
{{- end }}
{{- with .Values.image -}}
{{- if .digest }}{{ .repository }}@{{ .digest }}{{ else }}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end }}
{{- end }}

{{/* Host of the Service: the name that the certificate of web.tlsSecret is for. */}}
{{- define "llm-slo-prober.host" -}}
{{ include "llm-slo-prober.fullname" . }}.{{ .Release.Namespace }}.svc
{{- end }}

{{- define "llm-slo-prober.url" -}}
{{ ternary "https" "http" (ne .Values.web.tlsSecret "") }}://{{ include "llm-slo-prober.host" . }}:{{ int .Values.service.port }}
{{- end }}

{{/* Fields of a pod that say where it may run and what may pull its image. */}}
{{- define "llm-slo-prober.scheduling" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Requests and limits: those of the values over the chart's, which more than one replica has for a hundred targets each. */}}
{{- define "llm-slo-prober.resources" -}}
{{- $shard := dict "requests" (dict "cpu" "200m" "memory" "192Mi") "limits" (dict "memory" "768Mi") }}
{{- $single := dict "requests" (dict "cpu" "100m" "memory" "128Mi") "limits" (dict "memory" "256Mi") }}
{{- $resources := mergeOverwrite (ternary $shard $single (gt (int .Values.replicas) 1)) (default dict .Values.resources) }}
{{- range $amounts := $resources }}
{{- range $name, $amount := $amounts }}
{{- $_ := set $amounts $name (toJson $amount | trimAll "\"") }}{{/* a server-side apply may refuse a number */}}
{{- end }}
{{- end }}
{{- toYaml $resources }}
{{- end }}

{{/* Fields of the spec of the claim of a volume. */}}
{{- define "llm-slo-prober.claim" -}}
accessModes: [ReadWriteOnce]
{{- with .Values.persistence.storageClassName }}
storageClassName: {{ . | quote }}
{{- end }}
resources:
  requests: {storage: {{ .Values.persistence.size }}}
{{- end }}

{{/* Fields of a ServiceMonitor's or PodMonitor's spec about histograms. Called with the monitor's values. */}}
{{- define "llm-slo-prober.histograms" -}}
{{- range $field := list "scrapeNativeHistograms" "scrapeClassicHistograms" "convertClassicHistogramsToNHCB" }}
{{- if index $ $field }}
{{ $field }}: true
{{- end }}
{{- end }}
{{- if .convertClassicHistogramsToNHCB }}
scrapeProtocols: [OpenMetricsText1.0.0] # without exponential buckets, which Prometheus prefers
{{- end }}
{{- end }}

{{/* Fields of an endpoint of either monitor. Called with the monitor's values. */}}
{{- define "llm-slo-prober.scraping" -}}
path: /metrics
interval: {{ .interval }}
{{- with .scrapeTimeout }}
scrapeTimeout: {{ . }}
{{- end }}
{{- with .metricRelabelings }}
metricRelabelings:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* TLS and password with which Prometheus reads the pages. */}}
{{- define "llm-slo-prober.credentials" -}}
{{- with .Values.web.tlsSecret }}
tlsConfig:
  ca: {secret: {name: {{ . | quote }}, key: ca.crt}}
  serverName: {{ include "llm-slo-prober.host" $ }} # a name that the certificate has; the address is a pod's
{{- end }}
{{- with .Values.serviceMonitor.basicAuthSecret }}
basicAuth:
  username: {name: {{ . | quote }}, key: username}
  password: {name: {{ . | quote }}, key: password}
{{- end }}
{{- end }}
