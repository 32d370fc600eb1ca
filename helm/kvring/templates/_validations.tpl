{{- /* What the schema can't say. */ -}}
{{- define "kvring.validate" -}}
{{- if not .Values.config.pools }}
{{- fail "config.pools: name at least one pool, for example config.pools[0].kubernetes_service.service=vllm" }}
{{- end }}
{{- if and .Values.metrics.serviceMonitor.enabled .Values.metrics.podMonitor.enabled }}
{{- fail "metrics: serviceMonitor and podMonitor would count everything twice; enable one" }}
{{- end }}
{{- if and .Values.envoy.enabled (ne .Values.integration "none") }}
{{- fail "envoy.enabled: a pod with its own Envoy needs integration: none" }}
{{- end }}
{{- if and (hasPrefix "unix:" (dig "grpc_listen" "" .Values.config)) (ne .Values.integration "none") }}
{{- fail "config.grpc_listen: a gateway can't reach a Unix socket in another pod" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling: minReplicas is above maxReplicas" }}
{{- end }}
{{- end }}
