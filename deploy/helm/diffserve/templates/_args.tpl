{{/* The flags that the chart sets, as JSON pairs; one with an empty value is left out of the command. */}}
{{- define "diffserve.flags" -}}
{{- $v := .Values -}}
{{- $keys := ternary "/etc/diffserve/keys/api-keys" "" (ne (include "diffserve.keySecret" .) "") -}}
{{- $topic := default (printf "kv@$(POD_IP):%d@%s" (int $v.ports.http) $v.model.name) $v.kvEvents.topic -}}
{{- $events := $v.kvEvents.enabled -}}
{{- $disk := $v.kvCacheDisk -}}
{{- list
  (list "--served-model-name" $v.model.name)
  (list "--device" (ternary "cuda" "cpu" $v.gpu.enabled))
  (list "--host" $v.listenAddress)
  (list "--port" (toString (int $v.ports.http)))
  (list "--grpc-port" (toString (int $v.ports.grpc)))
  (list "--drain-timeout" (toString (int $v.drainSeconds)))
  (list "--api-key-file" $keys)
  (list "--kv-cache-dir" (ternary "/var/cache/diffserve" "" $disk.enabled))
  (list "--kv-cache-disk" (ternary (printf "%sB" $disk.size) "" $disk.enabled))
  (list "--kv-events-endpoint" (ternary (printf "tcp://*:%d" (int $v.kvEvents.port)) "" $events))
  (list "--kv-events-replay-endpoint" (ternary (printf "tcp://*:%d" (int $v.kvEvents.replayPort)) "" $events))
  (list "--kv-events-topic" (ternary $topic "" $events))
  | toJson -}}
{{- end -}}

{{- define "diffserve.ownFlags" -}}
{{- $names := list -}}
{{- range include "diffserve.flags" . | fromJsonArray -}}{{- $names = append $names (first .) -}}{{- end -}}
{{- toJson $names -}}
{{- end -}}

{{- define "diffserve.args" -}}
{{- $model := .Values.model -}}
{{- $named := dict "bundled" $model.bundledPath "hub" (printf "hf:%s" $model.hub.repository) -}}
{{- $args := list "serve" (default "/model" (get $named $model.source)) -}}
{{- range include "diffserve.flags" . | fromJsonArray -}}
{{- if last . -}}{{- $args = concat $args . -}}{{- end -}}
{{- end -}}
{{- concat $args .Values.extraArgs | toYaml -}}
{{- end -}}
