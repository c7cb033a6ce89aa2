{{- define "diffserve.fullname" -}}
{{- $full := ternary .Release.Name (printf "%s-%s" .Release.Name .Chart.Name) (contains .Chart.Name .Release.Name) -}}
{{- default $full .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "diffserve.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "diffserve.metadata" -}}
name: {{ include "diffserve.fullname" . }}
namespace: {{ .Release.Namespace }}
labels:
  {{- include "diffserve.selector" . | nindent 2 }}
  app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
  app.kubernetes.io/managed-by: {{ .Release.Service }}
  helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
  {{- with .Values.labels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/* llm-d's labels of a pod. A label's value has at most 63 letters, digits, `.`, `_` and `-`. */}}
{{- define "diffserve.llmDLabels" -}}
{{- with .Values.llmD -}}
{{- if .enabled -}}
{{- $model := regexReplaceAll "[^A-Za-z0-9._-]+" $.Values.model.name "-" | trunc 63 -}}
llm-d.ai/engine-type: vllm
llm-d.ai/inference-serving: "true"
llm-d.ai/model: {{ regexReplaceAll "^[._-]+|[._-]+$" $model "" | quote }}
llm-d.ai/role: {{ .role }}
{{- with .guide }}
llm-d.ai/guide: {{ quote . }}
{{- end }}
{{- if $.Values.gpu.enabled }}
llm-d.ai/accelerator-variant: gpu
llm-d.ai/accelerator-vendor: nvidia
{{- else }}
llm-d.ai/accelerator-variant: cpu
{{- end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "diffserve.image" -}}
{{- $built := printf "%s%s" .Chart.AppVersion (ternary "-cuda" "" .Values.gpu.enabled) -}}
{{ .Values.image.repository }}:{{ default $built .Values.image.tag }}
{{- end -}}

{{/* The Secret with the keys, or nothing if no key is asked for. */}}
{{- define "diffserve.keySecret" -}}
{{- if .Values.apiKeys.existingSecret.name -}}
{{ .Values.apiKeys.existingSecret.name }}
{{- else if .Values.apiKeys.keys -}}
{{ include "diffserve.fullname" . }}
{{- end -}}
{{- end -}}

{{/* What a schema of the values cannot say. */}}
{{- define "diffserve.check" -}}
{{- range .Values.extraArgs -}}
{{- $flag := regexFind "^--[^=]+" . -}}
{{- if has $flag (fromJsonArray (include "diffserve.ownFlags" $)) -}}
{{- fail (printf "extraArgs: the chart sets %s from its values; leave it out" $flag) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.kvCacheDisk.enabled .Values.gpu.enabled -}}
{{- fail "kvCacheDisk.enabled: the server keeps pages of the CPU backend only; gpu.enabled is true" -}}
{{- end -}}
{{- if and (eq .Values.model.source "image") (semverCompare "<1.31.0-0" .Capabilities.KubeVersion.Version) -}}
{{- fail (printf "model.source image needs Kubernetes 1.31 or newer, this is %s" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- end -}}
