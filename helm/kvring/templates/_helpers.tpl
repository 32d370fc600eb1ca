{{- define "kvring.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "kvring.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" }}
{{- else if contains (include "kvring.name" .) .Release.Name }}
{{- .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "kvring.name" .) | trunc 40 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "kvring.selector" -}}
app.kubernetes.io/name: {{ include "kvring.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kvring.labels" -}}
{{ include "kvring.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "kvring.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "kvring.fullname" .) .Values.serviceAccount.name }}
{{- else }}{{ default "default" .Values.serviceAccount.name }}{{ end }}
{{- end }}

{{- define "kvring.image" -}}
{{- with .Values.image }}{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ default $.Chart.AppVersion .tag }}{{ end }}{{ end }}
{{- end }}

{{- /* Port of a listen address of the configuration, with its default. */ -}}
{{- define "kvring.port" -}}
{{- $where := dig .key (printf "0.0.0.0:%d" (int .default)) .root.Values.config }}
{{- regexFind "[0-9]+$" $where }}
{{- end }}

{{- define "kvring.grpcPort" }}{{ include "kvring.port" (dict "root" . "key" "grpc_listen" "default" 9002) }}{{ end }}
{{- define "kvring.healthPort" }}{{ include "kvring.port" (dict "root" . "key" "health_listen" "default" 9003) }}{{ end }}
{{- define "kvring.adminPort" }}{{ include "kvring.port" (dict "root" . "key" "admin_listen" "default" 9090) }}{{ end }}

{{- /* Port of the TLS port, "" where the configuration opens none. */ -}}
{{- define "kvring.tlsPort" -}}
{{- if kindIs "map" .Values.config.tls }}
{{- regexFind "[0-9]+$" (default "0.0.0.0:9004" .Values.config.tls.listen) }}
{{- end }}
{{- end }}

{{- /* The Service's port that gateways ask at, and the name they verify. */ -}}
{{- define "kvring.askedPort" }}{{ .Values.tls.dial | ternary .Values.tls.port .Values.service.port }}{{ end }}
{{- define "kvring.tlsName" }}{{ default (include "kvring.host" .) .Values.tls.hostname }}{{ end }}

{{- /* Longest way out [s]: the preStop sleep, kvring's notice and drain, and some more. */ -}}
{{- define "kvring.grace" -}}
{{- $notice := dig "drain_notice_s" 3.0 .Values.config | float64 }}
{{- $drain := dig "drain_timeout_s" 10.0 .Values.config | float64 }}
{{- add (int .Values.preStopSleepSeconds) (ceil $notice | int) (ceil $drain | int) 10 }}
{{- end }}

{{- /* Namespace -> what the configuration reads there, as JSON. */ -}}
{{- define "kvring.sources" -}}
{{- $found := dict }}
{{- range .Values.config.pools }}
{{- with .kubernetes_service }}
{{- $namespace := default $.Release.Namespace .namespace }}
{{- $_ := set $found $namespace (merge (dict "slices" true) (default dict (get $found $namespace))) }}
{{- end }}
{{- with .inference_pool }}
{{- $namespace := default $.Release.Namespace .namespace }}
{{- $seen := default dict (get $found $namespace) }}
{{- $_ := set $found $namespace (merge (dict "pools" (append (default list $seen.pools) .name | uniq)) $seen) }}
{{- end }}
{{- end }}
{{- toJson $found }}
{{- end }}

{{- define "kvring.targetNamespace" }}{{ default .Release.Namespace .Values.target.namespace }}{{ end }}
{{- define "kvring.targetHost" }}{{ .Values.target.service }}.{{ include "kvring.targetNamespace" . }}.svc.cluster.local{{ end }}
{{- define "kvring.host" }}{{ include "kvring.fullname" . }}.{{ .Release.Namespace }}.svc.cluster.local{{ end }}

{{- /* override_host by metadata, the choice that no client can write; LEAST_REQUEST where kvring is silent. */ -}}
{{- define "kvring.overrideHost" -}}
policies:
  - typed_extension_config:
      name: envoy.load_balancing_policies.override_host
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.override_host.v3.OverrideHost
        override_host_sources:
          - metadata: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint}]}
        selected_host_key: {key: envoy.lb, path: [{key: x-gateway-destination-endpoint-served}]}
        fallback_policy:
          policies:
            - typed_extension_config:
                name: envoy.load_balancing_policies.least_request
                typed_config:
                  "@type": type.googleapis.com/envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest
{{- end }}

{{- define "kvring.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
