{{- define "diffserve.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end -}}

{{- define "diffserve.resources" -}}
{{- $resources := deepCopy .Values.resources -}}
{{- if .Values.gpu.enabled -}}
{{- $_ := set $resources "limits" (merge (dict .Values.gpu.resource 1) (default dict $resources.limits)) -}}
{{- end -}}
{{- toYaml $resources -}}
{{- end -}}

{{- define "diffserve.volumes" -}}
{{- with include "diffserve.keySecret" . }}
- name: api-keys
  secret:
    secretName: {{ . }}
    defaultMode: 0440
    items:
      - key: {{ $.Values.apiKeys.existingSecret.keysEntry }}
        path: api-keys
{{- end }}
{{- with .Values.model }}
{{- if eq .source "pvc" }}
- name: model
  persistentVolumeClaim: {claimName: {{ .pvc.claimName }}, readOnly: true}
{{- else if eq .source "image" }}
- name: model
  image:
    reference: {{ .image.reference }}
    pullPolicy: {{ .image.pullPolicy }}
{{- else if eq .source "initContainer" }}
- name: model
  emptyDir: {sizeLimit: {{ .initContainer.sizeLimit }}}
- name: tmp
  emptyDir: {}
{{- else if eq .source "hub" }}
- name: hub
  {{- with .hub.claimName }}
  persistentVolumeClaim: {claimName: {{ . }}}
  {{- else }}
  emptyDir: {sizeLimit: {{ .hub.sizeLimit }}}
  {{- end }}
{{- end }}
{{- end }}
{{- with .Values.kvCacheDisk }}
{{- if .enabled }}
- name: kv-cache
  {{- if eq .volume "pvc" }}
  persistentVolumeClaim: {claimName: {{ .pvc.claimName }}}
  {{- else }}
  # The kubelet evicts a pod that exceeds the limit; the server's notes beside the pages are small.
  emptyDir: {sizeLimit: {{ add 1 (trimSuffix "Gi" .size) }}Gi}
  {{- end }}
{{- end }}
{{- end }}
{{- end -}}
