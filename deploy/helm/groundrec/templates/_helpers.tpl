{{/* Names, labels and what several templates share. */}}

{{- define "groundrec.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "groundrec.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "groundrec.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "groundrec.selectorLabels" -}}
app.kubernetes.io/name: {{ include "groundrec.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "groundrec.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{ include "groundrec.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "groundrec.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "groundrec.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{/* A digest wins over a tag; a tag of the canary wins over the stable one's. */}}
{{- define "groundrec.image" -}}
{{- $image := .root.Values.image }}
{{- $digest := .overrides.digest | default (ternary "" $image.digest (ne (.overrides.tag | default "") "")) }}
{{- if $digest }}
{{- printf "%s@%s" $image.repository $digest }}
{{- else }}
{{- printf "%s:%s" $image.repository (.overrides.tag | default $image.tag | default .root.Chart.AppVersion) }}
{{- end }}
{{- end }}

{{/* Helm reads numbers as floats; 1e+07 is not what the service understands. */}}
{{- define "groundrec.settingValue" -}}
{{- if and (kindIs "float64" .) (eq (float64 (int64 .)) .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}
{{- end }}

{{/* preStop + drain + the longest request + margin, in whole seconds. */}}
{{- define "groundrec.gracePeriod" -}}
{{- $drain := .settings.drain_seconds | default 5 | float64 | ceil }}
{{- $items := .settings.items_timeout_ms | default 10000 | float64 }}
{{- $request := .settings.request_timeout_ms | default 2000 | float64 }}
{{- $longest := divf (maxf $items $request) 1000 | ceil }}
{{- int64 (addf .root.Values.shutdown.preStopSeconds $drain $longest 1 .root.Values.shutdown.marginSeconds) }}
{{- end }}

{{- define "groundrec.podSecurityContext" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "groundrec.securityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
privileged: false
capabilities:
  drop: [ALL]
{{- end }}

{{- define "groundrec.redisName" -}}
{{ include "groundrec.fullname" . }}-redis
{{- end }}

{{/* What no schema can say well: each message names the value and how to set it. */}}
{{- define "groundrec.validate" -}}
{{- $redis := .Values.redis }}
{{- if and (not $redis.bundled.enabled) (not $redis.existingSecret.name) }}
{{- fail "redis: name a Secret that holds the URL in redis.existingSecret.name, or set redis.bundled.enabled=true" }}
{{- end }}
{{- if and $redis.bundled.enabled $redis.existingSecret.name }}
{{- fail "redis: redis.existingSecret.name and redis.bundled.enabled=true exclude each other" }}
{{- end }}
{{- if and $redis.bundled.enabled (not $redis.bundled.existingSecret.name) }}
{{- fail "redis: name a Secret that holds the password in redis.bundled.existingSecret.name" }}
{{- end }}
{{- if and .Values.auth.enabled (not .Values.auth.existingSecret.name) }}
{{- fail "auth: name a Secret that holds the key file in auth.existingSecret.name, or set auth.enabled=false" }}
{{- end }}
{{- if and (eq .Values.autoscaling.type "keda") (not .Values.autoscaling.prometheusAddress) }}
{{- fail "autoscaling: type keda needs autoscaling.prometheusAddress" }}
{{- end }}
{{- if gt (int .Values.autoscaling.minReplicas) (int .Values.autoscaling.maxReplicas) }}
{{- fail "autoscaling: minReplicas is greater than maxReplicas" }}
{{- end }}
{{- if and .Values.traces.enabled (not (regexMatch "^https?://[^/:]+(:[0-9]+)?/?$" .Values.traces.endpoint)) }}
{{- fail "traces: set traces.endpoint to the collector's URL without a path, e.g. http://collector.observability:4318" }}
{{- end }}
{{- if and .Values.ingress.enabled (not .Values.ingress.host) }}
{{- fail "ingress: set ingress.host" }}
{{- end }}
{{- if and .Values.gateway.enabled (not .Values.gateway.parentRef.name) }}
{{- fail "gateway: name your Gateway in gateway.parentRef.name" }}
{{- end }}
{{- end }}

{{/* The port of the trace collector, for the network policy. */}}
{{- define "groundrec.tracesPort" -}}
{{- $endpoint := trimSuffix "/" .Values.traces.endpoint }}
{{- if regexMatch ":[0-9]+$" $endpoint }}{{ regexFind "[0-9]+$" $endpoint }}{{ else }}{{ ternary 443 80 (hasPrefix "https:" $endpoint) }}{{ end }}
{{- end }}

{{- define "groundrec.validateCheckpoint" -}}
{{- if and (eq .source "pvc") (not .pvc.claimName) }}
{{- fail "checkpoint: source pvc needs checkpoint.pvc.claimName" }}
{{- end }}
{{- if and (eq .source "objectStore") (not .objectStore.url) }}
{{- fail "checkpoint: source objectStore needs checkpoint.objectStore.url" }}
{{- end }}
{{- if and (eq .source "image") (not .image.reference) }}
{{- fail "checkpoint: source image needs checkpoint.image.reference" }}
{{- end }}
{{- end }}
