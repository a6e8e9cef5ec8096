{{/*
The prober beside an engine, for the pod of the engine's own chart. Each is called with the chart's own context:
  labels:         {{- include "llm-slo-prober.sidecar.labels" . | nindent 8 }}
  annotations:    {{- include "llm-slo-prober.sidecar.annotations" . | nindent 8 }}
  initContainers: {{- include "llm-slo-prober.sidecar" . | nindent 8 }}
  volumes:        {{- include "llm-slo-prober.sidecar.volumes" . | nindent 8 }}
and, in a file of its own, the configuration:
  {{ include "llm-slo-prober.sidecar.configmap" . }}
The container is that of deploy/kustomize/components/sidecar, which says why it is as it is; a test compares them.
*/}}
{{/* Name of the ConfigMap: RELEASE-CHART-llm-slo-prober, without CHART, the engine's, if RELEASE contains it. */}}
{{- define "llm-slo-prober.sidecar.name" -}}
{{- $engine := contains .Chart.Name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) -}}
{{ $engine | trunc 48 | trimSuffix "-" }}-llm-slo-prober
{{- end }}

{{/* The library's values in the engine's chart, as YAML. */}}
{{- define "llm-slo-prober.sidecar.values" -}}
{{- if not (hasKey .Values "llm-slo-prober-sidecar") }}
{{- fail "llm-slo-prober-sidecar: no values of this name: write the dependency llm-slo-prober-sidecar in Chart.yaml without alias, and its values under llm-slo-prober-sidecar" }}
{{- end }}
{{- index .Values "llm-slo-prober-sidecar" | toYaml }}
{{- end }}

{{/* The PodMonitor finds the pod by this label. */}}
{{- define "llm-slo-prober.sidecar.labels" -}}
llm-slo-prober/sidecar: "true"
{{- end }}

{{/* Else the cluster autoscaler never moves the engine, for the sake of what the sidecar has learnt. */}}
{{- define "llm-slo-prober.sidecar.annotations" -}}
cluster-autoscaler.kubernetes.io/safe-to-evict-local-volumes: llm-slo-prober-storage
{{- end }}

{{- define "llm-slo-prober.sidecar" -}}
{{- $values := include "llm-slo-prober.sidecar.values" . | fromYaml }}
{{- if not (dig "config" "targets" list $values) }}
{{- fail "llm-slo-prober-sidecar.config.targets: needed: at least the engine, such as [{url: \"http://localhost:8000\"}]" }}
{{- end }}
{{- if not $values.image.repository }}
{{- fail "llm-slo-prober-sidecar.image.repository: needed: the image of the prober, with your registry before it" }}
{{- end }}
{{- range $values.extraArgs }}
{{- if regexMatch "^--(config\\.file|keep-running|storage\\.path|web\\.listen-address)(=|$)" . }}
{{- fail (printf "llm-slo-prober-sidecar.extraArgs: remove %s: the sidecar has it, or depends on its default" .) }}
{{- end }}
{{- end }}
{{- if semverCompare "<1.28-0" .Capabilities.KubeVersion.Version }}
{{- fail (printf "llm-slo-prober.sidecar: native sidecars need Kubernetes 1.29, or 1.28 with the feature gate SidecarContainers; this is rendered for %s. Without a cluster give helm template --kube-version=1.29; for an older cluster take deploy/kustomize/components/sidecar-classic" .Capabilities.KubeVersion.Version) }}
{{- end -}}
- name: llm-slo-prober
  {{- with $values.image }}
  {{- if .digest }}
  image: {{ .repository }}@{{ .digest }}
  {{- else }}
  image: {{ .repository }}:{{ .tag | default (index $.Subcharts "llm-slo-prober-sidecar").Chart.AppVersion }}
  {{- end }}
  {{- with .pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  {{- end }}
  restartPolicy: Always
  args:
    - run
    - --keep-running
    - --config.file=/etc/prober/prober.yaml
    - --storage.path=/var/lib/prober
    - --storage.max-size=56M
    {{- range $values.extraArgs }}
    - {{ . | quote }}
    {{- end }}
  env:
    - name: POD_NAME
      valueFrom: {fieldRef: {fieldPath: metadata.name}}
    - name: POD_NAMESPACE
      valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
    - name: POD_WORKLOAD
      valueFrom: {fieldRef: {fieldPath: "metadata.labels['{{ $values.workloadLabel }}']"}}
    - {name: NVIDIA_VISIBLE_DEVICES, value: all}
    - {name: NVIDIA_DRIVER_CAPABILITIES, value: utility}
    {{- with $values.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $values.extraEnvFrom }}
  envFrom:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  lifecycle: {preStop: {exec: {command: [python, -m, prober, drain]}}}
  ports:
    - {name: llm-slo-prober, containerPort: 9742}
  resources:
    {{- toYaml $values.resources | nindent 4 }}
  securityContext:
    runAsNonRoot: true
    {{- with $values.runAsUser }}
    runAsUser: {{ int64 . }}
    {{- end }}
    runAsGroup: 65532
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
    - {name: llm-slo-prober-config, mountPath: /etc/prober, readOnly: true}
    - {name: llm-slo-prober-storage, mountPath: /var/lib/prober}
    - {name: llm-slo-prober-tmp, mountPath: /tmp}
    - {name: llm-slo-prober-no-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
    {{- range $values.extraSecretMounts }}
    - {name: {{ .name | quote }}, mountPath: {{ .mountPath | quote }}, readOnly: true}
    {{- end }}
    {{- with $values.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "llm-slo-prober.sidecar.volumes" -}}
{{- $values := include "llm-slo-prober.sidecar.values" . | fromYaml -}}
- name: llm-slo-prober-config
  configMap: {name: {{ include "llm-slo-prober.sidecar.name" . }}}
- name: llm-slo-prober-storage
  emptyDir: {sizeLimit: 64Mi}
- name: llm-slo-prober-tmp
  emptyDir: {medium: Memory, sizeLimit: 16Mi}
- name: llm-slo-prober-no-token
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- range $values.extraSecretMounts }}
- name: {{ .name | quote }}
  secret: {secretName: {{ .secretName | quote }}} # readable by every user, as the engine's pod may have no group for it
{{- end }}
{{- with $values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "llm-slo-prober.sidecar.configmap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ include "llm-slo-prober.sidecar.name" . }}
  labels:
    app.kubernetes.io/name: llm-slo-prober
    app.kubernetes.io/instance: {{ .Release.Name | quote }}
data:
  prober.yaml: |
    {{- toYaml (include "llm-slo-prober.sidecar.values" . | fromYaml).config | nindent 4 }}
{{- end }}
