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
{{- $opened := include "kvring.tlsPort" . }}
{{- if and .Values.tls.dial (not $opened) }}
{{- fail "tls.dial: the configuration opens no TLS port; set config.tls (config.tls: {} for a self-signed certificate)" }}
{{- end }}
{{- if and .Values.tls.secret (not (hasPrefix "/etc/kvring-tls/" (dig "certificate_file" "" (default dict .Values.config.tls)))) }}
{{- fail "tls.secret: is mounted at /etc/kvring-tls, but config.tls.certificate_file names no file there" }}
{{- end }}
{{- if and (not .Values.tls.secret) (hasPrefix "/etc/kvring-tls/" (dig "certificate_file" "" (default dict .Values.config.tls))) }}
{{- fail "config.tls.certificate_file: nothing is mounted at /etc/kvring-tls; set tls.secret" }}
{{- end }}
{{- if and .Values.tls.dial (not .Values.tls.ca) (eq .Values.integration "istio") .Values.config.tls.client_ca_file }}
{{- fail "tls.ca: kvring wants a certificate of the gateway (config.tls.client_ca_file); name its Secret" }}
{{- end }}
{{- if and .Values.tls.dial (not .Values.tls.ca) (eq .Values.integration "envoy-gateway") }}
{{- fail "tls.ca: Envoy Gateway verifies what it dials with TLS; name a ConfigMap with ca.crt" }}
{{- end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas)) }}
{{- fail "autoscaling: minReplicas is above maxReplicas" }}
{{- end }}
{{- end }}
